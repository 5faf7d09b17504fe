"""SIGKILL at random moments: the run goes on to the same bytes, and nothing half-written stays."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

import bayesncl.train as loop
from bayesncl import checkpoint, data, files, model
from bayesncl import run as runs
from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.measure.result import to_json
from bayesncl.recipes import Data
from tests.conftest import tiny_images, tiny_recipe
from tests.faults.harness import Child, Outcome, command, contents, run, traced

WRITERS = {module.__file__ for module in (files, checkpoint, runs, model)}
VOLATILE = ("environment.json", "metrics.jsonl")  # hold dates and speeds


def train_in(folder: Path) -> None:
    loop.train(tiny_recipe(), tiny_images(), folder)


def same_run(folder: Path, undisturbed: dict[str, bytes]) -> str:
    """What differs from the undisturbed run; empty if nothing."""
    found = contents(folder)
    if found.keys() != undisturbed.keys():
        return f"files {sorted(found.keys() ^ undisturbed.keys())}"
    differing = [name for name in found if name not in VOLATILE and found[name] != undisturbed[name]]
    steps = [line.split(b",")[0] for line in found["metrics.jsonl"].splitlines()]
    expected = [line.split(b",")[0] for line in undisturbed["metrics.jsonl"].splitlines()]
    return f"bytes of {differing}" if differing else "" if steps == expected else f"metrics of {steps}"


def training(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Killed after a random time, up to three times in a row."""
    outcome = Outcome("SIGKILL in training")
    ended = run(lambda: train_in(folder / "undisturbed"), folder)
    undisturbed = contents(folder / "undisturbed")
    place = folder / "killed"
    while outcome.tries < tries:
        for _ in range(rng.randint(1, 3)):
            child = Child(lambda: train_in(place), folder)
            time.sleep(rng.uniform(0, ended.seconds))
            child.kill()
            child.wait()
        after = run(lambda: train_in(place), folder)
        wrong = f"status {after.status}: {after.text[-300:]}" if after.status else same_run(place, undisturbed)
        outcome.check(not wrong, wrong)
        shutil.rmtree(place)
    return outcome


def checkpointing(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Killed before a random line of the code that writes checkpoints, weights, recipe and lock."""
    outcome = Outcome("SIGKILL while writing checkpoints and weights")
    lines = folder / "lines"

    def doomed(place: Path, fatal: int) -> None:
        traced(lambda: train_in(place), WRITERS, fatal, lines)

    run(lambda: doomed(folder / "undisturbed", -1), folder)
    undisturbed, total = contents(folder / "undisturbed"), int(lines.read_text())
    place = folder / "killed"
    while outcome.tries < tries:
        fatal = rng.randint(1, total)
        first = run(partial(doomed, place, fatal), folder)
        after = run(lambda: train_in(place), folder)
        wrong = f"status {after.status}: {after.text[-300:]}" if after.status else same_run(place, undisturbed)
        outcome.check(first.status == -signal.SIGKILL and not wrong, f"line event {fatal}: {first.status} {wrong}")
        shutil.rmtree(place)
    return outcome


def write_pictures(folder: Path, count: int, size: int = 96) -> Path:
    """A folder of labelled PNG files."""
    rng = np.random.default_rng(0)
    for i in range(count):
        path = folder / f"class {i % 3}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(path)
    return folder


def caching(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Killed while images are decoded into the cache."""
    outcome = Outcome("SIGKILL while building a cache")
    source = Data(name="folder", root=str(write_pictures(folder / "pictures", 60)), size=32)

    def build(cache: Path) -> None:
        os.environ["BAYESNCL_CACHE"] = str(cache)
        np.save(folder / "pixels.npy", data.load(source, "train").pixels)

    ended = run(lambda: build(folder / "undisturbed"), folder)
    pixels, names = (folder / "pixels.npy").read_bytes(), contents(folder / "undisturbed").keys()
    place = folder / "killed"
    while outcome.tries < tries:
        child = Child(lambda: build(place), folder)
        time.sleep(rng.uniform(0, ended.seconds))
        child.kill()
        child.wait()
        (folder / "pixels.npy").unlink()
        after = run(lambda: build(place), folder)
        good = after.status == 0 and (folder / "pixels.npy").read_bytes() == pixels and contents(place).keys() == names
        outcome.check(good, f"status {after.status} {sorted(contents(place).keys() ^ names)} {after.text[-300:]}")
        shutil.rmtree(place)
    return outcome


def reporting(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Killed while an evaluation and an atlas are written into a run folder, over older ones and not."""
    outcome = Outcome("SIGKILL while writing report and atlas")
    images = tiny_images(40)
    z = np.random.default_rng(0).random((40, 12), dtype=np.float32)

    def write(place: Path) -> None:
        place.mkdir(exist_ok=True)
        files.write_atomic(place / "evaluation.json", to_json({"values": list(range(20_000))}))
        build_atlas(place / "atlas", [AtlasRun("a", z)], images)

    ended = run(lambda: write(folder / "undisturbed"), folder)
    undisturbed = contents(folder / "undisturbed")
    place = folder / "killed"
    while outcome.tries < tries:
        child = Child(lambda: write(place), folder)
        time.sleep(rng.uniform(0, ended.seconds))
        child.kill()
        child.wait()
        after = run(lambda: write(place), folder)
        found = contents(place)
        wrong = sorted(k for k in found.keys() | undisturbed.keys() if found.get(k) != undisturbed.get(k))
        left = [p.name for p in place.iterdir() if p.name not in ("evaluation.json", "atlas")]
        outcome.check(
            after.status == 0 and not wrong and not left, f"status {after.status} {wrong} {left} {after.text[-300:]}"
        )
        if rng.random() < 0.5:
            shutil.rmtree(place)
    return outcome


def fitting(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Killed while codes are fitted to photos or to an array: the next fit ends in the same bytes."""
    outcome = Outcome("SIGKILL while fitting codes")
    run(lambda: train_in(folder / "encoder"), folder)
    pictures = write_pictures(folder / "pictures", 40, 24)
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32))
    encoder = ("--encoder", folder / "encoder/model.safetensors")
    for source, words in ((pictures, encoder), (folder / "x.npy", ())):
        place = {name: folder / f"{name}-{source.stem}" / "codes" for name in ("undisturbed", "killed")}
        fit = {name: command("fit", source, "-o", out, "--dim", "16", *words) for name, out in place.items()}
        ended = run(fit["undisturbed"], folder)
        undisturbed = contents(place["undisturbed"])
        outcome.check(ended.status == 0, f"undisturbed: {ended.text[-300:]}")
        for _ in range(tries // 2):
            for _ in range(rng.randint(1, 3)):
                child = Child(fit["killed"], folder)
                time.sleep(rng.uniform(0, ended.seconds))
                child.kill()
                child.wait()
            after = run(fit["killed"], folder)
            found = contents(place["killed"])
            wrong = sorted(k for k in found.keys() | undisturbed.keys() if found.get(k) != undisturbed.get(k))
            outcome.check(after.status == 0 and not wrong, f"{source.name}: {after.status} {wrong} {after.text[-300:]}")
            shutil.rmtree(place["killed"])
    return outcome
