"""A run is a folder: naming it, locking it, and what is recorded of its surroundings."""

from __future__ import annotations

import fcntl
import os
import platform
import signal
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType

import torch

from . import distributed
from .errors import InputError
from .files import sweep
from .recipes import Recipe, recipe_from_json


def new_run(parent: Path, name: str) -> Path:
    """Make the folder parent/name, or name-2, name-3, ... if it exists."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for i in range(1, 10_000):
            path = parent / (name if i == 1 else f"{name}-{i}")
            try:
                path.mkdir()
                return path
            except FileExistsError:
                continue
    except OSError as error:
        raise InputError(f"cannot make a run folder in {parent}: {error.strerror}") from None
    raise InputError(f"{parent} is full of runs named {name}")


def read_recipe(run_dir: Path) -> Recipe:
    """The recipe of a run folder."""
    path = run_dir / "recipe.json"
    if not run_dir.is_dir():
        raise InputError(f"no run folder {run_dir}")
    if not path.is_file():
        raise InputError(f"{run_dir} is not a run: it has no recipe.json")
    try:
        return recipe_from_json(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


class RunLock:
    """Holds a run folder for one process, to train or to measure; the system frees it however the process ends."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / ".lock"

    def __enter__(self) -> RunLock:
        self.file = None
        if distributed.rank() == 0:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.file = open(self.path, "w")
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(self.file.fileno()), os.stat(self.path)):
                    raise FileNotFoundError  # a run that just ended took its lock file away between our two lines
            except (BlockingIOError, FileNotFoundError):
                raise InputError(f"{self.path.parent} is in use by another process") from None
            except OSError as error:
                raise InputError(f"cannot write to {self.path.parent}: {error.strerror}") from None
            sweep(self.path.parent)
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.path.unlink(missing_ok=True)
            self.file.close()


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
        "bayesncl": version(),
        "revision": git_revision(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads",
        "processes": distributed.world_size(),
        "machine": platform.machine(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def version() -> str:
    """Version of this package, also when it runs from the source tree."""
    from . import __version__

    return __version__


def git_revision() -> str | None:
    """Commit of the source tree the package runs from, with + if it has changes; None outside a repository."""
    if revision := os.environ.get("BAYESNCL_REVISION"):
        return revision
    here = Path(__file__).parent
    try:
        answers = [
            subprocess.run(
                ["git", "-C", str(here), *command], capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", "."])
        ]
    except (OSError, subprocess.SubprocessError):
        return None
    return answers[0] + ("+" if answers[1] else "")
