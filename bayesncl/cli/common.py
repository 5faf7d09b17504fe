"""Arguments and options of several commands, and the display.

Heavy modules are imported inside the commands, so that `bayesncl --help` does not wait for torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bayesncl.errors import InputError
from bayesncl.io import check_output_file, check_output_folder

if TYPE_CHECKING:
    from bayesncl.progress import Display

MODULES: list[str] = []  # imported by `--import`; commands that are suggested need them too


def arg(metavar: str, help: str, default: Any = ...) -> Any:
    """A positional argument; required unless a default is given."""
    return typer.Argument(default, metavar=metavar, help=help)


def flag(name: str, help: str, default: bool | None = False) -> Any:
    """An option without a value."""
    return typer.Option(default, name, help=help)


def opt(metavar: str, help: str, *names: str, default: Any = None, **rules: Any) -> Any:
    """An option with a value; its name is the parameter's unless `names` are given."""
    return typer.Option(default, *names, metavar=metavar, help=help, **rules)


def out_file(metavar: str, help: str, *names: str, default: Path | None = None) -> Any:
    """An option for a file to write, checked before the work starts."""
    return opt(metavar, help, *names, default=default, callback=check_output_file)


def out_folder(help: str, *names: str, default: Path | None = None) -> Any:
    """An option for a folder to write, checked before the work starts."""
    return opt("DIR", help, *names, default=default, callback=check_output_folder)


def choose_device(name: str) -> str:
    """Compute everything on this device, measures included."""
    if name != "auto":
        from bayesncl.device import set_default_device

        set_default_device(name)
    return name


RECIPE = arg("RECIPE", "A name (see `bayesncl recipes`) or a recipe.json.")
RUN = arg("RUN", "A run folder.")
CODES = arg("CODES", "A folder from `bayesncl fit`.")
TRAINED = arg("MODEL", "A run folder, a model file, or codes from `fit`.")
DATA = opt("DIR", "Folder with the images.", "--data")
CHANGES = opt(
    "PART.FIELD=VALUE", "Change a recipe field; see `bayesncl recipes RECIPE`. Repeatable.", "--set"
)
DEVICE = opt("NAME", "auto, cpu, cuda, cuda:N or mps.", default="auto", callback=choose_device)
QUIET = flag("--quiet", "Show warnings and results only.")
ACTIVE = opt("N", "Keep only the N strongest dimensions per image.", min=1)
ENCODER_AGAIN = opt(
    "MODULE:FUNCTION", "Required for codes fitted with --encoder MODULE:FUNCTION.", "--encoder"
)
JSON = out_file("FILE", "Write the results as JSON.")
CSV = out_file("FILE", "Write the results as CSV.")
MARKDOWN = out_file("FILE", "Write the results as a Markdown table.")
PAPER_PROBE = flag("--paper-probe", "Add the paper's 50-epoch linear probe (takes minutes).")
BACKGROUND = opt("DIR", "Add background probes on a dataset like Waterbirds.")
EVERYTHING = flag("--all", "Print every measure after the verdict.")


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
