"""Training: the same loop on a CPU, one GPU and several.

`train` is the public function, `run_loop` the loop, `train_step` and `forward` one step. On a GPU,
`compile.accelerate` replaces the step by a faster one with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.data.images import Images, fingerprint
from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.io import is_codes, write_atomic
from bayesncl.method.augment import make_views
from bayesncl.method.backbones import set_views
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.method.gates import GATES
from bayesncl.method.heads import Features
from bayesncl.method.lars import LARS
from bayesncl.method.losses import ACTIVE
from bayesncl.method.schedule import warmup_cosine
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, change, find_recipe, shorthands, with_root
from bayesncl.training import checkpoint
from bayesncl.training.compile import Parts, accelerate, compiles
from bayesncl.training.loader import Pixels, batches, to_device
from bayesncl.training.log import Logger, Meter, raise_if_bad
from bayesncl.training.monitor import record_knn
from bayesncl.training.prepare import check_batch, load_split, prepare_run, report_similarity
from bayesncl.training.run_folder import RunFolder, catch_signals, new_run
from bayesncl.training.weights import model_bytes

AfterEpoch = Callable[[Encoder, int], dict[str, object] | None]
Step = Callable[[Tensor, Tensor, int, Tensor], None]  # of (pixels, index, epoch, learning rates)


class Interrupted(Exception):
    """The run was asked to stop and has saved a checkpoint."""

    def __init__(self, run: RunFolder, done: int, total: int) -> None:
        how = f"to continue: bayesncl resume {run}"
        super().__init__(f"stopped after {done} of {total} steps; {how}")
        self.run, self.done, self.total = run, done, total


def train(
    recipe: Recipe | str, images: Images | np.ndarray | Tensor | str | Path | None = None,
    out: str | Path | None = None, *, data: str | Path | None = None, epochs: int | None = None,
    batch: int | None = None, size: int | None = None, backbone: str | None = None,
    changes: Iterable[str] = (), device: torch.device | str | None = None,
    display: Display | None = None, after_epoch: AfterEpoch | None = None, revise: bool = False,
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
        line of metrics.jsonl. ``bayesncl.paper.dynamics.recorder`` records gradient dynamics.
    revise : allow other values of the `REVISABLE` fields, such as more epochs, in a resumed run.

    Returns
    -------
    The trained Encoder, in eval mode.
    """
    device = find_device(device)
    display = display or Display(quiet=isinstance(recipe, Recipe))
    if isinstance(images, str | Path):
        data, images = images, None
    root = None if data is None else str(data)
    if out is not None and is_codes(out):
        raise InputError(f"{out} is a folder of codes: choose another --out")
    short: dict[str, Any] = {"epochs": epochs, "batch": batch, "size": size, "backbone": backbone}
    if isinstance(recipe, str) and images is None:
        recipe, images = prepare_run(recipe, changes, root, device, display, **short)
    else:
        recipe = find_recipe(recipe) if isinstance(recipe, str) else recipe
        recipe = with_root(change(recipe, [*shorthands(recipe, **short), *changes]), root)
        images = load_split(recipe, "train", display) if images is None else images
    images = images if isinstance(images, Images) else Images(np.asarray(images))
    run = RunFolder(out) if out is not None else new_run(Path("runs"), recipe.name)
    model = run_loop(recipe, images, run, device, display, after_epoch, revise)
    if not display.quiet:
        display.note(report_similarity(model, images))
    return model


def run_loop(
    recipe: Recipe, images: Images, run: RunFolder, device: torch.device, display: Display,
    after_epoch: AfterEpoch | None = None, revise: bool = False,
) -> Encoder:
    """Train to the end of the recipe, with checkpoints; the model in eval mode."""
    display.busy("preparing the model")
    options, batch = recipe.run, recipe.run.batch
    steps = len(images) // batch  # per epoch
    with (
        run.lock(), catch_signals() as signals, explain_errors(recipe),
        ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        check_batch(recipe, len(images))
        if recipe.run.knn_every and images.labels is None:
            raise InputError("run.knn_every needs labeled images")
        pixels = to_device(images.pixels, device)
        model, optimizer, meter, step = assemble(recipe, pixels, device)
        seen = fingerprint(images.pixels)
        done = checkpoint.resume_or_begin(run, model, optimizer, seen, display, steps, revise)
        rates = learning_rates(recipe, steps).to(device)  # [T, groups]
        if compiles(recipe, device) and done < len(rates):
            display.note("compiling for this GPU: up to a minute, seconds the next time")
        logger = Logger(run, meter, display, recipe, steps, done)
        stop, written = False, pool.submit(checkpoint.listed, run)  # the last write, if any
        for epoch in range(done // steps, options.epochs):
            first = done % steps
            for part, index in batches(pixels, batch, options.seed, epoch, first, device):
                step(part, index, epoch, rates[done])
                done += 1
                logger.step(done)
                if distributed.world_size() == 1:
                    stop = bool(signals)
                elif done % options.log_every == 0:  # processes stop together
                    stop = bool(distributed.gather_arrays(torch.tensor([len(signals)])).any())
                if stop:
                    break
            if after_epoch is not None and done == (epoch + 1) * steps:
                logger.extra(after_epoch(model, epoch + 1), done)
            if options.knn_every and done == steps * (epoch + 1):
                logger.extra(record_knn(model, images, epoch + 1), done)
            if stop or (epoch + 1) % options.checkpoint_every == 0 or done == len(rates):
                logger.finish()
                raise_if_bad(meter.sums, done, run)
                if distributed.rank() == 0:
                    written.result()
                    state = checkpoint.snapshot(model, optimizer, done, seen)
                    written = pool.submit(checkpoint.write, run, state, options.keep_checkpoints)
                    if device.type != "cuda" or distributed.world_size() > 1 or stop:
                        written.result()  # on a GPU the state is a copy: training goes on
                distributed.barrier()  # waits longer for a slow disk than other collectives
            if stop and done < len(rates):
                raise Interrupted(run, done, len(rates))
        written.result()
        if distributed.rank() == 0:
            write_atomic(run.weights, model_bytes(model))
        distributed.barrier()
    return model.eval()


class Batch(NamedTuple):
    """Inputs of a step, at fixed addresses: a CUDA graph reads them there."""

    pixels: Tensor  # uint8 [b, 3, H, W]
    rows: Tensor  # int64 [b], positions in the dataset
    epoch: Tensor  # int64 []
    precision: torch.dtype  # of the products in the forward pass


def train_step(
    model: Encoder, optimizer: LARS, meter: Meter, batch: Batch, parts: Parts
) -> None:
    """One step: forward pass and loss, backward pass, update."""
    optimizer.zero_grad(set_to_none=True)
    loss, averages, active = forward(model, batch, parts)
    loss.backward()
    distributed.sum_gradients(model.parameters())
    optimizer.step()
    meter.add(averages, active)


def forward(model: Encoder, batch: Batch, parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of a batch; averages [5] (AVERAGES) and active rows per dimension [D], no gradient.

    With several processes these are this process's shares, which add up to the global values.
    """
    pixels, index, epoch, precision = batch
    seed = torch.full_like(epoch, model.recipe.run.seed)  # a number would be compiled in
    x, uniform = parts.draw(model, pixels, index, epoch, seed)
    mixed = precision != torch.float32
    with torch.autocast(pixels.device.type, dtype=precision, enabled=mixed):
        h = parts.embed(model, x)
        features = parts.code(model, h, uniform)
    return parts.score(model, features)


def draw(
    model: Encoder, pixels: Tensor, index: Tensor, epoch: Tensor, seed: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Normalized views [2b, 3, S, S] of pixels [b, 3, H, W]; numbers [2b, D] for noisy gates."""
    views = make_views(pixels, index, epoch, seed, model.recipe.views)
    x = model.normalize_pixels(views).contiguous(memory_format=torch.channels_last)
    return x, model.head.draw_uniform(index, epoch, seed)


def embed(model: Encoder, x: Tensor) -> Tensor:
    """h [2b, F] of normalized views."""
    return model.embed(x)


def code(model: Encoder, h: Tensor, uniform: Tensor | None) -> Features:
    """Features of h [2b, F]."""
    return model.head(h, uniform)


def score(model: Encoder, features: Features) -> tuple[Tensor, Tensor, Tensor]:
    """The head's loss, and the metrics that `forward` returns."""
    terms = model.head.loss(features)
    with torch.no_grad():
        active = features.gated.abs() > ACTIVE
        l0 = active.float().sum(1).mean() / distributed.world_size()
        return terms.loss, torch.stack([*terms, l0]), active.float().sum(0)


EAGER = Parts(draw, embed, code, score)


def assemble(
    recipe: Recipe, pixels: Pixels, device: torch.device
) -> tuple[Encoder, LARS, Meter, Step]:
    """A new model in training mode, its optimizer and meter, and the step that updates them."""
    model = build_model(recipe).to(device)
    model = model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    set_views(model, 2)
    optimizer = make_optimizer(model, device)
    meter = Meter(model.head.dim, device)
    share = recipe.run.batch // distributed.world_size()
    batch = Batch(
        torch.zeros(share, *pixels.shape[1:], dtype=torch.uint8, device=device),
        torch.arange(share, device=device),
        torch.zeros((), dtype=torch.int64, device=device),
        find_precision(recipe, device),
    )
    rates = [group["lr"] for group in optimizer.param_groups]
    step_with = partial(train_step, model, optimizer, meter, batch)
    run: Callable[[], None] = partial(step_with, EAGER)

    def backward() -> None:
        forward(model, batch, EAGER)[0].backward()
        distributed.sum_gradients(model.parameters())

    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    if compiles(recipe, device):
        run = accelerate(step_with, EAGER, model, optimizer, meter.state, batch.pixels, backward)

    def step(pixels: Tensor, index: Tensor, epoch: int, rate: Tensor) -> None:
        batch.pixels.copy_(pixels)
        batch.rows.copy_(index)
        batch.epoch.fill_(epoch)
        torch._foreach_copy_(rates, list(rate.unbind()))
        run()

    return model, optimizer, meter, step


def find_precision(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The type of the products in the forward pass."""
    gpu = device.type == "cuda"
    if recipe.run.precision == "bf16" and not gpu:
        raise InputError("run.precision=bf16 needs a GPU")
    return torch.bfloat16 if gpu and recipe.run.precision != "float32" else torch.float32


def make_optimizer(model: Encoder, device: torch.device) -> LARS:
    """LARS with one group for the gating head and one for the rest; rates are tensors."""
    gates = list(model.gate.parameters()) if model.gate is not None else []
    others = [p for p in model.parameters() if not any(p is q for q in gates)]
    groups = [
        {"params": group, "lr": torch.zeros((), device=device)}
        for group in (others, gates) if group
    ]
    o = model.recipe.optimizer
    optimizer = LARS(groups, 0.0, o.momentum, o.weight_decay, o.eta, o.clip)
    optimizer.prepare()
    return optimizer


def learning_rates(recipe: Recipe, steps: int) -> Tensor:
    """Rates [T, groups] of every step; only the first group's base scales with the batch."""
    o = recipe.optimizer
    bases = [o.lr * recipe.run.batch / 256]
    if recipe.gate.kind in GATES and recipe.model.head == "projector":
        bases.append(recipe.gate.lr)
    total, warmup = steps * recipe.run.epochs, steps * o.warmup_epochs

    def rates(t: int) -> list[float]:
        return [warmup_cosine(t, base, warmup, total, o.start_lr) for base in bases]

    return torch.tensor([rates(t) for t in range(total)])


@contextmanager
def explain_errors(recipe: Recipe) -> Iterator[None]:
    """Report a GPU out of memory, or a lost process, in one line."""
    try:
        with distributed.lost_process_as_error():
            yield
    except torch.OutOfMemoryError:
        raise InputError(
            f"out of GPU memory at batch {recipe.run.batch}, {recipe.views.size} px, "
            f"{recipe.model.dim} dimensions: lower run.batch, model.hidden or model.dim"
        ) from None
