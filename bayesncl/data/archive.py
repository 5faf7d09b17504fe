"""Looking into tar files without unpacking them: members are places in the file, checked before use."""

from __future__ import annotations

import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from .images import printable

# What tarfile raises on damaged or hostile archives (a chain of long-name headers recurses).
TAR_ERRORS = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error)


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the bytes of one image lie: a whole file, or a stretch of one."""

    name: str  # relative to the root
    path: Path
    offset: int = 0
    size: int = -1  # -1: to the end of the file

    def read(self, most: int) -> bytes:
        """The bytes; more than `most` is an error."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read(most + 1 if self.size < 0 else min(self.size, most + 1))
        if len(data) > most:
            raise OSError(f"larger than {most >> 20} MiB")
        return data


def safe_name(name: str) -> str | None:
    """A relative path without detours, or None where it is absolute, climbs out, or is empty."""
    if "\0" in name or "\\" in name or name.startswith("/"):
        return None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return None
    return "/".join(parts)


def members(path: Path) -> tuple[dict[str, Entry], list[str]]:
    """The regular files of an uncompressed tar.

    Returns
    -------
    entries : by checked name; of two members of one name the later, as unpacking would have it.
    refused : names of links, devices and members that point outside the archive.
    """
    entries: dict[str, Entry] = {}
    refused: list[str] = []
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                name = safe_name(member.name)
                if member.isdir() and name is not None:
                    continue
                if name is None or not member.isreg() or member.issparse():
                    refused.append(member.name)
                else:
                    entries[name] = Entry(name, path, member.offset_data, member.size)
                tar.members = []  # type: ignore[attr-defined]  # every header would be kept otherwise
    except TAR_ERRORS as error:
        raise InputError(f"{printable(str(path))}: not a readable tar file ({printable(str(error))})") from None
    return entries, refused
