"""Progress of long work on stderr: a live bar on a terminal, occasional plain lines elsewhere."""

import atexit
import os
import re
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

LINE_SECONDS = 15.0  # between plain lines
COUNT_SECONDS = 0.05  # between updates of the bar, each of which takes almost 0.1 ms


class Display:
    """Shows how far work has come. With several processes, only the first reports.

    `quiet` shows nothing. `program` is how notes call it, with options that its commands need.
    """

    def __init__(self, quiet: bool = False, program: str = "bayesncl") -> None:
        self.program = program
        follower = os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"
        self.quiet = quiet or follower
        self.console = Console(stderr=True, highlight=False)
        self.live = self.console.is_terminal and not self.quiet
        self.bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(10),
            Status(Column(no_wrap=True, overflow="crop", ratio=1)), console=self.console,
            transient=True, expand=True, disable=not self.live, get_time=time.perf_counter,
        )  # fmt: skip
        self.task: Task | None = None
        self.last_line = self.last_count = time.perf_counter()
        if self.live:
            atexit.register(self.bar.stop)  # shows the cursor again after an error

    def note(self, text: str, wrap: bool = True) -> None:
        """Print lines that stay. `wrap` False keeps commands in one piece for copying."""
        if not self.quiet:
            text = re.sub(r"(?<!\S)bayesncl (?=[a-z])", f"{self.program} ", text)
            wrap = wrap and self.console.is_terminal
            self.console.print(text, markup=False, soft_wrap=not wrap)

    def busy(self, title: str) -> None:
        """Show that work of unknown length has started."""
        self._start(title, None)
        self._print_line(title)

    def count(self, done: int, total: int, title: str, status: str = "") -> None:
        """Show counted work, such as decoding or steps of training, and its status."""
        now = time.perf_counter()
        if self.task is None or self.task.description != title:
            self._start(title, total, done)
        elif done < total and now - self.last_count < COUNT_SECONDS:
            return
        assert self.task is not None
        self.last_count = now
        self.bar.update(self.task.id, completed=done, status=status)
        self._print_line(f"{title}:  {describe(self.task)}")
        if done >= total:
            self.close()

    def close(self) -> None:
        """Remove the bar."""
        if self.task is not None:
            self.bar.remove_task(self.task.id)
            self.task = None
        if self.live:
            self.bar.stop()

    def show(self, text: str) -> None:
        """Print a result to stdout, after the bar is gone."""
        self.close()
        print(text)

    def _start(self, title: str, total: int | None, done: int = 0) -> None:
        self.close()
        self.bar.add_task(title, total=total, completed=done, status="")
        self.task = self.bar.tasks[-1]
        self.bar.start()

    def _print_line(self, text: str) -> None:
        """Print a plain line where there is no bar, some time after the last."""
        if not self.live and time.perf_counter() - self.last_line > LINE_SECONDS:
            self.last_line = time.perf_counter()
            self.note(text)


class Status(ProgressColumn):
    """The text after the bar, cut off where the terminal ends."""

    def render(self, task: Task) -> Text:
        return Text(describe(task))


def describe(task: Task) -> str:
    """What is done, the time left by rich's estimate and the status; or the time that passed."""
    if task.total is None:
        return duration(task.elapsed or 0)
    left = "" if task.time_remaining is None else f"{duration(task.time_remaining)} left"
    count = f"{task.completed:,.0f}/{task.total:,.0f}"
    return "  ".join(filter(None, (count, left, task.fields["status"])))


def duration(seconds: float) -> str:
    """Format a time: ``45 s``, ``3 min``, ``2.5 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def plural(n: int, noun: str) -> str:
    """``1 class``, ``12 classes``."""
    return f"{n:,} {noun}{'' if n == 1 else 'es' if noun.endswith('s') else 's'}"
