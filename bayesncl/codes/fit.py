"""`bayesncl fit`: from photos, an array or a run to a folder of readable codes with a verdict.

`codes.sources` reads the rows and their embeddings, `codes.estimator` trains the head and
`codes.judge` judges it. All is written to `.new` and published at the end. A killed fit keeps its
embeddings; the same command fits the head again. Codes with named dimensions are continued.
"""

import os
import shlex
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bayesncl.codes.encoders import RUNS_CODE, find_kind
from bayesncl.codes.estimator import ReadableCodes
from bayesncl.codes.factors import splits_in_two
from bayesncl.codes.folder import About, CodesFolder, Rows, checksum
from bayesncl.codes.judge import judging_data
from bayesncl.codes.names import merge_names, write_names
from bayesncl.codes.sources import SOURCES, Material, Options, arrange
from bayesncl.codes.transfer import carry_names
from bayesncl.data.images import spread_evenly
from bayesncl.device import find_device
from bayesncl.errors import InputError, printable, wrap
from bayesncl.inputs import ENDINGS
from bayesncl.io import EMBEDDINGS, is_codes
from bayesncl.measure.figures import figures
from bayesncl.measure.result import Tree
from bayesncl.progress import Display, duration, plural
from bayesncl.training.run_folder import RunFolder

FACTOR_NOTE = (
    "The images fall into two groups, such as two backgrounds, that have little to do with their "
    "other content. For dimensions that ignore these groups, use `--method factors`."
)
MAX_LINES = 4  # of the verdict, printed at the end
SAME_EMBEDDINGS = 0.01  # relative difference of embeddings that one encoder may give twice
MAX_COMPARED = 1000  # rows
MIN_KNOWN = 0.75  # share of the rows that codes with names must know to be continued
MAX_FITTED = 0.05  # share of the held-out rows that these codes may have been fitted on
KINDS = {"photos": "photos", "array": "an array of embeddings", "run": "a run"}
# options that apply to other kinds of sources than photos
APPLIES = {"images": ["array"], "labels": ["photos", "array"], "mirror": ["photos", "run"]}


def fit(
    source: Path, out: Path, options: Options, device: torch.device | str, display: Display
) -> Tree:
    """Fit codes into the folder `out`; returns the verdict."""
    kind = source_kind(source, out)
    check_options(source, kind, options)
    device = find_device(device)
    codes = ReadableCodes(
        options.n_components or "auto", method=options.method, n_active=options.n_active,
        random_state=options.seed, device=str(device),
    )  # fmt: skip
    codes.check_options()  # before any image is read
    began, folder = time.perf_counter(), CodesFolder(out)
    staged = folder.staged
    with folder.lock():
        publish(folder, display)  # complete codes that an earlier fit was killed before publishing
        folder.all_names()  # a damaged names.json is refused before the work
        material = SOURCES[kind](source, folder, options, device, display)
        rows, embeddings, named = write_rows(folder, material, options)
        x = embeddings[: rows.fitted]
        if named is not None:
            codes = named.set_params(**codes.get_params() | {"warm_start": True})
            note = f"continuing the codes in {out}, so that named dimensions keep their meaning"
            display.note(f"{note} (--fresh starts over)")
        if named is None or not same_rows(folder, rows):
            codes.fit(x, neighbors_file=folder.neighbors_file, progress=display.count)
        codes.warm_start = False
        if codes.interrupted_:
            raise KeyboardInterrupt  # half-trained codes are not kept
        display.busy("judging")
        z, labels, further = judging_data(codes, embeddings, rows)
        verdict = figures(z, labels, **further, ks=(), seed=options.seed).verdict
        key = staged.names(codes).fingerprint
        if named is not None and key != folder.fingerprint():
            folder.save_names(replace(folder.names(), fingerprint=key))  # the same dimensions
        staged.write_codes(material.about, codes, verdict)
        publish(folder, display)
        shutil.rmtree(folder.log, ignore_errors=True)
        folder.neighbors_file.unlink(missing_ok=True)
    display.close()
    judged = f"{rows.held:,} held-out rows" if rows.held else f"the {len(rows):,} fitted rows"
    what = f"{plural(codes.n_components_, 'dimension')} by {codes.method}"
    took = duration(time.perf_counter() - began)
    lines = [wrap(f"{out}: {what} in {took}, judged on {judged}:")]
    lines += [wrap(text, first="- ", later="  ") for text in main_lines(verdict)]
    print("\n".join(lines), flush=True)
    if codes.method == "prototypes" and splits_in_two(codes, x):
        display.note(FACTOR_NOTE)
    for line in next_commands(material.about, out):
        display.note(line, wrap=False)
    return verdict


def write_rows(
    folder: CodesFolder, material: Material, options: Options
) -> tuple[Rows, np.ndarray, ReadableCodes | None]:
    """Write rows and embeddings to `.new`; returns them with the codes to continue, or None.

    Codes that were fitted on all rows, as those of fewer than 5,000 are, are continued on all rows.
    """
    all_fitted = False
    with suppress(InputError):  # there are no codes, or they are damaged
        all_fitted = not folder.rows().held and bool(folder.names().dimensions)
    for hold_out in (False, True) if all_fitted else (True,):
        rows, blocks = arrange(material, hold_out)
        embeddings = folder.staged.write_rows(rows, blocks)
        named = named_codes(folder, rows, embeddings, options)
        if named is not None:
            break
    return rows, embeddings, named


def named_codes(
    folder: CodesFolder, rows: Rows, embeddings: np.ndarray, options: Options
) -> ReadableCodes | None:
    """The codes in the folder, if a fit should continue them; else None.

    They have names, their method and width are those asked for, at least three quarters of the rows
    are theirs, with the same embeddings, and nearly all held-out rows are new or were held out.
    """
    with suppress(InputError):  # there are none, or they are damaged
        codes, earlier = folder.codes(), folder.rows()
        index, held = earlier.index, rows.names[rows.fitted :]
        shared = [(index[name], i) for i, name in enumerate(rows.names) if name in index]
        if (
            folder.names(codes).dimensions and not options.fresh
            and len(shared) >= MIN_KNOWN * len(rows)
            and len({*held} & {*earlier.names[: earlier.fitted]}) <= MAX_FITTED * len(held)
            and codes.can_continue(options.method, options.n_components or "auto")
            and codes.n_features_in_ == embeddings.shape[1]
            and (options.n_active or 1) <= codes.n_components_
        ):  # fmt: skip
            before, now = np.array(shared)[spread_evenly(len(shared), MAX_COMPARED)].T
            old, new = folder.embeddings()[before], embeddings[now]
            change, length = (np.linalg.norm(each, axis=1) for each in (new - old, old))
            same = float(np.mean(change <= SAME_EMBEDDINGS * length))
            if same * len(shared) >= MIN_KNOWN * len(rows):
                return codes
    return None


def same_rows(folder: CodesFolder, rows: Rows) -> bool:
    """Whether the codes in the folder were fitted on the rows in `.new`."""
    same = checksum(folder.staged.embeddings_file) == folder.about().files[EMBEDDINGS]
    return same and rows.held == folder.rows().held


def publish(folder: CodesFolder, display: Display) -> None:
    """Make complete codes in `.new` those of the folder; names of the old ones move to them."""
    if not folder.staged.identity():
        return
    if folder.names_file.is_file():
        try:
            names, lines = carry_names(folder, folder.staged)
            write_names(folder.names_file, merge_names([*folder.all_names(), names]))
        except InputError as error:
            lines = [f"the names were not moved to the new dimensions: {error}"]
        for line in lines:
            display.note(line)
    folder.publish()


def source_kind(source: Path, out: Path) -> str:
    """``photos``, ``array`` or ``run``; InputError for anything else, or for a wrong `out`."""
    shown = printable(str(source), 300)
    if not os.path.exists(source):
        raise InputError(f"{shown}: no such folder or file, expected photos, an array or a run")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file, expected a folder to write to")
    if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(out)):
        raise InputError(f"{shown} lies in the output folder {out}: choose another -o")
    if is_codes(source):
        raise InputError(f"{shown} was written by fit: use the photos or array it was fitted on")
    if out.is_dir() and not is_codes(out) and not (out / ".new").exists():
        own = (".", "embeddings.part", "neighbors.")
        if others := [path.name for path in out.iterdir() if not path.name.startswith(own)]:
            what = f"it contains {printable(others[0])}"
            raise InputError(f"{out} was not written by fit ({what}): choose another folder")
    if source.is_dir():
        run = RunFolder(source)
        return "run" if run.recipe_file.is_file() or run.weights.is_file() else "photos"
    if source.suffix.lower() not in ENDINGS:
        expected = f"a folder of photos, a run, or an array file ({' '.join(ENDINGS)})"
        raise InputError(f"{shown}: expected {expected}")
    return "array"


def check_options(source: Path, kind: str, options: Options) -> None:
    """Refuse options that do not apply to this kind of source."""
    given = [name for name in ("images", "labels") if getattr(options, name)]
    given += [name.replace("spec", "encoder") for name in options.encoder.given()]
    for name in given:
        if kind not in (kinds := APPLIES.get(name, ["photos"])):
            wanted = " or ".join(KINDS[each] for each in kinds)
            raise InputError(f"--{name} applies to {wanted}, and {source} is {KINDS[kind]}")


def main_lines(verdict: Tree) -> list[str]:
    """The most important lines of a verdict, as sentences."""
    texts = []
    for line in verdict["lines"]:
        measured = line["value"] is not None or line["key"] == "collapsed"
        if measured and line["key"] != "dense":  # codes by prototypes always are
            texts.append(line["text"])
    return texts[:MAX_LINES]


def next_commands(about: About, out: Path) -> list[str]:
    """Commands to continue with, ready to copy."""
    path = shlex.quote(str(out))
    browse = f"bayesncl atlas {path} --serve" if about.has_images else "fit again with --images DIR"
    if about.encoder is None:
        other = f"codes of other rows:     bayesncl embed {path} FILE.npy -o codes.csv"
    else:
        spec = about.encoder.spec
        again = f" --encoder {shlex.quote(spec)}" if find_kind(spec) in RUNS_CODE else ""
        other = f"codes of other photos:   bayesncl embed {path} PHOTOS -o codes.csv{again}"
    return [f"browse the dimensions:   {browse}", other]
