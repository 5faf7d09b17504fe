"""Results that jobs keep beside the codes, for the atlas: audit.json, compare.json."""

from __future__ import annotations

import json
from typing import Any

from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import read_json
from bayesncl.errors import InputError
from bayesncl.io import write_atomic


def save_result(folder: CodesFolder, job: str, result: dict[str, Any]) -> None:
    """Write JOB.json beside the codes."""
    tree = {"identity": folder.about().identity, **result}
    write_atomic(folder.folder / f"{job}.json", json.dumps(tree) + "\n")


def load_result(folder: CodesFolder, job: str) -> dict[str, Any] | None:
    """The content of JOB.json; None if there is none or it is of other codes."""
    try:
        tree = read_json(folder.folder / f"{job}.json")
    except InputError:
        return None
    same = isinstance(tree, dict) and tree.pop("identity", None) == folder.about().identity
    return tree if same else None
