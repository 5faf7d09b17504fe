"""Order and batches: what each step gets, from memory or from a memory-mapped file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl.method.rng import epoch_order
from bayesncl.training.loader import batches, to_device

CPU = torch.device("cpu")
N = 21


@pytest.fixture
def pixels() -> np.ndarray:
    """All pixels of image i have the value i."""
    values = np.arange(N, dtype=np.uint8)[:, None, None, None]
    return np.broadcast_to(values, (N, 3, 4, 4)).copy()


def test_batches_follow_the_order_and_drop_the_rest(pixels: np.ndarray) -> None:
    order = epoch_order(3, 5, N).tolist()
    found = list(batches(pixels, 4, 3, 5, 0, CPU))
    assert len(found) == N // 4
    rest = list(batches(pixels, 4, 3, 5, 3, CPU))  # from step 3
    assert len(rest) == len(found) - 3
    assert all(torch.equal(a, b) and torch.equal(i, j) for (a, i), (b, j) in zip(found[3:], rest))
    for step, (part, index) in enumerate(found):
        expected = order[4 * step : 4 * step + 4]
        assert index.tolist() == expected and index.dtype == torch.int64
        assert part.shape == (4, 3, 4, 4) and part.dtype == torch.uint8
        assert part[:, 0, 0, 0].tolist() == expected
        assert (part == part[:, :1, :1, :1]).all()


def test_arrays_mapped_files_and_tensors_agree(pixels: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", pixels)
    mapped = np.load(tmp_path / "pixels.npy", mmap_mode="r")
    assert to_device(mapped, CPU) is mapped
    sources = (pixels, mapped, torch.from_numpy(pixels))
    forms = [list(batches(source, 6, 1, 2, 0, CPU)) for source in sources]
    for steps in zip(*forms):
        for part, index in steps[1:]:
            assert torch.equal(part, steps[0][0]) and torch.equal(index, steps[0][1])
    forms[1][0][0].zero_()  # a batch is a copy
    assert np.array_equal(np.load(tmp_path / "pixels.npy"), pixels)
