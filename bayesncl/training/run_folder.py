"""Run folders: the files of a training run, its lock, its model, and how a run is stopped."""

import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from bayesncl import __version__, distributed
from bayesncl.errors import InputError, as_input_error
from bayesncl.io import digest, read_tensors, remove_leftovers, tensor_bytes, write_atomic
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.progress import plural
from bayesncl.recipes import Recipe, read_recipe, recipe_from_json, replace_fields

ARRAY_SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
HEAD = "head."  # files name the tensors of the head without this prefix


class Folder:
    """An output folder, which need not exist yet; its files are attributes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.evaluation_file = self.folder / "evaluation.json"
        self.atlas = self.folder / "atlas"
        self.lock_file = self.folder / ".lock"

    def __str__(self) -> str:
        return str(self.folder)

    def __fspath__(self) -> str:
        return str(self.folder)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder for this process; the system releases the lock when a process dies."""
        if distributed.rank() != 0:
            yield
            return
        lock = FileLock(self.lock_file, timeout=0)
        with as_input_error(f"cannot write to {self}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                raise InputError(f"{self} is in use by another process") from None
        try:
            remove_leftovers(self.folder)
            yield
        finally:
            self.lock_file.unlink(missing_ok=True)  # while locked: a waiting process starts over
            lock.release()
            with suppress(OSError):  # after an error before the first file
                self.folder.rmdir()


class RunFolder(Folder):
    """The folder of a run: recipe, environment, metrics, checkpoints, weights."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self.recipe_file = self.folder / "recipe.json"
        self.environment_file = self.folder / "environment.json"
        self.metrics_file = self.folder / "metrics.jsonl"
        self.weights = self.folder / "model.safetensors"
        self.checkpoints = self.folder / "checkpoints"
        self.board = self.folder / "tensorboard"

    def recipe(self) -> Recipe:
        if not self.recipe_file.is_file():
            raise InputError(f"{self} is not a run: it has no {self.recipe_file.name}")
        return read_recipe(self.recipe_file)

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl: of training, or of another `kind` such as ``dynamics``."""
        return [line for _, line in self._lines() if line.get("kind") == kind]

    def _lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self.metrics_file.is_file():
            return
        for text in self.metrics_file.read_text(errors="replace").splitlines():
            with suppress(ValueError):  # a kill may have cut the last line short
                line = json.loads(text)
                if isinstance(line, dict) and type(line.get("step")) is int:
                    yield text, line

    def cut_metrics(self, done: int) -> None:
        """Drop the metrics of steps after `done`, which will be repeated."""
        kept = [f"{text}\n" for text, line in self._lines() if line["step"] <= done]
        write_atomic(self.metrics_file, "".join(kept))

    def append_metrics(self, line: dict[str, Any]) -> None:
        with open(self.metrics_file, "a") as file:
            file.write(json.dumps(line) + "\n")

    def model(self, device: str | torch.device = "cpu") -> Encoder:
        """The trained model in eval mode; InputError if it is missing or damaged."""
        if not self.weights.exists() and self.recipe_file.exists():
            raise InputError(f"{self} is not finished: bayesncl resume {self}")
        model = load_weights(self.weights)
        if self.recipe_file.is_file():  # the weights do not record the path of the images
            root = self.recipe().data.root
            model.recipe = replace_fields(model.recipe, data={"root": root})
        return model.to(device)

    def finished(self) -> bool:
        """Whether the run has a trained model that loads."""
        try:
            self.model()
        except InputError:
            return False
        return True


def new_run(parent: Path, name: str) -> RunFolder:
    """Create the folder parent/name, or name-2, name-3, ... if it exists."""
    with as_input_error(f"cannot create a run folder in {parent}"):
        parent.mkdir(parents=True, exist_ok=True)
        for i in itertools.count(1):
            path = parent / (name if i == 1 else f"{name}-{i}")
            with suppress(FileExistsError):
                path.mkdir()
                break
        return RunFolder(path)


def load_run(path: str | Path, device: str | torch.device = "cpu") -> Encoder:
    """Load a trained model from a run folder or a weights file."""
    path = Path(path)
    return RunFolder(path).model(device) if path.is_dir() else load_weights(path).to(device)


def model_bytes(model: Encoder) -> bytes:
    """The weights as a safetensors file, with the recipe and a checksum in the metadata."""
    tensors = to_file_names(model.state_dict())
    recipe = model.recipe.to_dict()
    recipe["data"]["root"] = ""  # the path of the images is private
    metadata = {"format": "bayesncl-1", "recipe": json.dumps(recipe), "sha256": digest(tensors)}
    return tensor_bytes(tensors, metadata)


def load_weights(path: Path) -> Encoder:
    """Load an encoder in eval mode from a weights file; nothing is unpickled."""
    if not path.is_file():
        raise InputError(f"no trained model at {path}")
    if path.suffix.lower() in ARRAY_SUFFIXES:
        raise InputError(
            f"{path} is an array, expected a run or codes; measure, fit and atlas read arrays"
        )
    tensors, metadata = read_tensors(path)
    if "recipe" not in metadata:
        codes = "a file of codes without an encoder: use ReadableCodes.load"
        what = codes if "config" in metadata else "not a trained model: it has no recipe"
        raise InputError(f"{path} is {what}")
    if metadata.get("sha256") != digest(tensors):
        raise InputError(f"{path} is damaged: its checksum does not match")
    recipe = recipe_from_json(metadata["recipe"], str(path))
    return fill_model(recipe, from_file_names(tensors), path)


def fill_model(recipe: Recipe, tensors: dict[str, Tensor], path: Path) -> Encoder:
    """Build the model of a recipe with these weights, in eval mode."""
    with as_input_error(f"{path} does not fit its recipe", RuntimeError):
        model = build_model(recipe)
        model.load_state_dict(tensors)
    return model.eval()


def to_file_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of an encoder on the CPU, under their names in files."""
    return {name.removeprefix(HEAD): t.detach().cpu().contiguous() for name, t in tensors.items()}


def from_file_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors from a file under their names in an encoder."""
    return {name if name.startswith("backbone.") else HEAD + name: t for name, t in tensors.items()}


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """A list to which Ctrl-C and SIGTERM are appended; a second one stops at once."""
    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    in_main = threading.current_thread() is threading.main_thread()  # no other handles signals
    caught = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def environment() -> dict[str, object]:
    """Versions, device, git revision, command and date."""
    packages = ("torch", "numpy", "scikit-learn", "pillow", "safetensors")
    cpu = f"CPU, {plural(torch.get_num_threads(), 'thread')}"
    return {
        "bayesncl": __version__,
        "revision": git_revision(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else cpu,
        "processes": distributed.world_size(),
        "machine": platform.machine(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def git_revision() -> str | None:
    """Commit of the source tree, with + if it has changes; None for an installed package."""
    if revision := os.environ.get("BAYESNCL_REVISION"):
        return revision
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # installed, perhaps inside another project's repository
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    with suppress(OSError, subprocess.SubprocessError):
        quiet = subprocess.DEVNULL
        found = subprocess.check_output(command, cwd=root, text=True, timeout=5, stderr=quiet)
        return found.strip()
    return None
