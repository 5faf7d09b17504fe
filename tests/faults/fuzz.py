"""Files made by grammars and then spoilt: each is read, or refused in one line, in bounded memory and time.

    python -m tests.faults fuzz --count 1000 --seed 7                  # of every grammar
    python -m tests.faults fuzz --only codes --first 813 --count 1     # the same input again

Input i of a grammar depends on seed, grammar and i alone.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import safetensors.torch
import torch

from bayesncl import ReadableCodes, checkpoint, shelf
from bayesncl import model as weights
from bayesncl.arrays import as_features, as_labels, read_arrays, read_embeddings
from bayesncl.atlas.contents import tabulate
from bayesncl.codes_folder import About, CodesFolder, Rows
from bayesncl.data import arrays as array_images
from bayesncl.data import cache as image_cache
from bayesncl.data import shards
from bayesncl.errors import InputError
from bayesncl.files import tensor_bytes
from bayesncl.heads import HEADS
from bayesncl.measure.sparse import unit_blocks
from bayesncl.names import find_names, read_names, write_names
from bayesncl.photos import Log
from bayesncl.quiz import join_quizzes, quiz_json, render_quiz
from bayesncl.recipes import PARTS, Data, recipe_from_json
from bayesncl.reproduce.ledger import train_seconds
from bayesncl.run import Run
from tests.conftest import tiny_recipe
from tests.faults.grammar import ATOMS, SHAPES, bend, bend_tensors, make_json, npy, spoil, text_of, value
from tests.faults.harness import Child, Outcome

SECONDS = 20  # for one input; the machine may be busy


def make_npz(rng: random.Random, path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name in rng.sample(("z", "y", "images", "labels", "class_names", "names", "../x"), rng.randint(1, 5)):
            archive.writestr(f"{name}.npy", npy(rng))
    path.write_bytes(spoil(npy(rng) if rng.random() < 0.15 else out.getvalue(), rng))


def take_arrays(path: Path) -> None:
    """What measure and atlas do first, then what training on arrays does."""
    first: InputError | None = None
    try:
        found = read_arrays(path, ("z", "y"), needed=("z",))
        z = as_features(found["z"])
        as_labels(found["y"], len(z)) if "y" in found else None
        assert all(rows.isfinite().all() for _, rows in unit_blocks(z))
    except InputError as error:
        first = error
    for split in ("train", "test"):
        images = array_images.load(Data(name="arrays", root=str(path), size=8, holdout=0.3), split)
        assert images.pixels.dtype == np.uint8
    if first is not None:
        raise first


def make_table(rng: random.Random, path: Path) -> None:
    """A .csv: headings, numbers, names and labels."""
    heads = rng.sample(("z0", "z1", "name", "label", "y", "path", "", "=1", "1"), rng.randint(1, 5))
    cells = ("1", "-2.5", "nan", "1e400", "=cmd", "'=x", '"a\nb"', '"', "٣", "", "9" * 400, "a.png", "\ud800", "\0")
    often = rng.choice((1.0, 0.6))
    rows = [[rng.choice(cells[:2] if rng.random() < often else cells) for _ in heads] for _ in range(rng.randrange(6))]
    text = "\n".join(",".join(row) for row in ([heads] if rng.random() < 0.8 else []) + rows)
    path.write_bytes(spoil(text.encode(errors="surrogatepass"), rng, 0.2))


def take_table(path: Path) -> None:
    """What fit does with a file of embeddings."""
    z, names, labels = read_embeddings(path)
    z = as_features(z)
    assert all(column is None or len(column) == len(z) for column in (names, labels))
    assert all(rows.isfinite().all() for _, rows in unit_blocks(z))


def make_tensors(rng: random.Random, path: Path) -> None:
    header: dict[str, Any] = {}
    for name in rng.sample(("z", "y", "images", "labels", "x"), rng.randint(1, 3)):
        shape = list(rng.choice(SHAPES))
        begin = rng.choice((0, 0, 8, 72, 2**40))
        size = rng.choice((72, 24, 48, 4 * int(np.prod([abs(n) % 100 for n in shape]))))
        entry = {"dtype": rng.choice(("F32", "F64", "BF16", "I64", "BOOL", "F8", "U8")), "shape": shape}
        header[name] = bend(entry | {"data_offsets": [begin, begin + size]}, rng)
    text = text_of(header if rng.random() < 0.9 else bend(header, rng))
    length = struct.pack("<Q", len(text) if rng.random() < 0.9 else rng.choice((0, 1, 2**33, 2**63, len(text) + 5)))
    path.write_bytes(spoil(length + text + rng.randbytes(rng.choice((0, 72, 600))), rng, 0.2))


@cache
def good_model() -> weights.Encoder:
    return weights.build_model(tiny_recipe())


def make_model(rng: random.Random, path: Path) -> None:
    tensors = bend_tensors(weights.stored(good_model().state_dict()), rng)
    recipe = bend(good_model().recipe.to_dict(), rng)
    metadata = {"format": "bayesncl-1", "recipe": json.dumps(recipe), "sha256": weights.digest(tensors)}
    path.write_bytes(spoil(tensor_bytes(tensors, metadata), rng, 0.1))


def take_model(path: Path) -> None:
    model = weights.load(path)
    if model.recipe.views.size <= 64:
        assert model.encode(np.zeros((1, 3, 16, 16), np.uint8)).isfinite().all()


def make_checkpoint(rng: random.Random, path: Path) -> None:
    model = good_model()
    tensors = {f"model.{n}": t for n, t in weights.stored(model.state_dict()).items()}
    recipe = model.recipe.to_dict() if rng.random() < 0.6 else bend(model.recipe.to_dict(), rng)
    step = rng.choice(("4", "4", "4", "-1", "x", "9" * 30, "9" * 5000, ""))
    payload = tensor_bytes(bend_tensors(tensors, rng), {"step": step, "recipe": json.dumps(recipe)})
    path.write_bytes(spoil(payload, rng, 0.1) + hashlib.sha256(payload).digest())


def take_checkpoint(path: Path) -> None:
    found = checkpoint.read(path)
    recipe = recipe_from_json(found.recipe, str(path))
    weights.fill_model(recipe, checkpoint.part(found, "model"), path)


@cache
def good_codes() -> dict[str, ReadableCodes]:
    X = np.random.default_rng(0).normal(size=(40, 5))
    return {method: ReadableCodes(dim=6, method=method, steps=2, batch=8, device="cpu").fit(X) for method in HEADS}


@cache
def packed(method: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    raw, config = shelf._pack(good_codes()[method])
    return safetensors.torch.load(raw), json.loads(config)


def make_codes(rng: random.Random, path: Path) -> None:
    tensors, config = packed(rng.choice(sorted(HEADS)))
    tensors, text = bend_tensors(tensors, rng), json.dumps(bend(config, rng))
    path.write_bytes(
        spoil(tensor_bytes(tensors, {"config": text, "sha256": shelf.digest(tensors, text)}), rng, 0.1)
    )


def take_codes(path: Path) -> None:
    codes = ReadableCodes.load(path)
    z = codes.transform(np.zeros((2, codes.n_features_in_)))
    z = z.toarray() if hasattr(z, "toarray") else np.asarray(z)
    assert np.isfinite(z).all() and (z >= 0).all()


def make_hub(rng: random.Random, path: Path) -> None:
    """A folder as on the hub: the weights say what config.json beside them says, or nearly."""
    make_codes(rng, path.with_name(shelf.WEIGHTS)) if rng.random() < 0.5 else good_codes()["ncl"].save_pretrained(
        path.parent
    )
    make_json(packed("ncl")[1], rng, path)


def take_hub(path: Path) -> None:
    ReadableCodes.from_pretrained(path.parent)


def make_cache(rng: random.Random, path: Path) -> None:
    """Decoded images as the cache keeps them, under a right checksum."""
    data = npy(rng) if rng.random() < 0.5 else spoil(GOOD_PIXELS, rng, 0.5)
    pixels = path.with_name("pixels.npy")
    pixels.write_bytes(data)
    crc = zlib.crc32(data[128:]) if rng.random() < 0.8 else 0
    make_json({"version": 1, "crc32": crc, "bad": [[1, "broken"]], "stat": image_cache._stat(pixels)}, rng, path)


def take_cache(path: Path) -> None:
    if (found := image_cache._open(path.parent)) is None:
        raise InputError("to be built again")
    assert found[0].dtype == np.uint8 and found[0].ndim == 4
    found[0].sum()


def fit_state() -> shelf.State:
    head = HEADS["ncl"](5, 6)
    return shelf.State(head, torch.optim.Adam(head.parameters()), {"rows": 40}, torch.zeros(5))


def make_fit(rng: random.Random, path: Path) -> None:
    state = fit_state()
    tensors = {f"head.{name}": t.detach().clone() for name, t in state.head.state_dict().items()}
    for key in ("exp_avg", "exp_avg_sq", "step"):
        for name, p in state.head.named_parameters():
            tensors[f"{key}.{name}"] = torch.tensor(3.0) if key == "step" else torch.zeros_like(p).detach()
    tensors = bend_tensors(tensors | {"partners": torch.zeros(40, 3, dtype=torch.int64), "recent": torch.ones(5)}, rng)
    text = json.dumps(bend({"fingerprint": state.fingerprint, "step": 3, "recall": 1.0}, rng))
    path.write_bytes(spoil(tensor_bytes(tensors, {"fit": text, "sha256": shelf.digest(tensors, text)}), rng, 0.1))


def take_fit(path: Path) -> None:
    state = fit_state()
    partners = state.read(path, 40)
    assert partners is not None and partners.dtype == torch.int64 and partners.ndim == 2
    assert 0 <= state.step < 2**53 and 0 <= state.recall <= 1 and bool(state.recent.isfinite().all())
    for p in state.head.parameters():
        p.grad = torch.ones_like(p)
    state.optimiser.step()


ABOUT = About("photos", "../photos", "../photos", {"spec": "x", "fingerprint": "y"})
ROWS = Rows(("a.png", "b/c.png", "d.png"), np.array([0, 1, 0]), ("ant", "bee"), 1, ((1, 2), (3, 4), (5, 6)))


def make_folder(rng: random.Random, path: Path) -> None:
    """A folder of codes whose rows have the hash that codes.json gives them."""
    folder = CodesFolder(path.parent)
    known = ABOUT.encoder or {}
    if rng.random() < 0.5:  # a run of ours, whose fingerprint cannot be known beforehand
        path.with_name("model.safetensors").write_bytes(weights.model_bytes(good_model()))
        known = known | {"spec": str(path.with_name("model.safetensors"))}
    folder.put_rows(replace(ABOUT, encoder=known), ROWS, [np.ones((3, 5), np.float32)], 5)
    folder.codes_file.write_bytes(shelf._pack(good_codes()["ncl"])[0])
    rows = spoil(text_of(bend(json.loads(ROWS.to_json()), rng)), rng, 0.1)
    folder.rows_file.write_bytes(rows)
    tree = json.loads(folder.about_file.read_text())
    tree["embeddings"]["names"] = hashlib.blake2b(rows, digest_size=16).hexdigest()
    make_json(tree, rng, path)
    folder.log.write_bytes(bytes(60))
    head = json.dumps({"encoder": "y", "features": 5, "checksum": "crc32"})
    lines = [text_of(bend(["a.png", 1, 2, None, zlib.crc32(bytes(20))], rng)) for _ in range(3)]
    folder.log_index.write_bytes(spoil(b"\n".join([head.encode(), *lines, b""]), rng))


def take_folder(path: Path) -> None:
    """What fit, embed, atlas and evaluate read of it; each part is tried, whatever became of the others."""
    folder = CodesFolder(path.parent)
    Log(folder, SimpleNamespace(fingerprint="y", features=5)).begin()  # type: ignore[arg-type]
    refused = []
    for part in (folder.about, folder.rows, folder.embeddings, folder.codes, folder.open_encoder):
        try:
            part()
        except InputError as error:
            refused.append(error)
    try:
        rows = folder.rows()
        folder.photo_paths(rows, range(len(rows)))
    except InputError as error:
        refused.append(error)
    for error in refused:
        if "\n" in str(error) or len(str(error)) > 2000:
            raise error


def make_tar(rng: random.Random, path: Path) -> None:
    out = io.BytesIO()
    kinds = (tarfile.REGTYPE,) * 6 + (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, b"S", b"Z")
    with tarfile.open(fileobj=out, mode="w", format=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))) as tar:
        for i in range(rng.randint(0, 5)):
            stem = rng.choice((f"{i}", "a", "../a", "/a", "d/e", "", ".", "x" * 300, "\x1b[2J", "a\nb", "ключ"))
            info = tarfile.TarInfo(stem + rng.choice((".jpg", ".png", ".cls", ".CLS", "", ".tar.jpg")))
            body = rng.choice((b"1", b"", b"999999999999", b"-1", b"x" * 700, "٣".encode(), b"\xff"))
            info.size, info.type, info.linkname = len(body), rng.choice(kinds), "/etc/passwd"
            if rng.random() < 0.1:
                info.pax_headers = {rng.choice(("size", "path", "GNU.sparse.size")): str(rng.choice(ATOMS))}
            try:
                tar.addfile(info, io.BytesIO(body))
            except (ValueError, tarfile.TarError):  # the writer's limits, not the reader's
                continue
    path.write_bytes(spoil(out.getvalue(), rng, 0.5))


def take_tar(path: Path) -> None:
    for entry, label in shards._samples(path.parent, None):
        assert label is None or 0 <= label < shards.MOST_CLASSES
        assert ".." not in entry.name.split("/") and not entry.name.startswith("/")
        entry.read(1 << 20)


ENTRY = {"name": "autumn", "note": "", "mark": "readable", "author": "Ann", "time": "2026-05-01T10:00:00.000Z"}
NAMES = {
    "format": "bayesncl-names-1",
    "codes": [
        {"fingerprint": "9f8e", "run": "NCL", "dims": 8, "dimensions": {"1": [ENTRY], "7": [ENTRY, ENTRY]}},
        {"fingerprint": "aaaa", "run": "CL", "dims": 8, "dimensions": {}},
    ],
}
ANSWER = {
    "codes": "9f8e", "run": "NCL", "dim": 7, "images": [3, 8, 21, 40, 5], "intruder": 2, "chosen": 2, "seconds": 3.1,
    "time": "2026-05-01T10:00:00.000Z",
}  # fmt: skip
QUIZ = {"format": "bayesncl-quiz-1", "atlas": "x", "author": "Ann", "answers": [ANSWER, ANSWER | {"run": "CL"}]}
EVALUATION = {"sound": {"consistency": 12.5, "l0": 3.0, "dead": None}, "paper": {"consistency": 11.0}}
LINE = {"step": 4, "epoch": 1.0, "loss": 2.0, "images_per_second": 100.0}


def take_names(path: Path) -> None:
    codes = read_names(path)
    write_names(path.with_name("again.json"), codes)
    again = read_names(path.with_name("again.json"))
    assert [(c.fingerprint, c.dims) for c in again] == [(c.fingerprint, c.dims) for c in codes]
    for each in codes:
        columns = each.columns(min(each.dims, 50))
        assert len(set(columns)) == len(columns) and all(name.isprintable() for name in columns)
    find_names(codes, "9f8e", 8)


def take_quiz(path: Path) -> None:
    joined = join_quizzes([path])
    json.loads(quiz_json(joined))
    assert all(line.isprintable() for line in render_quiz(joined).splitlines())


def make_recipe(rng: random.Random, path: Path) -> None:
    tree = tiny_recipe().to_dict()
    for _ in range(rng.randrange(3)):
        part = rng.choice(list(PARTS))
        tree[part][rng.choice(list(tree[part]))] = value(rng)
    make_json(tree, rng, path)


def take_recipe(path: Path) -> None:
    recipe = recipe_from_json(path.read_bytes().decode(errors="replace"), path.name)
    assert recipe_from_json(recipe.to_json()) == recipe


def make_run(rng: random.Random, path: Path) -> None:
    lines = [text_of(bend(LINE | {"step": i}, rng)) for i in range(3)]
    path.with_name("metrics.jsonl").write_bytes(spoil(b"\n".join(lines), rng))
    make_json(EVALUATION, rng, path)


def take_run(path: Path) -> None:
    run = Run(path.parent)
    json.dumps(tabulate(run.evaluation()), allow_nan=False)
    seconds = train_seconds(run.metrics(), tiny_recipe())
    assert all(s is None or s >= 0 for s in seconds)


out = io.BytesIO()
np.save(out, np.zeros((4, 3, 8, 8), np.uint8))
GOOD_PIXELS = out.getvalue()

Grammar = tuple[str, Callable[[random.Random, Path], None], Callable[[Path], None]]
GRAMMARS: dict[str, Grammar] = {
    "npz": ("x.npz", make_npz, take_arrays),
    "table": ("x.csv", make_table, take_table),
    "tensors": ("x.safetensors", make_tensors, take_arrays),
    "model": ("model.safetensors", make_model, take_model),
    "checkpoint": ("step-4.ckpt", make_checkpoint, take_checkpoint),
    "codes": ("codes.safetensors", make_codes, take_codes),
    "hub": ("config.json", make_hub, take_hub),
    "cache": ("meta.json", make_cache, take_cache),
    "fit": ("fit.safetensors", make_fit, take_fit),
    "folder": ("codes.json", make_folder, take_folder),
    "tar": ("0.tar", make_tar, take_tar),
    "names": ("names.json", partial(make_json, NAMES), take_names),
    "quiz": ("quiz.json", partial(make_json, QUIZ), take_quiz),
    "recipe": ("recipe.json", make_recipe, take_recipe),
    "run": ("evaluation.json", make_run, take_run),
}


def judge(take: Callable[[Path], None], path: Path) -> str:
    """What is wrong with how a file was taken; nothing if it was read or refused in one line."""
    signal.alarm(SECONDS)
    try:
        take(path)
    except InputError as error:
        said = str(error)
        return "" if len(said) < 6000 and "\n" not in said else f"not one line: {said[:200]!r}"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} ({Path(place.filename).name}:{place.lineno})"
    finally:
        signal.alarm(0)
    return ""


def fuzz(name: str, count: int, folder: Path, seed: int = 0, first: int = 0) -> Outcome:
    """`count` inputs of a grammar, in a child with bounded memory; SIGALRM ends it where one hangs."""
    file, make, take = GRAMMARS[name]
    outcome = Outcome(f"fuzzed {name}")
    log = folder / "log"

    def work() -> None:
        warnings.simplefilter("ignore")
        place = folder / "input"
        place.mkdir(exist_ok=True)
        with open(log, "w", buffering=1) as out:
            for i in range(first, first + count):
                make(random.Random(f"{seed} {name} {i}"), place / file)
                if i % 100 == 0:
                    out.write(f"at {i}\n")
                if wrong := judge(take, place / file):
                    out.write(f"lost input {i}: {wrong}\n".replace("\n", " ") + "\n")
            out.write("done\n")

    ended = Child(work, folder, bounded=True).wait(max(120.0, count / 5))
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    outcome.tries = count
    outcome.lost = [line for line in lines if line.startswith("lost ")]
    if "done" not in lines:
        at = [line for line in lines if line.startswith("at ")][-1:]
        outcome.lost.append(f"ended with {ended.status} after {at}: {ended.text[-400:]}")
    return outcome


def fault(name: str) -> Callable[[int, Path, random.Random], Outcome]:
    """A grammar as one of the faults."""
    return lambda tries, folder, rng: fuzz(name, tries, folder, rng.randrange(2**32))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="inputs of each grammar")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--only", nargs="+", choices=GRAMMARS, default=list(GRAMMARS))
    args = parser.parse_args(words)
    lost = 0
    for name in args.only:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bayesncl-fuzz-") as top:
            outcome = fuzz(name, args.count, Path(top), args.seed, args.first)
        print(f"{name:12} {outcome.tries:8} {len(outcome.lost):6} lost {time.monotonic() - began:8.1f} s", flush=True)
        for text in outcome.lost[:10]:
            print(f"    {text[:400]}", flush=True)
        lost += len(outcome.lost)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
