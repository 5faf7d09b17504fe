"""Files: written so that a crash leaves the old one or the new one, never half of one; read and named with care."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError, or_refuse, shown

if TYPE_CHECKING:
    from torch import Tensor

CODES, ROWS, EMBEDDINGS = "codes.json", "rows.json", "embeddings.npy"  # in a folder of codes, written together
TEMPORARY = ".partial"  # suffix of what is being written
OURS = re.compile(r"\..+\.[0-9a-f]{8}\.partial")  # names that `temporary_beside` makes; a stranger's are left alone


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Write `data` to `path`: the whole of it, or nothing.

    A regular file is replaced by one of the same mode, written beside it and flushed to disk; a symbolic link stays,
    and the file it leads to is replaced. A device, a pipe or a standard stream is written to as it is.
    """
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        if is_stream(path):
            return _write_stream(path, raw)
        write_together({Path(os.path.realpath(path)): [raw]})
    except OSError as error:
        error.filename = str(path)  # a full disk does not say where
        error.filename2 = None
        raise


def write_together(files: dict[Path, Iterable[bytes]], gone: Iterable[Path] = ()) -> None:
    """Replace regular files, one or several, each of the bytes of its blocks, and keep their modes.

    Blocks are taken in order. All files are complete on the disk before the first of them takes its place, so that a
    full disk leaves the old ones. Of several the last is missing while the others are replaced: a kill then leaves
    none that vouches for old ones beside new ones. Files `gone`, which are of the old ones, are removed with them.
    """
    with contextlib.ExitStack() as stack:
        made = {}
        for path, blocks in files.items():
            made[path] = stack.enter_context(temporary_beside(path))
            with open(made[path], "wb") as file:
                file.writelines(blocks)
                file.flush()
                if path.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
                os.fsync(file.fileno())
        if len(made) > 1:
            list(made)[-1].unlink(missing_ok=True)
        for path in gone:
            path.unlink(missing_ok=True)
        for path, temporary in made.items():
            os.replace(temporary, path)


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a regular file; OSError for a pipe or a device, which may never end, and for more than `most`."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most >> 20:,} MiB", str(path))
        return file.read(found.st_size)


def write_saved(path: Path | str, save: Callable[..., object], **options: Any) -> None:
    """Write what `save`, of an image or a figure, puts into an open file."""
    held = io.BytesIO()
    save(held, **options)
    write_atomic(path, held.getvalue())


def is_stream(path: Path) -> bool:
    """Whether `path` is something to write to rather than to replace: no regular file, or one of our own streams."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)) or _own_stream(found) is not None


def _own_stream(found: os.stat_result) -> int | None:
    """The file descriptor of standard output or error if it is this very file, as /dev/stdout is."""
    for handle in (1, 2):
        with contextlib.suppress(OSError):  # it may be closed
            if os.path.samestat(found, os.fstat(handle)):
                return handle
    return None


def _write_stream(path: Path, raw: bytes) -> None:
    handle = _own_stream(path.stat())
    for stream in (sys.stdout, sys.stderr):
        if handle is not None and stream is not None:
            stream.flush()  # what was printed before comes before
    with open(path if handle is None else os.dup(handle), "wb", buffering=0) as file:
        view = memoryview(raw)
        while view:
            view = view[file.write(view) :]


def cache_folder() -> Path:
    """Where what can be made again is kept: decoded images, compiled kernels, bytecode."""
    with or_refuse("no place for a cache (BAYESNCL_CACHE names a folder)", RuntimeError):
        return Path(os.environ.get("BAYESNCL_CACHE") or Path.home() / ".cache" / "bayesncl").expanduser()


def is_codes(path: Path | str) -> bool:
    """Whether `path` is a folder that `bayesncl fit` wrote; asked by commands before torch is imported.

    Others have a codes.json too, beside their photos; rows or embeddings beside it (one may be lost) are ours.
    """
    return (Path(path) / CODES).is_file() and any((Path(path) / name).exists() for name in (ROWS, EMBEDDINGS))


def check_place(path: Path | None) -> Path | None:
    """`path`, if a file can be written there; said before long work, not after it."""
    if path is None:
        return None
    _check_name(path)
    if path.is_dir():
        raise InputError(f"{path}: a folder, expected the name of a file")
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise InputError(f"{path}: not permitted to write to it")
        return path
    parent = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not parent.is_dir():
        raise InputError(f"{path}: there is no folder {parent}")
    if not os.access(parent, os.W_OK):
        raise InputError(f"{path}: not permitted to write in {parent}")
    return path


def check_other(out: Path | None, *sources: Path | None) -> None:
    """Refuse to write over a file that is read, however the two are spelt."""
    for source in sources:
        if out is not None and source is not None and out.exists() and source.exists() and out.samefile(source):
            raise InputError(f"{out} is what is read, and would be lost: choose another name to write to")


def check_folder(path: Path | None) -> Path | None:
    """`path`, if it is a folder that can be written in or if one can be made there."""
    if path is None:
        return None
    _check_name(path)
    there = next(part for part in (path, *path.absolute().parents) if os.path.lexists(part))
    if not there.is_dir():
        raise InputError(f"{path}: {there} is not a folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"{path}: not permitted to write in {there}")
    return path


def _check_name(path: Path) -> None:
    """Refuse, in one line that is not as long as they are, names that no file system takes."""
    with or_refuse(shown(path), OSError, ValueError), contextlib.suppress(FileNotFoundError):
        os.stat(path)


def name_beside(path: Path, ending: str) -> Path:
    """A hidden name beside `path`, made of its own; of a very long one only a hash, since endings take room."""
    name = path.name if len(os.fsencode(path.name)) < 220 else hashlib.sha256(os.fsencode(path.name)).hexdigest()
    return path.with_name(f".{name}{ending}")


def tensor_bytes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """A safetensors file. The library writes metadata in random order; here equal contents give equal bytes."""
    import safetensors.torch

    raw = safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata)
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at a multiple of 8
    return len(header).to_bytes(8, "little") + header + raw[end:]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; InputError where there is none that can be read."""
    import safetensors

    if not os.path.isfile(path):  # a pipe would be waited for
        raise InputError(f"{path}: no such file")
    with (
        or_refuse(f"{path} is not a safetensors file that can be read", safetensors.SafetensorError, OSError),
        safetensors.safe_open(path, framework="pt") as file,
    ):
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def digest(tensors: dict[str, Tensor], text: str = "") -> str:
    """SHA-256 of `text` and of the names, types, shapes and bytes of some tensors, to tell a damaged file."""
    import torch

    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@contextlib.contextmanager
def temporary_beside(path: Path, *, folder: bool = False, mode: int = 0o777) -> Iterator[Path]:
    """An empty file or folder beside `path`, to be renamed to it; if it is not, it goes at the end of the block.

    The writer holds a lock on it, which the system frees however the process ends: whoever comes next tells the
    leftovers of the dead from what the living are writing, and sweeps the former.
    """
    sweep(path.parent, path.name)
    while True:
        temporary = name_beside(path, f".{secrets.token_hex(4)}{TEMPORARY}")
        temporary.mkdir(mode) if folder else temporary.touch(mode & 0o666, exist_ok=False)
        handle = _hold(temporary, or_unlocked=True)
        if handle is not None and temporary.exists():  # a sweeper may have come between making it and locking it
            break
    try:
        yield temporary
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)  # a full disk does not say where
        raise
    finally:
        _remove(temporary)
        os.close(handle)


def sweep(folder: Path, name: str | None = None, *, below: bool = True) -> None:
    """Remove what killed processes left half-written: in `folder` and `below`, or beside the one file `name` of it."""
    start = "." if name is None else f"{name_beside(folder / name, '').name}."
    for place, folders, files in os.walk(folder):  # which passes over folders that go while it looks
        for found in (*folders, *files):
            leftover = Path(place, found)
            if found.startswith(start) and OURS.fullmatch(found) and (handle := _hold(leftover)) is not None:
                _remove(leftover)
                os.close(handle)
        if name is not None or not below:
            break


def _hold(path: Path, *, or_unlocked: bool = False) -> int | None:
    """Open and lock a file or folder without waiting; None where it is gone or another process holds it.

    On a file system without locks: None, or the open file `or_unlocked`.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
