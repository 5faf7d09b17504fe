"""Progress of long work on stderr: a live bar on a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from bayesncl.errors import import_extra

LINE_SECONDS = 5.0, 60.0  # shortest and longest time between plain lines


class Display:
    """Shows how far work has come. With several processes, only the first reports.

    `quiet` shows nothing; `board` is a folder for TensorBoard.
    """

    def __init__(self, quiet: bool = False, board: Path | None = None) -> None:
        follower = os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"
        self.quiet = quiet or follower
        self.console = Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal and not self.quiet
        self.board = None if board is None or follower else open_board(board)
        self.bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(10),
            Status(Column(no_wrap=True, overflow="crop", ratio=1)), console=self.console,
            transient=True, expand=True, disable=not self.live, get_time=time.perf_counter,
        )  # fmt: skip
        self.task: Task | None = None
        self.last_line = time.perf_counter()
        self.metrics: dict[str, Any] = {}
        if self.live:
            atexit.register(self.bar.stop)  # shows the cursor again after an error

    def note(self, text: str, wrap: bool = True) -> None:
        """Print lines that stay. `wrap` False keeps commands in one piece for copying."""
        if not self.quiet:
            wrap = wrap and self.console.is_terminal
            self.console.print(text, markup=False, soft_wrap=not wrap)

    def busy(self, title: str) -> None:
        """Show that work of unknown length has started."""
        self._start(title, None, 0, lambda task: [duration(task.elapsed or 0)])
        if not self.live and time.perf_counter() - self.last_line > LINE_SECONDS[0]:
            self._print_line(title)

    def count(self, done: int, total: int, title: str) -> None:
        """Show counted work, such as decoding."""
        if self.task is None or self.task.description != title:
            parts = lambda t: [f"{t.completed:,.0f}/{t.total:,.0f}", *time_left(t)]  # noqa: E731
            self._start(title, total, done, parts)
        self.advance(done)
        if done >= total:
            self._stop()

    def begin(self, name: str, total: int, done: int, epochs: int, batch: int) -> None:
        """Show a training run of `total` steps, of which `done` are done."""
        self.epochs, self.batch, self.metrics = epochs, batch, {}
        self._start(name, total, done, self._run_parts)

    def advance(self, done: int) -> None:
        """Show that so many steps are done."""
        if self.task is None:
            return
        self.bar.update(self.task.id, completed=done)
        low, high = LINE_SECONDS
        waited = time.perf_counter() - self.last_line
        if not self.live and waited > min(max(low, (self.task.elapsed or 0) / 20), high):
            self._print_line(f"{self.task.description}:  {describe(self.task)}")

    def update(self, line: dict[str, Any]) -> None:
        """Show a line of training metrics and pass it to TensorBoard."""
        self.metrics = line
        if self.board is not None:
            for name, value in line.items():
                self.board.add_scalar(name, value, line["step"])
        if self.task is not None and line["step"] >= (self.task.total or 0):
            took = f"{plural(self.epochs, 'epoch')} in {duration(self.task.elapsed or 0)}"
            name = self.task.description
            self._stop()
            self.note("  ".join([f"{name}:", took, *self._metric_parts()]))

    def close(self) -> None:
        """Remove the bar and flush TensorBoard."""
        self._stop()
        if self.board is not None:
            self.board.flush()

    def _start(
        self, title: str, total: int | None, done: int, parts: Callable[[Task], list[str]]
    ) -> None:
        self._stop()
        self.bar.add_task(title, total=total, completed=done, parts=parts)
        self.task = self.bar.tasks[-1]
        self.bar.start()

    def _print_line(self, text: str) -> None:
        self.last_line = time.perf_counter()
        self.note(text)

    def _stop(self) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task.id)
            self.task = None
        if self.live:
            self.bar.stop()

    def _run_parts(self, task: Task) -> list[str]:
        epoch = min(int(task.completed * self.epochs // (task.total or 1)) + 1, self.epochs)
        speed = [f"{task.speed * self.batch:,.0f} images/s"] if task.speed else []
        return [f"epoch {epoch}/{self.epochs}", *speed, *time_left(task), *self._metric_parts()]

    def _metric_parts(self) -> list[str]:
        m = self.metrics
        if not m:
            return []
        gates = [f"kl {m['kl']:.2f}", f"open {100 * m['open']:.0f} %"] if m["kl"] else []
        active = f"active {m['active']} ({m['near_dead']} nearly dead)"
        return [f"loss {m['loss']:.3f}", *gates, active]


class Status(ProgressColumn):
    """The text after the bar, cut off where the terminal ends."""

    def render(self, task: Task) -> Text:
        return Text(describe(task))


def describe(task: Task) -> str:
    """The text of a task, by the function it was started with."""
    return "  ".join(task.fields["parts"](task))


def time_left(task: Task) -> list[str]:
    """Rich's estimate of the time left, once there is one."""
    return [] if task.time_remaining is None else [f"{duration(task.time_remaining)} left"]


def duration(seconds: float) -> str:
    """Format a time: ``45 s``, ``3 min``, ``2.5 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def plural(n: int, noun: str) -> str:
    """``1 class``, ``12 classes``."""
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('s') else 's'}"


def open_board(folder: Path) -> Any:
    """Open a TensorBoard writer, which needs the extra."""
    missing = "--tensorboard needs the extra: pip install 'bayesncl[tensorboard]'"
    return import_extra("torch.utils.tensorboard", missing).SummaryWriter(str(folder))
