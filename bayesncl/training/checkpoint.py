"""Checkpoints: atomic, checksummed, resumable.

A file is a safetensors file followed by its SHA-256. Order, views and noise are pure functions of
(seed, epoch, image), so weights, momenta and the step number are the whole state.
"""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.errors import InputError, as_input_error
from bayesncl.io import tensor_bytes, write_atomic
from bayesncl.method.encoder import Encoder
from bayesncl.method.lars import LARS
from bayesncl.progress import Display, plural
from bayesncl.recipes import REVISABLE, Recipe, recipe_from_json, replace_fields
from bayesncl.training.run_folder import RunFolder, environment, load_run
from bayesncl.training.weights import fill_model, from_file_names, to_file_names

DIGEST_BYTES = 32  # of SHA-256


class Checkpoint(NamedTuple):
    """State after `step` steps."""

    step: int
    recipe: str  # JSON
    tensors: dict[str, Tensor]
    images: tuple[str, str]  # fingerprint of the training images; empty in version 0.1.0

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of ``model`` or ``momentum``, by parameter name."""
        start = f"{name}."
        tensors = {n: t for n, t in self.tensors.items() if n.startswith(start)}
        return from_file_names({n.removeprefix(start): t for n, t in tensors.items()})


def snapshot(
    model: Encoder, optimizer: LARS, step: int, images: tuple[str, str] = ("", "")
) -> Checkpoint:
    """The state after `step` steps; on a GPU a copy, so training can continue meanwhile."""
    momenta = {
        name: optimizer.state[p]["momentum_buffer"]
        for name, p in model.named_parameters()
        if p in optimizer.state
    }
    tensors = {f"model.{n}": t for n, t in to_file_names(model.state_dict()).items()}
    tensors |= {f"momentum.{n}": t for n, t in to_file_names(momenta).items()}
    return Checkpoint(step, json.dumps(model.recipe.to_dict()), tensors, images)


def write(run: RunFolder, state: Checkpoint) -> Path:
    """Write a checkpoint of a run."""
    step, recipe, tensors, (images, images_hash) = state
    metadata = {"step": str(step), "recipe": recipe, "images": images, "images_hash": images_hash}
    payload = tensor_bytes(tensors, metadata)
    path = run.checkpoints / f"step-{step:08d}.ckpt"
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, payload + hashlib.sha256(payload).digest())
    return path


class Writer:
    """Writes checkpoints and removes old ones; with `background`, in a thread.

    A failed background write is reported by the next `save`, which then writes in the foreground,
    or raised by `wait` and at the end of the context.
    """

    def __init__(self, run: RunFolder, keep: int, display: Display, background: bool) -> None:
        self.run, self.keep, self.display = run, keep, display
        self.pool = ThreadPoolExecutor(1) if background else None
        self.pending: Future[None] | None = None

    def save(self, state: Checkpoint) -> None:
        """Write a checkpoint, or start to."""
        if self._settle() and self.pool is not None:
            self.pending = self.pool.submit(self._write, state)
        else:
            self._write(state)

    def wait(self) -> None:
        """Wait until the checkpoint is on disk."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def _settle(self) -> bool:
        """Wait; report a failure and return False."""
        try:
            self.wait()
        except Exception as error:
            self.display.note(f"a checkpoint could not be written: {error}")
            return False
        return True

    def _write(self, state: Checkpoint) -> None:
        write(self.run, state)
        for path in listed(self.run)[: -self.keep]:
            path.unlink(missing_ok=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.wait()
            else:
                self._settle()  # must not hide `error`
        finally:
            if self.pool is not None:
                self.pool.shutdown()


def listed(run: RunFolder) -> list[Path]:
    """Checkpoint files of a run, in the order of their steps."""
    paths = [p for p in run.checkpoints.glob("step-*.ckpt") if re.fullmatch(r"step-\d+", p.stem)]
    return sorted((p for p in paths if p.is_file()), key=lambda p: int(p.stem[5:]))


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; InputError if a single bit is wrong."""
    with as_input_error(f"cannot read {path}"):
        data = path.read_bytes()
    payload, checksum = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != checksum:
        raise InputError(f"{path} is damaged: its checksum does not match")
    errors = (ValueError, KeyError, TypeError, safetensors.SafetensorError)
    with as_input_error(f"{path} is not a checkpoint", *errors):
        length = int.from_bytes(payload[:8], "little")
        metadata = json.loads(payload[8 : 8 + length])["__metadata__"]
        recipe_from_json(metadata["recipe"], str(path))
        tensors, step = safetensors.torch.load(payload), int(metadata["step"])
    images = metadata.get("images", ""), metadata.get("images_hash", "")
    return Checkpoint(step, metadata["recipe"], tensors, images)


def newest(run: RunFolder) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest undamaged checkpoint, and the damaged ones that are newer with their errors."""
    damaged: dict[Path, str] = {}
    for path in reversed(listed(run)):
        try:
            return read(path), damaged
        except InputError as error:
            damaged[path] = str(error)
    return None, damaged


def restore(checkpoint: Checkpoint, model: Encoder, optimizer: LARS) -> None:
    """Copy a checkpoint into a model and its optimizer."""
    momenta = checkpoint.part("momentum")
    with as_input_error("the checkpoint does not fit the recipe", RuntimeError), torch.no_grad():
        model.load_state_dict(checkpoint.part("model"))
        for name, p in model.named_parameters():
            if name in momenta:
                optimizer.state[p]["momentum_buffer"] = torch.empty_like(p).copy_(momenta[name])


def resume_or_begin(
    run: RunFolder, model: Encoder, optimizer: LARS, images: tuple[str, str], display: Display,
    steps: int, revise: bool,
) -> int:
    """Restore the newest checkpoint and return its step; 0 in a fresh folder.

    `steps` is the number per epoch. With `revise`, the recipe may differ from the checkpoint's in
    the `REVISABLE` fields.
    """
    recipe, done = model.recipe, 0
    found, damaged = newest(run)
    if not distributed.agree(found.step if found is not None else 0):
        raise InputError(
            f"the processes find different checkpoints in {run}: all machines must share a folder"
        )
    if found is not None:
        done = found.step
        saved = recipe_from_json(found.recipe, str(run))
        _check_same_run(run, found, saved, recipe, images, steps, revise)
        if found.images[1] and found.images[1] != images[1]:
            display.note(f"{run} was started with other images, or they decode differently here")
        restore(found, model, optimizer)
        if revise and saved.run.epochs != recipe.run.epochs:
            display.note(
                f"learning rates follow {plural(saved.run.epochs, 'epoch')} up to epoch "
                f"{done / steps:.4g} and {recipe.run.epochs} from there: repeatable, but not "
                f"the same as {recipe.run.epochs} from the start"
            )
            if distributed.rank() == 0:
                run.set_aside(f"{saved.run.epochs}-epochs")
    if distributed.rank() == 0:
        for path, error in damaged.items():
            aside = path.replace(path.with_name(f"{path.name}.damaged"))
            display.note(f"{error}; renamed to {aside.name}")
        write_atomic(run.recipe_file, recipe.to_json())
        write_atomic(run.environment_file, json.dumps(environment(), indent=2) + "\n")
        run.cut_metrics(done)
    distributed.barrier()
    return done


def _check_same_run(
    run: RunFolder, found: Checkpoint, saved: Recipe, recipe: Recipe, images: tuple[str, str],
    steps: int, revise: bool,
) -> None:
    """Raise InputError unless a checkpoint continues with this recipe and these images."""

    def same(one: Recipe) -> bool:  # images may have moved since the run was started
        return replace_fields(one, data={"root": recipe.data.root}) == recipe

    # recipe.json already has the recipe if a revised run was killed before its next checkpoint
    if revise or (run.recipe_file.is_file() and same(run.recipe())):
        revised = {name: getattr(recipe.run, name) for name in REVISABLE}
        saved = replace_fields(saved, run=revised)
    if not same(saved):
        raise InputError(f"the checkpoint in {run} belongs to another recipe")
    if found.step > steps * recipe.run.epochs:
        least = -(-found.step // steps)
        raise InputError(
            f"{run} has already trained {found.step / steps:.4g} epochs: set run.epochs={least} "
            "or more"
        )
    if found.images[0] and found.images[0] != images[0]:
        raise InputError(
            f"{run} was started with {found.images[0]}, not {images[0]}: pass the same --data or "
            "start a new run"
        )


def open_model(path: Path, device: torch.device | str) -> tuple[Encoder, str]:
    """A trained model; of an unfinished run, its newest checkpoint and a sentence saying so."""
    run = RunFolder(path)
    if not path.is_dir() or run.weights.exists() or not listed(run):
        return load_run(path, device), ""
    found, _ = newest(run)
    if found is None:
        raise InputError(f"{run} is unfinished and its checkpoints are damaged: bayesncl resume it")
    model = fill_model(recipe_from_json(found.recipe, str(run)), found.part("model"), path)
    return model.to(device), f"Unfinished run: using its checkpoint after {found.step:,} steps."
