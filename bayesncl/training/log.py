"""Training metrics: sums on the device, written to metrics.jsonl without stalling it."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.errors import InputError
from bayesncl.progress import Display
from bayesncl.recipes import Recipe
from bayesncl.training import checkpoint
from bayesncl.training.run_folder import RunFolder

TERMS = ("loss", "nce", "kl")  # must stay finite
AVERAGES = (*TERMS, "open", "l0")  # + share of open gates, active dimensions per row
NEVER = 2**62  # in Meter.first_bad: no step yet


class Meter:
    """Sums over steps, on the device; reading them does not wait for it."""

    def __init__(self, dim: int, device: torch.device) -> None:
        self.sums = torch.zeros(len(AVERAGES), dtype=torch.float64, device=device)
        self.fired = torch.zeros(dim, device=device)  # active rows per dimension
        self.steps = torch.zeros((), dtype=torch.int64, device=device)  # of the whole run
        # the first step at which each term was not finite
        self.first_bad = torch.full((len(TERMS),), NEVER, device=device)
        self.state = [self.sums, self.fired, self.steps, self.first_bad]

    def add(self, averages: Tensor, active: Tensor) -> None:
        """Add one step: averages [5] (AVERAGES) and active rows per dimension [D]."""
        bad = torch.where(averages[: len(TERMS)].isfinite(), NEVER, self.steps)
        self.first_bad.copy_(torch.minimum(self.first_bad, bad))
        self.sums.add_(averages)
        self.fired.add_(active)
        self.steps.add_(1)

    def snapshot(self) -> tuple[list[Tensor], torch.cuda.Event | None]:
        """Start copying sums, fired and first_bad to the host; reset sums and fired."""
        on_gpu = self.sums.is_cuda
        copies = []
        for tensor in (self.sums, self.fired, self.first_bad):
            whole = tensor if tensor is self.first_bad else distributed.all_reduce_sum(tensor)
            host = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=on_gpu)
            copies.append(host.copy_(whole, non_blocking=on_gpu))
        event = None
        if on_gpu:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self.sums.device))
        self.sums.zero_()
        self.fired.zero_()
        return copies, event


class Logger:
    """Writes snapshots of the meter; on a GPU one interval late, so as not to wait for it."""

    def __init__(
        self, run: RunFolder, meter: Meter, display: Display, recipe: Recipe, steps: int, done: int
    ) -> None:
        self.run, self.meter, self.display, self.recipe = run, meter, display, recipe
        self.steps, self.total = steps, steps * recipe.run.epochs  # per epoch, in all
        self.last, self.last_time = done, time.perf_counter()
        self.pending: tuple[int, int, float, list[Tensor], torch.cuda.Event | None] | None = None
        meter.steps.fill_(done)
        display.begin(recipe.name, self.total, done, recipe.run.epochs, recipe.run.batch)

    def step(self, done: int) -> None:
        """Note that `done` steps are done; report every `run.log_every` steps."""
        self.display.advance(done)
        if done % self.recipe.run.log_every and done != self.total:
            return
        snapshot, event = self.meter.snapshot()
        self.finish()
        now = time.perf_counter()
        self.pending = (done, done - self.last, now - self.last_time, snapshot, event)
        self.last, self.last_time = done, now
        if event is None:
            self.finish()

    def extra(self, fields: dict[str, object] | None, done: int) -> None:
        """Append a separate line."""
        if fields is not None and distributed.rank() == 0:
            self.run.append_metrics({"step": done, **fields})
        self.last_time = time.perf_counter()

    def finish(self) -> None:
        """Write the pending report."""
        if self.pending is None:
            return
        done, count, seconds, (sums, fired, first_bad), event = self.pending
        self.pending = None
        if event is not None:
            event.synchronize()
        raise_if_bad(first_bad, self.run)
        batch = self.recipe.run.batch
        rare = (fired > 0) & (fired < 1e-3 * 2 * batch * count)  # two rows per image
        line = {
            "step": done,
            "epoch": round(done / self.steps, 3),
            **dict(zip(AVERAGES, (sums / max(count, 1)).tolist())),
            "active": int((fired > 0).sum()),
            "near_dead": int(rare.sum()),
            "images_per_second": round(count * batch / max(seconds, 1e-9), 1),
        }
        if distributed.rank() == 0:
            self.run.append_metrics(line)
            self.display.update(line)


def raise_if_bad(first_bad: Tensor, run: RunFolder) -> None:
    """Raise InputError if a term of the loss was not finite."""
    step = int(first_bad.min())
    if step == NEVER:
        return
    bad = [name for name, first in zip(TERMS, first_bad.tolist()) if first == step]
    terms = " and ".join(name for name in bad if name != "loss") or "loss"
    saved = checkpoint.listed(run)
    good = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
    raise InputError(f"{terms} is not finite at step {step}; {good}")
