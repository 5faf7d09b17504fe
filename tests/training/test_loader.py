"""Order and batches: what each step gets."""


import numpy as np
import pytest
import torch

from bayesncl.method.rng import epoch_order
from bayesncl.training.loader import batches

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
