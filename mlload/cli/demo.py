"""`mlload demo`: a small, complete checkpoint to try the other commands on, with no network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlload.cli.output import Output
from mlload.cli.quantities import size


def command(
    ctx: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Folder to write; must not exist yet, or be empty.")
    ] = Path("mlload-demo"),
) -> None:
    """Write a small, complete checkpoint to try things on."""
    from mlload.demo import write_demo

    out: Output = ctx.obj
    written = write_demo(folder)
    files = sorted(path for path in Path(written).iterdir() if path.is_file())
    out.print(f"wrote {len(files)} files, {size(sum(path.stat().st_size for path in files))}, to {written}")
    out.note(f"try: mlload inspect {written}")
    out.note(f"     mlload validate {written} --tp 1,2,3")
