"""Download archives, and read the members of tar files in place."""

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

from bayesncl.data.images import Progress
from bayesncl.errors import InputError, as_input_error, printable_path

# What tarfile raises on damaged archives; a chain of long-name headers recurses.
TAR_ERRORS = (tarfile.TarError, OSError, EOFError, ValueError, RecursionError, zlib.error)
MAX_FILE_BYTES = 256 << 20


class Undecodable(ValueError):
    """The bytes are not an image that can be decoded; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An image file: a whole file, or a section of an archive."""

    name: str  # relative to the root
    path: Path
    offset: int = 0
    size: int = -1  # -1: to the end of the file

    def read(self) -> bytes:
        """The bytes; Undecodable if there are more than MAX_FILE_BYTES."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            limit = MAX_FILE_BYTES + 1
            data = file.read(limit if self.size < 0 else min(self.size, limit))
        if len(data) > MAX_FILE_BYTES:
            raise Undecodable(f"larger than {MAX_FILE_BYTES >> 20} MiB")
        return data


def safe_name(name: str) -> str | None:
    """A normalized relative path; None if it is empty, absolute or leaves its folder."""
    if "\0" in name or "\\" in name or name.startswith("/"):
        return None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts) if parts and ".." not in parts else None


def list_members(path: Path) -> tuple[dict[str, Entry], list[str]]:
    """The regular files of an uncompressed tar by safe name, and the names of refused members.

    Links, devices and names that leave the archive are refused. A later member replaces an earlier
    one of the same name, as unpacking would.
    """
    entries: dict[str, Entry] = {}
    refused: list[str] = []
    problem = f"{printable_path(path)}: not a readable tar file"
    with as_input_error(problem, *TAR_ERRORS), tarfile.open(path, "r:") as tar:
        for member in tar:
            name = safe_name(member.name)
            if name is not None and member.isreg() and not member.issparse():
                entries[name] = Entry(name, path, member.offset_data, member.size)
            elif name is None or not member.isdir():
                refused.append(member.name)
            tar.members = []  # type: ignore[attr-defined]  # it would keep every header
    return entries, refused


def fetch(url: str, path: Path, md5: str, progress: Progress | None = None) -> Path:
    """Download `url` to `path` unless it is there.

    PATH.part collects the bytes, resumes a broken download, and becomes `path` once its checksum
    is right.
    """
    part = path.with_name(path.name + ".part")
    errors = (OSError, http.client.HTTPException, ValueError)  # URLError is an OSError
    with as_input_error(f"cannot download {url} to {printable_path(path.parent)}", *errors):
        if path.is_file() and checksum(path) == md5:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part, progress)
        seen = checksum(part)
        if seen != md5:
            part.unlink()
            raise InputError(f"{url}: MD5 is {seen}, expected {md5}; deleted it, try again")
        os.replace(part, path)
    return path


def checksum(path: Path, kind: str = "md5") -> str:
    """Checksum of a file in hex; MD5 detects damage, not an attacker."""
    with open(path, "rb") as file:
        new = lambda: hashlib.new(kind, usedforsecurity=False)  # noqa: E731
        return hashlib.file_digest(file, new).hexdigest()


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=30)  # seconds without a byte
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # nothing follows; the checksum decides
            return
        raise
    with response, open(part, "ab") as file:
        if response.status != 206:  # the server cannot resume
            file.truncate(0)
            done = 0
        total = done + int(response.headers.get("Content-Length", 0))
        while block := response.read(1 << 20):
            file.write(block)
            done += len(block)
            if progress:
                progress(done, max(total, done), f"downloading {part.stem}")
    if done < total:
        raise OSError(f"the connection ended after {done} of {total} bytes; run again to resume")
