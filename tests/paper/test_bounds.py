"""The evidence lower bound and the latent-class statement, summed over everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bayesncl.method.losses import info_nce
from bayesncl.paper import bounds
from tests.conftest import unit_length


def features(seed: int, d: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit_length(rng.random((8, d)) * (rng.random((8, d)) < 0.6) + 0.01)


def test_the_likelihood_is_that_of_info_nce() -> None:
    """With all gates open, the mean over rows is the loss."""
    z = features(0)
    found = []
    for i in range(8):
        order = [(i + j) % 4 + 4 * ((i // 4 + j // 4) % 2) for j in range(8)]  # row i first
        found.append(-bounds.positive_log_likelihood(z[order])[-1])
    assert np.mean(found) == pytest.approx(float(info_nce(torch.from_numpy(z))), rel=1e-5)


@pytest.mark.parametrize("prior", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_and_its_gap_is_the_kl_to_the_posterior(seed: int, prior: float) -> None:
    likelihood = bounds.positive_log_likelihood(features(seed))
    q = np.random.default_rng(seed).uniform(0.01, 0.99, 6)
    found = bounds.elbo(likelihood, q, prior)
    evidence = 0.0  # by a loop over masks
    for mask, each in zip(bounds.all_masks(6), likelihood):
        weight = math.prod(prior if bit else 1 - prior for bit in mask)
        evidence += weight * math.exp(each)
    assert found["evidence"] == pytest.approx(math.log(evidence))
    assert found["bound"] <= found["evidence"]
    assert found["gap"] == pytest.approx(found["evidence"] - found["bound"], abs=1e-9)
    best = bounds.elbo(likelihood, bounds.best_factorized(likelihood, prior), prior)
    assert found["bound"] <= best["bound"] <= best["evidence"]


def test_the_bound_is_tight_where_the_posterior_is_right() -> None:
    """A likelihood that is a product over gates has a factorized posterior."""
    evidence = np.random.default_rng(0).normal(size=6)
    likelihood = bounds.all_masks(6) @ evidence
    posterior = 1 / (1 + np.exp(-(evidence + math.log(0.3 / 0.7))))
    assert bounds.elbo(likelihood, posterior, 0.3)["gap"] == pytest.approx(0, abs=1e-12)
    assert bounds.best_factorized(likelihood, 0.3) == pytest.approx(posterior)
    assert bounds.elbo(likelihood, np.full(6, 0.3), 0.3)["gap"] > 0.01
    # InfoNCE couples the gates: no factorized q is the posterior
    coupled = bounds.positive_log_likelihood(features(1))
    assert bounds.elbo(coupled, bounds.best_factorized(coupled, 0.3), 0.3)["gap"] > 1e-3


@pytest.mark.parametrize("classes", [2, 4])
def test_optimal_features_are_proportional_to_class_posteriors(classes: int) -> None:
    """On pairs drawn from a latent-class model in which every class has images of its own."""
    rng = np.random.default_rng(classes)
    values = 8 * classes
    likelihood = rng.dirichlet(np.full(values, 0.5), classes)
    likelihood[:, : 2 * classes] *= np.repeat(np.eye(classes), 2, 1)
    likelihood /= likelihood.sum(1, keepdims=True)
    prior = rng.dirichlet(np.full(classes, 5.0))
    exact = (likelihood.T * prior) @ likelihood
    for joint, near in ((exact, 0.999), (bounds.draw_joint(likelihood, prior, 10**6, rng), 0.99)):
        found = bounds.fit_features(joint, classes, rng)
        cosines, ratios = bounds.match_posteriors(found, likelihood, prior)
        assert cosines.min() > near
        assert ratios == pytest.approx(1, abs=0.05)  # and the factor is 1 / sqrt(P(c))
    # control: with the images permuted, the features do not match
    permuted = bounds.draw_joint(likelihood[:, rng.permutation(values)], prior, 10**6, rng)
    control = bounds.fit_features(permuted, classes, rng)
    assert bounds.match_posteriors(control, likelihood, prior)[0].min() < 0.9
