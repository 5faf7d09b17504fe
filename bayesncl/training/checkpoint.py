"""Checkpoints: atomic, checksummed, resumable.

A file is a safetensors file with a checksum in its metadata. Order, views and noise are pure
functions of (seed, epoch, image), so weights, momenta and the step number are the whole state.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.errors import InputError, as_input_error
from bayesncl.io import digest, read_tensors, tensor_bytes, write_atomic
from bayesncl.method.encoder import Encoder
from bayesncl.method.lars import LARS
from bayesncl.progress import Display, plural
from bayesncl.recipes import REVISABLE, Recipe, recipe_from_dict, replace_fields
from bayesncl.training import run_folder
from bayesncl.training.run_folder import RunFolder


class Checkpoint(NamedTuple):
    """State after `step` steps."""

    step: int
    recipe: Recipe
    images: tuple[str, str]  # fingerprint of the training images
    tensors: dict[str, Tensor]  # model.NAME and momentum.NAME

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors of ``model`` or ``momentum``, by parameter name."""
        start = f"{name}."
        tensors = {n: t for n, t in self.tensors.items() if n.startswith(start)}
        return run_folder.from_file_names({n.removeprefix(start): t for n, t in tensors.items()})


def snapshot(model: Encoder, optimizer: LARS, step: int, images: tuple[str, str]) -> Checkpoint:
    """The state after `step` steps; on a GPU a copy, so training can continue meanwhile."""
    momenta = {n: optimizer.state[p]["momentum_buffer"] for n, p in model.named_parameters()}
    tensors = {f"model.{n}": t for n, t in run_folder.to_file_names(model.state_dict()).items()}
    tensors |= {f"momentum.{n}": t for n, t in run_folder.to_file_names(momenta).items()}
    return Checkpoint(step, model.recipe, images, tensors)


def write(run: RunFolder, state: Checkpoint, keep: int = 2) -> None:
    """Write a checkpoint of a run and remove all but the newest `keep`."""
    step, recipe, images, tensors = state
    text = json.dumps({"step": step, "recipe": recipe.to_dict(), "images": images})
    run.checkpoints.mkdir(exist_ok=True)
    path = run.checkpoints / f"step-{step:08d}.ckpt"
    write_atomic(path, tensor_bytes(tensors, {"state": text, "sha256": digest(tensors, text)}))
    for path in listed(run)[:-keep]:
        path.unlink(missing_ok=True)


@contextmanager
def writer(run: RunFolder, keep: int) -> Iterator[Callable[[Checkpoint, bool], None]]:
    """A function that writes a checkpoint in another thread and, if told to, waits."""
    with ThreadPoolExecutor(1) as pool:
        last: Future[Any] = pool.submit(listed, run)

        def save(state: Checkpoint, wait: bool) -> None:
            nonlocal last
            last.result()  # raises what went wrong
            last = pool.submit(write, run, state, keep)
            if wait:
                last.result()

        yield save


def listed(run: RunFolder) -> list[Path]:
    """Checkpoint files of a run, in the order of their steps."""
    return sorted(run.checkpoints.glob("step-*.ckpt"))


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; InputError if a single bit is wrong."""
    tensors, metadata = read_tensors(path)
    text = metadata.get("state", "")
    if metadata.get("sha256") != digest(tensors, text):
        raise InputError(f"{path} is damaged: its checksum does not match")
    with as_input_error(f"{path} is not a checkpoint", ValueError, KeyError, TypeError):
        state = json.loads(text)
        recipe = recipe_from_dict(state["recipe"], str(path))
        return Checkpoint(int(state["step"]), recipe, tuple(state["images"]), tensors)


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
                optimizer.state[p]["momentum_buffer"].copy_(momenta[name])  # in place: recorded


def resume_or_begin(
    run: RunFolder, model: Encoder, optimizer: LARS, images: tuple[str, str], display: Display,
    steps: int, revise: bool,
) -> int:
    """Restore the newest checkpoint and return its step; 0 in a fresh folder.

    `steps` is the number per epoch. With `revise`, the recipe may differ from the checkpoint's in
    the `REVISABLE` fields.
    """
    recipe, (found, damaged) = model.recipe, newest(run)
    done = found.step if found is not None else 0
    if len(distributed.gather_arrays(torch.tensor([done])).unique()) > 1:
        every = "all machines must share a folder"
        raise InputError(f"the processes find different checkpoints in {run}: {every}")
    if found is not None:
        _check_same_run(run, found, recipe, images, steps, revise)
        if found.images[1] != images[1]:
            display.note(f"{run} was started with other images, or they decode differently here")
        restore(found, model, optimizer)
        before, after = found.recipe.run.epochs, recipe.run.epochs
        if revise and before != after:
            display.note(
                f"learning rates follow {plural(before, 'epoch')} up to epoch {done / steps:.4g} "
                f"and {after} from there: repeatable, but not the same as {after} from the start"
            )
            for path in (run.weights, run.evaluation_file):
                if distributed.rank() == 0 and path.is_file():
                    path.replace(path.with_stem(f"{path.stem}-{before}-epochs"))
    if distributed.rank() == 0:
        if found is None and run.recipe_file.is_file():
            display.note(f"{run} has no checkpoint yet: starting from the beginning")
        for path, error in damaged.items():
            aside = path.replace(path.with_name(f"{path.name}.damaged"))
            display.note(f"{error}; renamed to {aside.name}")
        write_atomic(run.recipe_file, recipe.to_json())
        write_atomic(run.environment_file, json.dumps(run_folder.environment(), indent=2) + "\n")
        run.cut_metrics(done)
    distributed.barrier()
    return done


def _check_same_run(
    run: RunFolder, found: Checkpoint, recipe: Recipe, images: tuple[str, str], steps: int,
    revise: bool,
) -> None:
    """Raise InputError unless a checkpoint continues with this recipe and these images."""

    def same(one: Recipe) -> bool:  # images may have moved since the run was started
        return replace_fields(one, data={"root": recipe.data.root}) == recipe

    saved = found.recipe
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
    if found.images[0] != images[0]:
        raise InputError(
            f"{run} was started with {found.images[0]}, not {images[0]}: pass the same --data or "
            "start a new run"
        )


def open_model(path: Path, device: torch.device | str) -> tuple[Encoder, str]:
    """A trained model; of an unfinished run, its newest checkpoint and a sentence saying so."""
    run = RunFolder(path)
    if not path.is_dir() or run.weights.exists() or not listed(run):
        return run_folder.load_run(path, device), ""
    found, _ = newest(run)
    if found is None:
        raise InputError(f"{run} is unfinished and its checkpoints are damaged: bayesncl resume it")
    model = run_folder.fill_model(found.recipe, found.part("model"), path)
    return model.to(device), f"Unfinished run: using its checkpoint after {found.step:,} steps."
