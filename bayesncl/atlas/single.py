"""Pack an atlas into one HTML file that opens from disk."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from pathlib import Path

from PIL import Image

SMALL_QUALITY = 60  # of JPEG


def pack(folder: Path, small: bool = False) -> bytes:
    """The atlas in `folder` as one HTML file; `small` without large pictures, for mail.

    Data and pictures become script elements that no browser runs. The policy of the page allows the
    one script and the one style sheet by their hashes.
    """
    script, style = ((folder / f"atlas.{kind}").read_text("utf-8") for kind in ("js", "css"))
    blocks = [
        f'<script type="application/json" id="data/{path.stem}">[{_arguments(path)}]</script>'
        for path in sorted((folder / "data").iterdir())
        if path.stem != "root"  # the folder of the photos is nobody else's business
    ]
    kinds = ("sprites", "check", "new", *(() if small else ("large",)))
    for path in sorted(path for kind in kinds for path in (folder / kind).glob("*")):
        body = base64.b64encode(_shrink(path) if small else path.read_bytes()).decode()
        name = path.relative_to(folder).as_posix()
        blocks.append(f'<script type="text/plain" id="{name}">{body}</script>')
    page = (folder / "index.html").read_text("ascii")
    page = page.replace("script-src 'self' file:", f"script-src {_hash(script)}", 1)
    page = page.replace("style-src 'self' file:", f"style-src {_hash(style)}", 1)
    page = re.sub(r'<link rel="stylesheet"[^>]*>', lambda _: f"<style>{style}</style>", page)
    page = re.sub(r'<script src="atlas.js"[^>]*></script>\n', "", page)
    page = page.replace("</body>", "\n".join([*blocks, f"<script>{script}</script>", "</body>"]))
    return page.encode()


def _arguments(path: Path) -> str:
    """The arguments of the call that a data file consists of; see `page_data._write`."""
    return path.read_text("ascii").strip().removeprefix("atlasData(").removesuffix(");")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _shrink(path: Path) -> bytes:
    """A picture as a JPEG of lower quality."""
    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.save(buffer, "JPEG", quality=SMALL_QUALITY, optimize=True)
    return buffer.getvalue()
