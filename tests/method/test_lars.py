"""LARS and its schedule against a loop that follows the definition."""

import copy
import math

import pytest
import torch
from torch import Tensor

from bayesncl import LARS, warmup_cosine

SHAPES = [(6, 4), (6,), (3, 2, 3, 3), (2, 2), ()]


def slow_lars(
    p: Tensor, g: Tensor, v: Tensor, lr: float, wd: float, clip: bool
) -> tuple[Tensor, Tensor]:
    d = g
    if p.ndim != 1 and p.norm() > 0 and g.norm() > 0:
        trust = 0.02 * p.norm() / (g.norm() + wd * p.norm() + 1e-8)
        d = (min((trust / lr).item(), 1.0) if clip else trust) * (g + wd * p)
    v = 0.9 * v + d
    return p - lr * v, v


def parameters() -> tuple[list[torch.nn.Parameter], torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(s, dtype=torch.float64, generator=generator) for s in SHAPES]
    tensors[3].zero_()  # ||p|| = 0: neither scaled nor decayed
    return [torch.nn.Parameter(t) for t in tensors], generator


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("lr", [0.001, 0.4])
def test_ten_steps(clip: bool, lr: float) -> None:
    params, generator = parameters()
    twin = [p.detach().clone() for p in params]
    momenta = [torch.zeros_like(p) for p in twin]
    optimizer = LARS(params, lr=lr, weight_decay=0.05, clip=clip)
    for step in range(10):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, dtype=torch.float64, generator=generator)
            if i == 0 and step == 4:
                p.grad.zero_()  # ||g|| = 0
            twin[i], momenta[i] = slow_lars(twin[i], p.grad, momenta[i], lr, 0.05, clip)
        optimizer.step()
    for p, expected in zip(params, twin):
        torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=1e-14)


def test_state_dict_round_trips() -> None:
    (first, generator), (second, _) = parameters(), parameters()
    a, b = LARS(first, lr=0.2), LARS(second, lr=0.7)
    for step in range(4):
        if step == 2:
            b.load_state_dict(copy.deepcopy(a.state_dict()))
        for p, q in zip(first, second):
            p.grad = torch.randn(p.shape, dtype=torch.float64, generator=generator)
            q.grad = p.grad.clone()
            q.data.copy_(p)
        a.step()
        b.step()
    assert all(torch.equal(p, q) for p, q in zip(first, second))


def test_rates_are_per_group_and_may_be_tensors() -> None:
    params, _ = parameters()
    for p in params[:2]:
        p.grad = torch.ones_like(p)
    rates = [torch.tensor(0.0), torch.tensor(0.5)]
    groups = [{"params": [p], "lr": rate} for p, rate in zip(params, [*rates, 1.0])]
    optimizer = LARS(groups, lr=0.0)
    before = [p.detach().clone() for p in params]
    optimizer.step()
    assert torch.equal(params[0], before[0])
    torch.testing.assert_close(params[1].detach(), before[1] - 0.5)
    assert torch.equal(params[2], before[2])  # no gradient
    rates[0].fill_(0.1)
    optimizer.step()
    assert not torch.equal(params[0], before[0])


def test_schedule() -> None:
    base, warmup, total = 0.4, 10, 40
    rates = [warmup_cosine(t, base, warmup, total) for t in range(total + 1)]
    assert (rates[0], rates[10]) == (3e-5, base)
    assert rates[4] == pytest.approx(3e-5 + 4 * (base - 3e-5) / 9)
    assert rates[9] == pytest.approx(base)
    assert rates[25] == pytest.approx(base * (1 + math.cos(math.pi * 15 / 30)) / 2)
    assert rates[40] == pytest.approx(0)
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert (warmup_cosine(0, 0.4, 0, 10), warmup_cosine(0, 0.4, 1, 10)) == (0.4, 3e-5)
    assert warmup_cosine(3, 0.4, 20, 10) < 0.4  # shorter than the warm-up
