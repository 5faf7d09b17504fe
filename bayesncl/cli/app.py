"""The command line: the app with its commands, and how errors are reported."""

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from bayesncl import __version__
from bayesncl.cli import codes, common, evaluate, train
from bayesncl.errors import InputError, as_input_error, print_message

COMMANDS = (
    train.demo,
    codes.fit, codes.embed, codes.export,
    codes.atlas, codes.quiz, codes.audit, codes.find, codes.compare, codes.explain, codes.names,
    evaluate.evaluate, evaluate.measure,
    train.recipes, train.train, train.resume, train.views, train.download,
    evaluate.reproduce, evaluate.record, evaluate.cost,
)  # fmt: skip
FORMER_OPTIONS = {"dim": "components", "keep": "active"}  # accepted, not shown in the help


class Command(TyperCommand):
    """A command whose help calls an argument SOURCE, not {SOURCE} or SOURCE <path>."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                vars(parameter)["display_type_rich"] = lambda ctx: None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


app = typer.Typer(
    help="Sparse, nameable features from any image encoder.\n\nStart with `bayesncl demo`. "
    "`fit` turns photos or embeddings into codes; `train` trains an encoder and writes a run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"token_normalize_func": lambda name: FORMER_OPTIONS.get(name, name)},
)
for command in COMMANDS:
    app.command(cls=Command)(command)


@app.callback(invoke_without_command=True)
def start(
    version: bool = common.flag("--version", "Show the version and exit."),
    modules: list[str] | None = common.opt(
        "MODULE", "Import a module with your gates, heads or datasets.", "--import"
    ),
) -> None:  # no docstring: it would replace the help of the app
    if version:
        print(__version__)
        raise typer.Exit
    common.MODULES[:] = modules or []
    if modules:
        sys.path.insert(0, "")  # modules in the current folder
    for name in modules or []:
        if name.endswith(".py"):
            raise InputError(f"--import {name}: expected a module name, such as {Path(name).stem}")
        with as_input_error(f"--import {name}", ImportError):
            importlib.import_module(name)


def main() -> None:
    """Run a command. Errors that a user can mend are one line on stderr and an exit status."""
    warnings.showwarning = lambda message, *_, **__: print_message(f"note: {message}")
    try:
        app()  # leaves by SystemExit
    except InputError as error:
        message, status = str(error), 2
    except KeyboardInterrupt:
        message, status = "stopped", 130
    except MemoryError:
        message, status = "out of memory", 1
    except OSError as error:
        message, status = f"{error.filename or 'i/o'}: {error.strerror or error}", 1
    print_message(message)
    sys.exit(status)
