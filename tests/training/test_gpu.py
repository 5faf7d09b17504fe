"""Training on a GPU: compiled and recorded steps, streaming, memory."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesncl import load, train
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.method.encoder import Encoder, build_model
from bayesncl.method.gates import open_gates, rep_relu
from bayesncl.method.losses import unit_rows
from bayesncl.recipes import Recipe, change
from bayesncl.training.loader import batches, to_device
from bayesncl.training.loop import assemble, learning_rates
from bayesncl.training.step import code
from tests.conftest import Stopped, assert_same_way, stop_after, tiny_images, tiny_recipe
from tests.training.test_loop import lines

pytestmark = pytest.mark.gpu

STEPS = 6
LEAST = 1e-4  # that a weight moves
# At the recipe's own rates, a few steps of a tiny model are chaotic: a change of 1e-4 in the pixels
# changes the loss by 4 %.
SLOW = ("optimizer.lr=0.005", "gate.lr=0.001", "optimizer.warmup_epochs=0")
# Flips only: other views use products in half precision, which a compiler may order differently.
FLIPS = (
    "views.jitter=0", "views.blur=0", "views.grayscale=0", "views.crop_scale=[1,1]",
    "views.crop_ratio=[1,1]",
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """No TF32, which would hide differences; no compiled code or memory of other tests."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.reset()
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    gc.collect()
    torch.cuda.empty_cache()


def gpu_recipe(method: str, *changes: str) -> Recipe:
    small = ("run.epochs=1", "model.hidden=64", "model.dim=32", "run.batch=32")
    return tiny_recipe(method, *small, "run.precision=float32", *SLOW, *FLIPS, *changes)


def eager(recipe: Recipe) -> Recipe:
    return change(recipe, ["run.compile=false"])


def curve(
    recipe: Recipe, images: Images | None = None, device: str = "cuda"
) -> tuple[np.ndarray, dict[str, Tensor]]:
    """Loss of every step, and the weights after the last, by the step that training takes."""
    where = torch.device(device)
    pixels = to_device((images or tiny_images(32 * STEPS)).pixels, where)
    model, _, meter, step = assemble(recipe, pixels, where)
    rates = learning_rates(recipe, STEPS).to(where)
    seen, last = [], 0.0
    batch, seed = recipe.run.batch, recipe.run.seed
    for done, (part, index) in enumerate(batches(pixels, batch, seed, 0, 0, where)):
        step(part, index, 0, rates[done])
        total = float(meter.sums[0])
        seen.append(total - last)
        last = total
    assert len(seen) == STEPS
    return np.array(seen), {name: t.cpu() for name, t in model.state_dict().items()}


@pytest.mark.parametrize(
    ("method", "changes"),
    [("bayesncl", ()), ("bayesncl-gs", ()), ("ncl", ()), ("bayesncl", ("objective.block=24",))],
)
def test_a_compiled_step_is_the_eager_step(method: str, changes: tuple[str, ...]) -> None:
    recipe = gpu_recipe(method, *changes)
    plain, weights = curve(eager(recipe))
    compiled, others = curve(recipe)
    np.testing.assert_allclose(compiled, plain, rtol=1e-3)
    assert len(set(np.round(plain, 6))) == STEPS  # as many different batches
    assert_same_way(recipe, others, weights, 0.1, LEAST)


@pytest.mark.parametrize("method", ["bayesncl", "ncl"])
def test_a_compiled_step_in_bf16_moves_every_weight(method: str) -> None:
    """With eight bits of mantissa the two diverge soon, but no weight stays behind."""
    recipe = gpu_recipe(method, "run.precision=bf16")
    plain, weights = curve(eager(recipe))
    compiled, others = curve(recipe)
    np.testing.assert_allclose(compiled, plain, rtol=0.2)
    for name, start in build_model(recipe).named_parameters():
        moved, other = (float((w[name] - start.detach()).norm()) for w in (weights, others))
        assert 0.3 < other / moved < 3, f"{name}: {other:.2g} against {moved:.2g}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_are_exact_when_compiled(dtype: torch.dtype) -> None:
    """A fused multiply-add turns x - x into a rounding error, and a zero row into a direction."""
    generator = torch.Generator("cuda").manual_seed(0)
    z = torch.randn(512, 256, device="cuda", generator=generator).to(dtype)
    z[:7] = -z[:7].abs()

    def features(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rectified, mask = rep_relu(z), open_gates(1.7 * z, "ste")
        return rectified, mask, unit_rows(rectified * mask)

    rectified, mask, unit = torch.compile(features, dynamic=False)(z.requires_grad_())
    assert torch.equal(rectified, torch.relu(z))
    assert torch.equal(mask.unique().cpu(), torch.tensor([0.0, 1.0]))
    assert not unit[:7].any()
    (gradient,) = torch.autograd.grad(unit.sum(), z)
    assert not gradient[:7].any() and gradient[7:].any(1).all()


def test_a_compiler_that_loses_a_gradient_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def compiled(model: Encoder, *arguments: Any) -> Any:
            result = function(model, *arguments)
            if function is not code:
                return result
            lost = 0 * model.head.projector[0].weight.sum()
            return result._replace(z=result.z.detach() + lost, gated=result.gated.detach() + lost)

        return compiled

    monkeypatch.setattr(torch, "compile", forgetful)
    with pytest.raises(InputError, match=r"without the gradient of backbone\."):
        curve(gpu_recipe("ncl"))


def test_a_gpu_step_is_the_cpu_step() -> None:
    recipe = gpu_recipe("bayesncl")
    gpu, weights = curve(recipe)
    cpu, others = curve(recipe, device="cpu")
    np.testing.assert_allclose(gpu, cpu, rtol=1e-2)  # the GPU's pixels have eleven bits
    assert_same_way(recipe, weights, others, 0.5, LEAST)


def test_streamed_batches_are_the_resident_ones(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 3, 24, 24), np.uint8)
    np.save(tmp_path / "pixels.npy", pixels)
    mapped = np.load(tmp_path / "pixels.npy", mmap_mode="r")
    cuda = torch.device("cuda")
    resident = to_device(mapped, cuda)
    assert isinstance(resident, Tensor) and resident.is_cuda
    assert torch.equal(resident.cpu(), torch.from_numpy(pixels))
    for epoch, first in ((0, 0), (1, 7)):
        streamed = list(batches(mapped, 64, 3, epoch, first, cuda))
        kept = list(batches(resident, 64, 3, epoch, first, cuda))
        assert len(streamed) == len(kept) == 1000 // 64 - first
        for (a, i), (b, j) in zip(streamed, kept):
            assert a.is_cuda and torch.equal(a, b) and torch.equal(i, j)
            assert torch.equal(a.cpu(), torch.from_numpy(pixels[i.cpu().numpy()]))


def test_a_compiled_run_is_stopped_and_resumed(tmp_path: Path) -> None:
    images = tiny_images(32 * STEPS)
    recipe = gpu_recipe("bayesncl", "run.epochs=3", "run.log_every=3")
    whole = train(recipe, images, tmp_path / "whole").cpu().state_dict()
    with pytest.raises(Stopped):
        train(recipe, images, tmp_path / "parts", after_epoch=stop_after(2))
    torch._dynamo.reset()
    parts = train(recipe, images, tmp_path / "parts").cpu().state_dict()
    assert_same_way(recipe, parts, whole, 0.3, LEAST)  # a GPU does not add in a fixed order
    logs = [lines(tmp_path / name) for name in ("whole", "parts")]
    for log in logs:
        assert [line["step"] for line in log] == list(range(3, 3 * STEPS + 1, 3))
    assert logs[1][-1]["loss"] == pytest.approx(logs[0][-1]["loss"], rel=0.05)
    assert load(tmp_path / "parts", "cuda").encode(images.pixels[:5]).shape == (5, 32)
