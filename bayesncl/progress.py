"""Progress of long work: a line that moves on a terminal, plain lines elsewhere. Torch is not needed."""

from __future__ import annotations

import atexit
import os
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .errors import import_extra
from .recipes import Recipe

PLAIN_SECONDS = 5.0, 60.0  # between plain lines, at the start of a long run and later on
WINDOW = 30.0  # seconds over which the pace is taken: compiling and other pauses leave it


class Display:
    """Shows how far a training run, or any counted work, has come. Process 0 reports, the others are silent."""

    def __init__(self, quiet: bool = False, board: Path | None = None) -> None:
        self.quiet = quiet or follower()
        self.console = Console(stderr=True, highlight=False)
        self.board = open_board(board) if board is not None and not follower() else None
        self.live = self.console.is_terminal and not self.quiet
        self.view: Live | None = None
        self.pieces: Callable[[], list[str]] = list  # what the moving line says, most important first
        self.began = self.spoke = time.perf_counter()
        unicode = self.console.encoding.startswith("utf")
        self.spinner, self.full, self.empty = ("⠋⠙⠹⠸⠼⠴⠦⠧", "━", "─") if unicode else ("|/-\\", "#", "-")

    def note(self, text: str, wrap: bool = True) -> None:
        """Lines that stay. A terminal breaks them between words, but not what is to be copied: `wrap` False."""
        if not self.quiet:
            if wrap and self.console.is_terminal:
                fill = partial(textwrap.fill, width=self.console.width, break_long_words=False, break_on_hyphens=False)
                text = "\n".join(map(fill, text.split("\n")))
            self.console.print(text, markup=False, soft_wrap=True)

    def busy(self, what: str) -> None:
        """Show that something of unknown length goes on, until something else is shown."""
        since = time.perf_counter()
        self._show(lambda: [what, f"{time.perf_counter() - since:.0f} s"])
        if not self.live and since - self.spoke > PLAIN_SECONDS[0]:
            self.spoke = since
            self.note(what)

    def begin(self, recipe: Recipe, total: int, done: int) -> None:
        """Start showing a run of `total` steps."""
        self.name, self.total, self.done, self.batch = recipe.name, total, done, recipe.run.batch
        self.epochs = recipe.run.epochs
        self.began = self.spoke = time.perf_counter()
        self.marks: deque[tuple[float, int]] = deque()  # (time, steps done), since the first step
        self.metrics: dict[str, Any] = {}
        self._show(self._run)

    def advance(self, done: int) -> None:
        """Show that so many steps are done; called after each, so it does next to nothing."""
        now, self.done = time.perf_counter(), done
        if not self.marks or now - self.marks[-1][0] >= 0.5 or done == self.total:
            self.marks.append((now, done))
            while len(self.marks) > 2 and now - self.marks[0][0] > WINDOW:
                self.marks.popleft()
        least, most = PLAIN_SECONDS
        if not self.quiet and not self.live and now - self.spoke > min(max(least, (now - self.began) / 20), most):
            self.spoke = now
            self.note("  ".join([f"{self.name}:", *self._words()]))

    def update(self, line: dict[str, Any]) -> None:
        """Take in a line of metrics."""
        if self.board is not None:
            for name, value in line.items():
                self.board.add_scalar(name, value, line["step"])
        self.metrics = line
        if line["step"] >= self.total and not self.quiet:
            self._show(None)
            took = words(time.perf_counter() - self.began)
            self.note("  ".join([f"{self.name}:", f"{plural(self.epochs, 'epoch')} in {took}", *self._measured()]))

    def count(self, done: int, total: int, what: str) -> None:
        """Show counted work such as decoding: a `Progress`."""
        if self.live:
            self._show(
                (lambda: [self._bar(done / max(total, 1)), f"{what} {done:,}/{total:,}"]) if done < total else None
            )
        elif time.perf_counter() - self.spoke > PLAIN_SECONDS[0]:
            self.spoke = time.perf_counter()
            self.note(f"{what}: {done:,}/{total:,}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._show(None)
        if self.board is not None:
            self.board.flush()
        sys.stderr.flush()

    def _run(self) -> list[str]:
        if not self.marks:
            return [f"first step {time.perf_counter() - self.began:.0f} s"]
        return [self._bar(self.done / self.total), *self._words()]

    def _words(self) -> list[str]:
        epoch = min(self.done * self.epochs // self.total + 1, self.epochs)
        (then, first), (now, last) = self.marks[0], self.marks[-1]
        pace = (last - first) / (now - then) if last > first else 0.0  # steps a second
        told = [f"{pace * self.batch:,.0f} images/s", f"{words((self.total - self.done) / pace)} left"] if pace else []
        return [f"epoch {epoch}/{self.epochs}", *told, *self._measured()]

    def _measured(self) -> list[str]:
        m = self.metrics
        if not m:
            return []
        gates = [f"kl {m['kl']:.2f}", f"open {100 * m['open']:.0f} %"] if m["kl"] else []
        return [f"loss {m['loss']:.3f}", *gates, f"active {m['active']} ({m['near_dead']} nearly dead)"]

    def _bar(self, share: float) -> str:
        filled = int(10 * share)
        return self.full * filled + self.empty * (10 - filled)

    def _show(self, pieces: Callable[[], list[str]] | None) -> None:
        if pieces is not None and self.live:
            self.pieces = pieces
            if self.view is None:
                atexit.register(self._show, None)  # an error must not leave a terminal without its cursor
                self.view = Live(get_renderable=self._line, console=self.console, refresh_per_second=8, transient=True)
                self.view.start()
        elif pieces is None and self.view is not None:
            self.view.stop()
            self.view = None
            atexit.unregister(self._show)

    def _line(self) -> Text:
        line = self.spinner[int(8 * time.perf_counter()) % len(self.spinner)]
        for piece in self.pieces():  # as many as there is room for
            if len(line) + 2 + len(piece) >= self.console.width:
                break
            line += f"  {piece}"
        return Text(line, no_wrap=True, overflow="crop")


def words(seconds: float) -> str:
    """A time for people: ``45 s``, ``3 min``, ``2.5 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def plural(n: int, thing: str) -> str:
    """``1 class``, ``12 classes``."""
    return f"{n:,} {thing}{'' if n == 1 else 'es' if thing.endswith('s') else 's'}"


def follower() -> bool:
    """Whether torchrun started several processes and this is not the first of them."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


def open_board(folder: Path) -> Any:
    """A TensorBoard writer, from the extra."""
    missing = "--tensorboard needs the extra: pip install 'bayesncl[tensorboard]'"
    return import_extra("torch.utils.tensorboard", missing).SummaryWriter(str(folder))
