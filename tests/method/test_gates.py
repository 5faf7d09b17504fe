"""Gates, rectifiers and masks against slow twins, in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import bayesncl
from bayesncl.errors import InputError
from bayesncl.method.gates import GATES, logistic_noise, published_noise

Z = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradient(function: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (function(x) * weight).sum().backward()
    assert x.grad is not None
    return x.grad


def test_rep_relu_is_relu_with_the_gradient_of_gelu() -> None:
    assert torch.equal(bayesncl.rep_relu(Z), F.relu(Z))
    assert torch.equal(gradient(bayesncl.rep_relu, Z, WEIGHT), gradient(F.gelu, Z, WEIGHT))
    x = 0.3
    cdf = 0.5 * (1 + math.erf(x / math.sqrt(2)))
    expected = cdf + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    one = torch.tensor([[x]], dtype=torch.float64)
    found = gradient(bayesncl.rep_relu, one, torch.ones(1, 1)).item()
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("function", [bayesncl.rep_relu, lambda z: bayesncl.open_gates(z, "ste")])
def test_nothing_is_subtracted_from_itself(function: Callable[[Tensor], Tensor]) -> None:
    """Compiled for a GPU, x - x may be the rounding error of x (see `straight_through`)."""
    z = torch.cat([Z, torch.full((1, 5), math.inf), torch.full((1, 5), -math.inf)])
    graph = make_fx(function)(z.requires_grad_()).graph
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert called and not [name for name in called if "sub" in name or "add" in name]
    assert function(z).isfinite().logical_or(z == math.inf).all()  # inf - inf would be NaN


@pytest.mark.parametrize(("threshold", "temperature"), [(0.5, 1.0), (0.7, 1.0), (0.3, 2.5)])
def test_straight_through_gate(threshold: float, temperature: float) -> None:
    def gate(x: Tensor) -> Tensor:
        return bayesncl.open_gates(x, "ste", threshold, temperature)

    q = 1 / (1 + np.exp(-Z.numpy() / temperature))
    assert np.array_equal(gate(Z), (q > threshold).astype(float))  # exactly 0 and 1
    expected = WEIGHT.numpy() * q * (1 - q) / temperature
    np.testing.assert_allclose(gradient(gate, Z, WEIGHT), expected, atol=1e-14)
    assert bayesncl.open_gates(torch.zeros(1, 3), "ste").eq(0).all()  # the threshold is strict


@pytest.mark.parametrize(
    ("kind", "noise", "law"),
    [
        ("gumbel", logistic_noise, lambda x: 1 / (1 + math.exp(-x))),
        ("gumbel-paper", published_noise, lambda x: 1 - math.exp(-math.exp(x))),
    ],
)
def test_gumbel_gates(
    kind: str, noise: Callable[[Tensor], Tensor], law: Callable[[float], float]
) -> None:
    """The share of open gates follows the law of the noise; the gradient is straight-through."""
    logits = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).repeat(50_000, 1)
    mask = bayesncl.open_gates(logits, kind, generator=torch.Generator().manual_seed(3))
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    np.testing.assert_allclose(mask.mean(0), [law(x) for x in (-1, 0, 1)], atol=1e-2)
    u = torch.rand(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    soft = torch.sigmoid((Z + noise(u)) / 0.5)
    found = gradient(lambda x: GATES[kind].mask(x, 0.5, 0.5, u), Z, WEIGHT)
    torch.testing.assert_close(found, WEIGHT * soft * (1 - soft) / 0.5)
    ends = torch.tensor([0.0, 1 - 2**-24], dtype=torch.float32)
    assert noise(ends).isfinite().all()


@pytest.mark.parametrize("prior", [0.001, 0.1, 0.5, 0.8])
def test_bernoulli_kl(prior: float) -> None:
    q = torch.rand(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total, r = 0.0, min(max(prior, 0.01), 0.99)
    for p in q.flatten().clamp(0.01, 0.99).tolist():
        total += p * math.log(p / r) + (1 - p) * math.log((1 - p) / (1 - r))
    assert bayesncl.bernoulli_kl(q, prior).item() == pytest.approx(total / 6, rel=1e-12)
    inner = (0.02 + 0.96 * q).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bayesncl.bernoulli_kl(x, prior), inner)
    ends = torch.tensor([[0.005, 0.5, 0.995]], requires_grad=True)
    (slope,) = torch.autograd.grad(bayesncl.bernoulli_kl(ends, 0.8), ends)
    assert slope.ne(0).tolist() == [[False, True, False]]


def test_top_k_mask() -> None:
    for k in (1, 3, 5):
        least = Z.sort(1).values[:, -k, None]
        assert torch.equal(bayesncl.top_k_mask(Z, k).bool(), least <= Z)
    assert bayesncl.top_k_mask(torch.zeros(4, 6), 2).sum(1).eq(2).all()  # also among ties
    assert not bayesncl.top_k_mask(Z.clone().requires_grad_(), 2).requires_grad
    with pytest.raises(InputError, match="5 dimensions"):
        bayesncl.top_k_mask(Z, 6)
