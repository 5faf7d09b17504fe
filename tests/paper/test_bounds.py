"""Two statements of the paper checked by numbers on models small enough to sum over everything.

The evidence lower bound: with gates m in {0, 1}^D, prior p(m) = prod Bern(rho) and factorized
q(m) = prod Bern(q_k), E_q[log p(x | m)] - KL(q || p) <= log sum_m p(m) p(x | m). The gap is
KL(q || p(m | x)), so the bound is tight if and only if q is the posterior.

The latent-class statement: if the views of an image are independent given its class, the optimal
non-negative features are proportional to P(c | x), for the spectral loss P(c | x) / sqrt(P(c)).
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from bayesncl.method.losses import info_nce
from tests.conftest import unit_length

SWEEPS = 100  # coordinate updates of every gate
STEPS = 5_000  # multiplicative updates of the features


def all_masks(d: int) -> np.ndarray:
    """Every mask of d gates, [2^d, d]."""
    return np.array(list(itertools.product((0.0, 1.0), repeat=d)))


def positive_log_likelihood(z: np.ndarray, temperature: float = 0.2) -> np.ndarray:
    """log p(x | m) of the first image for every mask, [2^D]: InfoNCE picks its positive.

    Row i and row i + B of z [2B, D] are two views of one image. The masks apply to row 0.
    """
    logits = unit_length(all_masks(z.shape[1]) * z[0]) @ z[1:].T / temperature  # [2^D, 2B - 1]
    return np.asarray(logits[:, len(z) // 2 - 1] - np.logaddexp.reduce(logits, axis=1))


def elbo(log_likelihood: np.ndarray, q: np.ndarray, prior: float) -> dict[str, float]:
    """`evidence`, `bound`, and `gap`, which is the KL of q to the posterior, by the sum over masks.

    log_likelihood [2^D] is log p(x | m) in the order of `all_masks`; q [D] lies inside (0, 1).
    """
    masks = all_masks(len(q))
    both = np.full(len(q), prior), q
    log_prior, log_q = ((masks * np.log(p) + (1 - masks) * np.log(1 - p)).sum(1) for p in both)
    joint = log_prior + log_likelihood
    evidence = float(np.logaddexp.reduce(joint))
    weights = np.exp(log_q)
    bound = float((weights * log_likelihood).sum() - (weights * (log_q - log_prior)).sum())
    gap = float((weights * (log_q - (joint - evidence))).sum())
    return {"evidence": evidence, "bound": bound, "gap": gap}


def best_factorized(log_likelihood: np.ndarray, prior: float) -> np.ndarray:
    """The factorized q [D] of a local optimum of the bound, by coordinate ascent."""
    d = round(np.log2(len(log_likelihood)))
    masks, q = all_masks(d), np.full(d, prior)
    for k in list(range(d)) * SWEEPS:
        others = np.delete(masks, k, 1), np.delete(q, k)
        weights = np.prod(np.where(others[0] > 0, others[1], 1 - others[1]), axis=1)
        signed = np.where(masks[:, k] > 0, weights, -weights)
        logit = np.log(prior / (1 - prior)) + (signed * log_likelihood).sum()
        q[k] = 1 / (1 + np.exp(-logit))
    return np.clip(q, 1e-12, 1 - 1e-12)


def draw_joint(
    likelihood: np.ndarray, prior: np.ndarray, pairs: int, rng: np.random.Generator
) -> np.ndarray:
    """Relative frequencies [V, V] of drawn pairs of views; likelihood is P(x | c), [C, V]."""
    exact = (likelihood.T * prior) @ likelihood
    counts = rng.multinomial(pairs, exact.ravel() / exact.sum()).reshape(exact.shape)
    return (counts + counts.T) / (2 * pairs)


def fit_features(joint: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Non-negative features [V, C] that minimize the spectral contrastive loss of a joint [V, V].

    The loss -2 E_joint[f f'] + E_independent[(f f')^2] is, up to a constant, |B - g g^T|^2 with
    B = joint / sqrt(p p') and g = sqrt(p) f: a symmetric non-negative factorization.
    """
    root = np.sqrt(np.maximum(joint.sum(1), 1e-12))
    target = joint / np.outer(root, root)
    g = rng.random((len(joint), classes))
    for _ in range(STEPS):
        g *= 0.5 + 0.5 * (target @ g) / np.maximum(g @ (g.T @ g), 1e-12)
    return g / root[:, None]


def match_posteriors(
    features: np.ndarray, likelihood: np.ndarray, prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and norm ratio, [C] each, of matched feature columns and P(c | x) / sqrt(P(c))."""
    joint = (likelihood * prior[:, None]).T  # [V, C]
    optimal = joint / joint.sum(1, keepdims=True) / np.sqrt(prior)
    lengths = [np.linalg.norm(each, axis=0) for each in (features, optimal)]
    cosines = features.T @ optimal / np.outer(*lengths)
    dims, found = linear_sum_assignment(-cosines)
    return cosines[dims, found], lengths[0][dims] / lengths[1][found]


def features(seed: int, d: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit_length(rng.random((8, d)) * (rng.random((8, d)) < 0.6) + 0.01)


def test_the_likelihood_is_that_of_info_nce() -> None:
    """With all gates open, the mean over rows is the loss."""
    z = features(0)
    first = [[(i + j) % 4 + 4 * ((i // 4 + j // 4) % 2) for j in range(8)] for i in range(8)]
    found = [-positive_log_likelihood(z[order])[-1] for order in first]  # row i first
    assert np.mean(found) == pytest.approx(float(info_nce(torch.from_numpy(z))), rel=1e-5)


@pytest.mark.parametrize(("seed", "prior"), [(0, 0.1), (1, 0.5), (2, 0.8)])
def test_the_bound_holds_and_its_gap_is_the_kl_to_the_posterior(seed: int, prior: float) -> None:
    likelihood = positive_log_likelihood(features(seed))
    q = np.random.default_rng(seed).uniform(0.01, 0.99, 6)
    found = elbo(likelihood, q, prior)
    assert found["gap"] == pytest.approx(found["evidence"] - found["bound"], abs=1e-9)
    best = elbo(likelihood, best_factorized(likelihood, prior), prior)
    assert found["bound"] <= best["bound"] <= best["evidence"]


def test_the_bound_is_tight_where_the_posterior_is_right() -> None:
    """A likelihood that is a product over gates has a factorized posterior."""
    evidence = np.random.default_rng(0).normal(size=6)
    likelihood = all_masks(6) @ evidence
    posterior = 1 / (1 + np.exp(-(evidence + math.log(0.3 / 0.7))))
    assert elbo(likelihood, posterior, 0.3)["gap"] == pytest.approx(0, abs=1e-12)
    assert best_factorized(likelihood, 0.3) == pytest.approx(posterior)
    assert elbo(likelihood, np.full(6, 0.3), 0.3)["gap"] > 0.01
    # InfoNCE couples the gates: no factorized q is the posterior
    coupled = positive_log_likelihood(features(1))
    assert elbo(coupled, best_factorized(coupled, 0.3), 0.3)["gap"] > 1e-3


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
    for joint, near in ((exact, 0.999), (draw_joint(likelihood, prior, 10**6, rng), 0.99)):
        found = fit_features(joint, classes, rng)
        cosines, ratios = match_posteriors(found, likelihood, prior)
        assert cosines.min() > near
        assert ratios == pytest.approx(1, abs=0.05)  # and the factor is 1 / sqrt(P(c))
    # control: with the images permuted, the features do not match
    permuted = draw_joint(likelihood[:, rng.permutation(values)], prior, 10**6, rng)
    control = fit_features(permuted, classes, rng)
    assert match_posteriors(control, likelihood, prior)[0].min() < 0.9
