"""Training metrics: sums on the device, written to metrics.jsonl."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.data.images import Images, spread_evenly
from bayesncl.errors import InputError, import_extra
from bayesncl.measure.retrieval import knn_accuracies
from bayesncl.method.encoder import Encoder, extract
from bayesncl.progress import Display, duration, plural
from bayesncl.recipes import Recipe
from bayesncl.training import checkpoint
from bayesncl.training.run_folder import RunFolder

AVERAGES = ("loss", "nce", "kl", "open", "l0")  # open gates, active dimensions per row
KNN_IMAGES = 4000  # half of them are queries
NEIGHBORS = 20


class Meter:
    """Sums over steps, on the device, so that a step does not wait for the host."""

    def __init__(self, dim: int, device: torch.device) -> None:
        self.sums = torch.zeros(len(AVERAGES), dtype=torch.float64, device=device)
        self.fired = torch.zeros(dim, device=device)  # active rows per dimension
        self.state = [self.sums, self.fired]

    def add(self, averages: Tensor, active: Tensor) -> None:
        """Add one step: averages [5] (AVERAGES) and active rows per dimension [D]."""
        self.sums.add_(averages)
        self.fired.add_(active)

    def take(self) -> tuple[Tensor, Tensor]:
        """Sums and fired over all processes, on the host; starts again from 0."""
        sums, fired = (distributed.all_reduce_sum(t).to("cpu", copy=True) for t in self.state)
        for tensor in self.state:
            tensor.zero_()
        return sums, fired


class Logger:
    """Writes what the meter has summed to metrics.jsonl.

    With a folder for TensorBoard in the run, it writes there too.
    """

    def __init__(
        self, run: RunFolder, meter: Meter, display: Display, recipe: Recipe, steps: int, done: int
    ) -> None:
        self.run, self.meter, self.display, self.recipe = run, meter, display, recipe
        self.steps, self.total = steps, steps * recipe.run.epochs  # per epoch, in all
        self.last, self.start = done, time.perf_counter()
        self.last_time, self.status = self.start, ""
        self.board: Any = None
        if run.board.is_dir() and distributed.rank() == 0:
            missing = "--tensorboard needs tensorboard: pip install tensorboard"
            board = import_extra("torch.utils.tensorboard", missing)
            self.board = board.SummaryWriter(str(run.board))

    def step(self, done: int) -> None:
        """Note that `done` steps are done; report every `run.log_every` steps."""
        epoch = f"epoch {-(-done // self.steps)}/{self.recipe.run.epochs}"
        self.display.count(done, self.total, self.recipe.name, f"{epoch}  {self.status}".strip())
        if done % self.recipe.run.log_every and done != self.total:
            return
        sums, fired = self.meter.take()
        raise_if_bad(sums, done, self.run)
        now, count, batch = time.perf_counter(), done - self.last, self.recipe.run.batch
        rare = (fired > 0) & (fired < 1e-3 * 2 * batch * count)  # two rows per image
        line: dict[str, Any] = {
            "step": done,
            "epoch": round(done / self.steps, 3),
            **dict(zip(AVERAGES, (sums / count).tolist())),
            "active": int((fired > 0).sum()),
            "near_dead": int(rare.sum()),
            "images_per_second": round(count * batch / (now - self.last_time), 1),
        }
        self.last, self.last_time = done, now
        if distributed.rank() != 0:
            return
        self.run.append_metrics(line)
        if self.board is not None:
            for name, value in line.items():
                self.board.add_scalar(name, value, done)
            self.board.flush()
        gates = f"kl {line['kl']:.2f}  open {100 * line['open']:.0f} %  " if line["kl"] else ""
        active = f"active {line['active']} ({line['near_dead']} nearly dead)"
        metrics = f"loss {line['loss']:.3f}  {gates}{active}"
        self.status = f"{line['images_per_second']:,.0f} images/s  {metrics}"
        if done == self.total:
            epochs, took = plural(self.recipe.run.epochs, "epoch"), duration(now - self.start)
            self.display.note(f"{self.recipe.name}:  {epochs} in {took}  {metrics}")

    def extra(self, fields: dict[str, object] | None, done: int) -> None:
        """Append a separate line."""
        if fields is not None and distributed.rank() == 0:
            self.run.append_metrics({"step": done, **fields})
        self.last_time = time.perf_counter()


def raise_if_bad(sums: Tensor, done: int, run: RunFolder) -> None:
    """Raise InputError if the sums of AVERAGES, taken after `done` steps, are not finite."""
    if not bool(sums.isfinite().all()):
        saved = checkpoint.listed(run)
        good = f"the last good checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
        raise InputError(f"the loss became infinite or NaN by step {done}; {good}")


@torch.no_grad()
def record_knn(images: Images, model: Encoder, epoch: int) -> dict[str, Any] | None:
    """Accuracy (percent) of the kNN classifier on h, with chance; None between two records.

    Labeled training images, at most 4,000, without augmentation and in eval mode: every second one
    is classified by the others. Labels are used nowhere else; the weights do not change.
    """
    if epoch % model.recipe.run.knn_every:
        return None
    chosen = spread_evenly(len(images), KNN_IMAGES)
    labels = np.asarray(images.labels)[chosen]
    h = extract(model, Images(images.pixels[chosen])).h
    known, asked = slice(0, None, 2), slice(1, None, 2)
    shuffled = np.random.default_rng(0).permutation(labels[known])
    k = min(NEIGHBORS, len(h[known]))
    knn, chance = knn_accuracies(h[known], [labels[known], shuffled], h[asked], labels[asked], k)
    return {"kind": "knn", "epoch": epoch, "knn": knn, "chance": chance}
