"""Gradient statistics against derivatives by hand, and a recording that leaves the model alone."""

import json

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from bayesncl.method.augment import make_views
from bayesncl.method.encoder import build_model
from bayesncl.training import dynamics
from bayesncl.training.dynamics import Columns, record, spearman, statistics
from tests.conftest import tiny_images, tiny_recipe


def make_batches() -> list[Tensor]:
    """Four batches [16, 6]: one dimension is dead, one fires on one row of each."""
    z = torch.rand(4, 16, 6, generator=torch.Generator().manual_seed(0))
    z = (z - torch.linspace(0.2, 0.9, 6)).clamp_min(0)
    z[:, :, 5], z[:, 1:, 4], z[:, 0, 4] = 0, 0, 0.5
    return list(nn.functional.normalize(z, dim=2))


BATCHES, LABELS = make_batches(), np.random.default_rng(0).integers(0, 3, (4, 8))


def gradient(z: Tensor) -> Tensor:
    leaf = z.clone().requires_grad_()
    return dynamics.gradients(leaf, [leaf], 0.2)[0]


def columns_of(labels: np.ndarray | None) -> Columns:
    z, g = (torch.cat(each).numpy() for each in (BATCHES, [gradient(z) for z in BATCHES]))
    return statistics(z, g, labels, 0.2)


def both(labels: np.ndarray) -> np.ndarray:
    """Labels of both views, true and shuffled within each batch."""
    generator = torch.Generator().manual_seed(0)
    mixed = [y[torch.randperm(len(y), generator=generator).numpy()] for y in labels]
    return np.tile([labels, mixed], 2).reshape(2, -1)


def forces_by_hand(z: np.ndarray, tau: float) -> tuple[np.ndarray, np.ndarray]:
    """F_align and F_rep: row i is pulled by its positive and pushed by all others, both ways."""
    n = len(z)
    align, repulsion = np.zeros_like(z), np.zeros_like(z)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        e = {j: np.exp(z[i] @ z[j] / tau) for j in others}
        for j in others:
            p = e[j] / sum(e.values())
            repulsion[i] += p * z[j] / tau
            repulsion[j] += p * z[i] / tau
        positive = (i + n // 2) % n
        align[i] += z[positive] / tau
        align[positive] += z[i] / tau
    return align, repulsion


def test_the_gradient_is_repulsion_minus_alignment() -> None:
    z = BATCHES[0]
    align, repulsion = forces_by_hand(z.double().numpy(), 0.2)
    np.testing.assert_allclose(gradient(z).numpy(), repulsion - align, atol=2e-5)


def test_statistics_are_those_of_all_rows_at_once() -> None:
    found = columns_of(both(LABELS))
    z = torch.cat(BATCHES).double().numpy()
    forces = [forces_by_hand(z.double().numpy(), 0.2) for z in BATCHES]
    align, repulsion = (np.concatenate(each) for each in zip(*forces))
    g = repulsion - align
    y = np.tile(LABELS, 2).ravel()
    np.testing.assert_allclose(found["align"], align.mean(0), atol=1e-5)
    np.testing.assert_allclose(found["repulsion"], repulsion.mean(0), atol=1e-5)
    for k in range(5):
        fires = np.abs(z[:, k]) > 1e-5
        assert found["frequency"][k] == pytest.approx(fires.mean())
        assert found["support"][k] == fires.sum()
        assert found["mean"][k] == pytest.approx(g[:, k].mean(), abs=1e-5)
        assert found["variance"][k] == pytest.approx(g[:, k].var(), rel=1e-4)
        assert found["variance_active"][k] == pytest.approx(g[fires, k].var(), rel=1e-4)
        share = np.bincount(y[fires]).max() / fires.sum()
        assert found["consistency"][k] == pytest.approx(100 * share)
        p = sorted(fires[y == c].mean() for c in range(3))
        assert found["conflict"][k] == pytest.approx(p[-1] * p[-2])
    assert found["support"][5] == 0
    assert np.isnan([found["consistency"][5], found["variance_active"][5]]).all()
    # shuffled labels: at least the share of one class in three, and not the true ones
    assert (found["chance_consistency"][:5] >= 100 / 3).all()
    assert not np.array_equal(found["chance_consistency"][:5], found["consistency"][:5])


def test_spearman_is_scipys() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 40)).round()  # many ties
    a[3], b[5] = np.nan, np.nan
    keep = np.isfinite(a) & np.isfinite(b)
    assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a[keep], b[keep]).statistic)
    assert spearman(a, np.ones(40)) is spearman(a[:1], b[:1]) is None


def test_the_summary() -> None:
    columns = columns_of(both(LABELS))
    row = dynamics.summarize(columns)
    assert row["paper"] == dynamics.correlations(columns)
    assert row["sound"] == dynamics.correlations(columns, 10) != row["paper"]
    assert row["chance"]["af_gv"] == row["sound"]["af_gv"], "needs no labels"
    assert row["chance"]["af_sc"] != row["sound"]["af_sc"]
    assert (row["dims"], row["dims_sound"]) == (5, 4)
    kept = {name: values[columns["support"] >= 10] for name, values in columns.items()}
    net = np.abs(kept["repulsion"] - kept["align"]) / (kept["repulsion"] + kept["align"])
    assert row["forces"]["net_share"] == pytest.approx(np.median(net))
    wanted = dynamics.instability(columns, columns["conflict"] >= 0.5)
    assert row["instability"]["0.5"] == wanted
    without = dynamics.summarize(columns_of(None))
    assert without["paper"]["af_sc"] is None
    assert without["paper"]["af_gv"] == row["paper"]["af_gv"]


@pytest.mark.parametrize(
    ("ratios", "variance", "holds"),
    [([0.1, 0.2], [4.0, 5.0], True), ([0.1, 0.2], [0.5, 0.5], False), ([9, 8], [4.0, 5.0], False)],
)
def test_instability_means_small_mean_and_large_variance(
    ratios: list[float], variance: list[float], holds: bool
) -> None:
    columns = {"support": np.full(4, 50.0), "variance": np.array([*variance, 1.0, 1.0])}
    columns["mean_to_deviation"] = np.array([*ratios, 1.0, 2.0])
    found = dynamics.instability(columns, np.array([True, True, False, False]))
    assert found["holds"] is holds
    assert found["conflicting"]["variance"] == np.median(variance)
    assert found["others"] == {"dims": 2, "variance": 1.0, "mean_to_deviation": 1.5}
    assert dynamics.instability(columns, np.zeros(4, bool))["holds"] is None


@pytest.mark.parametrize("method", ["ncl", "bayesncl"])
def test_record_is_the_statistics_of_training_views(method: str) -> None:
    recipe, images = tiny_recipe(method, "run.batch=16", "run.seed=4"), tiny_images(50)
    model = build_model(recipe).train()
    row = record(model, images.pixels, images.labels, epoch=7, batches=2)
    order = np.random.default_rng((4, 7, 1)).permutation(50)
    model.eval()
    found: dict[str, list[np.ndarray]] = {"gated": [], "z": [], "dz": [], "raw": []}
    for rows in (order[:16], order[16:32]):
        pixels, index = torch.from_numpy(images.pixels[rows]), torch.from_numpy(rows)
        x = model.normalize_pixels(make_views(pixels, index, 7, 5, recipe.views))
        features = model(x)
        before = after = features.z.detach().requires_grad_()
        if features.mask is not None:
            after = nn.functional.normalize(before * features.mask.detach(), dim=1)
        similar = (after @ after.T / 0.2).fill_diagonal_(-torch.inf)
        (similar.logsumexp(1) - similar.diagonal(16).repeat(2)).sum().backward()
        dz, raw = dynamics.gradients(features.gated, (features.z, features.aux), 0.2)
        assert torch.allclose(dz, before.grad, atol=1e-4)
        for name, tensor in zip(found, (features.gated, features.z, dz, raw)):
            found[name].append(tensor.detach().numpy())
    index = np.unique(images.labels, return_inverse=True)[1]
    labels = both(index[order[:32]].reshape(2, 16))
    gated, z, dz, raw = (np.concatenate(each) for each in found.values())
    g = np.concatenate([gradient(torch.from_numpy(each)).numpy() for each in found["gated"]])
    by_raw = statistics(z, raw, labels, 0.2)
    assert row["readings"]["raw"]["paper"] == dynamics.correlations(by_raw)
    by_z = statistics(z, dz, labels, 0.2)
    assert row["readings"]["z"]["sound"] == dynamics.correlations(by_z, 10)
    known = {"epoch": 7, "batches": 2, "mode": "eval", "rows": 64, "readings": row["readings"]}
    assert row == known | dynamics.summarize(statistics(gated, g, labels, 0.2))
    assert json.loads(json.dumps(row)) == row


def test_record_leaves_the_model_alone() -> None:
    recipe, images = tiny_recipe("bayesncl", "run.batch=16"), tiny_images(20)
    model = build_model(recipe).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    row = record(model, images.pixels, None, epoch=1)
    assert row["batches"] == 1, "20 images fill one batch of 16"
    assert all(module.training for module in model.modules())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert row == record(model, images.pixels, None, epoch=1)
    assert record(model, images.pixels[:9], None, epoch=0)["rows"] == 18


@pytest.mark.gpu
def test_gpu_and_cpu_agree() -> None:
    recipe, images = tiny_recipe("bayesncl", "run.batch=16"), tiny_images(50)
    cpu, gpu = (
        record(build_model(recipe).to(d), images.pixels, images.labels, epoch=7)
        for d in ("cpu", "cuda")
    )
    assert gpu["variance"] == pytest.approx(cpu["variance"], rel=0.02)
    assert gpu["dims"] == cpu["dims"]
