"""One rank's process: `python -m mlload.engine.rank FOLDER`, which `launch` starts once for each rank.

FOLDER holds settings.json, and expected.json where there is something to compare with. The rank leaves
rank-N.json there (its result), or rank-N.error (a sentence, and whether it is one of
ours); progress-N holds its last line of progress.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from mlload.checkpoint.finding import MlloadError


def main(folder: Path) -> int:
    """The rank that RANK and WORLD_SIZE say; its exit code."""
    rank = int(os.environ["RANK"])
    try:
        from mlload.engine.run import run_rank
        from mlload.engine.settings import Settings

        settings = Settings.of((folder / "settings.json").read_text())
        expected = folder / "expected.json"
        with joined(settings.device, f"file://{folder / 'store'}") as group:
            result = run_rank(
                settings,
                group,
                lambda line: write(folder / f"progress-{rank}", line),
                json.loads(expected.read_text()) if expected.exists() else None,
            )
        write(folder / f"rank-{rank}.json", json.dumps(result))
        return 0
    except MlloadError as error:
        write(folder / f"rank-{rank}.error", json.dumps([error.message, error.hint, error.exit_code, True]))
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if os.environ.get("MLLOAD_DEBUG") == "1":
            raise
        write(folder / f"rank-{rank}.error", json.dumps([f"{type(error).__name__}: {error}", None, 3, False]))
        return 1


def write(path: Path, text: str) -> None:
    """Whole or not at all: the other side may read at any time."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text)
    beside.replace(path)


class joined:
    """Joins the ranks in torch.distributed while entered; alone where WORLD_SIZE is 1 or not set."""

    def __init__(self, device: str, init_method: str = "env://") -> None:
        self.device = device
        self.init_method = init_method

    def __enter__(self):  # type: ignore[no-untyped-def]  # Group needs torch, which a light import must not
        from mlload.quant.layers.group import Group

        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.size = size
        if size > 1:
            import datetime

            import torch
            import torch.distributed as dist

            if self.device == "cuda":
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
            dist.init_process_group(
                "nccl" if self.device == "cuda" else "gloo",
                init_method=self.init_method,
                rank=rank,
                world_size=size,
                timeout=datetime.timedelta(minutes=30),
            )
        return Group(rank, size)

    def __exit__(self, *_: object) -> None:
        if self.size > 1:
            import torch.distributed as dist

            dist.destroy_process_group()


def end_with_parent() -> None:
    """A rank whose starter was killed would wait for the others for ever."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    end_with_parent()
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # The threads of process groups may abort an interpreter that is taken apart.
    os._exit(code)
