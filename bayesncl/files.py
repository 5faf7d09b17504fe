"""Writing files so that a crash leaves either the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY = ".partial"  # suffix of what is being written
OURS = re.compile(r"\..+\.[0-9a-f]{8}\.partial")  # names that `temporary_beside` makes; a stranger's are left alone


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Write `data` to `path` through a temporary file beside it, flushed to disk, then renamed over it."""
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        with temporary_beside(path) as temporary:
            with open(temporary, "wb") as file:
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # a full disk does not say where
        error.filename2 = None
        raise


def check_place(path: Path | None) -> Path | None:
    """`path`, if a file can be written there; said before long work, not after it."""
    if path is None:
        return None
    if path.is_dir():
        raise InputError(f"{path}: a folder, expected the name of a file")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path}: not permitted to write in {path.parent}")
    return path


def tensor_bytes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """A safetensors file. The library writes metadata in random order; here equal contents give equal bytes."""
    import safetensors.torch

    raw = safetensors.torch.save(tensors, metadata)
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at a multiple of 8
    return len(header).to_bytes(8, "little") + header + raw[end:]


@contextlib.contextmanager
def temporary_beside(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """An empty file or folder beside `path`, to be renamed to it; if it is not, it goes at the end of the block.

    The writer holds a lock on it, which the system frees however the process ends: whoever comes next tells the
    leftovers of the dead from what the living are writing, and sweeps the former.
    """
    sweep(path.parent, path.name)
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
        temporary.mkdir() if folder else temporary.touch(exist_ok=False)
        handle = _hold(temporary, or_unlocked=True)
        if handle is not None and temporary.exists():  # a sweeper may have come between making it and locking it
            break
    try:
        yield temporary
    finally:
        _remove(temporary)
        os.close(handle)


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left half-written: in `folder` and below, or beside the one file `name` of it."""
    leftovers = folder.rglob(f".*{TEMPORARY}") if name is None else folder.glob(f".{glob.escape(name)}.*{TEMPORARY}")
    for leftover in list(leftovers):
        if not OURS.fullmatch(leftover.name):
            continue
        handle = _hold(leftover)
        if handle is not None:
            _remove(leftover)
            os.close(handle)


def _hold(path: Path, *, or_unlocked: bool = False) -> int | None:
    """Open and lock a file or folder without waiting; None where it is gone or another process holds it.

    On a file system without locks: None, or the open file `or_unlocked`.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except OSError as error:
        if or_unlocked and not isinstance(error, BlockingIOError):
            return handle
        os.close(handle)
        return None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
