"""A run is a folder. This file knows the name of every file in it, reads each of them, and locks the whole.

Run folders come from strangers too: what is written goes into the folder and nowhere else, so a symbolic link that
stands where a file is to be written is refused.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout

from . import __version__, distributed
from .errors import InputError, or_refuse
from .files import read_regular, sweep, write_atomic
from .progress import plural
from .recipes import Recipe, read_recipe

if TYPE_CHECKING:
    from .model import Encoder

MOST_JSON, MOST_METRICS = 256 << 20, 4 << 30  # bytes


class Folder:
    """A folder, which need not exist yet, whose files are attributes: written whole, by one process, nowhere else."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.evaluation_file = self.folder / "evaluation.json"
        self.atlas = self.folder / "atlas"
        self.lock_file = self.folder / ".lock"

    def __str__(self) -> str:
        return str(self.folder)

    def write(self, path: Path, data: bytes | str) -> None:
        """Write a file of this folder."""
        write_atomic(self.inside(path), data)

    def inside(self, path: Path) -> Path:
        """`path`, if writing there stays in this folder; InputError for links, pipes and devices on the way."""
        for part in (path, *path.parents):
            if part == self.folder:
                return path
            mode = part.lstat().st_mode if os.path.lexists(part) else stat.S_IFREG
            if stat.S_ISLNK(mode):
                raise InputError(f"{part} is a symbolic link, and what is written here stays here: remove it")
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise InputError(f"{part} is a pipe or a device, expected a file: remove it")
        raise InputError(f"{path} is not in {self}")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold this folder for one process, to train or to measure; the system frees it however the process ends."""
        if distributed.rank() != 0:
            yield
            return
        for path in vars(self).values():
            if self.inside(path).suffix and path != self.folder and path.is_dir():
                raise InputError(f"{path} is a folder, expected a file: remove it")
        lock = FileLock(self.lock_file, timeout=0)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise InputError(f"{self} is in use by another process") from None
        except OSError as error:
            raise InputError(f"cannot write to {self}: {error.strerror}") from None
        try:
            sweep(self.folder)
            yield
        finally:
            self.lock_file.unlink(missing_ok=True)  # while it is held: whoever waits for this file starts over
            lock.release()


class Run(Folder):
    """A run folder, which need not exist yet: where its files are and what they say."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self.recipe_file = self.folder / "recipe.json"
        self.environment_file = self.folder / "environment.json"
        self.metrics_file = self.folder / "metrics.jsonl"
        self.weights = self.folder / "model.safetensors"
        self.checkpoints = self.folder / "checkpoints"
        self.board = self.folder / "tensorboard"

    def recipe(self) -> Recipe:
        """What is trained here."""
        if not self.folder.is_dir():
            raise InputError(f"no run folder {self}")
        if not self.recipe_file.is_file():
            raise InputError(f"{self} is not a run: it has no {self.recipe_file.name}")
        return read_recipe(self.recipe_file)

    def environment(self) -> dict[str, Any] | None:
        """Where and with what it was trained; None where nothing says so."""
        return _read_object(self.environment_file)

    def evaluation(self) -> dict[str, Any] | None:
        """The saved results of `bayesncl evaluate`; None where there are none that can be read."""
        return _read_object(self.evaluation_file)

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl, each with its `step`: of training, or of another `kind` such as ``dynamics``.

        A line that a kill cut short is left out, as is whatever else is not a line of ours.
        """
        return [line for _, line in self._lines() if line.get("kind") == kind]

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self.metrics_file.is_file():
            return
        for text in read_regular(self.metrics_file, MOST_METRICS).decode(errors="replace").splitlines():
            line = _parse_object(text)
            if line is not None and type(line.get("step")) is int:
                yield text, line

    def cut_metrics(self, done: int) -> None:
        """Drop the metrics of steps after `done`, which will be taken again."""
        kept = [f"{text}\n" for text, line in self._lines() if line["step"] <= done]
        self.write(self.metrics_file, "".join(kept))

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        handle = os.open(self.metrics_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            with open(handle, "a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            error.filename = str(self.metrics_file)  # a full disk does not say where
            raise

    def model(self, device: str | torch.device = "cpu") -> Encoder:
        """The trained model; InputError where there is none that can be used."""
        from .model import load_run

        return load_run(self.folder, device)

    def finished(self) -> bool:
        """Whether there is a trained model that loads."""
        try:
            self.model()
        except InputError:
            return False
        return True

    def set_aside(self, why: str) -> None:
        """Rename the model and its evaluation, which another is about to take the place of."""
        for path in (self.weights, self.evaluation_file):
            if path.is_file():
                path.replace(self.inside(path.with_name(f"{path.stem}-{why}{path.suffix}")))


def new_run(parent: Path, name: str) -> Run:
    """Make the folder parent/name, or name-2, name-3, ... if it exists."""
    with or_refuse(f"cannot make a run folder in {parent}"):
        parent.mkdir(parents=True, exist_ok=True)
        for i in itertools.count(1):
            path = parent / (name if i == 1 else f"{name}-{i}")
            with suppress(FileExistsError):
                path.mkdir()
                break
        return Run(path)


def _read_object(path: Path) -> dict[str, Any] | None:
    try:
        return _parse_object(read_regular(path, MOST_JSON).decode())
    except (OSError, UnicodeDecodeError):
        return None


def _parse_object(text: str) -> dict[str, Any] | None:
    def whole(digits: str) -> int | float:
        return int(digits) if len(digits) < 300 else float(digits)  # an int that no float holds breaks arithmetic

    try:
        tree = json.loads(text, parse_int=whole)
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


class Stopper:
    """Turns Ctrl-C and SIGTERM into a request to save and leave; a second one leaves at once."""

    def __init__(self) -> None:
        self.flag = False

    def __enter__(self) -> Stopper:
        try:
            self.old = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: whoever runs us there handles signals
            self.old = {}
        return self

    def __exit__(self, *_: object) -> None:
        for s, handler in self.old.items():
            signal.signal(s, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.flag:
            raise KeyboardInterrupt
        self.flag = True

    def asked(self, done: int, every: int) -> bool:
        """Whether to stop; several processes agree on it every so many steps."""
        if distributed.world_size() == 1:
            return self.flag
        if done % every:
            return False
        return distributed.any_of(self.flag)


def environment() -> dict[str, object]:
    """Versions, device, git revision, command and date."""
    packages = ("torch", "numpy", "scikit-learn", "pillow", "safetensors")
    gpu = torch.cuda.is_available()
    return {
        "bayesncl": __version__,
        "revision": git_revision(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if gpu else f"CPU, {plural(torch.get_num_threads(), 'thread')}",
        "processes": distributed.world_size(),
        "machine": platform.machine(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def git_revision() -> str | None:
    """Commit of the source tree the package runs from, with + if it has changes.

    None outside a repository, and in one that merely encloses the package: a project with its virtual environment.
    """
    if revision := os.environ.get("BAYESNCL_REVISION"):
        return revision
    here = Path(__file__).resolve().parent
    try:
        root, commit = _git(here, "rev-parse", "--show-toplevel", "HEAD").splitlines()
        if Path(root).resolve() != here.parent:
            return None
        return commit + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()


def next_commands(run: Run) -> str:
    """Where a trained run is, and what to do next, as commands that can be copied."""
    place = shlex.quote(str(run))
    return (
        f"trained: {run}\n"
        f"how readable it is:      bayesncl evaluate {place}\n"
        f"see what it learnt:      bayesncl atlas {place} --serve\n"
        f"readable codes from it:  bayesncl fit {place} -o codes"
    )
