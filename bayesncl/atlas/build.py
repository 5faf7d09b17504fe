"""Arrays in, a folder out. It opens from disk, or is served here for browsers that do not open files."""

from __future__ import annotations

import ctypes
import html
import json
import os
import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from ..data.images import Images
from ..errors import InputError
from ..files import check_folder, name_beside, temporary_beside
from .contents import AtlasRun, prepare, write_images, write_matches, write_run
from .pictures import Photos
from .telling import factorise

MARKER = "atlas.json"  # says that a folder is an atlas and may be replaced by another
MOST_RUNS = 8
OURS = (MARKER, "index.html", "atlas.css", "atlas.js", "data", "sprites", "large", "cover")
SCRIPTS = (
    "data.js", "dom.js", "store.js", "names.js", "sprites.js", "heat.js", "charts.js", "map.js", "parts.js",
    "overview.js", "dimension.js", "list.js", "image.js", "pair.js", "compare.js", "class.js", "gallery.js",
    "quiz.js", "search.js", "main.js",
)  # fmt: skip


def build_atlas(out: Path, runs: list[AtlasRun], images: Images | Photos, title: str = "Atlas") -> Path:
    """Write the atlas of one or more runs on the same images as the folder `out`.

    The folder appears complete or not at all. An atlas that is already there is replaced, but for what people put into
    it; any other folder is refused. At most eight `runs`; the images are pixels (`Images`) or files (`Photos`), with
    labels or without. Returns the path of index.html, which opens from disk.
    """
    out = Path(os.path.realpath(out)) if Path(out).is_symlink() else Path(out)  # a link stays
    before = check_out(out, len(runs))
    labels = factorise("labels", images.labels, images.class_names)
    grounds = factorise("backgrounds", images.backgrounds, images.background_names)
    runs = [prepare(run, images) for run in runs]
    out.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(out, folder=True) as folder:
        _write_page(folder, title)
        first_seen: list[int] = []
        for r, run in enumerate(runs):
            first_seen += write_run(folder, f"run{r}", run, labels, grounds)
            if r:
                write_matches(folder, f"compare-{r}", runs[0].z, run.z)
        write_images(folder, images, labels, grounds, runs, title, first_seen)
        (folder / MARKER).write_text(json.dumps({"format": 2, "title": title, "runs": [run.name for run in runs]}))
        if out.exists():
            _keep_others(out, folder)
        _replace(folder, out, before)
    return out / "index.html"


def check_out(out: Path, count: int = 1, what: str = "runs") -> Path:
    """Raise InputError, before long work, where no atlas of so many can be written.

    Returns where the old atlas lies while the new one takes its place.
    """
    if not 1 <= count <= MOST_RUNS:
        raise InputError(f"an atlas shows one to {MOST_RUNS} {what}, got {count}")
    check_folder(out)
    before = name_beside(out, ".before")
    if before.is_dir() and not out.exists():
        before.rename(out)  # a kill came between the two renames of `_replace`
    if out.exists() and not (out / MARKER).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} exists and is not an atlas (no {MARKER} in it): not overwritten")
    return before


def _write_page(folder: Path, title: str) -> None:
    page = resources.files(__package__) / "page"
    (folder / "data").mkdir()
    text = (page / "index.html").read_text(encoding="utf-8").replace("{{ title }}", html.escape(title))
    (folder / "index.html").write_bytes(text.encode("ascii", "xmlcharrefreplace"))
    (folder / "atlas.css").write_text((page / "atlas.css").read_text(encoding="utf-8"), encoding="utf-8")
    # One script of one scope: modules proper do not load from disk.
    parts = [(page / name).read_text(encoding="utf-8") for name in SCRIPTS]
    (folder / "atlas.js").write_text('"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n", encoding="utf-8")


def _keep_others(old: Path, new: Path) -> None:
    """Copy what people put into an atlas, names perhaps, into the one that takes its place."""
    for path in old.iterdir():
        if path.name in OURS:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, new / path.name, symlinks=True)
        else:
            shutil.copy2(path, new / path.name, follow_symlinks=False)


def _replace(made: Path, out: Path, before: Path) -> None:
    """Put the finished folder in its place: at once where the system can exchange two names, else by two renames."""
    if not out.exists():
        made.rename(out)
    elif not _exchange(made, out):
        out.rename(before)  # if we are killed here, the next build brings it back
        try:
            made.rename(out)
        except OSError:
            before.rename(out)
            raise
        before.rename(made)  # and goes with the temporary folder


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two names in one step (Linux); False where that cannot be done, and nothing has changed."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(a), here, os.fsencode(b), exchange) == 0)


class Handler(SimpleHTTPRequestHandler):
    """Files of the folder, no listings, no log line per request, and only for pages of this machine."""

    def send_head(self) -> Any:
        # A page elsewhere may give its own name our address (DNS rebinding): the name it asks for tells.
        if self.headers.get("Host", "").rsplit(":", 1)[0] not in ("127.0.0.1", "localhost"):
            self.send_error(421)
            return None
        try:
            return super().send_head()
        except ValueError:  # a null byte in the address
            self.send_error(404)
            return None

    def list_directory(self, path: object) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of `folder` bound to 127.0.0.1; port 0 takes any free one."""
    if not (Path(folder) / MARKER).is_file():
        raise InputError(f"{folder} is not an atlas: it holds no {MARKER}")
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=str(folder)))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot serve on port {port}: {why}; --port 0 takes a free one") from error


def serve(folder: Path, port: int = 8000) -> None:
    """Serve the atlas in `folder` on http://127.0.0.1:`port`/ until interrupted; other machines cannot reach it."""
    with make_server(folder, port) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C stops)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
