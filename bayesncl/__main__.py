"""`bayesncl` and `python -m bayesncl`: what must be in place before anything heavy is imported."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NoReturn
from zlib import crc32

STAT = Path("/proc/stat")
BUSY = 0.3  # of all processors


def main() -> None:
    """Entry point."""
    open_streams()
    catch_interrupts()
    atexit.register(gc.freeze)  # Python would go through all objects for garbage as it leaves: a third of a second
    try:
        if not {"--help", "--version"} & set(sys.argv[1:]):
            rest_when_busy()
            keep_bytecode()
        from .cli import main as run_command
    except KeyboardInterrupt:
        stop()
    except (ImportError, MemoryError, OSError) as error:  # too little memory, too few files
        os.write(2, f"bayesncl: cannot start: {type(error).__name__} {' '.join(str(error).split())[:300]}\n".encode())
        sys.exit(1)
    run_command()


def open_streams() -> None:
    """Give closed standard streams to the null device: the next file that is opened would take their place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def catch_interrupts() -> None:
    """Have Ctrl-C end an import at once: thrown into one, KeyboardInterrupt comes out as many things."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def stop() -> NoReturn:
    """End at once, as Ctrl-C asks; a terminal gets back its cursor, which the line that moves had hidden."""
    moves = os.isatty(2) and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    os.write(2, (b"\r\x1b[2K\x1b[?25h" if moves else b"") + b"bayesncl: stopped\n")
    os._exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            stop()
        frame = frame.f_back
    raise KeyboardInterrupt


def rest_when_busy() -> None:
    """Have torch's threads sleep, not spin, while they wait for each other, if others need the processors too.

    Spinning is faster on an idle machine and many times slower on a busy one; results are the same.
    Only before torch is imported, and never against what the environment says.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ and busy_share() > BUSY:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def keep_bytecode() -> None:
    """Keep bytecode in our cache folder where torch has none and nobody keeps it beside torch.

    Images for containers are often made without bytecode and told to write none (PYTHONDONTWRITEBYTECODE): every start
    would then compile a thousand files of torch, which takes as long as all else that its import does.
    """
    torch = find_spec("torch")
    if sys.pycache_prefix is not None or torch is None or torch.origin is None:
        return
    place = os.path.dirname(torch.origin)
    stays = not sys.dont_write_bytecode and os.access(place, os.W_OK)
    if not stays and not os.path.isdir(os.path.join(place, "__pycache__")):
        from .files import cache_folder

        with suppress(ValueError, OSError):  # no home
            # Python tells stale bytecode by file times, which container images may all set alike: so the folder is
            # named by what is installed
            installed = crc32("\n".join(sorted(os.listdir(os.path.dirname(place)))).encode())
            sys.pycache_prefix = str(cache_folder().absolute() / "compiled" / f"bytecode-{installed:08x}")
            sys.dont_write_bytecode = False


def busy_share(seconds: float = 0.05) -> float:
    """Share of the processors' time that others take, 0 to 1, while this process sleeps; 0 where nothing says so."""
    try:
        idle, total = _times()
        time.sleep(seconds)
        idle_then, total_then = _times()
    except (OSError, ValueError, IndexError):
        return 0.0
    return 1 - (idle_then - idle) / (total_then - total) if total_then > total else 0.0


def _times() -> tuple[int, int]:
    """Idle and total time of all processors since they started, in ticks."""
    ticks = [int(field) for field in STAT.read_text().splitlines()[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)  # idle, and waiting for a disk


if __name__ == "__main__":
    main()
