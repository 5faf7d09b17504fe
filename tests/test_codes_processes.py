"""Codes fitted by two processes against those of one. As a script: what each process does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
METHODS = ("prototypes", "bayesncl", "csr")


def stop(done: int, total: int, what: str) -> None:
    if what == "training" and done == 20:
        raise InterruptedError


def work(rank: int, folder: Path) -> int:
    import torch

    from bayesncl import distributed
    from bayesncl.codes import ReadableCodes
    from tests.test_codes import made

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    x = made(201, 24)
    out = {}
    for method in METHODS:
        file = folder / f"{distributed.world_size()}-{method}"
        with contextlib.suppress(InterruptedError):
            ReadableCodes(16, method, steps=40, batch=64).fit(x, checkpoint=file, progress=stop)
        distributed.barrier()  # process 0 writes it
        resumed, whole = (ReadableCodes(16, method, steps=40, batch=64) for _ in range(2))
        out[method] = resumed.fit(x, checkpoint=file).transform(x)
        out[f"{method} losses"] = np.array([whole.fit(x).loss_, resumed.loss_])
    np.savez(folder / f"{distributed.world_size()}-{rank}.npz", **out)
    distributed.stop()
    return 0


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("processes")
    for world in (1, 2):
        command = [sys.executable, "-m", "tests.test_codes_processes", str(world), str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, env=environment)
        assert done.returncode == 0, done.stderr
    return {file.stem: dict(np.load(file)) for file in folder.iterdir()}


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_give_the_codes_of_one(found: dict[str, dict[str, np.ndarray]], method: str) -> None:
    assert (found["2-0"][method] == found["2-1"][method]).all()
    np.testing.assert_allclose(found["2-0"][method], found["1-0"][method], atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_fit_of_two_processes_has_the_loss_of_both(
    found: dict[str, dict[str, np.ndarray]], method: str
) -> None:
    for name in ("1-0", "2-0", "2-1"):
        whole, resumed = found[name][f"{method} losses"]
        assert whole == resumed
        np.testing.assert_allclose(whole, found["1-0"][f"{method} losses"][0], rtol=1e-3)


def test_fit_under_torchrun_gives_the_codes_of_one_process(tmp_path: Path) -> None:
    """The whole command: process 0 reads and writes, both fit, and the folder is that of a plain `bayesncl fit`."""
    from bayesncl.codes_folder import CodesFolder
    from tests.commands import call
    from tests.test_codes import made

    np.save(tmp_path / "x.npy", made(301, 24))
    words = ["fit", tmp_path / "x.npy", "--dim", "16", "--device", "cpu"]
    assert call(*words, "-o", tmp_path / "one", "--quiet") == 0
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "bayesncl"]
    done = subprocess.run(
        [sys.executable, *torchrun, *map(str, words), "-o", str(tmp_path / "two")],
        cwd=ROOT, capture_output=True, text=True, timeout=170, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("16 dimensions by prototypes") == 1, "process 0 alone reports"
    one, two = (CodesFolder(tmp_path / name) for name in ("one", "two"))
    assert {path.name for path in one.folder.iterdir()} == {path.name for path in two.folder.iterdir()}
    for name in ("embeddings.npy", "rows.json", "codes.json"):
        assert (two.folder / name).read_bytes() == (one.folder / name).read_bytes()
    z, same = (folder.codes("cpu").transform(folder.embeddings()) for folder in (one, two))
    assert (z > 0).any(0).sum() > 8  # dimensions that fire
    np.testing.assert_allclose(same, z, atol=1e-4)


if __name__ == "__main__":
    from tests.ranks import in_processes

    sys.exit(in_processes(int(sys.argv[1]), lambda rank: work(rank, Path(sys.argv[2]))))
