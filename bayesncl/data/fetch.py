"""Download files; broken downloads resume."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from bayesncl.data.images import Progress
from bayesncl.errors import InputError, as_input_error


def fetch(url: str, path: Path, md5: str, progress: Progress | None = None) -> Path:
    """Download `url` to `path` unless it is there.

    PATH.part collects the bytes, resumes a broken download, and becomes `path` once its checksum
    is right.
    """
    part = path.with_name(path.name + ".part")
    errors = (OSError, http.client.HTTPException, ValueError)  # URLError is an OSError
    with as_input_error(f"cannot download {url} to {path.parent}", *errors):
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


def checksum(path: Path) -> str:
    """MD5 of a file in hex; it detects damage, not an attacker."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=30)  # seconds without a byte
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # nothing follows; the checksum decides
            return
        raise
    resumed = response.status == 206
    done *= resumed  # 0 if the server cannot resume
    with response, open(part, "ab" if resumed else "wb") as file:
        total = done + int(response.headers.get("Content-Length", 0))
        while block := response.read(1 << 20):
            file.write(block)
            done += len(block)
            if progress:
                progress(done, max(total, done), f"downloading {part.stem}")
    if done < total:
        raise OSError(f"the connection ended after {done} of {total} bytes; run again to resume")
