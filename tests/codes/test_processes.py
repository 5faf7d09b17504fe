"""Codes fitted by two processes against those of one. As a script: what each process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
METHODS = ("prototypes", "bayesncl", "csr")


def work(rank: int, folder: Path) -> int:
    import torch

    from bayesncl import distributed
    from tests.codes.test_estimator import make_codes, make_rows

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    x = make_rows(201, 24)
    out = {}
    for method in METHODS:
        model = make_codes(16, 40, method=method, batch_size=64).fit(x)
        out[method], out[f"{method} loss"] = model.transform(x), np.array(model.loss_)
    np.savez(folder / f"{distributed.world_size()}-{rank}.npz", **out)
    distributed.stop()
    return 0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("processes")
    for world in (1, 2):
        command = [sys.executable, "-m", "tests.codes.test_processes", str(world), str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        options = {"capture_output": True, "text": True, "timeout": 170, "env": environment}
        done = subprocess.run(command, cwd=ROOT, **options)
        assert done.returncode == 0, done.stderr
    return {file.stem: dict(np.load(file)) for file in folder.iterdir()}


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_give_the_codes_of_one(
    found: dict[str, dict[str, np.ndarray]], method: str
) -> None:
    assert (found["2-0"][method] == found["2-1"][method]).all()
    np.testing.assert_allclose(found["2-0"][method], found["1-0"][method], atol=1e-4)
    losses = [found[name][f"{method} loss"] for name in ("1-0", "2-0")]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)



def test_fit_under_torchrun_gives_the_codes_of_one_process(tmp_path: Path) -> None:
    """The whole command: process 0 reads and writes, both fit; the folder is the same."""
    from bayesncl.codes.folder import CodesFolder
    from tests.codes.test_estimator import make_rows
    from tests.commands import call

    np.save(tmp_path / "x.npy", make_rows(301, 24))
    words = ["fit", tmp_path / "x.npy", "--components", "16", "--device", "cpu"]
    assert call(*words, "-o", tmp_path / "one", "--quiet") == 0
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    torchrun = [*launcher, "-m", "bayesncl"]
    done = subprocess.run(
        [sys.executable, *torchrun, *map(str, words), "-o", str(tmp_path / "two")],
        cwd=ROOT, capture_output=True, text=True, timeout=170,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("16 dimensions by prototypes") == 1, "process 0 alone reports"
    one, two = (CodesFolder(tmp_path / name) for name in ("one", "two"))
    written = [sorted(path.name for path in each.folder.iterdir()) for each in (one, two)]
    assert written[0] == written[1]
    for name in ("embeddings.npy", "rows.json"):
        assert (two.folder / name).read_bytes() == (one.folder / name).read_bytes()
    z, same = (folder.codes("cpu").transform(folder.embeddings()) for folder in (one, two))
    assert (z > 0).any(0).sum() > 8  # dimensions that fire
    np.testing.assert_allclose(same, z, atol=1e-4)


if __name__ == "__main__":
    from tests.ranks import in_processes

    sys.exit(in_processes(int(sys.argv[1]), lambda rank: work(rank, Path(sys.argv[2]))))
