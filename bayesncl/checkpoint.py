"""Checkpoints: atomic, checked, resumable. A file is the bytes of a safetensors file followed by their SHA-256.

Order, views and noise are pure functions of (seed, epoch, image): weights, momenta and step number are the whole state.
"""

from __future__ import annotations

import hashlib
import json
import re
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from . import distributed
from .errors import InputError, or_refuse
from .files import tensor_bytes
from .lars import LARS
from .model import Encoder, fill_model, load_run, restored, stored
from .progress import Display, plural
from .recipes import REVISABLE, Recipe, recipe_from_json, replace_fields
from .run import Run, environment

DIGEST = 32  # bytes of SHA-256


class Checkpoint(NamedTuple):
    """State after `step` steps."""

    step: int
    recipe: str  # JSON
    tensors: dict[str, Tensor]
    images: tuple[str, str]  # fingerprint of the training images; empty in checkpoints of version 0.1.0


def snapshot(model: Encoder, optimiser: LARS, step: int, images: tuple[str, str] = ("", "")) -> Checkpoint:
    """The state after `step` steps; of a model on a GPU a copy, which stays as it is while training goes on."""
    tensors = {f"model.{name}": t for name, t in stored(model.state_dict()).items()}
    momenta = {n: optimiser.state[p]["momentum_buffer"] for n, p in model.named_parameters() if p in optimiser.state}
    tensors |= {f"momentum.{name}": t for name, t in stored(momenta).items()}
    return Checkpoint(step, json.dumps(model.recipe.to_dict()), tensors, images)


def write(run: Run, state: Checkpoint) -> Path:
    """Write a checkpoint of a run."""
    step, recipe, tensors, images = state
    metadata = {"step": str(step), "recipe": recipe, "images": images[0], "images_hash": images[1]}
    payload = tensor_bytes(tensors, metadata)
    path = run.checkpoints / f"step-{step:08d}.ckpt"
    run.inside(path).parent.mkdir(exist_ok=True)
    run.write(path, payload + hashlib.sha256(payload).digest())
    return path


class Writer:
    """Writes the checkpoints of a run and drops old ones; with `beside`, in a thread, while training goes on.

    One is written at a time. A failed write is noted by the next `save`, which then writes at once, or raised by `wait`
    and on leaving the writer's context; on leaving it because of another error it is noted.
    """

    def __init__(self, run: Run, keep: int, display: Display, beside: bool) -> None:
        self.run, self.keep, self.display = run, keep, display
        self.pool = ThreadPoolExecutor(1) if beside else None
        self.pending: Future[None] | None = None

    def save(self, state: Checkpoint) -> None:
        """Write a checkpoint, or begin to."""
        if self._settle() and self.pool is not None:
            self.pending = self.pool.submit(self._work, state)
        else:
            self._work(state)

    def wait(self) -> None:
        """Wait until what was begun is on the disk."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def _settle(self) -> bool:
        """Wait; whether all went well. What did not is noted."""
        try:
            self.wait()
        except Exception as error:
            self.display.note(f"a checkpoint could not be written: {error}")
            return False
        return True

    def _work(self, state: Checkpoint) -> None:
        for note in prune(self.run, self.keep, write(self.run, state)):
            self.display.note(note)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.wait()
            else:  # which is not to be hidden by one of the disk
                self._settle()
        finally:
            if self.pool is not None:
                self.pool.shutdown()


def prune(run: Run, keep: int, known: Path | None = None) -> list[str]:
    """Drop all but the newest `keep` good checkpoints and set damaged ones aside; a line for each of those.

    One is dropped only once `keep` others have been read and found good. `known`, just written, is good unread and the
    newest whatever its number.
    """
    good, notes = 0, []
    newest_first = listed(run)[::-1]
    for path in sorted(newest_first, key=lambda path: path != known):
        if good == keep:
            path.unlink(missing_ok=True)
            continue
        try:
            if path != known:
                read(path)
            good += 1
        except InputError as error:
            aside = path.with_name(f"{path.name}.damaged")
            path.replace(aside)
            notes.append(f"{error}; set aside as {aside.name}")
    return notes


def listed(run: Run) -> list[Path]:
    """Checkpoint files of a run, in the order of their steps."""
    found = [p for p in run.checkpoints.glob("step-*.ckpt") if re.fullmatch(r"step-\d+\.ckpt", p.name)]
    return sorted((p for p in found if p.is_file()), key=lambda p: int(p.stem.removeprefix("step-")))


def read(path: Path) -> Checkpoint:
    """Read one checkpoint; InputError if a single bit is wrong."""
    with or_refuse(f"cannot read {path}"):
        data = path.read_bytes()
    payload, checksum = data[:-DIGEST], data[-DIGEST:]
    if hashlib.sha256(payload).digest() != checksum:
        raise InputError(f"{path} is damaged: its checksum does not match")
    try:  # a good checksum does not make it one of ours
        length = int.from_bytes(payload[:8], "little")
        metadata = json.loads(payload[8 : 8 + length])["__metadata__"]
        tensors = safetensors.torch.load(payload)
        step = int(metadata["step"])
        if not 0 <= step < 2**53:
            raise ValueError(f"step {step}")
        recipe_from_json(metadata["recipe"], str(path))
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is not a checkpoint: {type(error).__name__} {error}") from None
    images = str(metadata.get("images", "")), str(metadata.get("images_hash", ""))
    return Checkpoint(step, metadata["recipe"], tensors, images)


def newest(run: Run) -> Checkpoint | None:
    """The newest undamaged checkpoint; `prune` names the damaged ones.

    With several processes all must find the same one: a folder that they do not share is an error, not a silent mix.
    """
    found = None
    for path in reversed(listed(run)):
        with suppress(InputError):
            found = read(path)
            break
    if not distributed.agree(found.step if found is not None else 0):
        raise InputError(f"the processes find different checkpoints in {run}: all machines must see one folder")
    return found


def part(checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """The tensors of the `model` or of the `momentum`, by the names of the parameters."""
    start = f"{name}."
    return restored({n.removeprefix(start): t for n, t in checkpoint.tensors.items() if n.startswith(start)})


def restore(checkpoint: Checkpoint, model: Encoder, optimiser: LARS) -> None:
    """Put a checkpoint's state into a model and its optimiser."""
    momenta = part(checkpoint, "momentum")
    with or_refuse("the checkpoint does not fit the recipe", RuntimeError):
        model.load_state_dict(part(checkpoint, "model"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in momenta:
                if momenta[name].shape != p.shape:
                    raise InputError(f"the checkpoint does not fit the recipe: momentum of {name}")
                optimiser.state[p]["momentum_buffer"] = torch.empty_like(p).copy_(momenta[name])


def resume_or_begin(
    run: Run, model: Encoder, optimiser: LARS, images: tuple[str, str], display: Display, steps: int, revise: bool
) -> int:
    """Steps already done: restored from the newest good checkpoint, or 0 in a fresh folder.

    Of the recipe `REVISABLE` fields may differ from the checkpoint's, if `revise` says so or recipe.json already has
    them: the run was revised, and killed before its next checkpoint. `steps` are those of an epoch.
    """
    recipe = model.recipe
    found = newest(run)
    if found is not None:
        saved = recipe_from_json(found.recipe, str(run))
        like = moved(saved, recipe)
        if revise or (run.recipe_file.is_file() and moved(run.recipe(), recipe) == recipe):
            like = replace_fields(like, run={name: getattr(recipe.run, name) for name in REVISABLE})
        if like != recipe:
            raise InputError(f"the checkpoint in {run} is of another recipe")
        if found.step > steps * recipe.run.epochs:
            least = -(-found.step // steps)
            raise InputError(f"{run} has trained {found.step / steps:.4g} epochs already: run.epochs={least} or more")
        (then, old), (here, new) = found.images, images
        if then and then != here:
            raise InputError(f"{run} was started with {then}, not {here}: give it its own (--data) or start a new run")
        if old and old != new:
            display.note(f"{run} was started with other images, or they decode differently here")
        restore(found, model, optimiser)
        if saved.run.epochs != recipe.run.epochs and revise:
            old_length, length = plural(saved.run.epochs, "epoch"), recipe.run.epochs
            display.note(
                f"up to epoch {found.step / steps:.4g} the rates were those of {old_length}, from here they are those "
                f"of {length}: repeatable, but not the same as {length} from the start"
            )
            if distributed.rank() == 0:
                run.set_aside(f"{saved.run.epochs}-epochs")
    done = found.step if found is not None else 0
    if distributed.rank() == 0:
        for note in prune(run, recipe.run.keep_checkpoints):
            display.note(note)
        run.write(run.recipe_file, recipe.to_json())
        run.write(run.environment_file, json.dumps(environment(), indent=2) + "\n")
        run.cut_metrics(done)
    distributed.barrier()
    return done


def moved(recipe: Recipe, other: Recipe) -> Recipe:
    """The recipe with its images where the other's are: they may lie elsewhere than when a run was started."""
    return replace_fields(recipe, data={"root": other.data.root})


def open_model(run: Path, device: torch.device | str) -> tuple[Encoder, str]:
    """A finished model, or an unfinished run as its newest checkpoint has it and a sentence that says so."""
    if not run.is_dir() or Run(run).weights.exists() or not listed(Run(run)):
        return load_run(run, device), ""
    found = newest(Run(run))
    if found is None:
        raise InputError(f"{run} is not finished, and none of its checkpoints can be read: bayesncl resume {run}")
    model = fill_model(recipe_from_json(found.recipe, str(run)), part(found, "model"), run)
    return model.eval().to(device), f"Not finished: this is its checkpoint after {found.step:,} steps."
