"""Small inline HTML for notebooks: pictures as data URIs, no server, texts of others escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

from bayesncl.data.pixels import read_picture
from bayesncl.errors import InputError, printable

SIDE = 96  # pixels of the longer side of a picture
CELL = "display:inline-block;width:100px;margin:2px;vertical-align:top;overflow-wrap:anywhere"
TEXT = "font-size:11px;line-height:1.2"

Cell = tuple[Image.Image | Path | None, str]  # a picture, if there is one, and its caption


@dataclass(frozen=True)
class Html:
    """A piece of HTML that a notebook shows; `html` is its source."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


def data_uri(picture: Image.Image | Path) -> str | None:
    """A picture as a small JPEG inside a URI; None if it cannot be read."""

    def shrink(image: Image.Image) -> bytes:
        small = image.copy()
        small.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=85)
        return buffer.getvalue()

    try:
        data = base64.b64encode(read_picture(picture, shrink, SIDE)).decode()
    except InputError:
        return None
    return f"data:image/jpeg;base64,{data}"


def gallery(title: str, cells: Sequence[Cell]) -> str:
    """HTML of a title over pictures with captions."""
    parts = [f"<div><b>{escape(printable(title, 200))}</b></div>"]
    for picture, caption in cells:
        uri = None if picture is None else data_uri(picture)
        image = "" if uri is None else f'<img src="{uri}" alt=""><br>'
        text = escape(printable(caption, 200))
        parts.append(f'<div style="{CELL}">{image}<span style="{TEXT}">{text}</span></div>')
    return "\n".join(parts)
