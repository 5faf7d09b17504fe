"""The encoder against a re-implementation with loops, its gradients, encode(), and weights as files."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import bayesncl
from bayesncl.errors import InputError
from bayesncl.files import digest
from bayesncl.gates import RECTIFIERS, bernoulli_kl, gate_probability
from bayesncl.heads import Features
from bayesncl.model import Encoder, build_model, load, model_bytes
from bayesncl.objective import info_nce
from bayesncl.recipes import METHODS, Recipe, named
from tests.conftest import tiny_images, tiny_recipe

N, FEATURES, D = 6, 5, 12


class Flat(nn.Module):
    """A backbone that can be differentiated by eye."""

    features = FEATURES

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(48, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x.flatten(1)))


def flat_model(recipe: Recipe) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Encoder(recipe, Flat()).double()


def pixels(seed: int = 0) -> Tensor:
    return torch.randn(N, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense(x: list[float], layer: nn.Linear) -> list[float]:
    """W x + b, entry by entry."""
    return [sum(w * v for w, v in zip(row, x)) + b for row, b in zip(layer.weight.tolist(), layer.bias.tolist())]


def perceptron(x: list[float], layers: nn.Sequential) -> list[float]:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linear[:-1]:
        x = [max(v, 0.0) for v in dense(x, layer)]
    return dense(x, linear[-1])


def unit(x: list[float]) -> list[float]:
    length = math.sqrt(sum(v * v for v in x))
    return [v / max(length, 1e-12) for v in x]


def by_hand(model: Encoder, x: Tensor, uniform: Tensor | None) -> dict[str, list[list[float]]]:
    """The published order: rectify, top-k, normalise; gate; mask; normalise again. Values only, image by image."""
    m, g = model.recipe.model, model.recipe.gate
    out: dict[str, list[list[float]]] = {"h": [], "z": [], "mask": [], "gated": []}
    for i, image in enumerate(x):
        h = [max(v, 0.0) for v in dense(image.flatten().tolist(), model.backbone.layer)]
        z = perceptron(h, model.projector)
        if m.layer_norm:
            mean = sum(z) / D
            deviation = math.sqrt(sum((v - mean) ** 2 for v in z) / D + 1e-5)
            z = [(v - mean) / deviation for v in z]
        activation = {
            "none": lambda v: v,
            "relu": lambda v: max(v, 0.0),
            "rep_relu": lambda v: max(v, 0.0),
            "gelu": lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2,
            "softplus": lambda v: math.log1p(math.exp(v)),
            "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
            "exp": math.exp,
        }[m.rectifier]
        z = [activation(v) for v in z]
        if m.top_k:
            kept = sorted(range(D), key=lambda k: -z[k])[: m.top_k]
            z = [v if k in kept else 0.0 for k, v in enumerate(z)]
        z = unit(z)
        gated = z
        if model.gate is not None:
            logits = perceptron(h, model.gate)
            if uniform is not None and model.training:
                u = uniform[i].tolist()
                noise = {
                    "gumbel": lambda v: math.log(v) - math.log(1 - v),
                    "gumbel-paper": lambda v: -math.log(-math.log(v + 1e-4) + 1e-4),
                }[g.kind]
                logits = [a + noise(v) for a, v in zip(logits, u)]
            q = [1 / (1 + math.exp(-a / g.temperature)) for a in logits]
            mask = q if g.kind == "soft" else [float(v > g.threshold) for v in q]
            gated = unit([a * b for a, b in zip(z, mask)])
            out["mask"].append(mask)
        out["h"].append(h)
        out["z"].append(z)
        out["gated"].append(gated)
    return out


CASES = [
    *[(method, ()) for method in METHODS if method != "ncl-topk"],
    *[("bayesncl", (f"model.rectifier={name}",)) for name in RECTIFIERS],
    ("ncl-topk", ("model.top_k=3",)),
    ("bayesncl", ("model.top_k=4", "model.rectifier=softplus")),
    ("bayesncl", ("model.layer_norm=true",)),
    ("cl", ("model.layer_norm=true", "model.top_k=2")),
    ("bayesncl", ("gate.depth=1",)),
    ("bayesncl", ("gate.depth=3", "gate.hidden=10")),
    ("bayesncl", ("gate.threshold=0.52", "gate.temperature=0.5")),
    ("bayesncl-soft", ("gate.temperature=2",)),
    ("bayesncl", ("gate.kind=gumbel",)),
]


@pytest.mark.parametrize(("method", "changes"), CASES)
@pytest.mark.parametrize("training", [True, False])
def test_forward_is_the_order_of_operations(method: str, changes: tuple[str, ...], training: bool) -> None:
    model = flat_model(tiny_recipe(method, "model.hidden=7", *changes)).train(training)
    noisy = model.recipe.gate.kind.startswith("gumbel")
    uniform = torch.rand(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) if noisy else None
    found = model(pixels(), uniform)
    wanted = by_hand(model, pixels(), uniform)
    for name in ("h", "z", "gated"):
        torch.testing.assert_close(getattr(found, name), torch.tensor(wanted[name]).double(), atol=1e-7, rtol=1e-6)
    if model.gate is None:
        assert found.mask is None
        assert found.logits is None
        assert found.gated is found.z
    else:
        torch.testing.assert_close(found.mask, torch.tensor(wanted["mask"]).double(), atol=1e-6, rtol=0)
        if model.recipe.gate.kind != "soft":  # some open, some closed: the case says something
            assert 0 < found.mask.mean() < 1
            assert set(found.mask.unique().tolist()) == {0.0, 1.0}


def loss_of(found: Features, weight: float = 0.3) -> Tensor:
    loss = info_nce(found.gated)
    if found.logits is not None:
        loss = loss + weight * bernoulli_kl(gate_probability(found.logits), 0.8)
    return loss


def plain_loss(model: Encoder, x: Tensor, weight: float = 0.3) -> Tensor:
    """The same loss written out with torch's own operations, the straight-through gate as value and gradient apart."""
    h = model.backbone(x)
    raw = model.projector(h)
    z = raw.relu().detach() + nn.functional.gelu(raw) - nn.functional.gelu(raw).detach()
    z = z / z.norm(dim=1, keepdim=True)
    seen = h.detach() if model.recipe.gate.detach else h
    q = 1 / (1 + torch.exp(-model.gate(seen)))
    mask = q if model.recipe.gate.kind == "soft" else (q > 0.5).double() + q - q.detach()
    z = z * mask
    z = z / z.norm(dim=1, keepdim=True)
    half, loss = N // 2, torch.zeros((), dtype=torch.float64)
    for i in range(N):
        terms = [torch.exp(z[i] @ z[j] / 0.2) for j in range(N) if j != i]
        positive = torch.exp(z[i] @ z[(i + half) % N] / 0.2)
        loss = loss - torch.log(positive / sum(terms)) / N
    p = q.clamp(0.01, 0.99)
    kl = p * torch.log(p / 0.8) + (1 - p) * torch.log((1 - p) / 0.2)
    return loss + weight * kl.sum() / N


@pytest.mark.parametrize("method", ["bayesncl", "bayesncl-soft", "bayesncl-nodetach"])
def test_gradients(method: str) -> None:
    model = flat_model(tiny_recipe(method, "model.hidden=7"))
    names, weights = zip(*model.named_parameters())
    found = torch.autograd.grad(loss_of(model(pixels())), weights)
    wanted = torch.autograd.grad(plain_loss(model, pixels()), weights)
    for name, a, b in zip(names, found, wanted):
        assert b.abs().max() > 0, name
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8, msg=name)


@pytest.mark.parametrize(
    ("method", "reaches"), [("bayesncl", False), ("bayesncl-soft", False), ("bayesncl-nodetach", True)]
)
def test_the_gate_sees_h_without_sending_gradients_back(method: str, reaches: bool) -> None:
    model = flat_model(tiny_recipe(method))
    found = model(pixels())
    assert found.logits is not None
    assert found.mask is not None
    for scalar in (bernoulli_kl(gate_probability(found.logits), 0.8), (found.z.detach() * found.mask).square().sum()):
        model.zero_grad()
        scalar.backward(retain_graph=True)
        touched = {
            name.removeprefix("head.").partition(".")[0]
            for name, p in model.named_parameters()
            if p.grad is not None and p.grad.abs().max() > 0
        }
        assert touched == ({"gate", "backbone"} if reaches else {"gate"})


def test_a_closed_gate_blocks_the_gradient_of_its_dimension() -> None:
    model = flat_model(tiny_recipe("bayesncl", "model.rectifier=softplus"))
    with torch.no_grad():
        model.gate[-1].weight.zero_()
        model.gate[-1].bias.copy_(torch.tensor([-1.0] * 3 + [1.0] * (D - 3)))
    found = model(pixels())
    last = model.projector[-1].weight
    (gradient,) = torch.autograd.grad(info_nce(found.gated), last)
    assert (found.gated[:, :3] == 0).all()
    assert gradient[:3].abs().max() < 1e-12  # only rounding: normalisation is scale-free
    assert gradient[3:].abs().max() > 1e-6


@pytest.mark.parametrize("kind", ["gumbel", "gumbel-paper"])
def test_noise_in_training_only(kind: str) -> None:
    model = flat_model(tiny_recipe("bayesncl", f"gate.kind={kind}"))
    a, b = (torch.rand(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    assert not torch.equal(model.train()(pixels(), a).mask, model(pixels(), b).mask)
    hard = (model.eval()(pixels()).logits > 0).double()
    assert torch.equal(model(pixels(), a).mask, hard)
    assert torch.equal(model(pixels()).mask, hard)


@pytest.mark.parametrize(
    ("changes", "gate"),
    [
        (("gate.depth=1",), [(256, 12)]),
        (("gate.depth=2",), [(256, 24), (24, 12)]),
        (("gate.depth=3",), [(256, 24), (24, 12), (12, 12)]),
        (("gate.depth=3", "gate.hidden=9"), [(256, 9), (9, 4), (4, 12)]),
        (("gate.depth=3", "gate.hidden=1"), [(256, 1), (1, 1), (1, 12)]),
    ],
)
def test_widths_of_the_heads(changes: tuple[str, ...], gate: list[tuple[int, int]]) -> None:
    model = build_model(tiny_recipe("bayesncl", *changes))

    def shapes(head: nn.Sequential) -> list[tuple[int, int]]:
        kinds = [type(layer) for layer in head]
        assert kinds == [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]
        return [(layer.in_features, layer.out_features) for layer in head if isinstance(layer, nn.Linear)]

    assert shapes(model.gate) == gate
    assert shapes(model.projector) == [(256, 24), (24, 12)]


@pytest.mark.parametrize("method", ["cl", "ncl", "ncl-topk"])
def test_methods_without_gate_have_no_gating_head(method: str) -> None:
    assert build_model(tiny_recipe(method, "model.top_k=3")).gate is None


def test_paper_size() -> None:
    model = build_model(named("cifar100"))
    assert [tuple(p.shape) for p in model.projector.parameters()] == [(2048, 512), (2048,), (256, 2048), (256,)]
    assert [p.shape for p in model.gate.parameters()] == [p.shape for p in model.projector.parameters()]
    assert model.backbone.stem[0].padding == (2, 2)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = build_model(tiny_recipe()).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    for name, tensor in build_model(tiny_recipe()).state_dict().items():
        assert torch.equal(tensor, first[name]), name
    other = build_model(tiny_recipe("bayesncl", "run.seed=1")).state_dict()
    assert all(not torch.equal(first[n], other[n]) for n in first if n.endswith("weight") and first[n].ndim > 1)


def test_top_k_must_fit() -> None:
    with pytest.raises(InputError, match=r"top_k = 13 is more than model.dim = 12"):
        build_model(tiny_recipe("ncl-topk", "model.top_k=13"))


# files


@pytest.mark.parametrize("method", METHODS)
def test_weights_come_back(method: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(method, *(["model.top_k=4"] if method == "ncl-topk" else []))
    model = build_model(recipe)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)  # not what a fresh model has
    (tmp_path / "model.safetensors").write_bytes(model_bytes(model))
    raw = tiny_images(4).pixels
    for path in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        again = bayesncl.load(path)
        assert not again.training
        assert again.recipe == recipe
        assert all(torch.equal(t, model.state_dict()[n]) for n, t in again.state_dict().items())
        assert torch.equal(again.encode(raw), model.encode(raw))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(model_bytes(build_model(tiny_recipe())))
    return path


def test_every_damage_is_noticed(saved: Path, tmp_path: Path) -> None:
    good = saved.read_bytes()
    rng = np.random.default_rng(0)
    broken = tmp_path / "broken.safetensors"
    cuts = [good[:n] for n in (0, 1, 7, 8, 100, len(good) // 2, len(good) - 1)] + [good + b"\0", b"\xff" * 8 + good[8:]]
    for place in rng.integers(0, len(good), 60):
        flipped = bytearray(good)
        flipped[place] ^= 1 << int(rng.integers(8))
        cuts.append(bytes(flipped))
    for data in cuts:
        broken.write_bytes(data)
        try:
            model = load(broken)
        except InputError as error:
            assert "broken.safetensors" in str(error)
        else:  # a bit of the recipe's text or of the order of the header: the weights are whole
            assert digest(model.state_dict()) == digest(load(saved).state_dict())


def strangers(saved: Path) -> dict[str, bytes]:
    tensors = safetensors.torch.load(saved.read_bytes())
    recipe = tiny_recipe()

    def file(tensors: dict[str, Tensor], recipe: object, **extra: str) -> bytes:
        metadata = {
            "recipe": recipe if isinstance(recipe, str) else json.dumps(recipe),
            "sha256": digest(tensors),
            **extra,
        }
        return safetensors.torch.save(tensors, metadata)

    fewer = {name: t for name, t in tensors.items() if not name.startswith("gate")}
    tree = recipe.to_dict()
    return {
        "pickle": pickle.dumps({"weights": [1, 2]}),
        "no recipe": safetensors.torch.save(tensors),
        "no checksum": safetensors.torch.save(tensors, {"recipe": json.dumps(tree)}),
        "wrong checksum": file(tensors, tree, sha256="0" * 64),
        "recipe is no JSON": file(tensors, "{"),
        "recipe of nothing": file(tensors, "[]"),
        "unknown field": file(tensors, {**tree, "model": {"wings": 2}}),
        "missing tensors": file(fewer, tree),
        "foreign tensors": file({"a": torch.zeros(2)}, tree),
        "no tensors": file({}, tree),
        "other shapes": file(tensors, {**tree, "model": {**tree["model"], "dim": 13}}),
        "huge shapes": file(tensors, {**tree, "model": {**tree["model"], "dim": 2**20, "hidden": 2**20}}),
        "no such backbone": file(tensors, {**tree, "model": {**tree["model"], "backbone": "resnet19"}}),
    }


def test_strangers_files_are_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name, data in strangers(saved).items():
        saved.write_bytes(data)
        with monkeypatch.context() as patch:
            for function in ("load", "loads", "Unpickler"):
                patch.setattr(pickle, function, forbidden)
            patch.setattr(torch, "load", forbidden)
            with pytest.raises(InputError) as caught:
                load(saved)
        assert str(saved) in str(caught.value) or "backbone" in str(caught.value), name
        assert "\n" not in str(caught.value), name


def test_nothing_to_load(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trained model at"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match="no trained model at"):
        load(tmp_path)
    np.save(tmp_path / "z.npy", np.zeros((4, 2)))
    with pytest.raises(InputError, match="is an array, expected a run or codes"):
        load(tmp_path / "z.npy")
    (tmp_path / "recipe.json").write_text(tiny_recipe().to_json())
    with pytest.raises(InputError, match="is not finished: bayesncl resume"):
        load(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -3e38])
def test_absurd_weights_are_refused_where_they_are_loaded(tmp_path: Path, value: float) -> None:
    """Under a valid checksum; embed, evaluate and atlas all load here."""
    path = tmp_path / "model.safetensors"
    model = build_model(tiny_recipe())
    with torch.no_grad():
        model.head.gate[0].weight[1, 2] = value
    path.write_bytes(model_bytes(model))
    with pytest.raises(InputError, match=r"cannot be used: gate\.0\.weight holds NaN, infinity or a number above"):
        load(path)
    model = build_model(tiny_recipe())
    model.backbone.layers[1].running_var.fill_(-1)
    path.write_bytes(model_bytes(model))
    with pytest.raises(InputError, match=r"running_var holds a negative variance"):
        load(path)


def test_files_name_the_tensors_of_the_head_as_ever(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(model_bytes(build_model(tiny_recipe())))
    names = safetensors.torch.load_file(tmp_path / "model.safetensors").keys()
    layers = [f"{part}.{layer}" for part in ("projector", "gate") for layer in (0, 2)]
    heads = {f"{layer}.{what}" for layer in layers for what in ("weight", "bias")}
    assert {name for name in names if not name.startswith("backbone.")} == heads


def test_the_api_is_listed_once_and_works() -> None:
    listed = [name for name in dir(bayesncl) if not name.startswith("_")]
    assert sorted(listed) == sorted(bayesncl.__all__)
    assert {"train", "load", "InputError"} <= set(listed)
    assert all(callable(getattr(bayesncl, name)) for name in listed)
    assert issubclass(bayesncl.InputError, ValueError)


def test_buffers_that_no_file_holds_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the masks and positions of some transformers."""

    class Masked(nn.Module):
        features = 8

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 8)
            self.register_buffer("mask", torch.arange(3.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.mean((2, 3)) * self.mask)

    monkeypatch.setattr("bayesncl.model.build_backbone", lambda _: Masked())
    model = build_model(tiny_recipe("ncl")).eval()
    (tmp_path / "m.safetensors").write_bytes(model_bytes(model))
    found, x = load(tmp_path / "m.safetensors"), torch.rand(4, 3, 8, 8)
    assert isinstance(found, Encoder) and torch.equal(found(x).z, model(x).z) and found(x).z.any()
