"""Several processes at the same thing at once: no corruption, and a clear refusal where there must be one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np

from bayesncl import data
from bayesncl.recipes import Data
from tests.conftest import TINY
from tests.faults.harness import Child, Outcome, command, contents, run
from tests.faults.kills import same_run, write_pictures

CHANGES = [word for text in (*TINY, "data.train_images=160", "run.epochs=6") for word in ("--set", text)]


def caches(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Two processes build the same cache."""
    outcome = Outcome("two processes build one cache")
    source = Data(name="folder", root=str(write_pictures(folder / "pictures", 40)), size=32)

    def build(cache: Path, out: Path) -> None:
        os.environ["BAYESNCL_CACHE"] = str(cache)
        np.save(out, data.load(source, "train").pixels)

    run(lambda: build(folder / "alone", folder / "alone.npy"), folder)
    names = contents(folder / "alone").keys()
    for _ in range(tries):
        first = Child(lambda: build(folder / "both", folder / "1.npy"), folder)
        time.sleep(rng.uniform(0, 0.05))
        second = Child(lambda: build(folder / "both", folder / "2.npy"), folder)
        ended = first.wait(), second.wait()
        pixels = {(folder / name).read_bytes() for name in ("alone.npy", "1.npy", "2.npy")}
        good = [e.status for e in ended] == [0, 0] and len(pixels) == 1 and contents(folder / "both").keys() == names
        outcome.check(good, f"{[e.text[-200:] for e in ended]} {sorted(contents(folder / 'both').keys() ^ names)}")
        shutil.rmtree(folder / "both")
    return outcome


def same_runs(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Two runs into one folder, an evaluation and a resume of a run that is still going on."""
    outcome = Outcome("two runs with one name, evaluation while training")
    run(command("train", "scenes", "--out", folder / "alone", *CHANGES), folder)
    alone = contents(folder / "alone")
    for _ in range(tries):
        place = folder / "run"
        first = Child(command("train", "scenes", "--out", place, *CHANGES), folder)
        while not (place / "checkpoints").exists():
            time.sleep(0.005)
        first.kill(signal.SIGSTOP)  # so that it does not end before the others have looked
        for words, answer in (
            (("train", "scenes", "--out", place, *CHANGES), "holds a run already"),
            (("evaluate", place), "is not finished"),
            (("resume", place), "is in use by another process"),
        ):
            other = run(command(*words), folder)
            outcome.check(
                other.status == 2 and answer in (other.one_line or ""),
                f"{words[0]}: {other.status} {other.text[-300:]}",
            )
        first.kill(signal.SIGCONT)
        ended = first.wait()
        wrong = same_run(place, alone)
        outcome.check(ended.status == 0 and not wrong, f"the first run: {ended.status} {wrong} {ended.text[-300:]}")
        shutil.rmtree(place)

    def in_folder() -> None:
        os.chdir(folder)
        command("train", "scenes", *CHANGES)()

    both = [Child(in_folder, folder) for _ in range(2)]
    statuses = [child.wait().status for child in both]
    found = {path.name: (path / "model.safetensors").read_bytes() for path in (folder / "runs").iterdir()}
    good = (
        statuses == [0, 0]
        and found.keys() == {"scenes-bayesncl", "scenes-bayesncl-2"}
        and len(set(found.values())) == 1
    )
    outcome.check(good, f"{statuses} {sorted(found)}")
    return outcome
