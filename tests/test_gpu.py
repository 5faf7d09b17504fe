"""What only a GPU can show: compiled and graphed steps, streaming, memory."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesncl import feed
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.features import extract
from bayesncl.feed import batches, settle
from bayesncl.gates import open_gates, rep_relu
from bayesncl.measure import retrieval
from bayesncl.model import Encoder, build_model, load
from bayesncl.objective import normalise
from bayesncl.recipes import Recipe, change, named
from bayesncl.train import assemble, code, schedule, train
from tests.conftest import Stopped, assert_same_way, stop_after, tiny_images, tiny_recipe

pytestmark = pytest.mark.gpu

STEPS = 6


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """TF32 would hide what float32 is to show; compiled code and memory of one test do not serve the next."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.reset()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    gc.collect()
    torch.cuda.empty_cache()


def curve(recipe: Recipe, images: Images, device: str = "cuda") -> tuple[np.ndarray, dict[str, Tensor]]:
    """Loss of every step, and the weights after the last, by the step that training takes."""
    place = torch.device(device)
    pixels = settle(images.pixels, place)
    model, _, meter, step = assemble(recipe, pixels, place)
    rates = schedule(recipe, STEPS).to(place)
    seen, last = [], 0.0
    for done, (part, index) in enumerate(batches(pixels, recipe.run.batch, recipe.run.seed, 0, 0, place)):
        step(part, index, 0, rates[done])
        total = float(meter.sums[0])
        seen.append(total - last)
        last = total
    assert int(meter.steps) == STEPS
    return np.array(seen), {name: t.cpu() for name, t in model.state_dict().items()}


# At the recipe's own rates a few steps of a tiny model are chaos: a change of 1e-4 in the pixels is 4 % of the loss.
LEAST = 1e-4  # that a weight moves
SMALL = ("optimiser.lr=0.005", "gate.lr=0.001", "optimiser.warmup_epochs=0")
# Flips alone: other views are made with products of half precision, of which a compiler may choose other ones.
EXACT = (
    "views.jitter=0", "views.blur=0", "views.greyscale=0", "views.crop_scale=[1,1]", "views.crop_ratio=[1,1]",
)  # fmt: skip


def gpu_recipe(method: str, *changes: str) -> Recipe:
    small = ("run.epochs=1", "model.hidden=64", "model.dim=32", "run.batch=32")
    return tiny_recipe(method, *small, *SMALL, *EXACT, *changes)


@pytest.mark.parametrize("method", ["bayesncl", "bayesncl-gs", "ncl"])
def test_compiled_and_graphed_step_is_the_eager_step(method: str) -> None:
    images = tiny_images(32 * STEPS)
    recipe = gpu_recipe(method, "run.precision=float32")
    plain, weights = curve(change(recipe, ["run.compile=false"]), images)
    compiled, others = curve(recipe, images)
    np.testing.assert_allclose(compiled, plain, rtol=1e-3)
    assert len(set(np.round(plain, 6))) == STEPS  # as many different batches
    assert_same_way(recipe, others, weights, 0.1, LEAST)


@pytest.mark.parametrize("method", ["bayesncl", "ncl"])
def test_compiled_step_in_bf16_goes_as_far_as_the_eager_one(method: str) -> None:
    """With eight bits of mantissa the two part soon, but no weight stays behind."""
    images = tiny_images(32 * STEPS)
    recipe = gpu_recipe(method, "run.precision=bf16")
    plain, weights = curve(change(recipe, ["run.compile=false"]), images)
    compiled, others = curve(recipe, images)
    np.testing.assert_allclose(compiled, plain, rtol=0.2)
    start = build_model(recipe).state_dict()
    for name, _ in build_model(recipe).named_parameters():
        went, other = (float((w[name] - start[name]).norm()) for w in (weights, others))
        assert 0.3 < other / went < 3, f"{name}: {other:.2g} against {went:.2g}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_are_exact_when_compiled(dtype: torch.dtype) -> None:
    """A fused multiply-add turns x - x into the rounding error of x, and a row of zeros into a direction."""
    z = torch.randn(512, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).to(dtype)
    z[:7] = -z[:7].abs()

    def features(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rectified = rep_relu(z)
        mask = open_gates(1.7 * z, "ste")
        return rectified, mask, normalise(rectified * mask)

    rectified, mask, unit = torch.compile(features, dynamic=False)(z.requires_grad_())
    assert torch.equal(rectified, torch.relu(z))
    assert torch.equal(mask.unique().cpu(), torch.tensor([0.0, 1.0]))
    assert not unit[:7].any()
    (gradient,) = torch.autograd.grad(unit.sum(), z)
    assert not gradient[:7].any()
    assert gradient[7:].any(1).all()


def test_two_compiled_runs_agree(tmp_path: Path) -> None:
    """Without a wait between the steps, over several epochs."""
    images = tiny_images(32 * STEPS)
    recipe = gpu_recipe("bayesncl", "run.epochs=3", "run.precision=float32")
    weights = []
    for name, compiled in (("a", True), ("b", True), ("c", False)):
        torch._dynamo.reset()
        model = train(change(recipe, [f"run.compile={compiled}"]), images, tmp_path / name)
        weights.append({key: tensor.cpu() for key, tensor in model.state_dict().items()})
    assert_same_way(recipe, weights[1], weights[0], 0.3, LEAST)
    assert_same_way(recipe, weights[2], weights[0], 0.3, LEAST)


def test_a_compiler_that_loses_a_gradient_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def compiled(model: Encoder, *arguments: Any) -> Any:
            result = function(model, *arguments)
            if function is not code:
                return result
            lost = 0 * model.projector[0].weight.sum()
            return result._replace(z=result.z.detach() + lost, gated=result.gated.detach() + lost)

        return compiled

    monkeypatch.setattr(torch, "compile", forgetful)
    with pytest.raises(InputError, match=r"lacks the gradient of backbone\..*run.compile=false"):
        curve(gpu_recipe("ncl", "run.precision=float32"), tiny_images(32 * STEPS))


def test_neighbours_kept_on_the_gpu_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = retrieval.GALLERY_ROWS["cuda"] + 900  # two blocks of the gallery, several of queries
    z = np.where(rng.random((rows, 24)) < 0.2, rng.random((rows, 24)).round(1), 0).astype(np.float32)  # many ties
    y, columns = rng.integers(0, 5, rows), np.arange(0, 24, 2)
    found = []
    for visible in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda visible=visible: visible)
        relevance = retrieval.rank_relevance(z, [y], 10, columns)
        accuracy = retrieval.knn_accuracy(z[:-500], y[:-500], z[-500:], y[-500:])
        found.append([relevance["sound"], relevance["paper"], np.array(accuracy)])
    for there, here in zip(*found):
        np.testing.assert_allclose(there, here, rtol=1e-6)


def test_kept_codes_on_the_gpu_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesncl.measure import kept

    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 900)
    z = np.maximum(rng.standard_normal((900, 40)) + 3 * np.eye(40)[y] - 1, 0)
    found = kept.summary(z[:300], y[:300], train=(z[300:], y[300:]))
    monkeypatch.setattr(kept, "place", lambda: torch.device("cpu"))
    wanted = kept.summary(z[:300], y[:300], train=(z[300:], y[300:]))
    for k, row in wanted.items():
        for name, value in row.items():
            assert found[k][name] == pytest.approx(value, abs=1.5 if "probe" in name else 1e-6), (k, name)


def test_measures_on_the_gpu_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesncl.measure import interpretability, readable

    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 900)
    z = np.maximum(rng.standard_normal((900, 40)) + 3 * np.eye(40)[y] - 1, 0).round(1).astype(np.float32)  # ties
    e, found = np.eye(12)[y] + 0.5 * rng.standard_normal((900, 12)), []
    for visible in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda visible=visible: visible)
        tree = readable.figures(z, y, embeddings=e, control=z[::-1])
        trees = [tree["labelfree"], tree["control"]["labelfree"], tree["coverage"], tree["detectors"]]
        trees.append(interpretability.interpretability(z, y))
        found.append([{key: v for key, v in branch.items() if isinstance(v, float)} for branch in trees])
    for there, here in zip(*found):
        assert there and there == pytest.approx(here, rel=1e-5)


def test_compiled_loss_in_blocks() -> None:
    images = tiny_images(32 * STEPS)
    recipe = gpu_recipe("bayesncl", "run.precision=float32", "objective.block=24")
    plain, weights = curve(change(recipe, ["run.compile=false"]), images)
    compiled, others = curve(recipe, images)
    np.testing.assert_allclose(compiled, plain, rtol=1e-3)
    assert_same_way(recipe, others, weights, 0.1, LEAST)


def test_gpu_step_is_the_cpu_step() -> None:
    images = tiny_images(32 * STEPS)
    recipe = gpu_recipe("bayesncl", "run.precision=float32")
    there, weights = curve(recipe, images)
    here, others = curve(recipe, images, "cpu")
    np.testing.assert_allclose(there, here, rtol=1e-2)  # the GPU's pixels have eleven bits
    assert_same_way(recipe, weights, others, 0.5, LEAST)


def test_streamed_batches_are_the_resident_ones(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 3, 24, 24), np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    mapped = np.load(tmp_path / "pixels.npy", mmap_mode="r")
    place = torch.device("cuda")
    resident = settle(mapped, place)
    assert isinstance(resident, Tensor)
    assert resident.is_cuda
    assert torch.equal(resident.cpu(), torch.from_numpy(pixels))
    for epoch, first in ((0, 0), (1, 7)):
        streamed = list(batches(mapped, 64, 3, epoch, first, place))
        kept = list(batches(resident, 64, 3, epoch, first, place))
        assert len(streamed) == len(kept) == 1000 // 64 - first
        for (a, i), (b, j) in zip(streamed, kept):
            assert a.is_cuda
            assert torch.equal(a, b)
            assert torch.equal(i, j)
            assert torch.equal(a.cpu(), torch.from_numpy(pixels[i.cpu().numpy()]))


def test_a_set_that_does_not_fit_is_streamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images = tiny_images(32 * STEPS)
    recipe = gpu_recipe("bayesncl", "run.precision=float32", "run.compile=false")
    resident, _ = curve(recipe, images)
    monkeypatch.setattr(feed, "RESIDENT_SHARE", 0.0)
    assert settle(images.pixels, torch.device("cuda")) is images.pixels
    streamed, _ = curve(recipe, images)
    np.testing.assert_allclose(streamed, resident, rtol=1e-4)


def test_training_compiled_stopped_and_resumed(tmp_path: Path) -> None:
    images = tiny_images(32 * STEPS)
    recipe = gpu_recipe("bayesncl", "run.epochs=3", "run.precision=float32", "run.log_every=3")
    whole = train(recipe, images, tmp_path / "whole").state_dict()
    with pytest.raises(Stopped):
        train(recipe, images, tmp_path / "parts", after_epoch=stop_after(2))
    torch._dynamo.reset()
    parts = train(recipe, images, tmp_path / "parts").state_dict()
    for state in (whole, parts):
        state.update({name: tensor.cpu() for name, tensor in state.items()})
    assert_same_way(recipe, parts, whole, 0.3, LEAST)  # the GPU does not add in a fixed order: close, not equal
    lines = [
        [json.loads(t) for t in (tmp_path / r / "metrics.jsonl").read_text().splitlines()] for r in ("whole", "parts")
    ]
    assert (
        [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]] == list(range(3, 3 * STEPS + 1, 3))
    )
    assert lines[1][-1]["loss"] == pytest.approx(lines[0][-1]["loss"], rel=0.05)
    assert load(tmp_path / "parts", "cuda").encode(images.pixels[:5]).shape == (5, 32)


def test_out_of_memory_is_one_line(tmp_path: Path) -> None:
    free = torch.cuda.mem_get_info()[0]
    hog = torch.empty(max(free - 300 * 2**20, 1), dtype=torch.uint8, device="cuda")  # leaves 300 MiB
    recipe = change(named("cifar100"), ["run.batch=2048", "run.epochs=1", "run.compile=false"])
    images = Images(np.zeros((2048, 3, 32, 32), np.uint8))
    try:
        with pytest.raises(
            InputError, match=r"out of GPU memory at batch 2048, 32 px, 256 dimensions: lower run.batch"
        ):
            train(recipe, images, tmp_path)
    finally:
        del hog


def test_building_a_model_leaves_the_gpu_generator_alone() -> None:
    torch.cuda.manual_seed(7)
    before = torch.cuda.get_rng_state()
    build_model(tiny_recipe())
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_features_agree_with_the_cpu() -> None:
    model, images = build_model(tiny_recipe()), tiny_images(40)
    for mode in ("sound", "paper"):
        here = extract(model, images, mode)
        there = extract(model.cuda(), images, mode)
        model.cpu()
        np.testing.assert_allclose(there.h, here.h, atol=2e-4)
        np.testing.assert_allclose(there.z, here.z, atol=2e-3)
