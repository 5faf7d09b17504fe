"""Every function of gates.py against a slow, obvious twin, in float64."""

import math

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import bayesncl
from bayesncl.errors import InputError
from bayesncl.gates import GATES, RECTIFIERS, GateKind, logistic_noise, published_noise
from bayesncl.heads import Projector
from bayesncl.recipes import Gate, Model, Objective

torch.manual_seed(0)
Z = torch.randn(7, 5, dtype=torch.float64)


def gradient(function, x, weight):
    x = x.clone().requires_grad_()
    (function(x) * weight).sum().backward()
    return x.grad


def test_rep_relu_is_relu_with_the_gradient_of_gelu():
    weight = torch.randn_like(Z)
    assert torch.equal(bayesncl.rep_relu(Z), F.relu(Z))
    torch.testing.assert_close(gradient(bayesncl.rep_relu, Z, weight), gradient(F.gelu, Z, weight), rtol=0, atol=0)
    x = 0.3
    by_hand = 0.5 * (1 + math.erf(x / math.sqrt(2))) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    one = torch.tensor([[x]], dtype=torch.float64)
    assert gradient(bayesncl.rep_relu, one, torch.ones(1, 1)).item() == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("function", [bayesncl.rep_relu, lambda z: bayesncl.open_gates(z, "ste")])
def test_nothing_is_subtracted_from_itself(function):
    """x - x is 0 as written; compiled for a GPU it may be the rounding error of x (see `gates.straight_through`)."""
    z = torch.cat([Z, torch.full((1, 5), math.inf), torch.full((1, 5), -math.inf)])
    with torch.enable_grad():
        graph = make_fx(function)(z.requires_grad_()).graph
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert called
    assert not [name for name in called if "sub" in name or "add" in name], called
    assert function(z).isfinite().logical_or(z == math.inf).all()  # inf - inf would be no number


def test_rectifiers_by_hand():
    twins = {
        "none": lambda x: x,
        "relu": lambda x: max(x, 0.0),
        "rep_relu": lambda x: max(x, 0.0),
        "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
        "softplus": lambda x: math.log1p(math.exp(x)),
        "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
        "exp": math.exp,
    }
    assert set(twins) == set(RECTIFIERS)
    for name, twin in twins.items():
        expected = np.vectorize(twin)(Z.numpy())
        np.testing.assert_allclose(RECTIFIERS[name](Z).numpy(), expected, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("threshold", "temperature"), [(0.5, 1.0), (0.7, 1.0), (0.3, 2.5)])
def test_straight_through_gate(threshold, temperature):
    mask = bayesncl.open_gates(Z, "ste", threshold, temperature)
    q = 1 / (1 + np.exp(-Z.numpy() / temperature))
    assert np.array_equal(mask.numpy(), (q > threshold).astype(float))  # exactly 0 and 1
    weight = torch.randn_like(Z)
    expected = weight.numpy() * q * (1 - q) / temperature
    got = gradient(lambda x: bayesncl.open_gates(x, "ste", threshold, temperature), Z, weight)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-14)


def test_threshold_is_strict():
    assert bayesncl.open_gates(torch.zeros(1, 3), "ste").eq(0).all()


def test_soft_gate_is_the_sigmoid():
    torch.testing.assert_close(bayesncl.open_gates(Z, "soft", temperature=2.0), torch.sigmoid(Z / 2))


@pytest.mark.parametrize("kind", ["gumbel", "gumbel-paper"])
def test_gumbel_gates(kind):
    """Share of open gates at fixed logits against the law of the noise; hard values; the straight-through gradient."""
    logit = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).repeat(200_000, 1)
    mask = bayesncl.open_gates(logit, kind, generator=torch.Generator().manual_seed(3))
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    if kind == "gumbel":
        law = [1 / (1 + math.exp(-x)) for x in (-1, 0, 1)]
    else:
        law = [1 - math.exp(-math.exp(x)) for x in (-1, 0, 1)]
    np.testing.assert_allclose(mask.mean(0).numpy(), law, atol=5e-3)
    u = torch.rand(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = (logistic_noise if kind == "gumbel" else published_noise)(u)
    weight = torch.randn_like(Z)
    soft = torch.sigmoid((Z + noise) / 0.5)
    got = gradient(lambda x: bayesncl.open_gates(x, kind, temperature=0.5, uniform=u), Z, weight)
    torch.testing.assert_close(got, weight * soft * (1 - soft) / 0.5)


def test_noise_stays_finite_at_the_ends():
    ends = torch.tensor([0.0, 1 - 2**-24], dtype=torch.float32)
    assert logistic_noise(ends).isfinite().all()
    assert published_noise(ends).isfinite().all()
    np.testing.assert_allclose(published_noise(ends).numpy(), [-2.2203, 16.0448], atol=1e-3)


def test_unknown_gate_names_the_kinds():
    with pytest.raises(InputError, match="no gate kind 'hard'; there are ste"):
        bayesncl.open_gates(Z, "hard")


def test_a_kind_is_one_object(monkeypatch):
    """The one in the registry is the one used: its noise in training, and none in evaluation."""
    assert {name: (kind.noise is not None, kind.hard) for name, kind in GATES.items()} == {
        "ste": (False, True),
        "soft": (False, False),
        "gumbel": (True, True),
        "gumbel-paper": (True, True),
    }
    monkeypatch.setitem(GATES, "ste", GateKind("ste", lambda u: -9 * u))
    ones = torch.ones(2, 3)
    assert bayesncl.open_gates(ones, "ste", uniform=0.9 * ones).eq(0).all()
    head = Projector(5, Model(dim=3, hidden=4), Gate(), Objective())
    h = torch.rand(2, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.gate[-1].bias.fill_(5.0)
    assert head.train()(h, 0.99 * ones).mask.eq(0).all()
    assert head.eval()(h, 0.99 * ones).mask.eq(1).all()


def slow_kl(q, rho):
    total = 0.0
    for row in q:
        for p in row:
            p = min(max(p, 0.01), 0.99)
            r = min(max(rho, 0.01), 0.99)
            total += p * math.log(p / r) + (1 - p) * math.log((1 - p) / (1 - r))
    return total / len(q)


@pytest.mark.parametrize("prior", [0.001, 0.1, 0.5, 0.8])
def test_bernoulli_kl(prior):
    q = torch.rand(6, 4, dtype=torch.float64)
    assert bayesncl.bernoulli_kl(q, prior).item() == pytest.approx(slow_kl(q.tolist(), prior), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: bayesncl.bernoulli_kl(x, prior), 0.02 + 0.96 * q.clone().requires_grad_())


def test_kl_values_and_clamp():
    """Three values at rho = 0.8 worked out by hand, and no gradient beyond the clamp."""
    for q, value in ((0.001, 1.540), (0.5, 0.223), (0.999, 0.181)):
        assert bayesncl.bernoulli_kl(torch.tensor([[q]]), 0.8).item() == pytest.approx(value, abs=6e-4)
    q = torch.tensor([[0.005, 0.5, 0.995]], requires_grad=True)
    bayesncl.bernoulli_kl(q, 0.8).backward()
    assert q.grad.ne(0).tolist() == [[False, True, False]]


def test_top_k_mask():
    for k in (1, 3, 5):
        mask = bayesncl.top_k_mask(Z, k)
        assert mask.sum(1).eq(k).all()
        for row, m in zip(Z.tolist(), mask.tolist()):
            assert {i for i, on in enumerate(m) if on} == set(sorted(range(5), key=lambda i: -row[i])[:k])
    assert bayesncl.top_k_mask(torch.zeros(4, 6), 2).sum(1).eq(2).all()  # exactly k, also among ties
    assert not bayesncl.top_k_mask(Z.clone().requires_grad_(), 2).requires_grad
    with pytest.raises(InputError, match="between 1 and the 5 dimensions, got 6"):
        bayesncl.top_k_mask(Z, 6)


def test_half_precision_is_raised():
    assert bayesncl.open_gates(Z.bfloat16(), "ste").dtype == torch.float32
    assert bayesncl.bernoulli_kl(torch.rand(3, 3).half(), 0.5).dtype == torch.float32
