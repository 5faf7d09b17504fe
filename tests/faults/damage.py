"""Disks that fill up or refuse, files that change under a run, memory that runs out."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

import bayesncl.train as loop
from bayesncl import checkpoint, cli, data
from bayesncl.errors import InputError
from bayesncl.progress import Display
from bayesncl.recipes import Data
from bayesncl.run import Run
from tests.conftest import tiny_images, tiny_recipe
from tests.faults.harness import Child, Outcome, command, contents, run
from tests.faults.kills import same_run, train_in, write_pictures


def checkpoints(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """The newest checkpoint cut or with a flipped bit: the one before is used, and a line says so."""
    outcome = Outcome("checkpoint cut or with flipped bits")
    run(lambda: train_in(folder / "undisturbed"), folder)
    undisturbed = contents(folder / "undisturbed")
    before, newest = (path.read_bytes() for path in checkpoint.listed(Run(folder / "undisturbed")))
    place = folder / "damaged"

    def resume() -> None:
        loop.train(tiny_recipe(), tiny_images(), place, display=Display())

    for i in range(tries):
        shutil.copytree(folder / "undisturbed", place, dirs_exist_ok=True)
        (place / "model.safetensors").unlink()
        spoilt = bytearray(newest)
        if rng.random() < 0.4:
            del spoilt[rng.randrange(len(spoilt)) :]
        else:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        file = checkpoint.listed(Run(place))[-1]
        file.write_bytes(spoilt)
        with contextlib.suppress(InputError):
            checkpoint.read(file)
            outcome.check(False, f"try {i}: damage not seen")
            continue
        if i % 10 < 2:  # the whole way, which takes longer: to the same weights
            after = run(resume, folder)
            aside = file.with_name(f"{file.name}.damaged")
            said = f"{file} is damaged: its checksum does not match; set aside as {aside.name}" in after.text
            said = said and aside.exists()
            aside.unlink(missing_ok=True)
            wrong = same_run(place, undisturbed)
            outcome.check(
                after.status == 0 and said and not wrong,
                f"try {i}: {after.status} {wrong} {after.text[-300:]}",
            )
        else:
            found = checkpoint.newest(Run(place))
            good = found is not None and found.step == 8
            outcome.check(good and checkpoint.listed(Run(place))[0].read_bytes() == before, f"try {i}: {found}")
    return outcome


def full_disk(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """No room at random points: one line, nothing half-written; with room again the run goes on to the same bytes."""
    outcome = Outcome("disk full")
    run(lambda: train_in(folder / "undisturbed"), folder)
    undisturbed = contents(folder / "undisturbed")
    largest = max(map(len, undisturbed.values()))
    disk = folder / "disk"
    disk.mkdir()

    def mount(size: int, *options: str) -> bool:
        words = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", str(disk)]
        return subprocess.run(words, capture_output=True).returncode == 0

    def limited(place: Path, limit: int) -> None:
        """Without a mount: no file may grow beyond the limit, which fails in the same places with another errno."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        cli_train(place)

    def cli_train(place: Path) -> None:
        try:
            train_in(place)
        except OSError as error:
            cli.fail(f"{error.filename}: {error.strerror}", 1)

    place = disk / "run"
    for i in range(tries):
        mounted = i % 2 == 0 and mount(rng.randint(20, 280) * largest // 100)
        limit = rng.randint(1, 99) * largest // 100
        ended = run(partial(cli_train, place) if mounted else partial(limited, place, limit), folder)
        half = [p.name for p in place.rglob("*.partial")] if place.exists() else []
        good = (ended.status == 1 and ended.one_line is not None and "run" in ended.one_line) or ended.status == 0
        if mounted:
            mount_again = subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], capture_output=True)
            good = good and mount_again.returncode == 0
        after = run(lambda: train_in(place), folder)
        wrong = same_run(place, undisturbed)
        outcome.check(
            good and not half and not wrong, f"{ended.status} {half} {wrong} {after.status} {ended.text[-300:]}"
        )
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)
        else:
            shutil.rmtree(place)
    return outcome


def read_only(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """Folders that cannot be written, for every command that writes: one line."""
    outcome = Outcome("read-only folder")
    shut = folder / "shut"
    run(lambda: train_in(shut), folder)
    shutil.copy(shut / "model.safetensors", folder / "kept.safetensors")
    (shut / "model.safetensors").unlink()
    pictures = write_pictures(folder / "pictures", 6, 16)
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(20, 4)))
    run(command("fit", folder / "x.npy", "-o", shut / "codes", "--dim", "4"), folder)

    def work(*words: str | Path) -> None:
        os.environ["BAYESNCL_CACHE"] = str(shut / "cache")
        command(*words)()

    shut.chmod(0o555)
    mounted = os.getuid() == 0  # whom permissions do not stop
    if (
        mounted
        and subprocess.run(["mount", "--bind", "-o", "ro", str(shut), str(shut)], capture_output=True).returncode
    ):
        outcome.kind += " (cannot be tried: root, without mount)"
        return outcome
    try:
        for words in (
            ("train", "scenes", "--out", shut / "new", "--set", "data.train_images=32", "--set", "run.batch=8"),
            ("resume", shut),
            ("embed", folder / "kept.safetensors", pictures, "-o", shut / "z.npz"),
            ("train", "folder", "--data", pictures, "--out", folder / "new"),  # the cache cannot be written
            ("fit", folder / "x.npy", "-o", shut / "more", "--dim", "4"),
            ("fit", folder / "x.npy", "-o", shut / "codes", "--dim", "4"),
            ("embed", shut / "codes", folder / "x.npy", "-o", shut / "e.csv"),
            ("evaluate", shut / "codes"),
            ("atlas", shut / "codes"),
        ):
            ended = run(partial(work, *words), folder)
            good = ended.status in (1, 2) and ended.one_line is not None
            outcome.check(good, f"{words[0]}: {ended.status} {ended.text[-300:]}")
    finally:
        if mounted:
            subprocess.run(["umount", str(shut)], check=True)
        shut.chmod(0o755)
    return outcome


def vanishing_data(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """The file of a running job is removed: the run ends in the same bytes. Removed before a resume: one line."""
    outcome = Outcome("data removed under a running job")
    stored = folder / "x.npy"
    np.save(stored, tiny_images().pixels)
    source = Data(name="arrays", root=str(stored), size=16, holdout=0.0)

    def train(place: Path) -> None:
        images = data.load(source, "train")
        (folder / "loaded").touch()
        loop.train(tiny_recipe(), images, place)

    run(lambda: train(folder / "undisturbed"), folder)
    undisturbed = contents(folder / "undisturbed")
    for _ in range(tries):
        (folder / "loaded").unlink()
        child = Child(lambda: train(folder / "run"), folder)
        while not (folder / "loaded").exists():
            time.sleep(0.005)
        stored.rename(folder / "kept")
        (folder / "kept").rename(stored) if rng.random() < 0.5 else (folder / "kept").unlink()
        ended = child.wait()
        wrong = same_run(folder / "run", undisturbed)
        outcome.check(ended.status == 0 and not wrong, f"{ended.status} {wrong} {ended.text[-300:]}")
        np.save(stored, tiny_images().pixels)
        shutil.rmtree(folder / "run")
    (folder / "undisturbed/model.safetensors").unlink()
    recipe = tiny_recipe("bayesncl", "data.name=arrays", f"data.root={folder / 'gone.npy'}")
    (folder / "undisturbed/recipe.json").write_text(recipe.to_json())
    ended = run(command("resume", folder / "undisturbed"), folder)
    outcome.check(ended.status == 2 and "gone.npy: no such file" in (ended.one_line or ""), ended.text[-300:])
    return outcome


def out_of_memory(tries: int, folder: Path, rng: random.Random) -> Outcome:
    """The device runs out of memory in a step: the line names the batch and what to lower."""
    outcome = Outcome("out of GPU memory (simulated)")

    def train() -> None:
        def exhausted(*_: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

        loop.losses = exhausted  # type: ignore[assignment]
        command("train", "scenes", "--out", folder / "run", "--set", "data.train_images=64", "--set", "run.batch=32")()

    ended = run(train, folder)
    line = ended.one_line or ""
    outcome.check(ended.status == 2 and "batch 32" in line and "lower run.batch" in line, ended.text[-300:])
    return outcome
