"""Arguments and options of several commands, and the display.

Heavy modules are imported inside the commands, so that `bayesncl --help` does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesncl.errors import InputError
from bayesncl.io import check_output_file, check_output_folder

if TYPE_CHECKING:
    from bayesncl.progress import Display


def arg(metavar: str, help: str) -> Any:
    """A positional argument."""
    return typer.Argument(metavar=metavar, help=help)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=help)


def opt(metavar: str, help: str, *names: str, **rules: Any) -> Any:
    """An option with a value; its name is the parameter's unless `names` are given."""
    return typer.Option(*names, metavar=metavar, help=help, **rules)


def out_file(metavar: str, help: str, *names: str) -> Any:
    """An option for a file to write, checked before the work starts."""
    return opt(metavar, help, *names, callback=check_output_file)


def out_table(help: str, *names: str) -> Any:
    """An option for a table to write, .csv or .parquet, checked before the work starts."""

    def check(path: Path | None) -> Path | None:
        if path is not None:
            from bayesncl.codes.table import check_table

            check_table(path)
        return path

    return opt("FILE", help, *names, callback=check)


def out_folder(help: str, *names: str) -> Any:
    """An option for a folder to write, checked before the work starts."""
    return opt("DIR", help, *names, callback=check_output_folder)


RecipeName = Annotated[str, arg("RECIPE", "A name (see `bayesncl recipes`) or a recipe.json.")]
RunDir = Annotated[Path, arg("RUN", "A run folder.")]
Trained = Annotated[Path, arg("RUN", "A run folder, a model file, or codes from `fit`.")]
DataDir = Annotated[str | None, opt("DIR", "Folder with the images.", "--data")]
Changes = Annotated[
    list[str] | None, opt("PART.FIELD=VALUE", "Change a field of the recipe. Repeatable.", "--set")
]
Device = Annotated[str, opt("NAME", "auto, cpu, cuda, cuda:N or mps.")]
Quiet = Annotated[bool, flag("--quiet", "Show warnings and results only.")]
Active = Annotated[int | None, opt("N", "Keep only the N strongest dimensions per image.", min=1)]
EncoderAgain = Annotated[
    str | None, opt("MODULE:FUNCTION", "The function given to `fit --encoder`.", "--encoder")
]
Json = Annotated[Path | None, out_file("FILE", "Write the results as JSON.")]
Csv = Annotated[Path | None, out_file("FILE", "Write the results as CSV.")]
Markdown = Annotated[Path | None, out_file("FILE", "Write a Markdown table.")]
PaperProbe = Annotated[
    bool, flag("--paper-probe", "Add the paper's 50-epoch linear probe (minutes).")
]
Background = Annotated[str | None, opt("DIR", "Add background probes on this Waterbirds-like set.")]
Everything = Annotated[bool, flag("--all", "Print every measure after the verdict.")]

MODULES: list[str] = []  # imported by `--import`; commands that are suggested need them too


def open_display(quiet: bool = False) -> Display:
    """Start the display; the import of torch that follows takes seconds."""
    from bayesncl.progress import Display

    display = Display(quiet, " ".join(["bayesncl", *(f"--import {name}" for name in MODULES)]))
    display.busy("starting")
    return display


def refuse_for_codes(codes: Path, **given: Any) -> None:
    """Raise InputError for options that do not apply to codes."""
    for name, value in given.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} does not apply to codes such as {codes}")


@contextmanager
def stoppable(display: Display, stop: type[BaseException], message: str = "{}") -> Iterator[None]:
    """Within: `stop` ends the command with status 130 and a message that says how to continue."""
    try:
        yield
    except stop as error:
        display.note(message.format(error))
        raise typer.Exit(130) from None
    finally:
        display.close()
