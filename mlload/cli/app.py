"""The command line: which subcommands there are, and how any error reaches the person who typed.

Only the module of the subcommand that was typed is imported, so `mlload inspect` never pays for
what `mlload load-test` needs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from mlload import __version__
from mlload.checkpoint.finding import MlloadError
from mlload.cli.output import Output

# In the order in which somebody meets a checkpoint. "load-test" lives in mlload.cli.load_test.
COMMANDS = ("inspect", "validate", "rules", "demo")

EPILOG = "SOURCE may be left out where the current folder is a checkpoint."


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"mlload {__version__}")
        raise typer.Exit


def build(names: tuple[str, ...] = COMMANDS) -> typer.Typer:
    """An app with the named subcommands; each module offers `command`, whose docstring is the help."""
    app = typer.Typer(
        name="mlload",
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        epilog=EPILOG,
    )

    @app.callback()
    def mlload(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
        ] = False,
    ) -> None:
        """Will this checkpoint start, on this engine, at this size? Look, ask, prepare, load."""

    for name in names:
        app.command(name)(import_module(f"mlload.cli.{name.replace('-', '_')}").command)
    return app


def main(args: list[str] | None = None) -> int:
    """Carry out one command line and return its exit code; no exception leaves this function."""
    out = Output.from_environment()
    try:
        code = run(sys.argv[1:] if args is None else args, out)
        out.close()
    except BrokenPipeError:
        return out.abandon()
    return code


def run(words: list[str], out: Output) -> int:
    typed = next((word for word in words if not word.startswith("-")), "")
    try:
        app = build((typed,) if typed in COMMANDS else COMMANDS)
        if typed == "inspect":
            words = import_module("mlload.cli.inspect").complete(words)
        code = app(args=words or ["--help"], prog_name="mlload", standalone_mode=False, obj=out)
        return code if isinstance(code, int) else 0
    except MlloadError as error:
        out.error(error.message, error.hint)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        out.error("interrupted")
        return 130
    except Exception as error:
        usage = getattr(error, "format_message", None)  # Typer's own errors of usage, under any of its versions
        if usage is not None:
            out.error(*usage_error(usage(), typed))
            return 2
        if os.environ.get("MLLOAD_DEBUG") == "1":
            raise
        out.error(f"internal error: {type(error).__name__}: {error}", "MLLOAD_DEBUG=1 shows the traceback")
        return 3


def usage_error(message: str, typed: str) -> tuple[str, str]:
    """The sentence and what to type next, for a command line that Typer does not understand."""
    if typed in COMMANDS:
        return message, f"mlload {typed} --help"
    if typed and os.path.exists(typed):
        return f"{typed} is not a command", f"mlload inspect {typed}"
    return message, "mlload --help"
