"""A file that is cut while it is memory-mapped: one line instead of a bus error.

Reading beyond the end of a mapped file raises SIGBUS in the instruction that reads, to which Python's own handlers
never come: they run between instructions of Python, and this one is repeated for ever. A C handler can print and leave.
Since it is the read of an array that fails, and never code that holds a lock of the C library, it may run Python.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

KEPT: list[object] = []  # the handler, which C does not keep alive for us
ADDRESS = 16  # bytes into a siginfo_t on 64-bit Linux


class Action(ctypes.Structure):
    """struct sigaction of Linux, 64 bits."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def explain_bus_errors() -> None:
    """From here on SIGBUS ends the process with a line that names the file, where the system is Linux of 64 bits."""
    if KEPT or sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_leave)
    action = Action(handler=ctypes.cast(handler, ctypes.c_void_p), flags=4)  # SA_SIGINFO
    if ctypes.CDLL(None, use_errno=True).sigaction(signal.SIGBUS, ctypes.byref(action), None) == 0:
        KEPT.append(handler)


def _leave(number: int, info: int, context: int) -> None:
    name = "a file"
    try:
        name = _mapped_at(ctypes.c_size_t.from_address(info + ADDRESS).value) or name
    finally:
        above = "\n" * os.isatty(2)  # a line of progress may stand there
        os.write(2, f"{above}bayesncl: {name} was cut while it was read: start again once it is whole\n".encode())
        os._exit(1)


def _mapped_at(address: int) -> str | None:
    """The file that is mapped at an address of this process."""
    with open("/proc/self/maps", errors="replace") as lines:
        for line in lines:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                words = line.rstrip("\n").split(None, 5)
                return "".join(c if c.isprintable() else "?" for c in words[5]) if len(words) == 6 else None
    return None
