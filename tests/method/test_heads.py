"""Losses and the heads that use them, against slow, obvious twins."""

import math

import numpy as np
import pytest
import torch

from bayesncl import bernoulli_kl, info_nce, ipw_similarity
from bayesncl.errors import InputError
from bayesncl.method import losses
from bayesncl.method.heads import NEW_SHARE, Projector, Prototypes, SparseAutoencoder
from bayesncl.method.losses import ACTIVE, RAREST, balanced_assignment, unit_rows
from bayesncl.recipes import Gate, Model, Objective


def slow_info_nce(z: torch.Tensor, tau: float, decoupled: bool) -> float:
    """- mean log(pos / (pos + neg)), or log(pos / neg), with plain loops."""
    s, n, total = (z @ z.T / tau).tolist(), len(z), 0.0
    for i in range(n):
        positive = (i + n // 2) % n
        left_out = (i, positive) if decoupled else (i,)
        others = sum(math.exp(s[i][j]) for j in range(n) if j not in left_out)
        total -= math.log(math.exp(s[i][positive]) / others)
    return total / n


def unit_features(n=10, d=6, dtype=torch.float64):
    return unit_rows(torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(n))).requires_grad_()


@pytest.mark.parametrize("block", [0, 1, 3, 64])
@pytest.mark.parametrize(("tau", "decoupled"), [(0.2, False), (1.0, True)])
def test_info_nce_value_and_gradient(block, tau, decoupled):
    z = unit_features()
    loss = info_nce(z, tau, block, decoupled)
    assert loss.item() == pytest.approx(slow_info_nce(z.detach(), tau, decoupled), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: info_nce(x, tau, block, decoupled), unit_features())


def test_info_nce_is_stable_where_exp_overflows():
    z = unit_features(8, 4, torch.float32)
    loss = info_nce(100 * z, 0.01)
    assert loss.isfinite()
    assert loss.item() == pytest.approx(info_nce((100 * z).double(), 0.01).item(), rel=1e-5)


def test_ipw_similarity():
    z, z2 = torch.rand(4, 5, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64)
    prevalence = torch.tensor([0.5, 0.1, 1.0, 0.0, 0.25], dtype=torch.float64)
    got = ipw_similarity(z, z2, prevalence)
    for i in range(4):
        for j in range(3):
            expected = sum(z[i, k] * z2[j, k] / prevalence[k] for k in range(5) if prevalence[k] > 0)
            assert got[i, j].item() == pytest.approx(expected.item(), rel=1e-12)
    with pytest.raises(InputError, match="prevalence"):
        ipw_similarity(z, z2, prevalence[:4])


def test_a_zero_row_sends_no_gradient():
    z = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    (unit_rows(z) * torch.tensor([[1.0, 0.0], [5.0, 7.0]])).sum().backward()
    torch.testing.assert_close(z.grad, torch.tensor([[0.128, -0.096], [0.0, 0.0]]))  # (g - u (g . u)) / |z|


def slow_balance(scores: np.ndarray, temperature: float, rounds: int) -> np.ndarray:
    """Sinkhorn-Knopp by its definition: equal column sums, then equal row sums, repeated."""
    q = np.exp(scores / temperature)
    for _ in range(rounds):
        for k in range(q.shape[1]):
            q[:, k] /= q[:, k].sum() * q.shape[1]
        for i in range(q.shape[0]):
            q[i] /= q[i].sum() * q.shape[0]
    return q * len(q)


@pytest.mark.parametrize("rounds", [1, 3, 50])
def test_balanced_assignment(rounds: int) -> None:
    s = np.random.default_rng(0).uniform(-1, 1, (2, 12, 4))
    found = balanced_assignment(torch.from_numpy(s), 0.2, rounds).numpy()
    for half, twin in zip(found, s):
        np.testing.assert_allclose(half, slow_balance(twin, 0.2, rounds), rtol=1e-9)
    np.testing.assert_allclose(found.sum(2), 1)
    if rounds == 50:
        np.testing.assert_allclose(found.sum(1), 3, rtol=1e-3)


def test_balance_survives_scores_far_apart() -> None:
    s = torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    q = balanced_assignment(s, 0.01)  # exp(-200) is 0 in float32
    assert torch.isfinite(q).all()
    assert torch.allclose(q.sum(1), torch.ones(2))


def test_swapped_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    s, q = rng.normal(size=(2, 5, 3)), rng.dirichlet(np.ones(3), (2, 5))
    slow = 0.0
    for side in (0, 1):
        for i in range(5):
            p = np.exp(s[side, i] / 0.1) / np.exp(s[side, i] / 0.1).sum()
            slow -= (q[1 - side, i] * np.log(p)).sum()
    assert float(losses.swapped_cross_entropy(torch.from_numpy(s), torch.from_numpy(q), 0.1)) == pytest.approx(slow)


def test_autoencoder_loss() -> None:
    torch.manual_seed(0)
    head = SparseAutoencoder(6, 10, k=3)
    head.patience, head.revival = 2, 0.5
    x = torch.randn(8, 6)

    def slow(idle: np.ndarray) -> tuple[float, np.ndarray]:
        e, b, d = head.encoder.weight.detach().numpy(), head.bias.detach().numpy(), head.decoder.detach().numpy()
        d = d / np.linalg.norm(d, axis=1, keepdims=True)
        a = (x.numpy() - b) @ e.T + head.encoder.bias.detach().numpy()
        fires = np.where(a < np.sort(a)[:, [-3]], 0, np.maximum(a, 0))
        rest = x.numpy() - b - fires @ d
        idle = np.where((fires > 0).any(0), 0, idle + 1)
        dead = np.where(idle >= 2, a, -np.inf)
        revived = np.where(dead < np.sort(dead)[:, [-3]], 0, np.maximum(dead, 0))
        extra = ((rest - revived @ d) ** 2).sum() if (idle >= 2).any() else 0.0
        return ((rest**2).sum() + 0.5 * extra) / x.numel(), idle

    with torch.no_grad():
        head.encoder.bias[:2] = -100.0  # these never fire
    idle = np.zeros(10)
    for _ in range(4):
        expected, idle = slow(idle)
        assert head.loss(head(x)).loss.item() == pytest.approx(expected, rel=1e-5)
    assert (idle[:2] == 4).all()
    assert head.idle.tolist() == idle.tolist()


def test_prototypes_start_on_the_principal_axes() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(500, 40))).float()
    x[:, :5] *= 5
    one, two = Prototypes(40, 12, width=5), Prototypes(40, 12, width=5)
    one.start(x)
    two.start(x)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    axes = torch.linalg.svd(x, full_matrices=False).Vh[:5]
    overlap = torch.linalg.svdvals(one.projection.weight.detach() @ axes.T)
    assert overlap.min() > 0.99
    np.testing.assert_allclose(one.prototypes.norm(dim=1).detach(), 1, rtol=1e-5)


H = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))


def head(gate: Gate | None = None, similarity: str = "dot") -> Projector:
    torch.manual_seed(0)
    options = Model(dim=5, hidden=7, rectifier="relu")
    objective = Objective(similarity=similarity)
    return Projector(6, options, gate or Gate(kind="none"), objective).train()


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
    q = torch.from_numpy(np.random.default_rng(0).random((7, 4)))
    rho = torch.tensor([0.001, 0.3, 0.8, 1.0], dtype=torch.float64)
    columns = sum(bernoulli_kl(q[:, [k]], float(prior)) for k, prior in enumerate(rho))
    torch.testing.assert_close(bernoulli_kl(q, rho), columns)
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
    weight = model.projector[-1].weight
    (slope,) = torch.autograd.grad(features.logits.sum(), weight, allow_unused=True)
    assert (slope is None) == detach
