"""The one exception that is meant for a person; and what raises it where an optional package is not installed."""

import importlib
from typing import Any


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one line; the commands print it and exit with status 2."""


def import_extra(module: str, missing: str) -> Any:
    """A module of an extra; where it is not installed, an InputError that says `missing`."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(missing) from None
