"""Archives: fetched with resume and checksum, and looked into without unpacking them."""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, or_refuse, shown
from .images import Progress

# What tarfile raises on damaged or hostile archives (a chain of long-name headers recurses).
TAR_ERRORS = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error)
BLOCK = 1 << 20
TIMEOUT = 30  # seconds without a byte


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
    return "/".join(parts) if parts and ".." not in parts else None


def members(path: Path) -> tuple[dict[str, Entry], list[str]]:
    """List an uncompressed tar.

    Returns its regular files by checked name (of two of one name the later, as unpacking would) and the names of what
    is refused: links, devices and members that point outside the archive.
    """
    entries: dict[str, Entry] = {}
    refused: list[str] = []
    with or_refuse(f"{shown(path)}: not a readable tar file", *TAR_ERRORS), tarfile.open(path, "r:") as tar:
        for member in tar:
            name = safe_name(member.name)
            if member.isdir() and name is not None:
                continue
            if name is None or not member.isreg() or member.issparse():
                refused.append(member.name)
            else:
                entries[name] = Entry(name, path, member.offset_data, member.size)
            tar.members = []  # type: ignore[attr-defined]  # every header would be kept otherwise
    return entries, refused


def fetch(url: str, path: Path, md5: str, progress: Progress | None = None) -> Path:
    """Download `url` to `path` unless it is there; a broken download resumes where it stopped.

    The bytes gather in PATH.part, which becomes `path` once its checksum is right.
    """
    part = path.with_name(path.name + ".part")
    otherwise = f"fetch {path.name} by other means and put it into {shown(path.parent)}"
    # URLError is an OSError
    with or_refuse(f"cannot download {url}: {otherwise}", OSError, http.client.HTTPException, ValueError):
        if path.is_file() and checksum(path) == md5:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part, progress)
        seen = checksum(part)
        if seen != md5:
            part.unlink()
            raise InputError(f"{url}: what arrived has MD5 {seen}, expected {md5}; it was deleted, try again")
        os.replace(part, path)
    return path


def checksum(path: Path, kind: str = "md5") -> str:
    """Of a file, in hex; MD5 guards against damage, not against an attacker."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # nothing follows: the part is whole, or wrong, as its checksum will tell
            return
        raise
    with response, open(part, "ab") as file:
        if response.status != 206:  # the server does not resume
            file.truncate(0)
            done = 0
        rest = response.headers.get("Content-Length")
        total = done + int(rest) if rest else 0
        while block := response.read(BLOCK):
            file.write(block)
            done += len(block)
            if progress:
                progress(done, max(total, done), f"downloading {part.name.removesuffix('.part')}")
    if total and done < total:
        raise OSError(f"the connection ended after {done} of {total} bytes; run it again to resume")
