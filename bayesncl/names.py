"""Names, notes and judgements that people gave to dimensions: names.json, as the atlas exports it.

    {"format": "bayesncl-names-1",
     "codes": [{"fingerprint": "9f8e...", "run": "NCL", "dims": 256,
                "dimensions": {"17": [{"name": "autumn forest", "note": "", "mark": "readable",
                                       "author": "Ann", "time": "2026-05-01T10:00:00.000Z"}]}}]}

A dimension has at most one entry an author, the newest; entries of several authors stand side by side. Everything in it
is text from strangers: it is checked, cut to length, and never markup.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import InputError, or_refuse, printable
from .files import write_atomic

FORMAT = "bayesncl-names-1"
FINGERPRINT = 16  # hex digits that say which codes were named
MARKS = ("readable", "mixed", "noise")
LENGTHS = {"name": 120, "note": 2000, "author": 60, "time": 40}
MOST_BYTES = 64 << 20
MOST_DIMS = 1_000_000
MOST_ENTRIES = 64  # of one dimension


@dataclass(frozen=True)
class Entry:
    """What one person said of a dimension."""

    name: str = ""
    note: str = ""
    mark: str = ""  # one of MARKS, or nothing
    author: str = ""
    time: str = ""  # ISO 8601


@dataclass
class Codes:
    """What people said of the dimensions of one run or code."""

    fingerprint: str
    run: str = ""
    dims: int = 0
    dimensions: dict[int, list[Entry]] = field(default_factory=dict)

    def name(self, k: int) -> str:
        """The name most people gave to dimension `k`, the newest where they disagree evenly; empty without one."""
        given = [entry for entry in self.dimensions.get(k, []) if entry.name]
        votes = Counter(entry.name.casefold() for entry in given)
        best = max(given, key=lambda e: (votes[e.name.casefold()], e.time, e.name), default=Entry())
        return " ".join(best.name.split())

    def columns(self, dims: int) -> list[str]:
        """A distinct column name for each of `dims` dimensions: the given one, or `z17` where there is none."""
        names = [self.name(k) or f"z{k}" for k in range(dims)]
        count = Counter(names)
        names = [name if count[name] == 1 else f"{name} (z{k})" for k, name in enumerate(names)]
        return names if len(set(names)) == dims else [f"{name} (z{k})" for k, name in enumerate(names)]


def read_names(path: Path | str) -> list[Codes]:
    """What names.json says of each run or code in it. What has the wrong type is refused, what is too long is cut."""
    return parse_names(read_json(Path(path), "names.json"), str(path))


def read_json(path: Path, what: str) -> object:
    """JSON from a stranger; a file too large to be `what` is not read."""
    with or_refuse(str(path)), open(path, "rb") as file:  # a pipe or a device has no size to be asked for
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: larger than {MOST_BYTES >> 20} MiB, so no {what}")
    with or_refuse(f"{path}: cannot be read as JSON", ValueError, RecursionError):
        return json.loads(data)


def parse_names(found: object, where: str) -> list[Codes]:
    """The contents of names.json, checked; `where` is named in messages."""
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("codes"), list):
        raise InputError(f"{where}: not a names.json as the atlas exports it (no format {FORMAT!r} in it)")
    return merge_names([_codes(each, where) for each in found["codes"]])


def _codes(found: object, where: str) -> Codes:
    if not isinstance(found, dict) or not isinstance(found.get("dimensions"), dict):
        raise InputError(f"{where}: codes without dimensions")
    dims = found.get("dims")
    if isinstance(dims, bool) or not isinstance(dims, int) or not 0 < dims <= MOST_DIMS:
        raise InputError(f"{where}: dims must be a number from 1 to {MOST_DIMS}, got {printable(repr(dims), 40)}")
    codes = Codes(_text(found.get("fingerprint"), 64, where), _text(found.get("run"), 200, where), dims)
    for key, entries in found["dimensions"].items():
        if not (key.isascii() and key.isdigit() and len(key) < 8 and int(key) < dims):
            raise InputError(f"{where}: no dimension {printable(key, 40)!r} among {dims}")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"{where}: dimension {key} must hold a list of entries")
        parsed = [_entry(entry, where) for entry in entries[:MOST_ENTRIES]]
        codes.dimensions[int(key)] = join_entries([entry for entry in parsed if entry.name or entry.note or entry.mark])
    return codes


def _entry(found: dict, where: str) -> Entry:
    texts = {what: _text(found.get(what), length, where) for what, length in LENGTHS.items()}
    return Entry(**texts, mark=next((mark for mark in MARKS if mark == found.get("mark")), ""))


def _text(value: object, length: int, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{where}: expected text, got {type(value).__name__}")
    # not escaped: what is read and written again must stay as it is
    return "".join(c if c.isprintable() or c == "\n" else " " for c in value[:length]).strip()


def join_entries(entries: Sequence[Entry]) -> list[Entry]:
    """One entry an author, the newest; what one author said twice at the same time is kept twice."""
    newest: dict[str, str] = {}
    for entry in entries:
        newest[entry.author] = max(newest.get(entry.author, ""), entry.time)
    held = {entry for entry in entries if entry.time == newest[entry.author]}
    return sorted(held, key=lambda e: (e.time, e.author, e.name, e.mark, e.note))


def merge_names(codes: Sequence[Codes]) -> list[Codes]:
    """Join what several files say; nothing that different people said is lost."""
    merged: dict[str, Codes] = {}
    for each in codes:
        into = merged.setdefault(each.fingerprint, Codes(each.fingerprint, each.run, each.dims))
        if into.dims != each.dims:
            raise InputError(f"names of {into.dims} and of {each.dims} dimensions under one fingerprint")
        for k, entries in each.dimensions.items():
            into.dimensions[k] = join_entries([*into.dimensions.get(k, []), *entries])
    return list(merged.values())


def find_names(codes: Sequence[Codes], fingerprint: str, dims: int) -> Codes:
    """What was said of these codes; an InputError where the names are of others."""
    for each in codes:
        if each.fingerprint == fingerprint:
            if each.dims != dims:
                raise InputError(f"the names are of {each.dims} dimensions, the codes have {dims}")
            return each
    known = ", ".join(f"{each.run or 'a run'} ({each.fingerprint})" for each in codes) or "nothing"
    raise InputError(f"the names are of other codes: they name {known}, these are {fingerprint}")


def write_names(path: Path | str, codes: Sequence[Codes]) -> None:
    """Write names.json."""
    parts = [
        {
            "fingerprint": each.fingerprint, "run": each.run, "dims": each.dims,
            "dimensions": {str(k): [vars(entry) for entry in e] for k, e in sorted(each.dimensions.items()) if e},
        }
        for each in codes
    ]  # fmt: skip
    write_atomic(path, json.dumps({"format": FORMAT, "codes": parts}, indent=1) + "\n")
