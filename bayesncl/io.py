"""Atomic writes, output checks, JSON and safetensors files.

This module is imported at startup, so functions that need torch import it themselves.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesncl.errors import InputError, as_input_error

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# Files of a codes folder that are written together.
CODES, ROWS, EMBEDDINGS = "codes.json", "rows.json", "embeddings.npy"


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Replace the content of a file; after a crash it holds the old content or the new.

    The file keeps its mode. A symbolic link is followed.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():  # replacing /dev/null would break the system
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def temporary_beside(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Create an empty hidden file or folder beside `path`; delete it unless it was renamed."""
    temporary = path.with_name(f".bayesncl-{secrets.token_hex(8)}.partial")
    try:
        temporary.mkdir() if folder else temporary.touch(exist_ok=False)
        yield temporary
    except OSError as error:
        if error.filename in (None, str(temporary)):  # a full disk names no file
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # a read-only disk fails here too
                temporary.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes; the caller must hold the lock of the folder."""
    for path in folder.rglob(".bayesncl-*.partial"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def write_saved(path: Path | str, save: Callable[..., object], **options: Any) -> None:
    """Write what `save(file, **options)` puts into an open file, e.g. a figure's `savefig`."""
    buffer = io.BytesIO()
    save(buffer, **options)
    write_atomic(path, buffer.getvalue())


def read_json(path: Path) -> Any:
    """Parse a JSON file; InputError if it cannot be read or is not JSON."""
    with as_input_error(f"cannot read {path}", OSError, ValueError, RecursionError):
        return json.loads(path.read_bytes())


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, such as a result; empty if there is none or it is unreadable."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        tree = json.loads(path.read_text())
        return tree if isinstance(tree, dict) else {}
    return {}


def write_npy(path: Path, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Write blocks of rows as one .npy file; returns it, memory-mapped. Not atomic."""
    import numpy as np
    from numpy.lib.format import write_array_header_1_0

    count = 0
    # Plain writes: a full disk is an OSError here, but a bus error in a writable memory map.
    with open(path, "wb") as file:
        for block in blocks:
            header = {"descr": block.dtype.str, "fortran_order": False}
            if file.tell() == 0:
                write_array_header_1_0(file, {**header, "shape": block.shape})
            file.write(block.tobytes())
            count += len(block)
        file.seek(0)  # NumPy pads the header: its length does not depend on the count
        write_array_header_1_0(file, {**header, "shape": (count, *block.shape[1:])})
        file.flush()
        os.fsync(file.fileno())
    found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


def cache_folder() -> Path:
    """Folder for decoded images and compiled kernels: $BAYESNCL_CACHE or ~/.cache/bayesncl."""
    folder = os.environ.get("BAYESNCL_CACHE") or Path.home() / ".cache" / "bayesncl"
    return Path(folder).expanduser()


def is_codes(path: Path | str) -> bool:
    """Whether `bayesncl fit` wrote this folder.

    Other programs write a codes.json too, so rows or embeddings (one may be lost) must be there.
    """
    folder = Path(path)
    beside = (folder / ROWS, folder / EMBEDDINGS)
    return (folder / CODES).is_file() and any(file.exists() for file in beside)


def check_output_file(path: Path | None) -> Path | None:
    """Return `path` if a file can be written there; raise InputError before long work if not."""
    if path is not None:
        with as_input_error(f"cannot write {path}", OSError, ValueError):
            if path.is_dir():
                raise InputError(f"{path} is a folder; expected the name of a file")
            with temporary_beside(Path(os.path.realpath(path))):
                return path
    return None


def check_output_folder(path: Path | None) -> Path | None:
    """Return `path` if it is a writable folder or one can be created there."""
    if path is not None:
        with as_input_error(f"cannot write to {path}", OSError, ValueError):
            folder = next(p for p in (path, *path.absolute().parents) if p.exists())
            with temporary_beside(folder / "file"):
                return path
    return None


def check_not_input(out: Path | None, *inputs: Path | None) -> None:
    """Refuse to overwrite a file that is read."""
    for path in inputs:
        if out and path and out.exists() and path.exists() and out.samefile(path):
            raise InputError(f"refusing to overwrite the input {out}; choose another output")


def tensor_bytes(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """A safetensors file; equal content gives equal bytes.

    The library writes metadata in random order, so the header is written again, sorted.
    """
    import safetensors.torch

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    raw = safetensors.torch.save(contiguous, metadata)
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.dumps(json.loads(raw[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors begin at a multiple of 8
    return len(header).to_bytes(8, "little") + header + raw[end:]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    import safetensors

    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    with (
        as_input_error(f"cannot read {path}", safetensors.SafetensorError, OSError),
        safetensors.safe_open(path, framework="pt") as file,
    ):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata() or {}


def digest(tensors: dict[str, Tensor], text: str = "") -> str:
    """SHA-256 of `text` and of the names, types, shapes and bytes of tensors."""
    import torch

    total = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
