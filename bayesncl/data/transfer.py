"""Fetching an archive with resume and checksum."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from ..errors import InputError
from .images import Progress, printable, shown

BLOCK = 1 << 20
TIMEOUT = 30  # seconds without a byte


def fetch(url: str, path: Path, md5: str, progress: Progress | None = None) -> Path:
    """Download `url` to `path` unless it is there; a broken download resumes where it stopped.

    The bytes gather in PATH.part, which becomes `path` once its checksum is right.
    """
    part = path.with_name(path.name + ".part")
    try:
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
    except InputError:
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:  # URLError is an OSError
        raise InputError(
            f"cannot download {url} ({printable(str(error))}): "
            f"fetch {path.name} by other means and put it into {shown(path.parent)}"
        ) from None


def checksum(path: Path) -> str:
    """MD5 of a file: guards against damage, not against an attacker."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


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
