"""Arrays in, a folder out that opens from disk."""

from __future__ import annotations

import html
import json
from importlib import resources
from pathlib import Path

from ..data.images import Images
from ..errors import InputError
from ..files import temporary_beside
from .contents import AtlasRun, prepare, write_images, write_matches, write_run

MARKER = "atlas.json"  # says that a folder is an atlas and may be replaced by another
SCRIPTS = (
    "data.js", "dom.js", "sprites.js", "charts.js", "map.js", "parts.js", "overview.js", "dimension.js", "list.js",
    "image.js", "pair.js", "compare.js", "class.js", "gallery.js", "search.js", "main.js",
)  # fmt: skip


def build_atlas(out: Path, runs: list[AtlasRun], images: Images, title: str = "Atlas") -> Path:
    """Write the atlas of one run, or of two runs on the same images, as the folder `out`.

    The folder appears complete or not at all. An atlas that is already there is replaced; any other folder is refused.

    Returns
    -------
    The path of its index.html, which opens from disk.
    """
    out = Path(out)
    if not 1 <= len(runs) <= 2:
        raise InputError(f"an atlas shows one or two runs, got {len(runs)}")
    if len(images) < 1:
        raise InputError("an atlas needs at least one image, got none")
    if out.exists() and not (out / MARKER).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} exists and is not an atlas (no {MARKER} in it): not overwritten")
    features = [prepare(run, images) for run in runs]
    out.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(out, folder=True) as partial:
        _write_page(partial, title)
        write_images(partial, images, runs, title)
        for r, arrays in enumerate(features):
            write_run(partial, f"run{r}", arrays, images)
        if len(runs) == 2:
            write_matches(partial, features[0].z, features[1].z)
        (partial / MARKER).write_text(json.dumps({"format": 1, "title": title, "runs": [run.name for run in runs]}))
        _replace(partial, out)
    return out / "index.html"


def _write_page(folder: Path, title: str) -> None:
    page = resources.files(__package__) / "page"
    (folder / "data").mkdir()
    text = (page / "index.html").read_text(encoding="utf-8").replace("{{ title }}", html.escape(title))
    (folder / "index.html").write_bytes(text.encode("ascii", "xmlcharrefreplace"))
    (folder / "atlas.css").write_text((page / "atlas.css").read_text(encoding="utf-8"), encoding="utf-8")
    # One script of one scope: modules proper do not load from disk.
    parts = [(page / name).read_text(encoding="utf-8") for name in SCRIPTS]
    (folder / "atlas.js").write_text('"use strict";\n(() => {\n' + "\n".join(parts) + "\n})();\n", encoding="utf-8")


def _replace(partial: Path, out: Path) -> None:
    """Put the finished folder in its place; an older atlas steps aside first and comes back if that fails."""
    if not out.exists():
        partial.rename(out)
        return
    with temporary_beside(out, folder=True) as old:
        out.rename(old)  # onto an empty folder
        try:
            partial.rename(out)
        except OSError:
            old.rename(out)
            raise
