"""Files from strangers: each gives one clear line; nothing is executed or written elsewhere; memory stays bounded."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pickle
import random
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

import bayesncl.train as loop
from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.data.decode import Square, Undecodable, decode
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.recipes import PARTS, recipe_from_json
from tests.conftest import tiny_images, tiny_recipe
from tests.faults.harness import Outcome, command, run
from tests.faults.kills import write_pictures

CANARY = "executed"


class Bomb:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{CANARY}'",)


def refused(outcome: Outcome, folder: Path, words: tuple[str | Path, ...], what: str) -> None:
    """The command must leave with status 2 and one line, and leave no new file."""
    before = set(folder.rglob("*"))

    def work() -> None:
        os.chdir(folder)
        os.environ["BAYESNCL_CACHE"] = str(folder.parent / "cache")
        command(*words)()

    ended = run(work, folder.parent, bounded=True)
    left = set(folder.rglob("*")) - before
    good = ended.status == 2 and ended.one_line is not None and len(ended.one_line) < 2000 and not left
    outcome.check(good, f"{what}: status {ended.status}, left {[p.name for p in left]}: {ended.text[-400:]}")


def weights(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Things that are not weights in the place of weights and checkpoints."""
    outcome = Outcome("pickles and forgeries in place of weights")
    run(lambda: loop.train(tiny_recipe("bayesncl", "data.train_images=48"), tiny_images(48), folder / "run"), folder)
    place, pictures = folder / "run", write_pictures(folder / "pictures", 3, 16)
    good = (place / "model.safetensors").read_bytes()
    huge = json.dumps(dataclasses.asdict(tiny_recipe()) | {"model": {"hidden": 2**20, "dim": 2**20}})
    tensors = {"x": torch.zeros(2)}
    forgeries = {
        "pickle": pickle.dumps(Bomb()),
        "torch pickle": _torch_pickle(),
        "empty": b"",
        "promises an endless header": struct.pack("<Q", 2**60) + b"{}",
        "cut": good[: len(good) // 2],
        "flipped bit": good[:-9] + bytes([good[-9] ^ 4]) + good[-8:],
        "no recipe": save(tensors),
        "recipe is no JSON": save(tensors, {"recipe": "[" * 10_000, "sha256": ""}),
        "recipe of another model": save(tensors, {"recipe": tiny_recipe().to_json(), "sha256": _digest(tensors)}),
        "recipe of a model beyond memory": save(tensors, {"recipe": huge, "sha256": _digest(tensors)}),
    }
    for what, forged in forgeries.items():
        (place / "model.safetensors").write_bytes(forged)
        refused(outcome, folder, ("embed", place, pictures), what)
        refused(outcome, folder, ("evaluate", place), what)
    (place / "model.safetensors").unlink()
    for what, forged in forgeries.items():
        if what == "recipe of a model beyond memory":
            continue
        for file in (place / "checkpoints").iterdir():
            file.write_bytes(forged + hashlib.sha256(forged).digest())
        ended = run(command("resume", place), folder, bounded=True)
        # no checkpoint is good, so the run begins anew, on scenes
        good = ended.status == 0 and "Traceback" not in ended.text and not (folder / CANARY).exists()
        outcome.check(good, f"checkpoint, {what}: {ended.text[-300:]}")
        (place / "model.safetensors").unlink(missing_ok=True)
    outcome.check(not (folder / CANARY).exists() and not Path(CANARY).exists(), "something was executed")
    return outcome


def _torch_pickle() -> bytes:
    out = io.BytesIO()
    torch.save(Bomb(), out)
    return out.getvalue()


def _digest(tensors: dict[str, torch.Tensor]) -> str:
    from bayesncl.files import digest

    return digest(tensors)


def archives(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Tar members that climb out or link, arrays that unpack to terabytes, pictures that do."""
    outcome = Outcome("hostile tar, npz and picture archives")
    shards = folder / "shards"
    shards.mkdir()
    with tarfile.open(shards / "a.tar", "w") as tar:
        for name in ("../outside.jpg", "/etc/outside.jpg", "a/../../outside.png"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"link{kind!r}.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
    refused(outcome, folder, ("train", "shards", "--data", shards), "tar that climbs out")
    outcome.check(not list(folder.parent.glob("outside*")), "a tar member was written outside")
    (shards / "a.tar").write_bytes(rng.randbytes(4096))
    refused(outcome, folder, ("train", "shards", "--data", shards), "noise as tar")

    for what, header, body in (
        (
            "promises more than it holds",
            "{'descr': '|u1', 'fortran_order': False, 'shape': (999999999999, 3, 32, 32), }",
            b"",
        ),
        (
            "unpacks to 8 GiB",
            "{'descr': '|u1', 'fortran_order': False, 'shape': (8388608, 3, 16, 22), }",
            bytes(1 << 20),
        ),
        ("object array", "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", pickle.dumps([Bomb(), 1])),
        ("negative shape", "{'descr': '|u1', 'fortran_order': False, 'shape': (-5, 3, 32, 32), }", b""),
    ):
        bomb = folder / "bomb.npz"
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("images", "z", "y"):
                with archive.open(f"{name}.npy", "w") as file:
                    file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
                    for _ in range(512 if "unpacks" in what else 1):
                        file.write(body)
        for words in (("train", "arrays", "--data", bomb), ("measure", bomb), ("atlas", "--features", bomb)):
            refused(outcome, folder, words, f"npz {what}, {words[0]}")
        bomb.unlink()

    pictures = folder / "pictures"
    pictures.mkdir()
    for i in range(3):
        (pictures / f"{i}.png").write_bytes(_picture_bomb(60_000))
    refused(outcome, folder, ("train", "folder", "--data", pictures), "decompression bomb")
    outcome.check(not (folder / CANARY).exists(), "something was executed")
    return outcome


def _picture_bomb(side: int) -> bytes:
    """A PNG of side x side pixels in a few kilobytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(1 << 20)))
        + chunk(b"IEND", b"")
    )


def pictures(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Mutated jpg, png, webp and gif files: pixels or `Undecodable`, in bounded memory, never anything else."""
    outcome = Outcome("mutated images")
    originals = []
    noise = np.random.default_rng(0).integers(0, 255, (40, 52, 3), dtype=np.uint8)
    for kind, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("GIF", {})):
        out = io.BytesIO()
        Image.fromarray(noise).save(out, kind, **options)
        originals.append(out.getvalue())

    def work() -> None:
        for i in range(tries):
            spoilt = bytearray(rng.choice(originals))
            for _ in range(rng.randint(1, 12)):
                place = min(int(rng.expovariate(1 / 200)), len(spoilt) - 1)  # mostly headers, where the structure is
                match rng.randrange(4):
                    case 0:
                        spoilt[place] ^= 1 << rng.randrange(8)
                    case 1:
                        spoilt[place] = rng.choice((0, 255, 127, 128))
                    case 2:
                        del spoilt[place : place + rng.randint(1, 16)]
                    case 3:
                        spoilt[place:place] = rng.randbytes(rng.randint(1, 8))
            try:
                pixels = decode(bytes(spoilt), Square(16, 16))
                assert pixels.shape == (3, 16, 16)
                assert pixels.dtype == np.uint8
            except Undecodable as why:
                assert len(str(why)) < 2000
            if i % 100 == 99 or i == tries - 1:
                (folder / "done").write_text(str(i + 1))

    ended = run(work, folder, bounded=True)
    survived = int((folder / "done").read_text()) if (folder / "done").exists() else 0
    outcome.tries = tries
    outcome.lost = (
        [] if ended.status == 0 and survived == tries else [f"after {survived}: {ended.status} {ended.text[-400:]}"]
    )
    return outcome


WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 2**80, -1e308, 1e400, "", "x", "\0", "../../x", "[red]", "\x1b[2J", "9" * 5000, [], [1],
    [None] * 3, ["a", "b", "c"], {}, {"a": 1}, float("nan"), "1",
)  # fmt: skip


def recipes(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Every field of a recipe with every wrong value: a recipe whose types are right, or InputError of one line."""
    outcome = Outcome("JSON recipes with wrong values")
    good = json.loads(tiny_recipe().to_json())
    cases = [
        ({**good, part: {**good[part], f.name: value}})
        for part in PARTS
        for f in dataclasses.fields(PARTS[part])
        for value in WRONG
    ]
    cases += [{**good, part: value} for part in (*PARTS, "name", "other") for value in WRONG]
    cases += [*WRONG, [good], {"model": good}]
    for case in cases:
        text = json.dumps(case)
        try:
            recipe = recipe_from_json(text, "x.json")
            wrong = "" if recipe_from_json(recipe.to_json()) == recipe else "does not come back"
        except InputError as error:
            wrong = "" if len(str(error)) < 6000 and "\n" not in str(error) else "not one line"
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        outcome.check(not wrong, f"{wrong} from {text[:200]}")
    (folder / "work").mkdir()
    for i, case in enumerate(
        (
            {"name": "../../outside"},
            {"run": {"seed": 2**80}},
            {"data": {"root": "\0", "name": "arrays"}},
            [1],
            {"run": {"epochs": 10**15}},
        )
    ):
        path = folder / "work" / f"{i}.json"
        path.write_text(json.dumps(case))
        refused(outcome, folder / "work", ("train", path), f"recipe {case}")
    outcome.check(not (folder.parent / "outside").exists(), "a run was begun outside")
    return outcome


def names(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Class names with markup, control characters and 10 kB; paths with spaces and letters of other alphabets."""
    outcome = Outcome("hostile names and paths")
    bad = ["<script>alert(1)</script>", "[bold red]x[/]", "\x1b[2J\x07", "a\nb", "9" * 10_000, "{{ 7*7 }}", "../../x"]
    images = tiny_images(14)
    images = Images(images.pixels, np.arange(14) % 7, class_names=tuple(bad), names=tuple(bad) * 2)
    outcome.check(
        all(name.isprintable() and len(name) <= 800 for name in images.class_names or ()),
        "class names not made printable",
    )
    z = np.random.default_rng(0).random((14, 5), dtype=np.float32)
    ended = run(lambda: build_atlas(folder / "atlas", [AtlasRun(bad[0], z)], images, title=bad[0]), folder)
    page = (folder / "atlas/index.html").read_text() if ended.status == 0 else ""
    outcome.check(bool(page) and "<script>alert" not in page, f"atlas: {ended.text[-300:]}")

    there = folder / "mit Leerzeichen, ünïcödé, 日本"
    pictures = write_pictures(there / "Bilder & mehr", 12, 16)
    os.rename(pictures / "class 0", pictures / "[red]<b>ключ")

    def work() -> None:
        os.environ["BAYESNCL_CACHE"] = str(there / "cache")
        changes = [word for text in TINY_PHOTOS for word in ("--set", text)]
        command("train", "folder", "--data", pictures, "--out", there / "ein Lauf", *changes)()

    ended = run(work, folder)
    outcome.check(ended.status == 0, f"train in an odd place: {ended.text[-300:]}")
    ended = run(command("embed", there / "ein Lauf", pictures, "-o", there / "ö.npz"), folder)
    outcome.check(ended.status == 0 and (there / "ö.npz").exists(), f"embed in an odd place: {ended.text[-300:]}")
    refused(outcome, there, ("evaluate", there / "\x1b[31m nowhere"), "control characters in a path")
    return outcome


TINY_PHOTOS = (
    "data.size=16", "views.size=16", "model.backbone=small", "model.hidden=8", "model.dim=4", "run.epochs=1",
    "run.batch=4", "data.holdout=0.2",
)  # fmt: skip
