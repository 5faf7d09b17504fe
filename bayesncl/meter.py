"""What a run says of itself: sums kept on the device, turned into lines of metrics.jsonl without making it wait."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from . import checkpoint, distributed
from .errors import InputError
from .progress import Display
from .recipes import Recipe
from .run import Run

TERMS = ("loss", "nce", "kl")  # what must stay finite
AVERAGES = (*TERMS, "open", "l0")  # what is logged: + share of open gates, active dimensions per row
NEVER = 2**62  # "no step yet" in Meter.first_bad


class Meter:
    """Sums over steps, kept on the device and read back without waiting for it."""

    def __init__(self, dim: int, device: torch.device) -> None:
        self.sums = torch.zeros(len(AVERAGES), dtype=torch.float64, device=device)
        self.fired = torch.zeros(dim, device=device)  # active rows per dimension
        self.steps = torch.zeros((), dtype=torch.int64, device=device)  # steps of the run so far
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
            event.record(torch.cuda.current_stream(self.sums.device))
        self.sums.zero_()
        self.fired.zero_()
        return copies, event


class Logger:
    """Turns snapshots of the meter into lines; on a GPU one interval late, so as not to wait for it."""

    def __init__(self, run: Run, meter: Meter, display: Display, recipe: Recipe, steps: int, done: int) -> None:
        self.run, self.meter, self.display, self.recipe, self.steps = run, meter, display, recipe, steps
        self.last, self.last_time = done, time.perf_counter()
        self.pending: tuple[int, int, float, list[Tensor], torch.cuda.Event | None] | None = None
        display.begin(recipe, steps * recipe.run.epochs, done)

    def log(self, done: int) -> None:
        """Report on the steps since the last report."""
        snapshot, event = self.meter.snapshot()
        self.finish()
        now = time.perf_counter()
        self.pending = (done, done - self.last, now - self.last_time, snapshot, event)
        self.last, self.last_time = done, now
        if event is None:
            self.finish()

    def extra(self, fields: dict[str, object] | None, done: int) -> None:
        """Append a line of its own."""
        if fields is not None and distributed.rank() == 0:
            self.run.append_metrics({"step": done, **fields})
        self.last_time = time.perf_counter()

    def finish(self) -> None:
        """Report what is pending."""
        if self.pending is None:
            return
        done, count, seconds, (sums, fired, first_bad), event = self.pending
        self.pending = None
        if event is not None:
            event.synchronize()
        raise_if_bad(first_bad, self.run)
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
            self.run.append_metrics(line)
            self.display.update(line)


def raise_if_bad(first_bad: Tensor, run: Run) -> None:
    """Stop the run if a term of the loss was not finite, naming the term, the step and the last good checkpoint."""
    step = int(first_bad.min())
    if step == NEVER:
        return
    terms = [name for name, bad in zip(TERMS, first_bad.tolist()) if bad == step and name != "loss"] or ["loss"]
    saved = checkpoint.listed(run)
    good = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
    raise InputError(f"{' and '.join(terms)} is not finite at step {step}; {good}")
