"""InputError, the one exception meant for users, and the functions that write messages."""

import importlib
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class InputError(ValueError):
    """The user's input cannot be used.

    The message is one line: unprintable characters, as file names may have, are escaped. Commands
    print it and exit with status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(escape_unprintable(message.replace("\n", " ")))


def escape_unprintable(text: str) -> str:
    r"""Text in which unprintable characters are Python escapes such as \x1b and \udcff."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable(text: str, length: int = 80) -> str:
    """Text that is safe to print and to store as UTF-8, cut to `length` characters.

    Backslashes are escaped too, so different texts stay different.
    """
    if len(text) > length:
        text = text[: length - 1] + "…"
    return escape_unprintable(text.replace("\\", r"\\"))[: 2 * length]


def first_line(error: BaseException) -> str:
    """The message of an error on one line of at most 200 characters; of an OSError, the reason."""
    text = getattr(error, "strerror", None) or str(error)
    return printable(" ".join(text.split()), 200) or type(error).__name__


def import_extra(module: str, missing: str) -> Any:
    """Import a module of an optional extra; raise InputError(missing) if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(missing) from None
    except Exception as error:  # torchvision raises RuntimeError beside another build of torch
        why = f"{first_line(error)} (is it built for this torch?)"
        raise InputError(f"{module} cannot be imported: {why}") from None


@contextmanager
def as_input_error(what: object, *kinds: type[BaseException]) -> Iterator[None]:
    """Turn exceptions of these kinds (default OSError) into InputError("what: reason")."""
    caught = kinds or (OSError,)
    try:
        yield
    except InputError:
        raise
    except caught as error:
        raise InputError(f"{what}: {first_line(error)}") from None


def wrap(text: str, width: int = 80, first: str = "", later: str = "") -> str:
    """Text in lines of `width` columns that begin with `first` and `later`.

    Long words, such as paths, and numbers with a percent sign stay in one piece.
    """
    fill = textwrap.TextWrapper(width, first, later, break_long_words=False, break_on_hyphens=False)
    return fill.fill(text.replace(" %", "\0%")).replace("\0", " ")


def print_message(message: str) -> None:
    """Print a message to stderr, escaped, on one line or wrapped between words on a terminal."""
    text = "bayesncl: " + escape_unprintable(" ".join(message.split()))
    if sys.stderr.isatty():
        text = wrap(text, shutil.get_terminal_size().columns)
    print(text, file=sys.stderr, flush=True)
