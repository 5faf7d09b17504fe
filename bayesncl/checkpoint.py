"""Checkpoints: atomic, checked, resumable. A file is the bytes of a safetensors file followed by their SHA-256.

Order, views and noise are pure functions of (seed, epoch, image): weights, momenta and step number are the whole state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from . import distributed
from .errors import InputError
from .files import tensor_bytes, write_atomic
from .lars import LARS
from .model import Encoder
from .recipes import recipe_from_json

FOLDER = "checkpoints"
DIGEST = 32  # bytes of SHA-256


class Checkpoint(NamedTuple):
    """State after `step` steps."""

    step: int
    recipe: str  # JSON
    tensors: dict[str, Tensor]
    images: tuple[str, str]  # fingerprint of the training images; empty in checkpoints of version 0.1.0


def save(
    run_dir: Path, model: Encoder, optimiser: LARS, step: int, keep: int, images: tuple[str, str] = ("", "")
) -> Path:
    """Write the state after `step` steps and drop all but the newest `keep` checkpoints."""
    tensors = {f"model.{name}": t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    for name, p in model.named_parameters():
        if p in optimiser.state:
            tensors[f"momentum.{name}"] = optimiser.state[p]["momentum_buffer"].detach().cpu().contiguous()
    metadata = {"step": str(step), "recipe": json.dumps(model.recipe.to_dict())}
    metadata |= {"images": images[0], "images_hash": images[1]}
    payload = tensor_bytes(tensors, metadata)
    path = run_dir / FOLDER / f"step-{step:08d}.ckpt"
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, payload + hashlib.sha256(payload).digest())
    prune(run_dir, keep)
    return path


def prune(run_dir: Path, keep: int) -> None:
    """Drop all but the newest `keep` checkpoints."""
    for old in listed(run_dir)[:-keep]:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()


def listed(run_dir: Path) -> list[Path]:
    """Checkpoint files of a run, oldest first."""
    return sorted(p for p in (run_dir / FOLDER).glob("step-*.ckpt") if re.fullmatch(r"step-\d+\.ckpt", p.name))


def read(path: Path) -> Checkpoint:
    """Read one checkpoint; InputError if a single bit is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    payload, checksum = data[:-DIGEST], data[-DIGEST:]
    if hashlib.sha256(payload).digest() != checksum:
        raise InputError(f"{path} is damaged: its checksum does not match")
    try:  # a good checksum does not make it one of ours
        length = int.from_bytes(payload[:8], "little")
        metadata = json.loads(payload[8 : 8 + length])["__metadata__"]
        tensors = safetensors.torch.load(payload)
        step = int(metadata["step"])
        if step < 0:
            raise ValueError(f"step {step}")
        recipe_from_json(metadata["recipe"], str(path))
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is not a checkpoint: {type(error).__name__} {error}") from None
    images = str(metadata.get("images", "")), str(metadata.get("images_hash", ""))
    return Checkpoint(step, metadata["recipe"], tensors, images)


def newest(run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest undamaged checkpoint, and a line for each damaged one that was passed over.

    With several processes all must find the same one: a folder that they do not share is an error, not a silent mix.
    """
    found, complaints = None, []
    for path in reversed(listed(run_dir)):
        try:
            found = read(path)
            break
        except InputError as error:
            complaints.append(f"{error}; going back to the one before")
    if not distributed.agree(found.step if found is not None else 0):
        raise InputError(f"the processes find different checkpoints in {run_dir}: all machines must see one folder")
    return found, complaints


def restore(checkpoint: Checkpoint, model: Encoder, optimiser: LARS) -> None:
    """Put a checkpoint's state into a model and its optimiser."""
    weights = {k.removeprefix("model."): v for k, v in checkpoint.tensors.items() if k.startswith("model.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"the checkpoint does not fit the recipe: {str(error).splitlines()[0]}") from None
    with torch.no_grad():
        for name, p in model.named_parameters():
            momentum = checkpoint.tensors.get(f"momentum.{name}")
            if momentum is not None:
                if momentum.shape != p.shape:
                    raise InputError(f"the checkpoint does not fit the recipe: momentum of {name}")
                optimiser.state[p]["momentum_buffer"] = torch.empty_like(p).copy_(momentum)
