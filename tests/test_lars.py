"""LARS and its schedule against a loop over tensors that follows the definition word by word."""

import copy
import math

import pytest
import torch

import bayesncl


def slow_lars(p, g, v, lr, momentum, wd, eta, clip):
    if p.ndim != 1 and p.norm() > 0 and g.norm() > 0:
        trust = eta * p.norm() / (g.norm() + wd * p.norm() + 1e-8)
        scale = min((trust / lr).item(), 1.0) if clip else trust
        d = scale * (g + wd * p)
    else:
        d = g
    v = momentum * v + d
    return p - lr * v, v


SHAPES = [(6, 4), (6,), (3, 2, 3, 3), (2, 2), ()]


def make(seed=0):
    generator = torch.Generator().manual_seed(seed)
    params = [torch.nn.Parameter(torch.randn(s, dtype=torch.float64, generator=generator)) for s in SHAPES]
    with torch.no_grad():
        params[3].zero_()  # ||p|| = 0: neither scaled nor decayed
    return params, generator


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("lr", [0.001, 0.4])
def test_ten_steps(clip, lr):
    params, generator = make()
    twin = [p.detach().clone() for p in params]
    momenta = [torch.zeros_like(p) for p in twin]
    optimiser = bayesncl.LARS(params, lr=lr, weight_decay=0.05, clip=clip)
    for step in range(10):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, dtype=torch.float64, generator=generator)
            if i == 0 and step == 4:
                p.grad.zero_()  # ||g|| = 0
        optimiser.step()
        for i, p in enumerate(params):
            twin[i], momenta[i] = slow_lars(twin[i], p.grad, momenta[i], lr, 0.9, 0.05, 0.02, clip)
    for p, expected in zip(params, twin):
        torch.testing.assert_close(p.detach(), expected, rtol=1e-12, atol=1e-14)


def test_clip_bounds_the_rate():
    """With clip and no momentum the step is never longer than lr times the gradient."""
    p = torch.nn.Parameter(torch.full((4, 4), 100.0))
    p.grad = torch.ones(4, 4)
    before = p.detach().clone()
    bayesncl.LARS([p], lr=0.1, momentum=0.0, weight_decay=0.0).step()
    torch.testing.assert_close(before - p.detach(), torch.full((4, 4), 0.1), rtol=1e-4, atol=0)


def test_state_dict_round_trips():
    first, generator = make()
    second, _ = make()
    grads = [[torch.randn(s, dtype=torch.float64, generator=generator) for s in SHAPES] for _ in range(4)]
    a, b = bayesncl.LARS(first, lr=0.2), bayesncl.LARS(second, lr=0.7)
    for step, row in enumerate(grads):
        for p, g in zip(first, row):
            p.grad = g.clone()
        a.step()
        if step == 1:
            with torch.no_grad():
                for p, q in zip(second, first):
                    p.copy_(q)
            b.load_state_dict(copy.deepcopy(a.state_dict()))
        if step > 1:
            for p, g in zip(second, row):
                p.grad = g.clone()
            b.step()
    for p, q in zip(first, second):
        assert torch.equal(p, q)


def test_rate_may_be_a_tensor_and_groups_have_their_own():
    params, _ = make()
    for p in params:
        p.grad = torch.ones_like(p)
    rates = [torch.tensor(0.0), torch.tensor(0.5)]
    optimiser = bayesncl.LARS([{"params": params[:1], "lr": rates[0]}, {"params": params[1:2], "lr": rates[1]}], lr=0.0)
    before = [p.detach().clone() for p in params]
    optimiser.step()
    assert torch.equal(params[0], before[0])
    torch.testing.assert_close(params[1].detach(), before[1] - 0.5)
    rates[0].fill_(0.1)
    optimiser.step()
    assert not torch.equal(params[0], before[0])


def test_parameters_without_gradient_stay():
    params, _ = make()
    params[0].grad = torch.ones_like(params[0])
    before = params[1].detach().clone()
    bayesncl.LARS(params, lr=0.1).step()
    assert torch.equal(params[1], before)


def test_learns_a_line():
    torch.manual_seed(0)
    x = torch.randn(64, 3)
    target = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3
    layer = torch.nn.Linear(3, 1)
    optimiser = bayesncl.LARS(layer.parameters(), lr=0.1, weight_decay=0.0)
    first = None
    for _ in range(300):
        optimiser.zero_grad()
        loss = (layer(x) - target).square().mean()
        first = first if first is not None else loss.item()
        loss.backward()
        optimiser.step()
    assert loss.item() < 1e-3 * first


def test_schedule():
    base, warmup, total = 0.4, 10, 40
    rates = [bayesncl.warmup_cosine(t, base, warmup, total) for t in range(total)]
    assert rates[0] == 3e-5
    assert rates[4] == pytest.approx(3e-5 + 4 * (base - 3e-5) / 9)
    assert rates[9] == pytest.approx(base)
    assert rates[10] == base
    assert rates[25] == pytest.approx(base * (1 + math.cos(math.pi * 15 / 30)) / 2)
    assert bayesncl.warmup_cosine(total, base, warmup, total) == pytest.approx(0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_schedule_without_warmup_and_shorter_than_it():
    assert bayesncl.warmup_cosine(0, 0.4, 0, 10) == 0.4
    assert bayesncl.warmup_cosine(0, 0.4, 1, 10) == 3e-5
    assert bayesncl.warmup_cosine(3, 0.4, 20, 10) < 0.4
