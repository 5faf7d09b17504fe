"""Progress of long work: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich import progress as rich
from rich.console import Console

from . import distributed
from .errors import InputError
from .recipes import Recipe

Progress = Callable[[int, int, str], None]  # of (done, total, what): how long work tells how far it is

PLAIN_SECONDS = 5.0  # least time between plain lines


class Display:
    """Shows how far a training run, or any counted work, has come. Process 0 reports, the others are silent."""

    def __init__(self, quiet: bool = False, board: Path | None = None) -> None:
        self.quiet = quiet or distributed.rank() != 0
        self.console = Console(stderr=True, highlight=False)
        self.board = open_board(board) if board is not None and distributed.rank() == 0 else None
        self.live = self.console.is_terminal and not self.quiet
        self.bar: rich.Progress | None = None
        self.task: Any = None
        self.what = ""
        self.spoke = 0.0

    def note(self, text: str) -> None:
        """One line that stays."""
        if not self.quiet:
            self.console.print(text, markup=False, soft_wrap=True)

    def begin(self, recipe: Recipe, total: int, done: int) -> None:
        """Start showing a run of `total` steps."""
        self.name, self.total, self.began = recipe.name, total, time.perf_counter()
        self.first: tuple[int, float] | None = None  # step and time of the first line: before it lies the compiling
        if self.live:
            self._open(recipe.name, total, done)

    def update(self, line: dict[str, Any]) -> None:
        """Show a line of metrics."""
        if self.board is not None:
            for name, value in line.items():
                self.board.add_scalar(name, value, line["step"])
        if self.quiet:
            return
        text = (
            f"epoch {line['epoch']:.1f}  loss {line['loss']:.3f}  kl {line['kl']:.2f}  "
            f"open {100 * line['open']:.0f} %  active {line['active']} ({line['near_dead']} nearly dead)  "
            f"{line['images_per_second']:.0f} images/s"
        )
        if self.bar is not None:
            self.bar.update(self.task, completed=line["step"], text=text)
            if line["step"] >= self.total:
                self._close()
                self.note(f"{self.name}: {text}  {time.perf_counter() - self.began:.0f} s")
        elif time.perf_counter() - self.spoke > PLAIN_SECONDS or line["step"] >= self.total:
            self.spoke = time.perf_counter()
            left = ""
            if self.first is not None:
                step, then = self.first
                pace = (self.spoke - then) / max(line["step"] - step, 1)
                left = f"  {pace * (self.total - line['step']):.0f} s left"
            self.first = self.first or (line["step"], self.spoke)
            self.note(f"{self.name}: step {line['step']}/{self.total}  {text}{left}")

    def count(self, done: int, total: int, what: str) -> None:
        """Show counted work such as decoding: a `Progress`."""
        if self.quiet:
            return
        if self.live:
            if self.bar is None or self.what != what:
                self._close()
                self._open(what, total, 0)
                self.what = what
            assert self.bar is not None
            self.bar.update(self.task, completed=done, total=total, text="")
            if done >= total:
                self._close()
        elif time.perf_counter() - self.spoke > PLAIN_SECONDS:
            self.spoke = time.perf_counter()
            self.note(f"{what}: {done}/{total}")

    def _open(self, name: str, total: int, done: int) -> None:
        columns = (
            rich.TextColumn("{task.description}"),
            rich.BarColumn(20),
            rich.TextColumn("{task.fields[text]}"),
            rich.TimeRemainingColumn(compact=True),
        )
        self.bar = rich.Progress(*columns, console=self.console, transient=True)
        self.what = name
        self.task = self.bar.add_task(name, total=total, completed=done, text="")
        self.bar.start()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._close()
        if self.board is not None:
            self.board.flush()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
        sys.stderr.flush()


def open_board(folder: Path) -> Any:
    """A TensorBoard writer, from the extra."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard needs the extra: pip install 'bayesncl[tensorboard]'") from None
    return SummaryWriter(str(folder))
