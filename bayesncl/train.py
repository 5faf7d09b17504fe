"""Training: one visible loop, the same on a CPU, one GPU and many.

The step (views, forward, loss, backward, LARS) never waits for the host. On one GPU it is compiled and replayed as a CUDA graph;
everywhere else the same function runs as it is written.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from . import checkpoint, distributed, draws
from .augment import make_views
from .backbones import set_views
from .data.images import Images
from .errors import InputError
from .feed import batches, settle
from .files import write_atomic
from .gates import bernoulli_kl, gate_probability
from .lars import LARS
from .model import WEIGHTS, Encoder, build_model, save_model
from .objective import info_nce_sum
from .progress import Display
from .recipes import Recipe
from .runs import RunLock, environment
from .schedule import warmup_cosine

TERMS = ("loss", "nce", "kl")  # what must stay finite
AVERAGES = (*TERMS, "open", "l0")  # what is logged: + share of open gates, active dimensions per row
ACTIVE = 1e-5  # a unit-norm feature above this is active
NEVER = 2**62  # "no step yet" in Meter.first_bad

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
    run_dir : folder of the run; holds recipe.json, environment.json, metrics.jsonl, checkpoints and, at the end, model.safetensors.
    device : default the GPU if there is one.
    display : where progress goes; default nowhere.
    after_epoch : called with the model and the number of epochs done; a dict it returns becomes a line of metrics.jsonl.

    Returns
    -------
    Encoder, trained, in eval mode.
    """
    device = device or default_device()
    display = display or Display(quiet=True)
    batch, epochs = recipe.run.batch, recipe.run.epochs
    check_batch(recipe, len(images))
    steps = len(images) // batch  # per epoch
    with RunLock(run_dir) as lock, Stopper() as stopper:
        model = build_model(recipe).to(device, memory_format=torch.channels_last)
        optimiser = make_optimiser(model, device)
        done = resume_or_begin(run_dir, model, optimiser, display, lock)
        try:
            rates = schedule(recipe, steps).to(device)  # [T, groups]
            pixels = settle(images.pixels, device)
            meter = Meter(recipe.model.dim, device)
            step = make_step(model, optimiser, meter, recipe, pixels, device)
            logger = Logger(run_dir, meter, display, recipe, steps, done)
            model.train()
            set_views(model, 2)
            for epoch in range(done // steps, epochs):
                for part, index in batches(pixels, batch, recipe.run.seed, epoch, done % steps, device):
                    step(part, index, epoch, rates[done])
                    done += 1
                    if done % recipe.run.log_every == 0 or done == steps * epochs:
                        logger.log(done)
                    if stopper.asked(done, recipe.run.log_every):
                        logger.finish()
                        save_checkpoint(run_dir, model, optimiser, done, meter, recipe)
                        raise Interrupted(f"stopped after {done} of {steps * epochs} steps; go on with: bayesncl resume {run_dir}")
                if after_epoch is not None:
                    logger.extra(after_epoch(model, epoch + 1), done)
                if (epoch + 1) % recipe.run.checkpoint_every == 0 or epoch + 1 == epochs:
                    logger.finish()
                    save_checkpoint(run_dir, model, optimiser, done, meter, recipe)
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


def check_batch(recipe: Recipe, n: int) -> None:
    """InputError unless n images fill a batch that the processes can share."""
    batch, world = recipe.run.batch, distributed.world_size()
    if n < batch:
        raise InputError(f"{n} images do not fill one batch of {batch}: --set run.batch={max(2, n - n % 2)}")
    if batch % world:
        raise InputError(f"a batch of {batch} cannot be shared by {world} processes: --set run.batch={batch // world * world or world}")


def make_optimiser(model: Encoder, device: torch.device) -> LARS:
    """LARS with a group for backbone and projector and one for the gating head; rates are tensors that the step fills."""
    groups = [[*model.backbone.parameters(), *model.projector.parameters()]]
    if model.gate is not None:
        groups.append(list(model.gate.parameters()))
    o = model.recipe.optimiser
    optimiser = LARS(
        [{"params": group, "lr": torch.zeros((), device=device)} for group in groups],
        lr=0.0, momentum=o.momentum, weight_decay=o.weight_decay, eta=o.eta, clip=o.clip,
    )
    optimiser.prepare()
    return optimiser


def schedule(recipe: Recipe, steps: int) -> Tensor:
    """Learning rates [T, groups] of every step: the base rate follows the global batch, the gate's does not."""
    o = recipe.optimiser
    bases = [o.lr * recipe.run.batch / 256] + ([recipe.gate.lr] if recipe.gate.kind != "none" else [])
    total, warmup = steps * recipe.run.epochs, steps * o.warmup_epochs
    return torch.tensor([[warmup_cosine(t, base, warmup, total, o.start_lr) for base in bases] for t in range(total)])


def losses(model: Encoder, pixels: Tensor, index: Tensor, epoch: Tensor, precision: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
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


Step = Callable[[Tensor, Tensor, int, Tensor], None]


def make_step(model: Encoder, optimiser: LARS, meter: Meter, recipe: Recipe, pixels: Tensor | object, device: torch.device) -> Step:
    """The training step as a function of (pixels, index, epoch, rates)."""
    gpu = device.type == "cuda"
    bf16 = recipe.run.precision == "bf16" or (recipe.run.precision == "auto" and gpu)
    precision = torch.bfloat16 if bf16 else torch.float32
    compiled = recipe.run.compile and gpu
    loss_function = torch.compile(losses, dynamic=False) if compiled else losses
    share = recipe.run.batch // distributed.world_size()
    side = pixels.shape[2:]  # type: ignore[attr-defined]
    held = torch.zeros(share, 3, *side, dtype=torch.uint8, device=device)
    held_index = torch.arange(share, device=device)
    held_epoch = torch.zeros((), dtype=torch.int64, device=device)
    rates = [group["lr"] for group in optimiser.param_groups]

    def body() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss, averages, active = loss_function(model, held, held_index, held_epoch, precision)
        loss.backward()
        distributed.sum_gradients(p for group in optimiser.param_groups for p in group["params"])
        optimiser.step()
        meter.add(averages, active)

    def step(pixels: Tensor, index: Tensor, epoch: int, rate: Tensor) -> None:
        nonlocal run
        held.copy_(pixels)
        held_index.copy_(index)
        held_epoch.fill_(epoch)
        torch._foreach_copy_(rates, list(rate.unbind()))
        if run is None:
            model.train()
            run = capture(body, [*model.state_dict().values(), *meter.state, *momenta(optimiser)])
        run()

    if gpu:
        torch.backends.cudnn.benchmark = True
    if compiled:
        optimiser.compile()
    # collectives are left out of graphs: with several processes the compiled step is launched kernel by kernel
    run: Callable[[], object] | None = None if compiled and distributed.world_size() == 1 else body
    return step


def momenta(optimiser: LARS) -> list[Tensor]:
    """Every momentum buffer."""
    return [state["momentum_buffer"] for state in optimiser.state.values()]


def capture(body: Callable[[], None], state: list[Tensor]) -> Callable[[], object]:
    """Record `body` as a CUDA graph; the warm-up runs it needs leave `state` as it was."""
    saved = [tensor.clone() for tensor in state]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    with torch.no_grad():
        for tensor, value in zip(state, saved):
            tensor.copy_(value)
    return graph.replay


class Meter:
    """Sums over steps, kept on the device and read back without waiting for it."""

    def __init__(self, dim: int, device: torch.device) -> None:
        self.sums = torch.zeros(len(AVERAGES), dtype=torch.float64, device=device)
        self.fired = torch.zeros(dim, device=device)  # active rows per dimension
        self.steps = torch.zeros((), dtype=torch.int64, device=device)  # since the start of this process
        self.first_bad = torch.full((len(TERMS),), NEVER, device=device)  # first step at which a term was not finite
        self.state = [self.sums, self.fired, self.steps, self.first_bad]

    def add(self, averages: Tensor, active: Tensor) -> None:
        """Take in one step."""
        bad = torch.where(averages[: len(TERMS)].isfinite(), NEVER, self.steps)
        self.first_bad.copy_(torch.minimum(self.first_bad, bad))
        self.sums.add_(averages)
        self.fired.add_(active)
        self.steps.add_(1)

    def snapshot(self) -> tuple[list[Tensor], torch.cuda.Event | None]:
        """Start copying sums, fired and first_bad to the host and set the first two to zero."""
        on_gpu = self.sums.is_cuda
        copies = []
        for tensor in (self.sums, self.fired, self.first_bad):
            whole = tensor if tensor is self.first_bad else distributed.all_reduce_sum(tensor)
            host = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=on_gpu)
            copies.append(host.copy_(whole, non_blocking=on_gpu))
        event = None
        if on_gpu:
            event = torch.cuda.Event()
            event.record()
        self.sums.zero_()
        self.fired.zero_()
        return copies, event


class Logger:
    """Turns snapshots of the meter into lines of metrics.jsonl and of the display, one interval late on a GPU so as not to wait."""

    def __init__(self, run_dir: Path, meter: Meter, display: Display, recipe: Recipe, steps: int, done: int) -> None:
        self.path, self.meter, self.display, self.recipe, self.steps = run_dir / "metrics.jsonl", meter, display, recipe, steps
        self.start, self.last, self.last_time = done, done, time.perf_counter()
        self.pending: tuple[int, int, float, list[Tensor], torch.cuda.Event | None] | None = None
        display.begin(recipe, steps * recipe.run.epochs, done)

    def log(self, done: int) -> None:
        """Report on the steps since the last report."""
        snapshot, event = self.meter.snapshot()
        self._write()
        now = time.perf_counter()
        self.pending = (done, done - self.last, now - self.last_time, snapshot, event)
        self.last, self.last_time = done, now
        if event is None:
            self._write()

    def finish(self) -> None:
        """Report what is pending."""
        if self.last_pending() and self.meter.sums.is_cuda:
            torch.cuda.synchronize()
        self._write()

    def last_pending(self) -> bool:
        return self.pending is not None

    def extra(self, fields: dict[str, object] | None, done: int) -> None:
        """Append a line of its own."""
        if fields is not None and distributed.rank() == 0:
            self._append({"step": done, **fields})
        self.last_time = time.perf_counter()

    def _write(self) -> None:
        if self.pending is None:
            return
        done, count, seconds, (sums, fired, first_bad), event = self.pending
        self.pending = None
        if event is not None:
            event.synchronize()
        raise_if_bad(first_bad, self.start, self.path.parent)
        rows = 2 * self.recipe.run.batch * count
        line = {
            "step": done,
            "epoch": round(done / self.steps, 3),
            **dict(zip(AVERAGES, (sums / max(count, 1)).tolist())),
            "active": int((fired > 0).sum()),
            "near_dead": int(((fired > 0) & (fired < 1e-3 * rows)).sum()),
            "images_per_second": round(count * self.recipe.run.batch / max(seconds, 1e-9), 1),
        }
        if distributed.rank() == 0:
            self._append(line)
            self.display.update(line)

    def _append(self, line: dict[str, object]) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")


def raise_if_bad(first_bad: Tensor, start: int, run_dir: Path) -> None:
    """Stop the run if a term of the loss was not finite, naming the term, the step and the last good checkpoint."""
    if int(first_bad.min()) == NEVER:
        return
    step = int(first_bad.min())
    terms = [name for name, bad in zip(TERMS, first_bad.tolist()) if bad == step and name != "loss"] or ["loss"]
    saved = checkpoint.listed(run_dir)
    good = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
    raise InputError(f"{' and '.join(terms)} is not finite at step {start + step}; {good}")


def save_checkpoint(run_dir: Path, model: Encoder, optimiser: LARS, done: int, meter: Meter, recipe: Recipe) -> None:
    """Checkpoint from process 0, unless a loss was not finite."""
    raise_if_bad(meter.first_bad.cpu(), 0, run_dir)
    if distributed.rank() == 0:
        checkpoint.save(run_dir, model, optimiser, done, recipe.run.keep_checkpoints)


def resume_or_begin(run_dir: Path, model: Encoder, optimiser: LARS, display: Display, lock: RunLock) -> int:
    """Steps already done: restored from the newest good checkpoint, or 0 in a fresh folder."""
    found, complaints = checkpoint.newest(run_dir)
    for complaint in complaints:
        display.note(complaint)
    if found is not None:
        saved, wanted = (json.loads(text) for text in (found.recipe, json.dumps(model.recipe.to_dict())))
        saved["data"]["root"] = wanted["data"]["root"]  # the images may have moved
        if saved != wanted:
            raise InputError(f"the checkpoint in {run_dir} is of another recipe")
        checkpoint.restore(found, model, optimiser)
    done = found.step if found is not None else 0
    if distributed.rank() == 0:
        write_atomic(run_dir / "recipe.json", model.recipe.to_json())
        write_atomic(run_dir / "environment.json", json.dumps(environment(), indent=2) + "\n")
        cut_metrics(run_dir / "metrics.jsonl", done)
    distributed.barrier()
    return done


def cut_metrics(path: Path, done: int) -> None:
    """Drop the lines of steps that will be run again, and a last line cut short by a kill."""
    kept = []
    if path.exists():
        for text in path.read_text(errors="replace").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if line["step"] <= done:
                kept.append(text + "\n")
    write_atomic(path, "".join(kept))


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
        device = default_device()
        return bool(distributed.all_reduce_sum(torch.tensor(float(self.flag), device=device)) > 0)


def fit_batch(recipe: Recipe, n: int) -> tuple[Recipe, str | None]:
    """For sets smaller than a batch: the recipe with the largest even batch that fits, and a line that says so."""
    if n >= recipe.run.batch:
        return recipe, None
    if n < 2:
        raise InputError(f"contrastive learning needs at least 2 images, got {n}")
    smaller = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, batch=n - n % 2))
    return smaller, f"only {n} training images: batch lowered from {recipe.run.batch} to {smaller.run.batch}"
