"""`mlload demo`: a small, complete checkpoint to try the other commands on, with no network."""

from __future__ import annotations

from pathlib import Path

import click

from mlload.cli.output import Output
from mlload.cli.quantities import size


@click.command()
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default="mlload-demo")
@click.pass_obj
def command(out: Output, folder: Path) -> None:
    """Write a small, complete checkpoint to try things on.

    A few MB, always the same. The folder (mlload-demo) must not exist yet, or be empty.
    """
    from mlload.demo.checkpoint import write_demo

    write_demo(folder)
    files = [path for path in folder.iterdir() if path.is_file()]
    out.print(f"wrote {len(files)} files, {size(sum(path.stat().st_size for path in files))}, to {folder}")
    out.note(f"try: mlload inspect {folder}")
    out.note(f"     mlload validate {folder} --tp 1,2,3")
