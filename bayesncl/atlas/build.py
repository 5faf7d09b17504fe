"""Build the atlas folder from arrays, or pack it into one HTML file. Both open from disk."""

import base64
import hashlib
import html
import io
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from bayesncl.atlas.page_data import AtlasRun, JobPage, arguments, prepare, write_data
from bayesncl.atlas.pictures import Photos
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.io import check_output_folder, temporary_beside

MARKER = "atlas.json"  # a folder with this file is an atlas and may be replaced
MAX_RUNS = 8
GENERATED = (MARKER, "index.html", "atlas.css", "atlas.js", "data", "sprites", "large", "check",
             "new")  # fmt: skip
SMALL_QUALITY = 60  # of JPEG, in a small single file


def build_atlas(
    out: Path | str, runs: list[AtlasRun], images: Images | Photos, title: str = "Atlas",
    pages: Mapping[str, JobPage] | None = None,
) -> Path:  # fmt: skip
    """Write the atlas of one to eight runs on the same images.

    The folder appears complete or not at all. An existing atlas is replaced, but files that people
    added to it are kept; any other folder is refused.

    Parameters
    ----------
    out : folder to write.
    runs : the features of each run.
    images : pixels (`Images`) or image files (`Photos`), with or without labels.
    title : heading of the page.
    pages : results of jobs: "check" is the page "To check", "new" is "New here".

    Returns
    -------
    Path of index.html.
    """
    out = Path(out)
    if out.is_symlink():  # the link stays, its target is replaced
        out = Path(os.path.realpath(out))
    check_out(out, len(runs))
    runs = [prepare(run, images) for run in runs]
    out.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(out, folder=True) as new:
        _write_page(new, title)
        write_data(new, runs, images, title, pages or {})
        marker = {"format": 2, "title": title, "runs": [run.name for run in runs]}
        (new / MARKER).write_text(json.dumps(marker))
        _replace(out, new)
    return out / "index.html"


def check_out(out: Path, count: int = 1) -> None:
    """Raise InputError if an atlas of `count` runs cannot be written to `out`."""
    if not 1 <= count <= MAX_RUNS:
        raise InputError(f"an atlas shows 1 to {MAX_RUNS} runs, got {count}")
    check_output_folder(out)
    if (old := _old(out)).is_dir() and not out.exists():
        old.rename(out)  # the process was killed between the two renames of `_replace`
    if out.exists() and not (out / MARKER).is_file() and any(out.iterdir()):
        raise InputError(f"refusing to overwrite {out}: it is not an atlas (it has no {MARKER})")


def _write_page(folder: Path, title: str) -> None:
    page = Path(__file__).parent / "page"
    (folder / "data").mkdir()
    text = (page / "index.html").read_text("utf-8").replace("{{ title }}", html.escape(title))
    (folder / "index.html").write_bytes(text.encode("ascii", "xmlcharrefreplace"))
    (folder / "atlas.css").write_bytes((page / "atlas.css").read_bytes())
    # One script with one scope, because browsers do not load modules from disk.
    scripts = sorted(page.glob("*.js"), key=lambda path: (path.stem == "main", path.stem))
    joined = "\n".join(path.read_text("utf-8") for path in scripts)
    (folder / "atlas.js").write_text(f'"use strict";\n(() => {{\n{joined}\n}})();\n', "utf-8")


def _old(out: Path) -> Path:
    """The name of the old atlas while the new one is moved to `out`."""
    return out.with_name(f".{out.name}.before")


def _replace(out: Path, new: Path) -> None:
    """Move the finished folder `new` to `out`, with the files that people added to the old one."""
    if out.exists():
        def generated(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if name in GENERATED] if Path(folder) == out else []

        shutil.copytree(out, new, symlinks=True, ignore=generated, dirs_exist_ok=True)
        shutil.rmtree(_old(out), ignore_errors=True)
        out.rename(_old(out))
    new.rename(out)
    shutil.rmtree(_old(out), ignore_errors=True)


def pack(folder: Path, small: bool = False) -> bytes:
    """The atlas in `folder` as one HTML file; `small` without large pictures, for mail.

    Data and pictures become script elements that no browser runs. The policy of the page allows the
    one script and the one style sheet by their hashes.
    """
    script, style = ((folder / f"atlas.{kind}").read_text("utf-8") for kind in ("js", "css"))
    blocks = [
        f'<script type="application/json" id="data/{path.stem}">{arguments(path)}</script>'
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


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _shrink(path: Path) -> bytes:
    """A picture as a JPEG of lower quality."""
    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.save(buffer, "JPEG", quality=SMALL_QUALITY, optimize=True)
    return buffer.getvalue()
