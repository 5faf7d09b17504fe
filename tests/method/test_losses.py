"""InfoNCE, dense and in blocks, and the inverse-prevalence similarity, against loops in float64."""

import math

import pytest
import torch

import bayesncl
from bayesncl.errors import InputError
from bayesncl.method.losses import unit_rows


def slow_info_nce(z, tau, decoupled=False):
    """-mean log(pos / (pos + neg)), or log(pos / neg), with plain loops."""
    n = len(z)
    total = 0.0
    for i in range(n):
        left_out = (i, (i + n // 2) % n) if decoupled else (i,)
        others = [math.exp(sum(a * b for a, b in zip(z[i], z[j])) / tau) for j in range(n) if j not in left_out]
        positive = math.exp(sum(a * b for a, b in zip(z[i], z[(i + n // 2) % n])) / tau)
        total -= math.log(positive / sum(others))
    return total / n


def features(n=10, d=6, dtype=torch.float64):
    return unit_rows(torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(n))).requires_grad_()


@pytest.mark.parametrize("block", [0, 1, 3, 64])
@pytest.mark.parametrize(("tau", "decoupled"), [(0.2, False), (1.0, True)])
def test_value_and_gradient(block, tau, decoupled):
    z = features()
    loss = bayesncl.info_nce(z, tau, block, decoupled)
    assert loss.item() == pytest.approx(slow_info_nce(z.tolist(), tau, decoupled), rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: bayesncl.info_nce(x, tau, block, decoupled), features())


def test_stable_where_exp_overflows():
    z = features(8, 4, torch.float32)
    loss = bayesncl.info_nce(100 * z, 0.01)
    assert loss.isfinite()
    assert loss.item() == pytest.approx(bayesncl.info_nce((100 * z).double(), 0.01).item(), rel=1e-5)


def test_ipw_similarity():
    z, z2 = torch.rand(4, 5, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64)
    prevalence = torch.tensor([0.5, 0.1, 1.0, 0.0, 0.25], dtype=torch.float64)
    got = bayesncl.ipw_similarity(z, z2, prevalence)
    for i in range(4):
        for j in range(3):
            expected = sum(z[i, k] * z2[j, k] / prevalence[k] for k in range(5) if prevalence[k] > 0)
            assert got[i, j].item() == pytest.approx(expected.item(), rel=1e-12)
    with pytest.raises(InputError, match="prevalence"):
        bayesncl.ipw_similarity(z, z2, prevalence[:4])


def test_a_zero_row_sends_no_gradient():
    z = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    (unit_rows(z) * torch.tensor([[1.0, 0.0], [5.0, 7.0]])).sum().backward()
    torch.testing.assert_close(z.grad, torch.tensor([[0.128, -0.096], [0.0, 0.0]]))  # (g - u (g . u)) / |z|
