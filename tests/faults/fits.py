"""Readable codes: fits that are killed, that find no room, that share a folder, or whose files are cut while read."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np

import bayesncl.fit as fitting
import bayesncl.train as loop
from bayesncl import cli, codes, codes_folder, data, files, photos, shelf
from bayesncl import run as runs
from bayesncl.recipes import Data
from tests.conftest import tiny_images, tiny_recipe
from tests.faults.harness import Child, Outcome, command, contents, run
from tests.faults.kills import train_in, write_pictures

WRITERS = {module.__file__ for module in (files, codes_folder, photos, shelf, runs)}


class Bench:
    """Photos, an array and an encoder, and what undisturbed fits make of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run(lambda: train_in(folder / "encoder"), folder)
        write_pictures(folder / "pictures", 12, 24)
        np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32))

    def fit(self, source: str, out: str = "codes") -> Callable[[], None]:
        """A fit as work for a child; the folder lies as deep as every other, since codes.json has relative paths."""
        encoder = ("--encoder", self.folder / "encoder/model.safetensors") if source == "pictures" else ()
        return command("fit", self.folder / source, "-o", self.folder / out, "--dim", "8", *encoder)

    def wrong(self, expected: dict[str, bytes], out: str = "codes") -> list[str]:
        """Files that are not as they should be."""
        found = contents(self.folder / out)
        return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def writing(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Killed before a random line of the code that writes a folder of codes: anew, and when photos were added to it."""
    outcome = Outcome("SIGKILL while writing a folder of codes")
    bench = Bench(folder)
    lines = folder / "lines"

    def traced(fatal: int) -> None:
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
            nonlocal count
            if frame.f_code.co_filename not in WRITERS:
                return None
            count += event == "line"
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            bench.fit("pictures")()
        finally:
            sys.settrace(None)
            lines.write_text(str(count))

    added = folder / "pictures/class 0/added.png"
    run(bench.fit("pictures"), folder)
    before = folder / "before"
    shutil.copytree(folder / "codes", before)
    stages: list[tuple[bool, int, dict[str, bytes]]] = []
    for late in (False, True):
        if late:
            shutil.copy2(folder / "pictures/class 1/1.png", added)
        shutil.rmtree(folder / "codes")
        if late:
            shutil.copytree(before, folder / "codes")
        run(partial(traced, -1), folder)
        stages.append((late, int(lines.read_text()), contents(folder / "codes")))
    for _ in range(tries):
        late, total, expected = rng.choice(stages)
        shutil.rmtree(folder / "codes", ignore_errors=True)
        if late:
            shutil.copytree(before, folder / "codes")
            shutil.copy2(folder / "pictures/class 1/1.png", added)
        else:
            added.unlink(missing_ok=True)
        fatal = rng.randint(1, total)
        first = run(partial(traced, fatal), folder)
        after = run(bench.fit("pictures"), folder)
        wrong = bench.wrong(expected)
        good = first.status == -signal.SIGKILL and after.status == 0 and not wrong
        outcome.check(good, f"line event {fatal} {late}: {first.status} {after.status} {wrong} {after.text[-300:]}")
    return outcome


def full_disk(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """No room at random points of a fit: one line, nothing half-written; with room again it ends in the same bytes."""
    outcome = Outcome("disk full while fitting codes")
    bench = Bench(folder)
    disk = folder / "disk"
    disk.mkdir()

    def limited(work: Callable[[], None], limit: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        work()

    for source in ("pictures", "x.npy"):
        run(bench.fit(source, "undisturbed/codes"), folder)
        expected = contents(folder / "undisturbed/codes")
        largest = max(map(len, expected.values()))
        work = bench.fit(source, "disk/codes")
        for i in range(tries // 2):
            size = rng.randint(20, 220) * largest // 100
            words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
            mounted = i % 2 == 0 and subprocess.run(words, capture_output=True).returncode == 0
            ended = run(work if mounted else partial(limited, work, rng.randint(1, 99) * largest // 100), folder)
            half = [path.name for path in disk.rglob("*.partial")]
            good = (ended.status in (1, 2) and ended.one_line is not None) or ended.status == 0
            if mounted:
                subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True, capture_output=True)
            after = run(work, folder)
            wrong = bench.wrong(expected, "disk/codes")
            outcome.check(
                good and not half and after.status == 0 and not wrong,
                f"{source}: {ended.status} {half} {after.status} {wrong} {ended.text[-300:]}",
            )
            subprocess.run(["umount", str(disk)], check=True) if mounted else shutil.rmtree(disk / "codes")
        shutil.rmtree(folder / "undisturbed")
    return outcome


def same_folder(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Two fits into one folder, and codes that are read while they are fitted again."""
    outcome = Outcome("two fits into one folder, reading while fitting")
    bench = Bench(folder)
    run(bench.fit("x.npy"), folder)
    expected = contents(folder / "codes")
    for _ in range(tries):
        shutil.rmtree(folder / "codes")
        first = Child(bench.fit("x.npy"), folder)
        while not (folder / "codes/codes.json").exists():
            time.sleep(0.002)
        first.kill(signal.SIGSTOP)
        other = run(bench.fit("x.npy"), folder)
        outcome.check(
            other.status == 2 and "in use by another process" in (other.one_line or ""), f"fit: {other.text[-300:]}"
        )
        reader = run(command("embed", folder / "codes", folder / "x.npy", "-o", folder / "e.npz"), folder)
        outcome.check(
            reader.status == 0 or (reader.status == 2 and reader.one_line is not None), f"embed: {reader.text[-300:]}"
        )
        first.kill(signal.SIGCONT)
        ended = first.wait()
        wrong = bench.wrong(expected)
        outcome.check(ended.status == 0 and not wrong, f"the first: {ended.status} {wrong} {ended.text[-300:]}")
    return outcome


def cut_files(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """A mapped file is cut under a command: one line that names it, and once it is whole the work ends as ever."""
    outcome = Outcome("mapped file cut while it is read")
    bench = Bench(folder)
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32))
    np.save(folder / "images.npy", tiny_images().pixels)

    def train(name: str, source: Path) -> None:
        cli.open_display(True)
        images = data.load(Data(name=name, root=str(source), size=16, holdout=0.0), "train")
        loop.train(tiny_recipe("bayesncl", "run.batch=4"), images, folder / "run")

    def cutting(module: object, name: str, path: Path, work: Callable[[], None]) -> None:
        """Work, but `path` is cut when the function is first called."""
        real = getattr(module, name)

        def cut(*args: object, **options: object) -> object:
            setattr(module, name, real)
            os.truncate(next(path.glob("*/pixels.npy")) if path.is_dir() else path, 200)
            return real(*args, **options)

        setattr(module, name, cut)
        work()

    os.environ["BAYESNCL_CACHE"] = str(folder / "cache")
    fit, kept, images = bench.fit("x.npy"), folder / "codes/embeddings.npy", folder / "images.npy"
    for what, module, name, path, work in (
        ("fit of an array", fitting, "_sane", folder / "x.npy", fit),
        ("embeddings while fitting", codes, "measure", kept, fit),
        ("training on an array", loop, "losses", images, partial(train, "arrays", images)),
        ("training on the cache", loop, "losses", folder / "cache", partial(train, "folder", folder / "pictures")),
    ):
        shutil.rmtree(folder / "run", ignore_errors=True)
        before = path.read_bytes() if path.is_file() else None
        if what == "training on the cache":  # which it makes
            run(work, folder)
            shutil.rmtree(folder / "run")
        ended = run(partial(cutting, module, name, path, work), folder)
        good = ended.status in (1, 2) and "was cut while it was read" in (ended.one_line or "")
        outcome.check(good, f"{what}: {ended.status} {ended.text[-300:]}")
        if before is not None and path != kept:  # what we made ourselves is made again
            path.write_bytes(before)
        after = run(work, folder)
        outcome.check(after.status == 0, f"{what}, again: {after.status} {after.text[-300:]}")
    return outcome
