"""The one exception that is meant for a person, what raises it, and how messages are written."""

import importlib
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one line; the commands print it and exit with status 2."""


def import_extra(module: str, missing: str) -> Any:
    """A module of an extra; where it is not installed, an InputError that says `missing`."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(missing) from None
    except Exception as error:  # timm imports torchvision, which raises a RuntimeError beside another build of torch
        raise InputError(f"{module} cannot be imported: {first_line(error)} (is it built for this torch?)") from None


def printable(text: str, length: int = 80) -> str:
    """`text` fit for a terminal and for UTF-8 files: unprintable characters escaped, cut to `length`.

    Backslashes are escaped too, so that texts that differ stay different.
    """
    if len(text) > length:
        text = text[: length - 1] + "…"
    if text.isprintable() and "\\" not in text:
        return text
    # Escapes as Python writes them, without the quotes: \x1b, \n, \udcff (a byte of a name that is not UTF-8).
    return "".join(c if c.isprintable() and c != "\\" else ascii(c)[1:-1] for c in text)[: 2 * length]


def shown(path: object) -> str:
    """A path as messages name it."""
    return printable(str(path), 300)


def first_line(error: BaseException) -> str:
    """An error in at most 200 characters of one line."""
    return printable(" ".join(str(error).split()), 200) or type(error).__name__


@contextmanager
def or_refuse(what: str, *kinds: type[BaseException]) -> Iterator[None]:
    """Within: errors of these kinds (default OSError) become an InputError that says `what`, and then why."""
    caught = kinds or (OSError,)
    try:
        yield
    except InputError:
        raise
    except caught as error:
        raise InputError(f"{what}: {getattr(error, 'strerror', None) or first_line(error)}") from None


def say(message: str) -> None:
    """One line on stderr; a terminal that is too narrow for it gets it broken between words."""
    text = f"bayesncl: {one_line(message)}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr, flush=True)


def one_line(message: str) -> str:
    """A message in one line with nothing that a terminal would obey: names come from strangers' files."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
