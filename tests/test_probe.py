"""Linear probes against slow twins: scikit-learn's logistic regression, and a loop over the published steps."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from bayesncl import paper_probe as published
from bayesncl.augment import make_views
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.measure import probe
from bayesncl.recipes import Views


def blobs(n: int, seed: int, classes: int = 7, width: int = 12, noise: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    y = rng.integers(0, classes, n)
    scale = np.linspace(0.01, 30, width)  # standardisation has work to do
    return ((centres[y] + noise * rng.normal(size=(n, width))) * scale + 5).astype(np.float32), y


def test_fit_is_the_minimum_scikit_learn_finds() -> None:
    x, y = blobs(400, 0)
    x = (x - x.mean(0)) / x.std(0)
    for penalty in (1e-1, 1e-2, 1e-3):
        weight = probe.fit(torch.from_numpy(x), torch.from_numpy(y), torch.zeros(13, 7), penalty, steps=300).numpy()
        twin = LogisticRegression(C=1 / (penalty * len(x)), tol=1e-8, max_iter=5000).fit(x, y)
        np.testing.assert_allclose(weight[:-1] - weight[:-1].mean(1, keepdims=True), twin.coef_.T, atol=2e-2)
        np.testing.assert_allclose(weight[-1] - weight[-1].mean(), twin.intercept_ - twin.intercept_.mean(), atol=2e-2)


def two_loops(pairs: list[tuple[np.ndarray, np.ndarray]], g: np.ndarray) -> np.ndarray:
    """-H g of L-BFGS as textbooks write it, on the vectors themselves."""
    d, a = -g, {}
    for i, (s, y) in reversed(list(enumerate(pairs))):
        a[i] = s @ d / (s @ y)
        d = d - a[i] * y
    if pairs:
        s, y = pairs[-1]
        d = d * (s @ y) / (y @ y)
    for i, (s, y) in enumerate(pairs):
        d = d + (a[i] - y @ d / (s @ y)) * s
    return d


@pytest.mark.parametrize("m", [0, 1, 4])
def test_a_direction_from_products_is_that_of_two_loops(m: int) -> None:
    rng = np.random.default_rng(m)
    root = rng.normal(size=(9, 9))
    steps = rng.normal(size=(m, 9))
    pairs, g = [(s, root @ root.T @ s) for s in steps], rng.normal(size=9)
    basis = np.array([*(s for s, _ in pairs), *(y for _, y in pairs), g])
    np.testing.assert_allclose(probe.combine(basis @ basis.T) @ basis, two_loops(pairs, g), rtol=1e-8)


def test_minimise_goes_down_a_bent_valley() -> None:
    """Rosenbrock's function: full steps overshoot, first steps fall short, the minimum is (1, 1)."""
    calls = []

    def valley(x: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(x)
        a, b = x
        along, across = 1 - a, b - a * a
        return along**2 + 100 * across**2, torch.stack([-2 * along - 400 * a * across, 200 * across])

    found = probe.minimise(valley, torch.tensor([-1.2, 1.0]).double(), 200)
    torch.testing.assert_close(found, torch.ones(2).double(), atol=1e-3, rtol=0)
    assert len(calls) < 100
    with torch.no_grad():
        values = [float(valley(probe.minimise(valley, torch.tensor([-1.2, 1.0]), n))[0]) for n in range(12)]
    assert values == sorted(values, reverse=True)  # no step goes up


@pytest.mark.parametrize("curvature", [1e-8, 1e-4, 1.0, 1e4])
def test_minimise_finds_the_length_of_a_first_step(curvature: float) -> None:
    """The bottom of a bowl that may be far wider or narrower than the first step, which knows the gradient alone."""
    centre = torch.linspace(-3, 3, 40).double()

    def bowl(x: Tensor) -> tuple[Tensor, Tensor]:
        g = 1e3 * (x - centre / curvature) * curvature
        return (g * (x - centre / curvature)).sum() / 2, g

    found = probe.minimise(bowl, torch.zeros(40).double(), 60)
    torch.testing.assert_close(found * curvature, centre, atol=1e-3, rtol=1e-3)
    once = probe.minimise(bowl, torch.zeros(40).double(), 1) * curvature / centre
    assert once.min() >= 0.1 and once.max() < 2  # the slope has changed, and the value has fallen


def test_a_probe_waits_for_no_compiler() -> None:
    """torch's optimisers import it, and with it sympy, which takes longer than many a fit."""
    code = (
        "import sys, torch; from bayesncl.measure import probe; before = set(sys.modules);"
        "probe.fit(torch.eye(6), torch.arange(6), torch.zeros(7, 6), 0.1);"
        "print({'sympy', 'torch._dynamo'} & (set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_fit_in_blocks_is_the_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (torch.from_numpy(a) for a in blobs(300, 1))
    x = (x - x.mean(0)) / x.std(0)
    whole = probe.fit(x, y, torch.zeros(13, 7), 1e-2)
    monkeypatch.setitem(probe.ROWS, "cpu", 37)
    torch.testing.assert_close(probe.fit(x, y, torch.zeros(13, 7), 1e-2), whole, atol=1e-3, rtol=0)


def test_fast_probe_against_a_slow_twin() -> None:
    (x, y), (x_test, y_test) = blobs(500, 2), blobs(300, 3)
    found = probe.fast_probe(x, y, x_test, y_test, seeds=(0, 5), device="cpu")
    mean, std = x.astype(float).mean(0), x.astype(float).std(0)
    a, b = (x - mean) / std, (x_test - mean) / std
    for i, seed in enumerate((0, 5)):
        order = np.random.default_rng(seed).permutation(500)
        out, rest = order[:100], order[100:]
        scores = {}
        for penalty in probe.PENALTIES:
            twin = LogisticRegression(C=1 / (penalty * 400), tol=1e-6, max_iter=5000).fit(a[rest], y[rest])
            scores[penalty] = 100 * twin.score(a[out], y[out])
        # fits that stop at slightly different points may swap penalties of nearly equal merit
        assert found["validation_acc1"][i] == pytest.approx(max(scores.values()), abs=2.0)
        assert scores[found["penalty"][i]] >= max(scores.values()) - 2.0
        twin = LogisticRegression(C=1 / (found["penalty"][i] * 500), tol=1e-6, max_iter=5000).fit(a, y)
        ranked = np.argsort(-twin.decision_function(b), axis=1)
        assert found["acc1_per_seed"][i] == pytest.approx(100 * (ranked[:, 0] == y_test).mean(), abs=0.7)
        top5 = 100 * np.mean([t in r for t, r in zip(y_test, ranked[:, :5])])
        assert found["acc5_per_seed"][i] == pytest.approx(top5, abs=0.7)
    assert found["acc1"] == pytest.approx(np.mean(found["acc1_per_seed"]))
    assert found["acc1_spread"] == pytest.approx(np.std(found["acc1_per_seed"], ddof=1))
    assert 20 < found["acc1"] < 95, "the problem must be neither trivial nor hopeless"
    assert found == probe.fast_probe(x, y, x_test, y_test, seeds=(0, 5), device="cpu")


def test_penalty_follows_the_noise() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 60))
    clean = (x[:, :3].sum(1) > 0).astype(int)
    noisy = np.where(rng.random(400) < 0.4, 1 - clean, clean)
    penalty = {
        name: probe.rank_classes(x, y, x[:5], seeds=(0,), device="cpu")[0].penalty
        for name, y in (("clean", clean), ("noisy", noisy))
    }
    assert penalty["clean"] < penalty["noisy"]


def test_chance_is_the_mean_over_shuffled_labels() -> None:
    rng = np.random.default_rng(4)
    truth = rng.choice(5, 200, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    top = np.stack([rng.permutation(5)[:3] for _ in truth])
    shuffled = [100 * (top == rng.permutation(truth)[:, None]).any(1).mean() for _ in range(2000)]
    assert probe.chance(top, truth) == pytest.approx(np.mean(shuffled), abs=0.3)


def test_labels_need_not_be_consecutive_and_unknown_ones_are_wrong() -> None:
    x, y = blobs(200, 5, classes=3, noise=0.1)
    names = np.array([-3, 40, 7])
    found = probe.fast_probe(x, names[y], x, names[y], seeds=(0,), device="cpu")
    assert found["acc1"] == 100
    assert found["acc5"] == 100
    unknown = probe.fast_probe(x, names[y], x, np.full(200, 11), seeds=(0,), device="cpu")
    assert unknown["acc1"] == 0
    assert unknown["acc1_chance"] == 0


def test_constant_feature_is_harmless() -> None:
    x, y = blobs(200, 6, classes=3, noise=0.1)
    x[:, 0] = 2.5
    assert probe.fast_probe(x, y, x, y, seeds=(0,), device="cpu")["acc1"] == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_h": np.full((20, 3), np.nan)}, "NaN"),
        ({"train_y": np.zeros(20, int)}, "one class only"),
        ({"train_y": np.zeros(19, int)}, "19 labels for 20 rows"),
        ({"test_h": np.zeros((20, 4))}, "3 dimensions, test features 4"),
        ({"test_h": np.zeros((0, 3)), "test_y": np.zeros(0, int)}, "empty"),
        ({"train_y": np.linspace(0, 1, 20)}, "whole numbers"),
        ({"test_y": np.zeros(19, int)}, r"\[20\], one per image, got \[19\]"),
        ({"train_h": np.eye(4, 3), "train_y": np.arange(4) % 2}, "at least 5 training images, got 4"),
        ({"seeds": ()}, "one seed"),
    ],
)
def test_bad_input_gets_one_clear_line(change: dict, message: str) -> None:
    good = {
        "train_h": np.eye(20, 3),
        "train_y": np.arange(20) % 2,
        "test_h": np.eye(20, 3),
        "test_y": np.arange(20) % 2,
    }
    with pytest.raises(InputError, match=message):
        probe.fast_probe(**(good | change))


@pytest.mark.gpu
def test_gpu_and_cpu_agree() -> None:
    (x, y), (x_test, y_test) = blobs(500, 2), blobs(300, 3)
    found = {d: probe.fast_probe(x, y, x_test, y_test, seeds=(0, 5), device=d) for d in ("cpu", "cuda")}
    assert found["cuda"]["acc1"] == pytest.approx(found["cpu"]["acc1"], abs=2.0)
    assert found["cuda"] == probe.fast_probe(x, y, x_test, y_test, seeds=(0, 5), device="cuda")
    train, net, halves = coloured(64, 2), Backbone().cuda(), ((0.5,) * 3, (0.25,) * 3)
    assert published.paper_probe(net, train, train, *halves, epochs=12, batch=32, device="cuda")["acc1"] > 45
    for variant in ("cifar", "imagenet"):
        same = {
            d: published.paper_probe(
                net.to(d), train, train, *halves, variant, epochs=4, batch=32, device=d, precision="float32"
            )["acc1"]
            for d in ("cpu", "cuda")
        }
        assert same["cuda"] == pytest.approx(same["cpu"], abs=3.2)  # two of the 64 images


class Backbone(nn.Module):
    """A few random filters with BatchNorm and dropout, so that the mode matters."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 10, 3, stride=2)
        self.norm, self.drop = nn.BatchNorm2d(10), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(self.conv(x)).relu()).mean((2, 3))


def coloured(n: int, seed: int) -> Images:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    pixels = rng.integers(0, 120, (n, 3, 12, 12))
    pixels[np.arange(n), labels] += 60
    return Images(pixels.astype(np.uint8), labels + 4)


def slow_paper_probe(
    net: Backbone, train: Images, test: Images, variant: str, epochs: int, batch: int, seed: int
) -> float:
    """One classifier in plain numpy, step by step from the protocol."""
    net.eval()
    size, classes = 12, np.unique(train.labels)
    interpolation = "bilinear" if variant == "cifar" else "bicubic"
    views = Views(size=size, interpolation=interpolation, jitter=0, greyscale=0, blur=0)
    head = published._head(10, len(classes), seed)
    params = [head.weight.detach().numpy().astype(float), head.bias.detach().numpy().astype(float)]
    v = [np.zeros_like(p) for p in params]
    steps, t = len(train) // batch, 0
    base = (0.4 if variant == "cifar" else 1.0) * batch / 256
    for epoch in range(epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(train))
        for s in range(steps):
            rows = order[s * batch : (s + 1) * batch]
            x = make_views(torch.from_numpy(train.pixels[rows]), torch.from_numpy(rows), epoch, seed, views)[:batch]
            with torch.no_grad():
                h = net((x - 0.5) / 0.25).double().numpy()
            logits = h @ params[0].T + params[1]
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(batch), np.searchsorted(classes, train.labels[rows])] -= 1
            grads = [p.T @ h / batch, p.sum(0) / batch]
            lr, warm = base, min(10, epochs - 1) * steps
            if variant == "cifar":
                if t < warm:
                    lr = 3e-5 + t * (base - 3e-5) / (warm - 1)
                else:
                    lr = base * (1 + math.cos(math.pi * (t - warm) / (epochs * steps - warm))) / 2
                w, g = np.linalg.norm(params[0]), np.linalg.norm(grads[0])
                trust = 0.02 * w / (g + 1e-4 * w + 1e-8)
                grads[0] = min(trust / lr, 1) * (grads[0] + 1e-4 * params[0])
            for i in range(2):
                v[i] = 0.9 * v[i] + grads[i]
                params[i] = params[i] - lr * v[i]
            t += 1
    with torch.no_grad():
        h = net((torch.from_numpy(test.pixels) / 255 - 0.5) / 0.25).double().numpy()
    predicted = classes[np.argmax(h @ params[0].T + params[1], axis=1)]
    return 100 * float((predicted == test.labels).mean())


@pytest.mark.parametrize("variant", ["cifar", "imagenet"])
def test_paper_probe_follows_the_published_steps(variant: str) -> None:
    train, test = coloured(70, 0), coloured(40, 1)
    net, halves = Backbone(), ((0.5,) * 3, (0.25,) * 3)
    how = {"variant": variant, "epochs": 12, "batch": 16, "seeds": (3,), "device": "cpu"}
    found = published.paper_probe(net, train, test, *halves, **how)
    assert found["acc1"] == pytest.approx(slow_paper_probe(net, train, test, variant, 12, 16, 3), abs=1e-6)
    assert found["acc1"] > 45
    assert found["acc5"] == 100
    assert found["acc1_best"] >= found["acc1"]
    assert found["lr"] == pytest.approx((0.4 if variant == "cifar" else 1.0) / 16)


def test_seeds_that_share_the_backbone_do_not_touch_each_other() -> None:
    train, test = coloured(64, 2), coloured(50, 3)
    net, halves = Backbone(), ((0.5,) * 3, (0.25,) * 3)
    together = published.paper_probe(net, train, test, *halves, epochs=3, batch=32, seeds=(3, 8, 9), device="cpu")
    alone = published.paper_probe(net, train, test, *halves, epochs=3, batch=32, seeds=(3,), device="cpu")
    assert together["acc1_per_seed"][0] == alone["acc1"]
    assert len(set(together["acc1_per_seed"])) > 1, "different initial weights"


def test_paper_probe_leaves_the_backbone_as_it_was() -> None:
    net = Backbone().train()
    net.conv.eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    done: list[tuple[int, int, str]] = []
    train = coloured(64, 4)
    published.paper_probe(
        net, train, train, (0.5,) * 3, (0.25,) * 3, epochs=2, batch=32, device="cpu", progress=lambda *a: done.append(a)
    )
    assert net.training
    assert not net.conv.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert [d[:2] for d in done] == [(1, 2), (2, 2)]


@pytest.mark.parametrize(("variant", "interpolation"), [("cifar", "bilinear"), ("imagenet", "bicubic")])
def test_the_backbone_sees_crops_in_training_and_the_centre_in_testing(variant: str, interpolation: str) -> None:
    seen: list[Tensor] = []

    def spy(x: Tensor) -> Tensor:
        seen.append(x)
        return x.mean((2, 3))

    images = coloured(32, 5)
    published.paper_probe(
        spy, images, images, (0.0,) * 3, (1.0,) * 3, variant, epochs=1, batch=32, seeds=(3,), size=8, device="cpu"
    )
    torch.testing.assert_close(seen[0], torch.from_numpy(images.pixels[:, :, 2:10, 2:10]) / 255)
    rows = np.random.default_rng((3, 0)).permutation(32)
    views = Views(size=8, interpolation=interpolation, jitter=0, greyscale=0, blur=0)
    expected = make_views(torch.from_numpy(images.pixels[rows]), torch.from_numpy(rows), 0, 3, views)[:32]
    torch.testing.assert_close(seen[1], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "mnist"}, "cifar or imagenet, got 'mnist'"),
        ({"batch": 33}, "batches of 33 needs at least as many training images, got 32"),
        ({"train": Images(np.zeros((32, 3, 12, 12), np.uint8))}, "train split has none"),
    ],
)
def test_paper_probe_refuses_bad_input(change: dict, message: str) -> None:
    images = coloured(32, 6)
    good = {"backbone": Backbone(), "train": images, "test": images, "mean": (0.5,) * 3, "std": (1.0,) * 3, "batch": 16}
    with pytest.raises(InputError, match=message):
        published.paper_probe(**(good | change))
