"""`bayesncl` and `python -m bayesncl`: what must be in place before anything heavy is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point."""
    open_streams()
    catch_interrupts()
    try:
        from .cli import main as run_command
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


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"bayesncl: stopped\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
