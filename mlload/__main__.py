"""`python -m mlload` and the console script."""

from __future__ import annotations

import sys


def main() -> None:
    from mlload.cli.app import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
