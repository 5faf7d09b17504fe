"""The quick version of the faults, in one process of its own: it forks, and must not have computed anything before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
KINDS = (
    "training", "checkpointing", "caching", "reporting", "fitting", "fit_writing", "fit_full_disk", "fit_same_folder",
    "cut_files", "checkpoints", "full_disk", "read_only", "vanishing_data", "out_of_memory",
    "weights", "archives", "pictures", "recipes", "names", "numbers", "caches", "same_runs",
    "fuzz_npz", "fuzz_table", "fuzz_tensors", "fuzz_model", "fuzz_checkpoint", "fuzz_codes", "fuzz_hub", "fuzz_cache",
    "fuzz_fit", "fuzz_folder", "fuzz_tar", "fuzz_names", "fuzz_quiz", "fuzz_recipe", "fuzz_run",
)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("faults") / "outcomes.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--json", str(out)], cwd=ROOT, capture_output=True, text=True
    )
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost(outcomes: dict[str, Any], kind: str) -> None:
    assert outcomes[kind]["tries"] > 0 or "cannot be tried" in outcomes[kind]["kind"]
    assert outcomes[kind]["lost"] == []


def test_every_kind_is_tried(outcomes: dict[str, Any]) -> None:
    assert set(outcomes) == set(KINDS)
