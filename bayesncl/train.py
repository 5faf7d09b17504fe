"""Training: the loop and its step, the same on a CPU, one GPU and many.

The step never waits for the host. On a GPU it takes kernels from `kernels` where there are any and has `graph` compile
larger parts; one process replays all of it as a CUDA graph. On a CPU the same functions run as they are written.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import checkpoint, distributed, draws
from .augment import make_views
from .backbones import ResNet, set_views, use_kernels
from .data.images import Images, fingerprint
from .errors import InputError
from .feed import Pixels, batches, settle
from .gates import GATES
from .graph import check_gradients, compile_function, fast, keep_compiled
from .heads import Features
from .lars import LARS
from .meter import Logger, Meter, raise_if_bad
from .model import Encoder, build_model, model_bytes
from .objective import ACTIVE
from .progress import Display
from .recipes import Recipe, change, find_recipe, replace_fields, shorthands, with_root
from .run import Run, Stopper, new_run
from .schedule import warmup_cosine

AfterEpoch = Callable[[Encoder, int], dict[str, object] | None]
Batch = tuple[Tensor, Tensor, Tensor, torch.dtype]  # pixels [b, 3, H, W], index [b], epoch [], precision
Step = Callable[[Tensor, Tensor, int, Tensor], None]  # of (pixels, index, epoch, rates)


class Interrupted(Exception):
    """The run was asked to stop and has saved its state."""

    def __init__(self, run: Run, done: int, total: int) -> None:
        super().__init__(f"stopped after {done} of {total} steps; to continue: bayesncl resume {run}")
        self.run, self.done, self.total = run, done, total


def train(
    recipe: Recipe | str,
    images: Images | np.ndarray | Tensor | str | Path | None = None,
    run_dir: str | Path | None = None,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    size: int | None = None,
    backbone: str | None = None,
    changes: Iterable[str] = (),
    device: torch.device | str | None = None,
    display: Display | None = None,
    after_epoch: AfterEpoch | None = None,
    revise: bool = False,
) -> Encoder:
    """Train a recipe on images, or continue a run of it that was stopped or killed.

    ``bayesncl.train("folder", data="photos/", epochs=5, out="runs/x")`` does what the command of that name does: a
    recipe that is named is fitted to images and machine, and what was chosen is said. A Recipe is trained as it is.

    Parameters
    ----------
    recipe : what to train, by name or as such.
    images : the training split, also as uint8 [N, 3, H, W], or the folder it is in; default what the recipe and
        `data` name.
    run_dir, out : either names the folder of the run: recipe.json, environment.json, metrics.jsonl, checkpoints,
        finally model.safetensors. Default runs/RECIPE, numbered if it exists.
    data : where the images are.
    epochs, batch, size, backbone : instead of the recipe's.
    changes : of other fields, as on the command line: ``["gate.prior=0.6"]``.
    device : default the GPU if there is one.
    display : where progress goes; default the terminal for a named recipe, and nowhere otherwise.
    after_epoch : called with the model and the epochs done; a dict it returns becomes a line of metrics.jsonl. Default
        what records the gradient dynamics, where the recipe wants them.
    revise : a run that is there may be resumed with other `REVISABLE` fields of its recipe, such as more epochs.

    Returns
    -------
    Encoder, trained, in eval mode.
    """
    from .plan import load_split, plan_run, tell_difference  # which times the step of this file

    place = device if isinstance(device, torch.device) else find_device(device)
    display = display or Display(quiet=isinstance(recipe, Recipe))
    short: dict[str, Any] = {"epochs": epochs, "batch": batch, "size": size, "backbone": backbone}
    if isinstance(images, str | Path):
        data, images = images, None
    root = None if data is None else str(data)
    if isinstance(recipe, str) and images is None:
        recipe, images = plan_run(recipe, changes, root, place, display, **short)
    else:
        recipe = find_recipe(recipe) if isinstance(recipe, str) else recipe
        recipe = with_root(change(recipe, [*shorthands(recipe, **short), *changes]), root)
        images = load_split(recipe, "train", display) if images is None else images
    if not isinstance(images, Images):
        images = Images(np.asarray(images))
    folder = run_dir or out
    run = Run(folder) if folder is not None else new_run(Path("runs"), recipe.name)
    if after_epoch is None and recipe.run.dynamics_every:
        from .dynamics import recorder  # which takes scipy along

        after_epoch = recorder(images, recipe)
    model = run_loop(recipe, images, run, place, display, after_epoch, revise)
    tell_difference(model, images, display)
    return model


def run_loop(
    recipe: Recipe,
    images: Images,
    run: Run,
    device: torch.device,
    display: Display,
    after_epoch: AfterEpoch | None,
    revise: bool,
) -> Encoder:
    """Train to the end of the recipe, with checkpoints; the model, in eval mode."""
    batch, epochs = recipe.run.batch, recipe.run.epochs
    check_batch(recipe, len(images))
    display.busy("preparing the model")
    steps = len(images) // batch  # per epoch
    beside = device.type == "cuda" and distributed.world_size() == 1  # a GPU need not wait for the disk
    writer = checkpoint.Writer(run, recipe.run.keep_checkpoints, display, beside)
    with run.lock(), Stopper() as stopper, explain_memory(recipe), writer:
        pixels = settle(images.pixels, device)
        model, optimiser, meter, step = assemble(recipe, pixels, device)
        seen = fingerprint(images.pixels)
        done = checkpoint.resume_or_begin(run, model, optimiser, seen, display, steps, revise)
        meter.steps.fill_(done)
        rates = schedule(recipe, steps).to(device)  # [T, groups]
        if compiles(recipe, device) and done < steps * epochs:
            display.note("compiling the step for this GPU: up to a minute, seconds the next time")
        logger = Logger(run, meter, display, recipe, steps, done)
        stop = False
        for epoch in range(done // steps, epochs):
            for part, index in batches(pixels, batch, recipe.run.seed, epoch, done % steps, device):
                step(part, index, epoch, rates[done])
                done += 1
                display.advance(done)
                if done % recipe.run.log_every == 0 or done == steps * epochs:
                    logger.log(done)
                stop = stopper.asked(done, recipe.run.log_every)
                if stop:
                    break
            if after_epoch is not None and done == (epoch + 1) * steps:
                logger.extra(after_epoch(model, epoch + 1), done)
            if stop or (epoch + 1) % recipe.run.checkpoint_every == 0 or epoch + 1 == epochs:
                logger.finish()
                raise_if_bad(meter.first_bad.cpu(), run)
                if distributed.rank() == 0:
                    writer.save(checkpoint.snapshot(model, optimiser, done, seen))
                distributed.barrier()  # which is patient: the next collective is not, and a slow disk is no death
            if stop and done < steps * epochs:
                writer.wait()
                raise Interrupted(run, done, steps * epochs)
        writer.wait()
        if distributed.rank() == 0:
            run.write(run.weights, model_bytes(model))
        distributed.barrier()
    return model.eval()


def update(
    model: Encoder, optimiser: LARS, meter: Meter, loss_of: Callable[..., tuple[Tensor, Tensor, Tensor]], batch: Batch
) -> None:
    """The step: views, forward and loss by `loss_of` (`losses`, as it is or with compiled parts); backward; update."""
    optimiser.zero_grad(set_to_none=True)
    loss, averages, active = loss_of(model, *batch)
    loss.backward()
    distributed.sum_gradients(model.parameters())
    optimiser.step()
    meter.add(averages, active)


def losses(
    model: Encoder,
    pixels: Tensor,
    index: Tensor,
    epoch: Tensor,
    precision: torch.dtype,
    made: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda part: part,
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of a batch; averages [5] (AVERAGES) and active rows per dimension [D], both without gradient.

    With several processes these are this process's shares, which add up to those of the global batch. `made` compiles a
    part; by default it leaves it as it is. There are two reasons to compile the parts apart: torch does not cache a
    compiled function that enters autocast, and another run with the same views or backbone finds them in the cache.
    """
    seed = torch.full_like(epoch, model.recipe.run.seed)  # as a number it would be compiled in, anew for each seed
    x, uniform = made(draw)(model, pixels, index, epoch, seed)
    with torch.autocast(pixels.device.type, dtype=precision, enabled=precision != torch.float32):
        h = made(embed)(model, x)
        features = made(code)(model, h, uniform)
    return made(score)(model, features)


def draw(model: Encoder, pixels: Tensor, index: Tensor, epoch: Tensor, seed: Tensor) -> tuple[Tensor, Tensor | None]:
    """Normalised views [2b, 3, S, S] of pixels [b, 3, H, W], and the noise [2b, D] that noisy gates take."""
    views = make_views(pixels, index, epoch, seed, model.recipe.views)
    x = model.normalise_pixels(views).contiguous(memory_format=torch.channels_last)
    return x, draw_noise(model, index, epoch, seed)


def draw_noise(model: Encoder, index: Tensor, epoch: Tensor, seed: Tensor) -> Tensor | None:
    """The noise [2b, D] of noisy gates; None for others."""
    if model.head.kind is None or model.head.kind.noise is None:
        return None
    keys = draws.make_key(seed, epoch, torch.cat([index, index + 2**40]), stream=7)
    return draws.uniform(keys, model.head.dim)


def embed(model: Encoder, x: Tensor) -> Tensor:
    """h [2b, F] of normalised views; the running statistics of the backbone move."""
    return model.embed(x)


def code(model: Encoder, h: Tensor, uniform: Tensor | None) -> Features:
    """What the head makes of h [2b, F] and the noise of its gates."""
    return model.head(h, uniform)


def score(model: Encoder, features: Features) -> tuple[Tensor, Tensor, Tensor]:
    """What `losses` returns, of features."""
    terms = model.head.loss(features)
    with torch.no_grad():
        active = features.gated.abs() > ACTIVE
        l0 = active.float().sum(1).mean() / distributed.world_size()
        return terms.loss, torch.stack([*terms, l0]), active.float().sum(0)


def assemble(recipe: Recipe, pixels: Pixels, device: torch.device) -> tuple[Encoder, LARS, Meter, Step]:
    """A fresh model in training mode, its optimiser, its meter, and the step that moves all three for such pixels."""
    model = build_model(recipe).to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    set_views(model, 2)
    optimiser = make_optimiser(model, device)
    meter = Meter(model.head.dim, device)
    return model, optimiser, meter, make_step(model, optimiser, meter, pixels, device)


def make_step(model: Encoder, optimiser: LARS, meter: Meter, pixels: Pixels, device: torch.device) -> Step:
    """`update` on inputs that stay in place; it compiles at its first call."""
    recipe, compiled = model.recipe, compiles(model.recipe, device)
    share = recipe.run.batch // distributed.world_size()
    held = torch.zeros(share, *pixels.shape[1:], dtype=torch.uint8, device=device)
    held_index = torch.arange(share, device=device)
    held_epoch = torch.zeros((), dtype=torch.int64, device=device)
    rates = [group["lr"] for group in optimiser.param_groups]
    batch = held, held_index, held_epoch, find_precision(recipe, device)
    run: Callable[[], None] = partial(update, model, optimiser, meter, losses, batch)

    def backward_as_written() -> None:
        losses(model, *batch)[0].backward()
        distributed.sum_gradients(model.parameters())

    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    if compiled:
        keep_compiled()
        parts = kernel_parts(model, held)
        made = cache(lambda part: parts.get(part) or compile_function(part))
        body = partial(update, model, optimiser, meter, partial(losses, made=made), batch)
        if draw not in parts:  # then something is compiled
            torch.compiler.reset()  # of a function only eight compiled forms are kept; a ninth would run as written
        optimiser.use_kernel()
        # the float32 products that are left are those of InfoNCE, and meant to be
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        run = fast(
            body,
            lambda: [*model.state_dict().values(), *meter.state, *momenta(optimiser)],
            device,
            lambda: check_gradients(model, backward_as_written),
        )

    def step(pixels: Tensor, index: Tensor, epoch: int, rate: Tensor) -> None:
        held.copy_(pixels)
        held_index.copy_(index)
        held_epoch.fill_(epoch)
        torch._foreach_copy_(rates, list(rate.unbind()))
        if distributed.world_size() == 1:
            run()
        else:
            distributed.checked(run)  # compiled code skips the guards of single collectives

    return step


def kernel_parts(model: Encoder, pixels: Tensor) -> dict[Callable[..., Any], Callable[..., Any]]:
    """What stands in for the parts of a step on a GPU that need no compiler, for such pixels.

    A ResNet in one process has kernels of its own. So have small views. With both, head and loss run as they are
    written: they are too small to be worth the time of torch's compiler, six seconds for its import alone.
    """
    parts: dict[Callable[..., Any], Callable[..., Any]] = {}
    if isinstance(model.backbone, ResNet) and distributed.world_size() == 1:
        from .kernels import views

        parts[embed] = embed_with_kernels
        if views.fits(model.recipe.views, (pixels.shape[2], pixels.shape[3])):
            parts |= {draw: draw_with_kernel, code: code, score: score}
    return parts


def draw_with_kernel(
    model: Encoder, pixels: Tensor, index: Tensor, epoch: Tensor, seed: Tensor
) -> tuple[Tensor, Tensor | None]:
    """`draw` by our own kernel."""
    from .kernels.views import make_views

    x = make_views(pixels, index, epoch, seed, model.recipe.views, model.mean, model.std)
    return x, draw_noise(model, index, epoch, seed)


def embed_with_kernels(model: Encoder, x: Tensor) -> Tensor:
    """`embed` with our own kernels between the convolutions."""
    with use_kernels():
        return model.embed(x)


def compiles(recipe: Recipe, device: torch.device) -> bool:
    """Whether the step takes kernels and torch's compiler. Both need Triton, which torch's builds for Linux bring."""
    return recipe.run.compile and device.type == "cuda" and find_spec("triton") is not None


def find_precision(recipe: Recipe, device: torch.device) -> torch.dtype:
    """The type of the products in the forward pass."""
    gpu = device.type == "cuda"
    if recipe.run.precision == "bf16" and not gpu:
        raise InputError("run.precision=bf16 is for a GPU: some CPUs have no bfloat16 products")
    return torch.bfloat16 if gpu and recipe.run.precision != "float32" else torch.float32


def make_optimiser(model: Encoder, device: torch.device) -> LARS:
    """LARS, a group for the gating head and one for the rest; rates are tensors that the step fills."""
    gates = list(model.gate.parameters()) if model.gate is not None else []
    others = [p for p in model.parameters() if not any(p is q for q in gates)]
    groups = [{"params": group, "lr": torch.zeros((), device=device)} for group in (others, gates) if group]
    o = model.recipe.optimiser
    optimiser = LARS(groups, lr=0.0, momentum=o.momentum, weight_decay=o.weight_decay, eta=o.eta, clip=o.clip)
    optimiser.prepare()
    return optimiser


def momenta(optimiser: LARS) -> list[Tensor]:
    """Every momentum buffer."""
    return [state["momentum_buffer"] for state in optimiser.state.values()]


def schedule(recipe: Recipe, steps: int) -> Tensor:
    """Learning rates [T, groups] of every step: the base rate follows the global batch, the gate's does not."""
    o = recipe.optimiser
    bases = [o.lr * recipe.run.batch / 256] + ([recipe.gate.lr] if recipe.gate.kind in GATES else [])
    total, warmup = steps * recipe.run.epochs, steps * o.warmup_epochs
    return torch.tensor([[warmup_cosine(t, base, warmup, total, o.start_lr) for base in bases] for t in range(total)])


def find_device(name: str | None = None) -> torch.device:
    """The device a person asked for, or the best there is; a GPU asked for by number becomes the current one."""
    if name is None:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"no device {name!r}: cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("no GPU that torch can use: --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"no device {name!r}: {torch.cuda.device_count()} GPUs, counted from cuda:0")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # also for what asks for no more than "cuda"
    return device


def check_batch(recipe: Recipe, n: int) -> None:
    """InputError unless n images fill a batch that the processes can share."""
    batch, world = recipe.run.batch, distributed.world_size()
    if n < batch:
        raise InputError(f"{n} images do not fill one batch of {batch}: --set run.batch={max(2, n - n % 2)}")
    if batch % world:
        fits = batch // world * world or world
        raise InputError(f"a batch of {batch} cannot be shared by {world} processes: --set run.batch={fits}")


@contextmanager
def explain_memory(recipe: Recipe) -> Iterator[None]:
    """Within: a GPU that runs out of memory is one line that says what to lower."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise InputError(
            f"out of GPU memory at batch {recipe.run.batch}, {recipe.views.size} px, {recipe.model.dim} dimensions: "
            "lower run.batch, model.hidden or model.dim"
        ) from None


def short_schedule(recipe: Recipe) -> str | None:
    """A note for runs that end before their warm-up does."""
    warmup = recipe.optimiser.warmup_epochs
    if recipe.run.epochs > warmup:
        return None
    return f"the run ends within its warm-up of {warmup} epochs: --set optimiser.warmup_epochs=0 trains at full rate"


def fit_batch(recipe: Recipe, n: int) -> tuple[Recipe, str | None]:
    """For sets smaller than a batch: a smaller one, for four steps an epoch if they are of 16 images, and a note."""
    if n >= recipe.run.batch:
        return recipe, None
    if n < 2:
        raise InputError(f"contrastive learning needs at least 2 images, got {n}")
    batch = max(n // 4, min(n, 16)) // 2 * 2
    note = f"only {n} training images: batch lowered from {recipe.run.batch} to {batch}"
    return replace_fields(recipe, run={"batch": batch}), note


class _Callable(ModuleType):
    """A module that can be called: `bayesncl.train` is this file, and training for whoever calls it."""

    __call__ = staticmethod(train)


sys.modules[__name__].__class__ = _Callable
