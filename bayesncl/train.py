"""Training: one visible loop, the same on a CPU, one GPU and many.

The step (views, forward, loss, backward, LARS) never waits for the host. On a GPU it is compiled, and with one process
replayed as a CUDA graph; on a CPU the same function runs as it is written.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from . import checkpoint, distributed, draws
from .augment import make_views
from .backbones import set_views
from .data.images import Images, fingerprint
from .errors import InputError
from .feed import Pixels, batches, settle
from .files import write_atomic
from .gates import bernoulli_kl, gate_probability
from .lars import LARS
from .meter import Logger, Meter, cut_metrics, raise_if_bad
from .model import WEIGHTS, Encoder, build_model, save_model
from .objective import info_nce_sum
from .progress import Display
from .recipes import Recipe, recipe_from_json
from .runs import RunLock, Stopper, environment
from .schedule import warmup_cosine

ACTIVE = 1e-5  # a unit-norm feature above this is active
LOST = 0.05  # of a gradient's length as written: what is shorter once compiled has lost something
ROUNDING = 1e-6  # of the longest gradient: what is shorter may be nothing else
COMPILER: dict[str, str | int | bool | Callable[..., object]] = {
    "triton.persistent_reductions": False,  # sums over an image of 5 x 5 are twice as fast in a loop
}

AfterEpoch = Callable[[Encoder, int], dict[str, object] | None]


class Interrupted(Exception):
    """The run was asked to stop and has saved its state."""


def train(
    recipe: Recipe,
    images: Images,
    run_dir: Path,
    *,
    device: torch.device | None = None,
    display: Display | None = None,
    after_epoch: AfterEpoch | None = None,
) -> Encoder:
    """Train a recipe on images, or go on where a killed run of it stopped.

    Parameters
    ----------
    recipe : what to train.
    images : the training split.
    run_dir : folder of the run: recipe.json, environment.json, metrics.jsonl, checkpoints, finally model.safetensors.
    device : default the GPU if there is one.
    display : where progress goes; default nowhere.
    after_epoch : called with the model and the epochs done; a dict it returns becomes a line of metrics.jsonl.

    Returns
    -------
    Encoder, trained, in eval mode.
    """
    device = device or default_device()
    display = display or Display(quiet=True)
    batch, epochs = recipe.run.batch, recipe.run.epochs
    check_batch(recipe, len(images))
    steps = len(images) // batch  # per epoch
    with RunLock(run_dir), Stopper() as stopper:
        try:
            pixels = settle(images.pixels, device)
            model, optimiser, meter, step = assemble(recipe, pixels, device)
            seen = fingerprint(images.pixels)
            done = resume_or_begin(run_dir, model, optimiser, seen, display)
            meter.steps.fill_(done)
            rates = schedule(recipe, steps).to(device)  # [T, groups]
            if compiles(recipe, device) and done < steps * epochs:
                display.note("compiling the step for this GPU: about a minute, less the next time")
            logger = Logger(run_dir, meter, display, recipe, steps, done)
            stop = False
            for epoch in range(done // steps, epochs):
                for part, index in batches(pixels, batch, recipe.run.seed, epoch, done % steps, device):
                    step(part, index, epoch, rates[done])
                    done += 1
                    if done % recipe.run.log_every == 0 or done == steps * epochs:
                        logger.log(done)
                    stop = stopper.asked(done, recipe.run.log_every)
                    if stop:
                        break
                if after_epoch is not None and done == (epoch + 1) * steps:
                    logger.extra(after_epoch(model, epoch + 1), done)
                if stop or (epoch + 1) % recipe.run.checkpoint_every == 0 or epoch + 1 == epochs:
                    logger.finish()
                    save_checkpoint(run_dir, model, optimiser, seen, done, meter)
                if stop and done < steps * epochs:
                    progress = f"stopped after {done} of {steps * epochs} steps"
                    raise Interrupted(f"{progress}; go on with: bayesncl resume {run_dir}")
            logger.finish()
        except torch.OutOfMemoryError:
            raise InputError(
                f"out of GPU memory at batch {batch}, {recipe.views.size} px, {recipe.model.dim} dimensions: "
                "lower run.batch, model.hidden or model.dim"
            ) from None
        if distributed.rank() == 0:
            save_model(model, run_dir / WEIGHTS)
        distributed.barrier()
    return model.eval()


def default_device() -> torch.device:
    """The GPU of this process, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def find_device(name: str | None) -> torch.device:
    """The device a person asked for, or the best there is; a GPU asked for by number becomes the current one."""
    if name is None:
        return default_device()
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


Step = Callable[[Tensor, Tensor, int, Tensor], None]  # of (pixels, index, epoch, rates)


def assemble(recipe: Recipe, pixels: Pixels, device: torch.device) -> tuple[Encoder, LARS, Meter, Step]:
    """A fresh model in training mode, its optimiser, its meter, and the step that moves all three for such pixels."""
    model = build_model(recipe).to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    set_views(model, 2)
    optimiser = make_optimiser(model, device)
    meter = Meter(recipe.model.dim, device)
    return model, optimiser, meter, make_step(model, optimiser, meter, pixels, device)


def make_optimiser(model: Encoder, device: torch.device) -> LARS:
    """LARS, a group for backbone and projector and one for the gating head; rates are tensors that the step fills."""
    groups = [[*model.backbone.parameters(), *model.projector.parameters()]]
    if model.gate is not None:
        groups.append(list(model.gate.parameters()))
    o = model.recipe.optimiser
    optimiser = LARS(
        [{"params": group, "lr": torch.zeros((), device=device)} for group in groups],
        lr=0.0,
        momentum=o.momentum,
        weight_decay=o.weight_decay,
        eta=o.eta,
        clip=o.clip,
    )
    optimiser.prepare()
    return optimiser


def schedule(recipe: Recipe, steps: int) -> Tensor:
    """Learning rates [T, groups] of every step: the base rate follows the global batch, the gate's does not."""
    o = recipe.optimiser
    bases = [o.lr * recipe.run.batch / 256] + ([recipe.gate.lr] if recipe.gate.kind != "none" else [])
    total, warmup = steps * recipe.run.epochs, steps * o.warmup_epochs
    return torch.tensor([[warmup_cosine(t, base, warmup, total, o.start_lr) for base in bases] for t in range(total)])


def losses(
    model: Encoder, pixels: Tensor, index: Tensor, epoch: Tensor, precision: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of a batch; averages [5] (AVERAGES) and active rows per dimension [D], both without gradient.

    With several processes these are this process's shares, which add up to the loss of the global batch.
    """
    recipe, world = model.recipe, distributed.world_size()
    views = make_views(pixels, index, epoch, recipe.run.seed, recipe.views)  # [2b, 3, S, S]
    x = model.normalise_pixels(views).contiguous(memory_format=torch.channels_last)
    uniform = None
    if recipe.gate.kind.startswith("gumbel"):
        keys = draws.make_key(recipe.run.seed, epoch, torch.cat([index, index + 2**40]), stream=7)
        uniform = draws.uniform(keys, recipe.model.dim)
    with torch.autocast(pixels.device.type, dtype=precision, enabled=precision != torch.float32):
        features = model(x, uniform)
    z = features.gated
    nce = contrast(z, recipe.objective.temperature, recipe.objective.block)
    kl, opened = torch.zeros_like(nce), torch.ones_like(nce)
    if features.logits is not None and features.mask is not None:
        kl = bernoulli_kl(gate_probability(features.logits, recipe.gate.temperature), recipe.gate.prior) / world
        opened = (features.mask > recipe.gate.threshold).float().mean()
    loss = nce + recipe.gate.weight * kl
    with torch.no_grad():
        active = z.abs() > ACTIVE
        averages = torch.stack([loss, nce, kl, opened / world, active.float().sum(1).mean() / world])
        return loss, averages, active.float().sum(0)


def contrast(z: Tensor, temperature: float, block: int) -> Tensor:
    """This process's share of InfoNCE: its anchors against the rows of all processes, over the global 2B."""
    n = len(z)
    rows = torch.arange(n, device=z.device)
    everyone = distributed.all_gather_rows(z)
    offset = distributed.rank() * n
    return info_nce_sum(z, everyone, rows + offset, (rows + n // 2) % n + offset, temperature, block) / len(everyone)


def make_step(model: Encoder, optimiser: LARS, meter: Meter, pixels: Pixels, device: torch.device) -> Step:
    """The training step; nothing is compiled before it is first taken."""
    recipe = model.recipe
    gpu = device.type == "cuda"
    bf16 = recipe.run.precision == "bf16" or (recipe.run.precision == "auto" and gpu)
    if bf16 and not gpu:
        raise InputError("run.precision=bf16 is for a GPU: some CPUs have no bfloat16 products")
    precision = torch.bfloat16 if bf16 else torch.float32
    compiled = compiles(recipe, device)
    loss_function = compile_losses() if compiled else losses
    share = recipe.run.batch // distributed.world_size()
    held = torch.zeros(share, *pixels.shape[1:], dtype=torch.uint8, device=device)
    held_index = torch.arange(share, device=device)
    held_epoch = torch.zeros((), dtype=torch.int64, device=device)
    rates = [group["lr"] for group in optimiser.param_groups]
    parameters = [p for group in optimiser.param_groups for p in group["params"]]

    def body() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss, averages, active = loss_function(model, held, held_index, held_epoch, precision)
        loss.backward()
        distributed.sum_gradients(parameters)
        optimiser.step()
        meter.add(averages, active)

    def backward_as_written() -> None:
        losses(model, held, held_index, held_epoch, precision)[0].backward()
        distributed.sum_gradients(parameters)

    def check() -> None:
        lost = find_lost_gradients(model, backward_as_written)
        if lost:
            raise InputError(
                f"torch {torch.__version__} compiles this step without the gradient of {lost[0]} ({len(lost)} "
                "parameters): start again with --set run.compile=false and another --out, or with another torch"
            )

    run: Callable[[], object] | None = None if compiled else body

    def step(pixels: Tensor, index: Tensor, epoch: int, rate: Tensor) -> None:
        nonlocal run
        held.copy_(pixels)
        held_index.copy_(index)
        held_epoch.fill_(epoch)
        torch._foreach_copy_(rates, list(rate.unbind()))
        if run is None:
            model.train()
            state = [*model.state_dict().values(), *meter.state, *momenta(optimiser)]
            rehearse(body, state, check)
            # collectives are left out of graphs: with several processes the step is launched kernel by kernel
            run = capture(body, state, device) if distributed.world_size() == 1 else body
        if distributed.world_size() == 1:
            run()
        else:
            distributed.checked(run)  # tracing leaves out what guards the collectives inside

    if gpu:
        torch.backends.cudnn.benchmark = True
    if compiled:
        torch.compiler.reset()  # of a function only eight compiled forms are kept; a ninth would run as it is written
        optimiser.compile()
        # the float32 products that are left are those of InfoNCE, and meant to be
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    return step


def compiles(recipe: Recipe, device: torch.device) -> bool:
    """Whether the step is compiled."""
    return recipe.run.compile and device.type == "cuda"


def compile_losses() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """`losses` for a GPU, with those of our options that this torch still has."""
    known = set(torch._inductor.list_options())
    options = {name: value for name, value in COMPILER.items() if name in known}
    return torch.compile(losses, dynamic=False, options=options)


def find_lost_gradients(model: Encoder, backward_as_written: Callable[[], None]) -> list[str]:
    """Parameters whose gradient, left by the compiled backward pass, is far shorter than the one as written.

    Compilers have dropped gradients without a word, and may drop one of two paths. Directions are not compared: in bf16
    they differ by half. Nor are gradients that are nothing but rounding.
    """

    def lengths() -> dict[str, float]:
        return {name: 0.0 if p.grad is None else float(p.grad.norm()) for name, p in model.named_parameters()}

    compiled = lengths()
    model.zero_grad(set_to_none=True)
    try:
        backward_as_written()
    except torch.OutOfMemoryError:  # the step as written takes more memory, and may not be wanted
        if distributed.world_size() > 1:  # the others are waiting in a collective
            raise
        return []
    written = lengths()
    least = ROUNDING * max(written.values())
    return sorted(name for name, length in written.items() if length > least and compiled[name] < LOST * length)


def momenta(optimiser: LARS) -> list[Tensor]:
    """Every momentum buffer."""
    return [state["momentum_buffer"] for state in optimiser.state.values()]


@torch.no_grad()
def restore(state: list[Tensor], saved: list[Tensor]) -> None:
    """Copy values back in place."""
    for tensor, value in zip(state, saved):
        tensor.copy_(value)


def rehearse(body: Callable[[], None], state: list[Tensor], check: Callable[[], None]) -> None:
    """Run `body` once, then `check` what gradients it left; `state` stays as it was, for `check` too."""
    saved = [tensor.clone() for tensor in state]
    body()
    restore(state, saved)
    check()
    restore(state, saved)


def capture(body: Callable[[], None], state: list[Tensor], device: torch.device) -> Callable[[], object]:
    """Record `body` as a CUDA graph; the warm-up runs it needs leave `state` as it was."""
    saved = [tensor.clone() for tensor in state]
    with torch.cuda.device(device):  # graphs and streams are made on the current device, which may be another
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                body()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: the feed's thread may pin memory meanwhile
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
            body()
    restore(state, saved)
    return graph.replay


def save_checkpoint(
    run_dir: Path, model: Encoder, optimiser: LARS, images: tuple[str, str], done: int, meter: Meter
) -> None:
    """Checkpoint from process 0, unless a loss was not finite."""
    raise_if_bad(meter.first_bad.cpu(), run_dir)
    if distributed.rank() == 0:
        checkpoint.save(run_dir, model, optimiser, done, model.recipe.run.keep_checkpoints, images)
    distributed.barrier()  # which is patient: the next collective is not, and a slow disk is no death


def resume_or_begin(run_dir: Path, model: Encoder, optimiser: LARS, images: tuple[str, str], display: Display) -> int:
    """Steps already done: restored from the newest good checkpoint, or 0 in a fresh folder."""
    found, complaints = checkpoint.newest(run_dir)
    for complaint in complaints:
        display.note(complaint)
    if found is not None:
        saved = recipe_from_json(found.recipe, str(run_dir))
        moved = dataclasses.replace(saved.data, root=model.recipe.data.root)  # the images may lie elsewhere now
        if dataclasses.replace(saved, data=moved) != model.recipe:
            raise InputError(f"the checkpoint in {run_dir} is of another recipe")
        (then, old), (now, new) = found.images, images
        if then and then != now:
            raise InputError(
                f"{run_dir} was begun with {then}, here are {now}: give it its own (--data), or begin a new run"
            )
        if old and old != new:
            display.note(f"{run_dir} was begun with other images, or they are read differently here")
        checkpoint.restore(found, model, optimiser)
    done = found.step if found is not None else 0
    if distributed.rank() == 0:
        checkpoint.prune(run_dir, model.recipe.run.keep_checkpoints)
        write_atomic(run_dir / "recipe.json", model.recipe.to_json())
        write_atomic(run_dir / "environment.json", json.dumps(environment(), indent=2) + "\n")
        cut_metrics(run_dir / "metrics.jsonl", done)
    distributed.barrier()
    return done


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
    smaller = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, batch=batch))
    return smaller, f"only {n} training images: batch lowered from {recipe.run.batch} to {smaller.run.batch}"
