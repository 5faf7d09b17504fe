"""Let mkdocstrings read short docstrings.

In this code a parameter may be `name : what it is.` in one line. numpydoc would take the sentence
for a type. Here it becomes the description, and the type comes from the signature.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Parameters|Attributes|Returns)\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", re.M | re.S)
ITEM = re.compile(r"^(\S[^\n]*?)(?: ?: ([^\n]*))?\n((?: +[^\n]*\n|\n)*)", re.M)


class ShortDocstrings(griffe.Extension):
    """Rewrite docstrings before they are parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the sections of one docstring."""
        if obj.docstring is None:
            return
        returns = str(getattr(obj, "returns", None) or getattr(obj, "annotation", None) or "")

        def rewrite(found: re.Match[str]) -> str:
            name, body = found[1], found[2].rstrip() + "\n"
            if name == "Returns":
                first, _, more = body.partition("\n")
                typed = more.startswith(" ") or is_type(first, body)
                body = body if typed else f"{returns}\n{indent(body)}"
            else:
                body = ITEM.sub(rewrite_item, body)
            return f"{name}\n{'-' * len(name)}\n{body}\n"

        obj.docstring.value = SECTION.sub(rewrite, obj.docstring.value + "\n").strip()


def rewrite_item(found: re.Match[str]) -> str:
    """Move a sentence in the place of a type to the description."""
    names, words, more = found[1], found[2] or "", found[3] or ""
    if not words or is_type(words, words + "\n" + more):
        return found[0]
    return f"{names}\n{indent(words)}{more}"


def is_type(words: str, whole: str) -> bool:
    """Return whether a line is a type and not the start of a sentence."""
    following = whole.partition("\n")[2].lstrip()
    runs_on = bool(following) and following[0].islower()
    return len(words) < 60 and not re.search(r"[.;:]$|; ", words) and not runs_on


def indent(text: str) -> str:
    """Indent every line by four spaces."""
    return "".join(f"    {line.strip()}\n" for line in text.strip().split("\n"))
