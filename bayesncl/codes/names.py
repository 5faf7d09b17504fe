"""Names, notes and marks that people give to dimensions: the names.json that the atlas exports.

    {"format": "bayesncl-names-1",
     "codes": [{"fingerprint": "9f8e...", "run": "NCL", "dims": 256,
                "dimensions": {"17": [{"name": "autumn forest", "note": "", "mark": "readable",
                                       "author": "Ann", "time": "2026-05-01T10:00:00.000Z"}]}}]}

A dimension has one entry per author, the newest. `checks`, beside `dimensions`, lists decisions on
findings of the audit. The texts come from other people: they are validated and cut to length here,
and the page shows them as text, never as markup.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.io import digest, read_json, write_atomic

FORMAT = "bayesncl-names-1"
LENGTHS = {"name": 120, "note": 2000, "image": 1000, "other": 1000, "author": 60}  # others: 40
CHOICES = {
    "mark": ("readable", "mixed", "noise", "irrelevant"), "decision": ("accepted", "dismissed")
}  # fmt: skip
SUGGESTED = "bayesncl:"  # authors that begin so are programs, e.g. bayesncl:words


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """Identifies the dimensions that these weights define."""
    return digest(tensors)[:16]


@dataclass(frozen=True)
class Entry:
    """What one person wrote about a dimension."""

    name: str = ""
    note: str = ""
    mark: str = ""  # one of CHOICES, or empty
    author: str = ""
    time: str = ""  # ISO 8601

    @property
    def suggested(self) -> bool:
        """Whether a program wrote it."""
        return self.author.startswith(SUGGESTED)


@dataclass(frozen=True)
class Check:
    """What one person decided about a finding of the audit."""

    kind: str = ""
    image: str = ""
    other: str = ""
    decision: str = ""  # one of CHOICES; empty if it was taken back
    author: str = ""
    time: str = ""


@dataclass
class Annotations:
    """What people wrote about the dimensions of one run or one set of codes."""

    fingerprint: str
    run: str = ""
    dims: int = 0
    dimensions: dict[int, list[Entry]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def name(self, k: int) -> str:
        """Return the most frequent name of dimension `k`, the newest of equals, or "".

        Suggestions count only where no person gave a name.
        """
        named = [entry for entry in self.dimensions.get(k, []) if entry.name]
        named = [entry for entry in named if not entry.suggested] or named
        votes = Counter(entry.name.casefold() for entry in named)
        best = max(named, key=lambda e: (votes[e.name.casefold()], e.time, e.name), default=Entry())
        return " ".join(best.name.split())

    def marked(self, mark: str) -> list[int]:
        """Return the dimensions that got this mark from at least half of those who gave one."""
        marks = {k: [e.mark for e in entries if e.mark] for k, entries in self.dimensions.items()}
        return sorted(k for k, given in marks.items() if 2 * given.count(mark) >= len(given) > 0)

    def find(self, name: str) -> list[int]:
        """Return all dimensions with this name, ignoring case; `z17` and column names work too."""
        wanted = " ".join(name.split()).casefold()
        names = [self.name(k) for k in range(self.dims)]
        low = [each.casefold() for each in names]
        keys = [(each, f"z{k}", f"{each} (z{k})") for k, each in enumerate(low)]
        found = [k for k, each in enumerate(keys) if wanted and wanted in each]
        if not found:
            given = ", ".join(sorted({each for each in names if each})) or "none yet"
            use = f"use z0 to z{self.dims - 1} or a name ({printable(given, 300)})"
            raise InputError(f"no dimension is named {name!r}: {use}")
        return found

    def columns(self, dims: int) -> list[str]:
        """Return distinct column names for `dims` dimensions, `z17` for one without a name."""
        names = [self.name(k) or f"z{k}" for k in range(dims)]
        count = Counter(names)
        once = [name if count[name] == 1 else f"{name} (z{k})" for k, name in enumerate(names)]
        if len(set(once)) == dims:
            return once
        return [f"{name} (z{k})" for k, name in enumerate(names)]


def read_names(path: Path | str) -> list[Annotations]:
    """Read names.json, one item per run. Texts that are too long are cut."""
    return list(map(prune, parse_names(read_json(Path(path)), str(path))))


def parse_names(tree: Any, source: str) -> list[Annotations]:
    """The content of a names.json, with empty entries: they delete an older one in a merge."""
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise InputError(f"{source} is not a names.json exported by the atlas (format {FORMAT!r})")
    with as_input_error(f"{source} is not a valid names.json", Exception):
        return merge_names([_parse(codes) for codes in tree["codes"]])


def _parse(tree: dict[str, Any]) -> Annotations:
    identity, run = _text(tree.get("fingerprint"), 64), _text(tree.get("run"), 200)
    found = Annotations(identity, run, int(tree["dims"]))
    for key, entries in tree["dimensions"].items():
        if not 0 <= int(key) < found.dims:
            raise ValueError(f"there is no dimension {key} among {found.dims}")
        found.dimensions[int(key)] = [_read(Entry, entry) for entry in entries]
    found.checks = [_read(Check, each) for each in tree.get("checks", [])]
    return found


def _read(kind: Any, tree: dict[str, Any]) -> Any:
    """An Entry or a Check; unknown choices become empty."""
    texts = {f.name: _text(tree.get(f.name), LENGTHS.get(f.name, 40)) for f in fields(kind)}
    known = {name: text for name, text in texts.items() if text in CHOICES.get(name, (text,))}
    return kind(**known)


def _text(value: object, length: int) -> str:
    # not escaped: reading and writing again must not change a text
    cut = str(value or "")[:length]
    return "".join(c if c.isprintable() or c == "\n" else " " for c in cut).strip()


def merge_names(annotations: Sequence[Annotations]) -> list[Annotations]:
    """Merge annotations of the same codes, for instance from several files.

    Of each author the newest entry counts (several if they have the same time), and the newest
    decision on each finding.
    """
    merged: dict[str, Annotations] = {}
    for each in annotations:
        empty = Annotations(each.fingerprint, each.run, each.dims)
        into = merged.setdefault(each.fingerprint, empty)
        if into.dims != each.dims:
            raise InputError(f"one fingerprint has names of {into.dims} and {each.dims} dimensions")
        for k, entries in each.dimensions.items():
            both = {*into.dimensions.get(k, []), *entries}
            ordered = sorted(both, key=lambda e: (e.time, e.author, e.name, e.mark, e.note))
            newest = {entry.author: entry.time for entry in ordered}
            into.dimensions[k] = [e for e in ordered if e.time == newest[e.author]]
        checks = sorted([*into.checks, *each.checks], key=lambda c: (c.time, c.decision))
        into.checks = list({(c.kind, c.image, c.other, c.author): c for c in checks}.values())
    return list(merged.values())


def prune(each: Annotations) -> Annotations:
    """The same without empty entries."""
    kept = {k: [e for e in es if e.name or e.note or e.mark] for k, es in each.dimensions.items()}
    checks = [check for check in each.checks if check.decision]
    return replace(each, dimensions={k: es for k, es in kept.items() if es}, checks=checks)


def find_names(annotations: Sequence[Annotations], fingerprint: str, dims: int) -> Annotations:
    """Return the annotations of these codes; InputError if there are none."""
    for each in annotations:
        if each.fingerprint == fingerprint:
            if each.dims == dims:
                return each
            raise InputError(f"the names are for {each.dims} dimensions, the codes have {dims}")
    other = ", ".join(f"{each.run or 'a run'} ({each.fingerprint})" for each in annotations)
    rule = "names move to new codes only if they are added before `fit` runs again"
    given = f"the names are for {other or 'no codes'}, these codes are {fingerprint}"
    raise InputError(f"{given}; {rule}")


def names_tree(annotations: Sequence[Annotations]) -> dict[str, Any]:
    """The content of names.json."""
    codes = [asdict(prune(each)) for each in annotations]
    for tree in codes:
        tree["dimensions"] = {str(k): each for k, each in sorted(tree["dimensions"].items())}
        if not tree["checks"]:
            del tree["checks"]
    return {"format": FORMAT, "codes": codes}


def write_names(path: Path | str, annotations: Sequence[Annotations]) -> None:
    """Write names.json."""
    write_atomic(path, json.dumps(names_tree(annotations), indent=1) + "\n")


def clean_names(names: list[str]) -> list[str]:
    """Turn `001.Black_footed_Albatross` into `Black footed Albatross`, and `3` into `class 3`.

    Names stay as they are if two of them would become the same.
    """
    clean = [re.sub(r"^\d+[._-]+(?=\D)", "", name).replace("_", " ").strip() for name in names]
    clean = [f"class {c}" if c.isdigit() else c or name for c, name in zip(clean, names)]
    return clean if len(set(clean)) == len(set(names)) else names
