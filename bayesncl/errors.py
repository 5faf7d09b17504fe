"""The one exception that is meant for a person."""


class InputError(ValueError):
    """Something the user gave cannot be used. The message is one line; the commands print it and exit with status 2."""
