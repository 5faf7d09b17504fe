"""Several processes against one with the global batch; processes that die, hang or come late."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.ranks import METHODS
from tests.training.test_loop import FILES, lines

ROOT = Path(__file__).parents[2]
Result = dict[str, torch.Tensor]


def run(scenario: str, world: int, folder: Path) -> tuple[list[Result | None], str, float]:
    """Run a scenario of tests/ranks.py: the result of each process or None, stderr, seconds."""
    folder.mkdir(exist_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.ranks", scenario, str(world), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    files = [folder / f"rank-{rank}.safetensors" for rank in range(world)]
    found = [load_file(file) if file.exists() else None for file in files]
    for file in files:
        file.unlink(missing_ok=True)
    return found, done.stderr, time.monotonic() - began


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference, as a share of the largest entry where that is above 1."""
    assert a.shape == b.shape
    if not a.numel():
        return 0.0
    a, b = a.double(), b.double()
    return float((a - b).abs().max() / a.abs().max().clamp_min(1))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Result]]:
    """Results of 1 and of 2 processes, every process's."""
    folder = tmp_path_factory.mktemp("compared")
    out: dict[int, list[Result]] = {}
    for world in (1, 2):
        found, stderr, _ = run("compare", world, folder / str(world))
        assert None not in found, stderr
        written = {path.name for path in (folder / str(world)).iterdir()}
        assert written == {f"{method}-0" for method in METHODS}, "only process 0 writes"
        out[world] = found  # type: ignore[assignment]
    return out


@pytest.mark.parametrize(("kind", "limit"), [*((m, 1e-10) for m in METHODS), ("extract", 1e-6)])
def test_two_processes_equal_one(
    compared: dict[int, list[Result]], kind: str, limit: float
) -> None:
    """Loss, every gradient, weights after 12 steps, extracted features; in every process."""
    one = {name: value for name, value in compared[1][0].items() if name.startswith(f"{kind}.")}
    assert len(one) > 10
    for result in compared[2]:
        worst = {name: difference(value, result[name]) for name, value in one.items()}
        assert max(worst.values()) <= limit, max(worst.items(), key=lambda item: item[1])


def test_a_run_continues_after_a_death_with_another_number_of_processes(
    compared: dict[int, list[Result]], tmp_path: Path
) -> None:
    """One of 2 processes is killed in step 7; one process then finishes to the same weights."""
    found, stderr, seconds = run("train_and_die", 2, tmp_path)
    assert found == [None, None]
    assert "another process ended" in stderr and seconds < 60
    assert (tmp_path / "run/checkpoints/step-00000004.ckpt").exists()
    (resumed,), stderr, _ = run("train_on", 1, tmp_path)
    assert resumed is not None, stderr
    undisturbed = {name: compared[1][0][f"bayesncl.weight.{name}"] for name in resumed}
    assert max(difference(undisturbed[name], resumed[name]) for name in undisturbed) <= 1e-10
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES


def test_a_process_that_hangs_ends_the_run_and_a_late_one_does_not(tmp_path: Path) -> None:
    (found, _), stderr, _ = run("train_and_hang", 2, tmp_path)
    assert found is None
    assert stderr.count("all passed the barrier") == 2
    assert "ConnectionError" in stderr


@pytest.mark.slow
def test_torchrun_restarts_from_the_last_checkpoint(tmp_path: Path) -> None:
    launcher = [
        "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1",
        "--monitor-interval", "0.1", "--standalone",
    ]  # fmt: skip
    command = [sys.executable, "-m", *launcher, "-m", "tests.ranks", "command", "2", tmp_path / "run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES
    assert [line["step"] for line in lines(tmp_path / "run")] == list(range(2, 19, 2))
