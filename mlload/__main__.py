"""`python -m mlload` and the console script."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    # A large checkpoint is half a million small objects that live to the end: the collector would walk them
    # time and again, and the interpreter take them apart one by one before it ends.
    gc.set_threshold(200_000, 50, 100)
    try:
        from mlload.cli.app import main as run
        from mlload.cli.output import Output

        out = Output.from_environment()
        code = run(out=out)
    except KeyboardInterrupt:  # before the command line could say so itself
        sys.exit(130)
    # A rank of torchrun ends at once too: the threads of process groups may abort an interpreter that is taken apart.
    if (out.kept and "torch" not in sys.modules) or "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
