"""Build the atlas folder from arrays. It opens from disk."""

from __future__ import annotations

import html
import json
import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from bayesncl.atlas.page_data import (
    AtlasRun,
    JobPage,
    prepare,
    write_images,
    write_matches,
    write_page,
    write_run,
)
from bayesncl.atlas.pictures import Photos
from bayesncl.atlas.ranking import number_labels
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.io import check_output_folder, temporary_beside

MARKER = "atlas.json"  # a folder with this file is an atlas and may be replaced
MAX_RUNS = 8
GENERATED = (MARKER, "index.html", "atlas.css", "atlas.js", "data", "sprites", "large", "cover",
             "check", "new")  # fmt: skip
SCRIPTS = (
    "data", "dom", "store", "names", "sprites", "heat", "charts", "map", "parts", "overview",
    "dimension", "list", "image", "pair", "compare", "class", "gallery", "quiz", "explain",
    "check", "find", "new", "search", "main",
)  # fmt: skip


def build_atlas(
    out: Path, runs: list[AtlasRun], images: Images | Photos, title: str = "Atlas",
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
    if Path(out).is_symlink():  # the link stays, its target is replaced
        out = Path(os.path.realpath(out))
    check_out(out, len(runs))
    labels = number_labels(images.labels, images.class_names)
    backgrounds = number_labels(images.backgrounds, images.background_names)
    runs = [prepare(run, images) for run in runs]
    out.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(out, folder=True) as new:
        _write_page(new, title)
        shown: list[int] = []
        for r, run in enumerate(runs):
            shown += write_run(new, f"run{r}", run, labels, backgrounds)
            if r:
                write_matches(new, f"compare-{r}", runs[0].z, run.z)
        for key, page in (pages or {}).items():
            write_page(new, key, page, images)
        write_images(new, images, labels, backgrounds, runs, title, shown, list(pages or ()))
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
    page = resources.files(__package__) / "page"
    (folder / "data").mkdir()
    text = (page / "index.html").read_text("utf-8").replace("{{ title }}", html.escape(title))
    (folder / "index.html").write_bytes(text.encode("ascii", "xmlcharrefreplace"))
    (folder / "atlas.css").write_bytes((page / "atlas.css").read_bytes())
    # One script with one scope, because browsers do not load modules from disk.
    scripts = "\n".join((page / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    (folder / "atlas.js").write_text(f'"use strict";\n(() => {{\n{scripts}\n}})();\n', "utf-8")


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
