"""Inverse-prevalence weighting, priors that follow the prevalence, gates that read z."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import bernoulli_kl, info_nce, load, train
from bayesncl.data.images import Images
from bayesncl.method.heads import NEW_SHARE, Projector
from bayesncl.method.losses import ACTIVE, RAREST, ipw_rows, ipw_similarity
from bayesncl.recipes import Gate, Model, Objective
from tests.conftest import Stopped, stop_after, tiny_recipe
from tests.training.test_loop import weights

H = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))


def head(gate: Gate | None = None, similarity: str = "dot") -> Projector:
    torch.manual_seed(0)
    options = Model(dim=5, hidden=7, rectifier="relu")
    objective = Objective(similarity=similarity)
    return Projector(6, options, gate or Gate(kind="none"), objective).train()


def test_ipw_rows_against_the_definition() -> None:
    rng = np.random.default_rng(0)
    z, pi = rng.random((6, 4)), np.array([0.5, 0.05, 1.0, 0.0])
    found = ipw_rows(torch.from_numpy(z), torch.from_numpy(pi))
    for i in range(6):
        for j in range(6):
            similarity = [
                sum(a * b / max(p, RAREST) for a, b, p in zip(z[x], z[y], pi))
                for x, y in ((i, j), (i, i), (j, j))
            ]
            cosine = similarity[0] / math.sqrt(similarity[1] * similarity[2])
            assert float(found[i] @ found[j]) == pytest.approx(cosine, rel=1e-9)
    some, known = torch.from_numpy(z[:, :3]), torch.tensor(pi[:3])
    raw = ipw_similarity(some, some, known)
    scale = raw.diagonal().sqrt()
    cosines = ipw_rows(some, known) @ ipw_rows(some, known).T
    torch.testing.assert_close(cosines, raw / scale[:, None] / scale)


def test_the_ipw_loss_and_its_running_prevalence() -> None:
    model = head(similarity="ipw")
    slow = np.ones(5)
    for step in range(3):
        features = model(H + step)
        z = features.gated.detach().numpy()
        for k in range(5):
            fires = sum(abs(row[k]) > ACTIVE for row in z) / len(z)
            slow[k] += NEW_SHARE * (fires - slow[k])
        loss = model.loss(features).loss.detach()
        assert model.prevalence is not None
        np.testing.assert_allclose(model.prevalence.numpy(), slow, rtol=1e-6)
        weighted = z / np.sqrt(np.maximum(slow, RAREST))
        rows = torch.from_numpy(weighted / np.linalg.norm(weighted, axis=1, keepdims=True))
        assert float(loss) == pytest.approx(float(info_nce(rows.float())), rel=1e-5)
    assert len(set(slow)) > 1  # dimensions of one prevalence would prove nothing
    before = model.prevalence.clone()
    model.eval().loss(model(H))
    assert torch.equal(model.prevalence, before)


def test_a_prior_per_dimension() -> None:
    rng = np.random.default_rng(0)
    q, rho = rng.random((7, 4)), np.array([0.001, 0.3, 0.8, 1.0])
    slow = 0.0
    for row in q:
        for one, prior in zip(row, rho):
            a, r = min(max(one, 0.01), 0.99), min(max(prior, 0.01), 0.99)
            slow += (a * math.log(a / r) + (1 - a) * math.log((1 - a) / (1 - r))) / len(q)
    assert float(bernoulli_kl(torch.from_numpy(q), torch.from_numpy(rho))) == pytest.approx(slow)
    same = bernoulli_kl(torch.from_numpy(q), torch.full((4,), 0.8, dtype=torch.float64))
    assert float(same) == pytest.approx(float(bernoulli_kl(torch.from_numpy(q), 0.8)))
    model = head(Gate(prior_kind="prevalence", prior=0.6))
    features = model(H)
    terms = [term.detach() for term in model.loss(features)]
    assert model.prevalence is not None and features.logits is not None
    priors = 0.6 * (1 - model.prevalence)
    expected = bernoulli_kl(torch.sigmoid(features.logits), priors)
    assert float(terms[2]) == pytest.approx(float(expected.detach()))
    assert float(terms[0]) == pytest.approx(float(terms[1] + 3e-5 * terms[2]))
    assert head(Gate(prior=0.6)).prevalence is None


@pytest.mark.parametrize("detach", [True, False])
def test_a_gate_that_reads_z(detach: bool) -> None:
    model = head(Gate(input="z", detach=detach))
    features = model(H)
    assert model.gate is not None and features.logits is not None
    torch.testing.assert_close(features.logits, model.gate(features.z))
    logits = torch.autograd.grad(
        features.logits.sum(), model.projector[-1].weight, allow_unused=True
    )[0]
    assert (logits is None) == detach


@pytest.mark.parametrize(
    ("method", "changes"),
    [("ncl-ipw", ()), ("bayesncl", ("gate.input=z", "gate.prior_kind=prevalence"))],
)
def test_training_is_the_same_after_an_interruption(
    method: str, changes: tuple[str, ...], tmp_path: Path, images: Images
) -> None:
    recipe = tiny_recipe(method, *changes)
    model = train(recipe, images, tmp_path / "whole", device="cpu")
    with pytest.raises(Stopped):
        train(recipe, images, tmp_path / "cut", device="cpu", after_epoch=stop_after(2))
    train(recipe, images, tmp_path / "cut", device="cpu")
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")
    codes = load(tmp_path / "whole").encode(images.pixels)
    torch.testing.assert_close(codes, model.encode(images.pixels))
