"""The counter-based random numbers: right distribution, no structure between keys, same bits everywhere."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from scipy import stats

from bayesncl import draws


def _splitmix64(state: int, n: int) -> list[int]:
    """The published generator in Python's own integers."""
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
    expected = [(x >> 40) / 2**24 for x in _splitmix64(key * 0x9E3779B97F4A7C15 % 2**64, 20)]
    assert draws.uniform(torch.tensor(key), 20).tolist() == expected


def test_known_values() -> None:
    """Frozen: a change here changes the views of every published run."""
    assert _splitmix64(0, 2) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]  # known outputs of splitmix64 from state 0
    key = draws.make_key(10, 3, torch.tensor([0, 1, 49_999]), stream=1)
    assert key.tolist() == [-6957107112287979868, -7363616404178302, -3288429167395122426]
    numbers = (draws.uniform(key, 2) * 2**24).long()
    assert numbers.tolist() == [[6096992, 12413634], [11492314, 5830899], [5706135, 9280822]]


def test_uniformity() -> None:
    u = draws.uniform(draws.make_key(0, 0, torch.arange(20_000)), 10).double().numpy()
    assert u.min() >= 0
    assert u.max() < 1
    assert np.array_equal(u * 2**24, np.round(u * 2**24))
    assert stats.kstest(u.ravel(), "uniform").pvalue > 0.01
    assert min(stats.kstest(column, "uniform").pvalue for column in u.T) > 0.001
    # the sum of a row's numbers has the variance of independent ones
    assert u.sum(1).var() == pytest.approx(10 / 12, rel=0.03)


@pytest.mark.parametrize(
    "other",
    [
        {"index": torch.arange(1, 50_001)},
        {"stream": 1},
        {"epoch": 8},
        {"seed": 6},
        {"seed": 6, "index": torch.arange(-1, 49_999)},  # index + seed unchanged
        {"seed": 6, "epoch": 6},
        {"epoch": 6, "stream": 1},
    ],
)
def test_neighbouring_keys_are_independent(other: dict) -> None:
    first = {"seed": 5, "epoch": 7, "index": torch.arange(50_000), "stream": 0}
    key, neighbour = draws.make_key(**first), draws.make_key(**(first | other))
    assert not (key == neighbour).any()
    a, b = (draws.uniform(k, 2).double().numpy() for k in (key, neighbour))
    for x, y in [(a[:, 0], b[:, 0]), (a[:, 0], b[:, 1]), (a[:, 1], b[:, 0]), (a[:, 0], a[:, 1])]:
        assert abs(np.corrcoef(x, y)[0, 1]) < 4 / np.sqrt(len(x))
        cells = np.histogram2d(x, y, bins=16, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(cells.ravel()).pvalue > 1e-4


def test_no_two_of_many_keys_are_equal() -> None:
    keys = torch.cat([draws.make_key(s, e, torch.arange(5000), v) for s in (0, 1) for e in range(10) for v in (0, 1)])
    assert len(keys.unique()) == len(keys)


def test_numbers_depend_on_the_image_alone() -> None:
    index = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    whole = draws.uniform(draws.make_key(1, 2, index), 7)
    chunks = [draws.uniform(draws.make_key(1, 2, part), 7) for part in index.split(33)]
    assert torch.equal(torch.cat(chunks), whole)
    assert torch.equal(draws.uniform(draws.make_key(1, 2, torch.arange(1000)), 7)[index], whole)
    assert torch.equal(draws.uniform(draws.make_key(1, 2, index), 3), whole[:, :3])


def test_epoch_may_be_a_tensor_and_seed_any_integer() -> None:
    index = torch.arange(9)
    assert torch.equal(draws.make_key(3, torch.tensor(4), index), draws.make_key(3, 4, index))
    assert torch.equal(draws.make_key(2**64 + 3, 4, index), draws.make_key(3, 4, index))
    assert not torch.equal(draws.make_key(-3, 4, index), draws.make_key(3, 4, index))


@pytest.mark.slow
def test_same_bits_when_compiled() -> None:
    """int64 products that wrap around must do so in compiled code too."""
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("no C++ compiler found, which torch.compile needs on a CPU")
    torch._dynamo.reset()
    compiled = torch.compile(lambda epoch, index: draws.uniform(draws.make_key(5, epoch, index), 8), fullgraph=True)
    index = torch.arange(1000)
    for epoch in (0, 1):
        assert torch.equal(compiled(torch.tensor(epoch), index), draws.uniform(draws.make_key(5, epoch, index), 8))


@pytest.mark.gpu
def test_same_bits_on_the_gpu() -> None:
    index = torch.arange(100_000)
    gpu = draws.uniform(draws.make_key(5, torch.tensor(2, device="cuda"), index.cuda()), 8)
    assert torch.equal(gpu.cpu(), draws.uniform(draws.make_key(5, 2, index), 8))


def test_a_seed_may_be_a_tensor() -> None:
    index = torch.arange(5)
    for seed in (0, 7, 2**63 - 1):
        assert torch.equal(draws.make_key(torch.tensor(seed), 3, index), draws.make_key(seed, 3, index))
