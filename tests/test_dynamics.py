"""Gradient statistics against the derivative worked out by hand, and a recording that leaves the model alone."""

from __future__ import annotations

import dataclasses
import json
from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from bayesncl import dynamics
from bayesncl.augment import make_views
from bayesncl.data.images import Images
from bayesncl.dynamics import record, recorder
from bayesncl.errors import InputError
from bayesncl.measure.theory import spearman
from bayesncl.model import build_model
from bayesncl.recipes import Data, Recipe, Run
from tests.conftest import tiny_recipe


def batches(count: int = 4, size: int = 8, dim: int = 6, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(count):
        z = (torch.rand(2 * size, dim, generator=generator) - torch.linspace(0.2, 0.9, dim)).clamp_min(0)
        z[:, -1] = 0  # a dead dimension
        z[1:, -2] = 0  # and one that fires on few rows
        z[0, -2] = 0.5
        out.append((nn.functional.normalize(z, dim=1), torch.randint(0, 3, (size,), generator=generator)))
    return out


def gradient_by_hand(z: np.ndarray, tau: float) -> np.ndarray:
    """2B dL/dz: row i gets sum_j p_ij z_j - z_i+ as anchor, and p_ji z_j - [i = j+] z_j from every anchor j."""
    n = len(z)
    g = np.zeros_like(z)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        e = {j: np.exp(z[i] @ z[j] / tau) for j in others}
        total = sum(e.values())
        for j in others:
            pull = float(j == (i + n // 2) % n)
            g[i] += (e[j] / total - pull) * z[j] / tau
            g[j] += (e[j] / total - pull) * z[i] / tau
    return g


def test_gradient_is_the_derivative_by_hand() -> None:
    z = batches()[0][0]
    np.testing.assert_allclose(dynamics.gradient(z, 0.2).numpy(), gradient_by_hand(z.double().numpy(), 0.2), atol=2e-5)


def test_statistics_are_those_of_all_rows_at_once() -> None:
    data = batches()
    found, rows = dynamics.statistics_of(data, 0.2, classes=3)
    z = np.concatenate([z.double().numpy() for z, _ in data])
    g = np.concatenate([gradient_by_hand(z.double().numpy(), 0.2) for z, _ in data])
    y = np.concatenate([np.tile(labels.numpy(), 2) for _, labels in data])
    assert rows == len(z) == 64
    for k in range(5):
        fires = np.abs(z[:, k]) > 1e-5
        assert found["frequency"][k] == pytest.approx(fires.mean())
        assert found["support"][k] == fires.sum()
        assert found["mean"][k] == pytest.approx(g[:, k].mean(), abs=1e-5)
        assert found["variance"][k] == pytest.approx(g[:, k].var(), rel=1e-4)
        assert found["mean_active"][k] == pytest.approx(g[fires, k].mean(), abs=1e-5)
        assert found["variance_active"][k] == pytest.approx(g[fires, k].var(), rel=1e-4)
        assert found["consistency"][k] == pytest.approx(100 * np.bincount(y[fires]).max() / fires.sum())
        p = sorted(fires[y == c].mean() for c in range(3))
        assert found["conflict"][k] == pytest.approx(p[-1] * p[-2])
    assert found["support"][5] == 0
    assert np.isnan(found["consistency"][5])
    assert np.isnan(found["mean_active"][5])
    # shuffled labels: never below the share of one class in three, and different from the true ones
    assert (found["chance_consistency"][:5] >= 100 / 3).all()
    assert not np.array_equal(found["chance_consistency"][:5], found["consistency"][:5])


def test_a_row_does_not_shrink_with_the_batch() -> None:
    filled = ([(z, None) for z, _ in batches(count=2, size=size, seed=3)] for size in (64, 512))
    small, large = (dynamics.statistics_of(data, 0.2)[0]["variance"][:4] for data in filled)
    assert ((large / small > 0.5) & (large / small < 2)).all()


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_is_scipys(ties: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=40), rng.normal(size=40)
    if ties:
        a, b = np.round(a), np.round(b)
    assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    a[3], b[5] = np.nan, np.nan
    keep = np.isfinite(a) & np.isfinite(b)
    assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a[keep], b[keep]).statistic)
    assert spearman(a, np.ones(40)) is None
    assert spearman(a[:1], b[:1]) is None


def test_correlations_count_dimensions_with_support() -> None:
    rng = np.random.default_rng(1)
    statistics = {k: rng.random(30) for k in ("frequency", "variance", "variance_active", "consistency")}
    statistics["support"] = np.arange(30)
    found = dynamics.correlations(statistics, support=10)
    kept = {k: v[10:] for k, v in statistics.items()}
    for key, (a, b) in {
        "af_gv": ("frequency", "variance"),
        "af_sc": ("frequency", "consistency"),
        "gv_sc": ("variance", "consistency"),
        "af_gv_active": ("frequency", "variance_active"),
        "gv_sc_active": ("variance_active", "consistency"),
    }.items():
        assert found[key] == pytest.approx(scipy.stats.spearmanr(kept[a], kept[b]).statistic)


def test_dynamics_row() -> None:
    row, statistics = dynamics.dynamics(batches(), 0.2, classes=3)
    assert row["paper"] == dynamics.correlations(statistics)
    assert row["sound"] == dynamics.correlations(statistics, 10)
    assert row["chance"]["af_gv"] == row["sound"]["af_gv"], "labels do not enter it"
    assert row["chance"]["af_sc"] != row["sound"]["af_sc"]
    assert row["dims"] == 5
    assert row["dims_sound"] == 4
    assert row["sound"] != row["paper"]
    assert row["dims_sound"] == (statistics["support"] >= 10).sum()
    sound = statistics["support"] >= 10
    assert row["variance"] == pytest.approx(np.median(statistics["variance"][sound]))
    ratio = np.abs(statistics["mean"][sound]) / np.sqrt(statistics["variance"][sound])
    assert row["mean_to_deviation"] == pytest.approx(np.median(ratio))
    found = row["instability"]
    assert found["0.5"] == dynamics.instability(statistics, statistics["conflict"] >= 0.5)
    assert found["0.9"] == dynamics.instability(statistics, statistics["conflict"] >= 0.9)
    assert found["0.5"]["conflicting"]["dims"] > found["0.9"]["conflicting"]["dims"] >= 0
    assert found["spearman_variance"] == spearman(statistics["conflict"][sound], statistics["variance"][sound])
    assert found["spearman_mean_to_deviation"] == spearman(statistics["conflict"][sound], ratio)
    without, _ = dynamics.dynamics([(z, None) for z, _ in batches()], 0.2)
    assert without["paper"]["af_sc"] is None
    assert without["paper"]["af_gv"] == row["paper"]["af_gv"]


def made(mean: list[float], variance: list[float]) -> dict[str, np.ndarray]:
    m, v = np.array(mean), np.array(variance)
    return {"support": np.full(len(m), 50.0), "mean": m, "variance": v, "mean_active": 2 * m, "variance_active": v}


@pytest.mark.parametrize(
    ("mean", "variance", "holds"),
    [
        ([0.01, -0.02, 1.0, -2.0], [4.0, 5.0, 1.0, 1.0], True),
        ([0.01, -0.02, 1.0, -2.0], [0.5, 0.5, 1.0, 1.0], False),
        ([9.0, -9.0, 1.0, -2.0], [4.0, 5.0, 1.0, 1.0], False),
    ],
)
def test_instability_asks_for_small_mean_and_large_variance(
    mean: list[float], variance: list[float], holds: bool
) -> None:
    found = dynamics.instability(made(mean, variance), np.array([True, True, False, False]))
    assert found["holds"] is holds
    assert found["conflicting"]["dims"] == found["others"]["dims"] == 2
    assert found["conflicting"]["variance"] == np.median(variance[:2])
    ratios = np.abs(mean) / np.sqrt(variance)
    assert found["others"]["mean_to_deviation"] == pytest.approx(np.median(ratios[2:]))
    assert found["others"]["mean_to_deviation_active"] == pytest.approx(2 * np.median(ratios[2:]))


def test_instability_with_nothing_to_compare() -> None:
    found = dynamics.instability(made([1, 2], [1, 1]), np.array([False, False]))
    assert found["holds"] is None
    assert "0 conflicting" in found["note"]


class Out(NamedTuple):
    gated: Tensor


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 12, 3)
        self.norm, self.drop = nn.BatchNorm2d(12), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Out:
        return Out(nn.functional.normalize(self.drop(self.norm(self.conv(x))).mean((2, 3)).relu(), dim=1))


RECIPE = dataclasses.replace(Recipe(), run=Run(batch=16, seed=4), data=Data(mean=(0.4, 0.5, 0.6)))


def test_record_is_dynamics_of_training_views() -> None:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (50, 3, 32, 32), dtype=np.uint8), rng.choice([3, 8, 9], 50)
    model = Tiny()
    row = record(model, pixels, labels, RECIPE, epoch=7, batches=2)
    order = np.random.default_rng((4, 7, 1)).permutation(50)
    data = []
    model.eval()
    for rows in (order[:16], order[16:32]):
        views = make_views(torch.from_numpy(pixels[rows]), torch.from_numpy(rows), 7, 5, RECIPE.views)
        x = (views - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / 0.25
        with torch.no_grad():
            data.append((model(x).gated, torch.from_numpy(np.searchsorted([3, 8, 9], labels[rows]))))
    expected, _ = dynamics.dynamics(data, 0.2, classes=3)
    assert row == {"epoch": 7, "batches": 2, "mode": "eval", **expected}
    assert json.loads(json.dumps(row)) == row


def test_record_leaves_the_model_alone() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    model = Tiny().train()
    model.drop.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    row = record(model, pixels, None, RECIPE, epoch=1)
    assert row["batches"] == 1, "20 images fill one batch of 16"
    assert model.training
    assert not model.drop.training
    assert model.norm.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert row == record(model, pixels, None, RECIPE, epoch=1)


@pytest.mark.gpu
def test_gpu_and_cpu_agree() -> None:
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (50, 3, 32, 32), dtype=np.uint8), rng.integers(0, 3, 50)
    cpu, gpu = (record(Tiny().to(d), pixels, labels, RECIPE, epoch=7) for d in ("cpu", "cuda"))
    assert gpu["variance"] == pytest.approx(cpu["variance"], rel=0.02)
    assert gpu["dims"] == cpu["dims"]


def test_a_data_set_smaller_than_a_batch_is_one_batch() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (9, 3, 32, 32), dtype=np.uint8)
    assert record(Tiny(), pixels, None, RECIPE, epoch=0)["rows"] == 18


def test_bad_input_gets_one_clear_line() -> None:
    with pytest.raises(InputError, match=r"\[2B, D\] with both views of each image, got \[3, 4\]"):
        dynamics.statistics_of([(torch.ones(3, 4), None)], 0.2)


def test_recorder_speaks_every_so_many_epochs(images: Images) -> None:
    recipe = tiny_recipe("bayesncl", "run.dynamics_every=2")
    model, hook = build_model(recipe), recorder(images, recipe)
    assert hook is not None
    assert [hook(model, epoch) is not None for epoch in (1, 2, 3, 4)] == [False, True, False, True]
    line = hook(model, 4)
    assert line is not None
    assert line["kind"] == "dynamics"
    assert line["epoch"] == 4
