"""Training: the same loop on a CPU, one GPU and several; `step.train_step` is one step."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.data.images import Images, fingerprint
from bayesncl.device import find_device
from bayesncl.errors import InputError, as_input_error
from bayesncl.io import is_codes, write_atomic
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.method.gates import GATES
from bayesncl.method.lars import LARS, warmup_cosine
from bayesncl.progress import Display
from bayesncl.recipes import Recipe
from bayesncl.training import checkpoint
from bayesncl.training.compile import accelerate, compiles
from bayesncl.training.dynamics import record_dynamics
from bayesncl.training.loader import Pixels, batches, to_device
from bayesncl.training.log import Logger, Meter, raise_if_bad, record_knn
from bayesncl.training.prepare import (
    check_images,
    next_commands,
    prepare_run,
    report_similarity,
)
from bayesncl.training.run_folder import RunFolder, catch_signals, model_bytes, new_run
from bayesncl.training.step import Batch, train_step

AfterEpoch = Callable[[Encoder, int], dict[str, object] | None]
Step = Callable[[Tensor, Tensor, int, Tensor], None]  # of (pixels, index, epoch, learning rates)


class Interrupted(Exception):
    """The run was asked to stop and has saved a checkpoint."""


def train(
    recipe: Recipe | str, images: Images | np.ndarray | Tensor | str | Path | None = None,
    out: str | Path | None = None, *, data: str | Path | None = None, epochs: int | None = None,
    batch: int | None = None, size: int | None = None, backbone: str | None = None,
    changes: Iterable[str] = (), device: torch.device | str | None = None,
    display: Display | None = None, after_epoch: AfterEpoch | None = None, revise: bool = False,
    tensorboard: bool = False,
) -> Encoder:
    """Train a recipe on images, or continue a run of it that was stopped or killed.

    ``bayesncl.train("folder", data="photos/", epochs=5, out="runs/x")`` does the same as the
    command: a named recipe is adapted to the images and the machine. A Recipe is trained as it is.

    Parameters
    ----------
    recipe : a Recipe, or the name of one.
    images : the training split, as uint8 [N, 3, H, W], `Images` or the folder it is in. Default:
        the images that the recipe and `data` name.
    out : the run folder, with recipe.json, environment.json, metrics.jsonl, checkpoints and
        finally model.safetensors. Default: runs/RECIPE, numbered if it exists.
    data : path of the images.
    epochs, batch, size, backbone : replace the recipe's.
    changes : of other fields, as on the command line: ``["gate.prior=0.6"]``.
    device : ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``. Default: the GPU if there is one.
    display : shows progress. Default: the terminal for a named recipe, otherwise nothing.
    after_epoch : called with the model and the number of epochs done; a dict it returns becomes a
        line of metrics.jsonl.
    revise : allow other values of the `REVISABLE` fields, such as more epochs, in a resumed run.
    tensorboard : log to TensorBoard too.

    Returns
    -------
    The trained Encoder, in eval mode.
    """
    device, by_name = find_device(device), isinstance(recipe, str)
    display = display or Display(quiet=not by_name)
    if isinstance(images, str | Path):
        data, images = images, None
    if out is not None and is_codes(out):
        raise InputError(f"{out} is a folder of codes: choose another --out")
    if images is not None and not isinstance(images, Images):
        images = Images(np.asarray(images))
    recipe, images = prepare_run(
        recipe, changes, None if data is None else str(data), device, display, images,
        epochs=epochs, batch=batch, size=size, backbone=backbone,
    )  # fmt: skip
    run = RunFolder(out) if out is not None else new_run(Path("runs"), recipe.name)
    if tensorboard:
        run.board.mkdir(parents=True, exist_ok=True)
    model = run_loop(recipe, images, run, device, display, after_epoch, revise)
    if not display.quiet:
        display.note(report_similarity(model, images))
    if by_name:
        display.note(next_commands(run), wrap=False)
    return model


def run_loop(
    recipe: Recipe, images: Images, run: RunFolder, device: torch.device, display: Display,
    after_epoch: AfterEpoch | None = None, revise: bool = False,
) -> Encoder:
    """Train to the end of the recipe, with checkpoints; the model in eval mode."""
    display.busy("preparing the model")
    options, steps = recipe.run, len(images) // recipe.run.batch  # per epoch
    total, stop = steps * options.epochs, False
    records: list[AfterEpoch] = []  # each is called after every epoch
    if options.dynamics_every:
        records.append(partial(record_dynamics, images))
    if options.knn_every:
        records.append(partial(record_knn, images))
    if after_epoch is not None:
        records.append(after_epoch)
    memory = (
        f"out of GPU memory at batch {options.batch}, {recipe.views.size} px, {recipe.model.dim} "
        "dimensions: lower run.batch, model.hidden or model.dim"
    )
    with (
        run.lock(), catch_signals() as signals, as_input_error(memory, torch.OutOfMemoryError),
        distributed.lost_process_as_error(),
        checkpoint.writer(run, options.keep_checkpoints) as save,
    ):  # fmt: skip
        check_images(recipe, images)
        pixels = to_device(images.pixels, device)
        model, optimizer, meter, step = assemble(recipe, pixels, device)
        images_hash = fingerprint(images.pixels)
        done = checkpoint.resume_or_begin(
            run, model, optimizer, images_hash, display, steps, revise
        )
        rates = learning_rates(recipe, steps).to(device)  # [T, groups]
        if compiles(recipe, device) and done < total:
            display.note("compiling for this GPU: up to a minute, seconds the next time")
        logger = Logger(run, meter, display, recipe, steps, done)
        for epoch in range(done // steps, options.epochs):
            for part, index in batches(
                pixels, options.batch, options.seed, epoch, done % steps, device
            ):
                step(part, index, epoch, rates[done])
                done += 1
                logger.step(done)
                if distributed.world_size() == 1:
                    stop = bool(signals)
                elif done % options.log_every == 0:  # processes stop together
                    stop = bool(distributed.gather_arrays(torch.tensor([len(signals)])).any())
                if stop:
                    break
            if done == (epoch + 1) * steps:
                for record in records:
                    logger.extra(record(model, epoch + 1), done)
            if stop or (epoch + 1) % options.checkpoint_every == 0 or done == total:
                raise_if_bad(meter.sums, done, run)
                if distributed.rank() == 0:
                    # on a GPU the state is a copy: training goes on while it is written
                    copied = device.type == "cuda" and distributed.world_size() == 1
                    state = checkpoint.snapshot(model, optimizer, done, images_hash)
                    save(state, stop or done == total or not copied)
                distributed.barrier()  # waits longer for a slow disk than other collectives
            if stop and done < total:
                how = f"to continue: bayesncl resume {run}"
                raise Interrupted(f"stopped after {done} of {total} steps; {how}")
        if distributed.rank() == 0:
            write_atomic(run.weights, model_bytes(model))
        distributed.barrier()
    return model.eval()


def assemble(
    recipe: Recipe, pixels: Pixels, device: torch.device
) -> tuple[Encoder, LARS, Meter, Step]:
    """A new model in training mode, its optimizer and meter, and the step that updates them."""
    model = build_model(recipe).to(device)
    model = model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = make_optimizer(model, device)
    meter = Meter(model.head.dim, device)
    share, gpu = recipe.run.batch // distributed.world_size(), device.type == "cuda"
    if recipe.run.precision == "bf16" and not gpu:
        raise InputError("run.precision=bf16 needs a GPU")
    batch = Batch(
        torch.zeros(share, *pixels.shape[1:], dtype=torch.uint8, device=device),
        torch.arange(share, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
        torch.bfloat16 if gpu and recipe.run.precision != "float32" else torch.float32,
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    if gpu:
        torch.backends.cudnn.benchmark = True
    if compiles(recipe, device):
        step_on_batch = accelerate(model, optimizer, meter, batch)
    else:
        step_on_batch = partial(train_step, model, optimizer, meter, batch)

    def step(pixels: Tensor, index: Tensor, epoch: int, rate: Tensor) -> None:
        batch.pixels.copy_(pixels)
        batch.rows.copy_(index)
        batch.epoch.fill_(epoch)
        torch._foreach_copy_(rates, list(rate.unbind()))
        step_on_batch()

    return model, optimizer, meter, step


def make_optimizer(model: Encoder, device: torch.device) -> LARS:
    """LARS with one group for the gating head and one for the rest; rates are tensors."""
    gates = list(model.gate.parameters()) if model.gate is not None else []
    others = [p for p in model.parameters() if not any(p is q for q in gates)]
    groups = [
        {"params": group, "lr": torch.zeros((), device=device)}
        for group in (others, gates) if group
    ]
    o = model.recipe.optimizer
    return LARS(groups, 0.0, o.momentum, o.weight_decay, o.eta, o.clip)


def learning_rates(recipe: Recipe, steps: int) -> Tensor:
    """Rates [T, groups] of every step; only the first group's base scales with the batch."""
    o = recipe.optimizer
    bases = [o.lr * recipe.run.batch / 256]
    if recipe.gate.kind in GATES and recipe.model.head == "projector":
        bases.append(recipe.gate.lr)
    total, warmup = steps * recipe.run.epochs, steps * o.warmup_epochs
    rates = [[warmup_cosine(t, b, warmup, total, o.start_lr) for b in bases] for t in range(total)]
    return torch.tensor(rates)

