"""Children that can be killed, limited and listened to.

The parent imports everything and computes nothing, so that a fork is cheap and safe; whatever computes runs in a child.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch
import torch._dynamo  # optimisers import it when first used; once here is faster than in every child

from bayesncl import cli

PATIENCE = 120.0  # seconds after which a child counts as hanging
ROOM = 3 << 30  # bytes of address space a child with a memory limit may take on top of what the parent has


@dataclass
class Outcome:
    """What became of the tries of one kind of fault."""

    kind: str
    tries: int = 0
    lost: list[str] = field(default_factory=list)

    def check(self, good: bool, what: str) -> None:
        """One more try; `what` says what is wrong if it is not `good`."""
        self.tries += 1
        if not good:
            self.lost.append(what)


@dataclass(frozen=True)
class Ended:
    """How a child ended: exit status (negative: the signal), what it wrote to stderr and stdout, seconds."""

    status: int
    text: str
    seconds: float

    @property
    def one_line(self) -> str | None:
        """The message, if the child said exactly one `bayesncl: ...` line besides notes and progress; else None."""
        lines = [line for line in self.text.splitlines() if line.startswith("bayesncl: ") and "note: " not in line]
        return lines[0] if len(lines) == 1 and "Traceback" not in self.text else None


class Child:
    """A forked process that runs `work`."""

    def __init__(self, work: Callable[[], object], folder: Path, *, bounded: bool = False) -> None:
        self.log = folder / f".child-{time.monotonic_ns()}"
        self.began = time.monotonic()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self._work(work, bounded))

    def _work(self, work: Callable[[], object], bounded: bool) -> int:
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        torch.set_num_threads(1)
        if bounded:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
        try:
            work()
            status = 0
        except SystemExit as leave:
            status = leave.code if isinstance(leave.code, int) else 1
        except BaseException:
            traceback.print_exc()
            status = 99
        sys.stdout.flush()
        sys.stderr.flush()
        return status

    def kill(self, sign: int = signal.SIGKILL) -> None:
        os.kill(self.pid, sign)

    def wait(self, patience: float = PATIENCE) -> Ended:
        """Until it ends; one that hangs is killed and has status -SIGKILL."""
        until = time.monotonic() + patience
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > until:
                self.kill()
            time.sleep(0.003)
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        self.log.unlink(missing_ok=True)
        return Ended(os.waitstatus_to_exitcode(status), text, time.monotonic() - self.began)


def run(work: Callable[[], object], folder: Path, *, bounded: bool = False) -> Ended:
    """Run `work` in a child to its end."""
    return Child(work, folder, bounded=bounded).wait()


def command(*words: str | Path, quiet: bool = True) -> Callable[[], None]:
    """What `bayesncl WORDS` does, as work for a child."""

    def work() -> None:
        sys.argv = ["bayesncl", *map(str, words), *(["--quiet"] if quiet else [])]
        cli.main()

    return work


def traced(work: Callable[[], object], writers: set[str | None], fatal: int, lines: Path) -> None:
    """Do `work`, but die before line event `fatal` of these source files; how many there were goes to `lines`."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal count
        if frame.f_code.co_filename not in writers:
            return None
        count += event == "line"
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
        lines.write_text(str(count))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
