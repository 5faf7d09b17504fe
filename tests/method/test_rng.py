"""Counter-based random numbers: distribution, independence of keys, the same bits everywhere."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from bayesncl.method.rng import epoch_order, make_key, uniform


def splitmix64(state: int, n: int) -> list[int]:
    """The published generator in Python's integers."""
    out = []
    for _ in range(n):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        x = state
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        out.append(x ^ (x >> 31))
    return out


@pytest.mark.parametrize("key", [0, 1, -1, 123456789, -(2**63), 2**63 - 1])
def test_uniform_is_splitmix64(key: int) -> None:
    expected = [(x >> 40) / 2**24 for x in splitmix64(key * 0x9E3779B97F4A7C15 % 2**64, 20)]
    assert uniform(torch.tensor(key), 20).tolist() == expected


def test_frozen_values() -> None:
    """A change here changes the views of every published run."""
    assert splitmix64(0, 2) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]  # published outputs
    key = make_key(10, 3, torch.tensor([0, 1, 49_999]), stream=1)
    assert key.tolist() == [-6957107112287979868, -7363616404178302, -3288429167395122426]
    numbers = (uniform(key, 2) * 2**24).long()
    assert numbers.tolist() == [[6096992, 12413634], [11492314, 5830899], [5706135, 9280822]]


@pytest.mark.parametrize(
    "other",
    [
        {"index": torch.arange(1, 20_001)},
        {"stream": 1},
        {"epoch": 8},
        {"seed": 6},
        {"seed": 6, "index": torch.arange(-1, 19_999)},  # index + seed unchanged
        {"seed": 6, "epoch": 6},
    ],
)
def test_related_keys_are_independent(other: dict[str, Any]) -> None:
    first: dict[str, Any] = {"seed": 5, "epoch": 7, "index": torch.arange(20_000), "stream": 0}
    keys = make_key(**first), make_key(**(first | other))
    assert not (keys[0] == keys[1]).any()
    a, b = (uniform(key, 2).double().numpy() for key in keys)
    for x, y in [(a[:, 0], b[:, 0]), (a[:, 0], b[:, 1]), (a[:, 1], b[:, 0]), (a[:, 0], a[:, 1])]:
        assert abs(np.corrcoef(x, y)[0, 1]) < 4 / np.sqrt(len(x))
        cells = np.histogram2d(x, y, bins=16, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(cells.ravel()).pvalue > 1e-4


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bits() -> None:
    index = torch.arange(100_000)
    gpu = uniform(make_key(5, torch.tensor(2, device="cuda"), index.cuda()), 8)
    assert torch.equal(gpu.cpu(), uniform(make_key(5, 2, index), 8))


def test_the_order_is_a_permutation_per_seed_and_epoch() -> None:
    orders = {(s, e): tuple(epoch_order(s, e, 50).tolist()) for s in range(4) for e in range(4)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len(set(orders.values())) == 16
    torch.rand(3)
    assert tuple(epoch_order(2, 3, 50).tolist()) == orders[2, 3]
    assert sorted(epoch_order(2**63 - 1, 10**6, 5).tolist()) == list(range(5))
    first = np.bincount([int(epoch_order(0, e, 4)[0]) for e in range(400)], minlength=4)
    assert first.min() > 60  # 100 expected, standard deviation 8.7
