"""The compiled step against the eager one, on a CPU: same losses, same weights."""

import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesncl import train
from bayesncl.method import lars
from bayesncl.method.backbones import ViewBatchNorm2d
from bayesncl.method.encoder import Encoder
from bayesncl.recipes import Recipe
from bayesncl.training import compile, loop
from bayesncl.training.compile import find_lost_gradients, unchanged
from bayesncl.training.loader import batches
from bayesncl.training.loop import assemble, learning_rates
from bayesncl.training.step import EAGER, Batch, Parts, forward, train_step
from tests.conftest import Stopped, assert_same_way, stop_after, tiny_images, tiny_recipe

CPU = torch.device("cpu")
STEPS = 3
# The compiler adds float32 numbers in another order; steps of the optimizer magnify that.
LOSS = 1e-4  # relative difference
WEIGHTS = 0.02  # distance between the two as a share of the way they went


def training_model(recipe: Recipe) -> Encoder:
    return assemble(recipe, tiny_images(16).pixels, CPU)[0]


def first_batch() -> Batch:
    pixels = torch.from_numpy(tiny_images(16).pixels)
    return Batch(pixels, torch.arange(16), torch.tensor(0), torch.float32)


def curve(recipe: Recipe, parts: Parts) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses of the first steps, and the weights after them."""
    pixels, seen = tiny_images(16 * STEPS).pixels, []
    model, optimizer, meter, _ = assemble(recipe, pixels, CPU)
    rates = learning_rates(recipe, STEPS)
    for step, (part, index) in enumerate(batches(pixels, 16, recipe.run.seed, 0, 0, CPU)):
        for group, rate in zip(optimizer.param_groups, rates[step]):
            group["lr"].copy_(rate)
        batch = Batch(part, index, torch.tensor(0), torch.float32)
        train_step(model, optimizer, meter, batch, parts)
        seen.append(meter.take()[0][0])
    return torch.stack(seen), {name: tensor.clone() for name, tensor in model.state_dict().items()}


def compiled_parts(backend: str | Callable[..., Any]) -> Parts:
    """Each part in one graph."""
    compiled = partial(torch.compile, dynamic=False, backend=backend, fullgraph=True)
    return Parts(*map(compiled, EAGER))


def assert_agree(method: str, backend: str, *changes: str) -> None:
    rates = ("run.epochs=2", "optimizer.warmup_epochs=0", "optimizer.lr=0.1", "gate.lr=0.02")
    recipe = tiny_recipe(method, *rates, *changes)
    eager, weights = curve(recipe, EAGER)
    torch._dynamo.reset()
    compiled, others = curve(recipe, compiled_parts(backend))
    assert eager.shape == (STEPS,)
    torch.testing.assert_close(compiled, eager, rtol=LOSS, atol=0)
    assert_same_way(recipe, others, weights, WEIGHTS, least=1e-3)


def test_a_traced_step_is_the_eager_step() -> None:
    assert_agree("bayesncl", "aot_eager", "gate.input=z", "gate.prior_kind=prevalence")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_step_with_the_batch_norm_of_a_gpu_is_the_eager_step(backend: str, monkeypatch) -> None:
    if backend == "inductor" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("inductor needs a C++ compiler")
    plain = ViewBatchNorm2d.normalize

    def normalize(self: ViewBatchNorm2d, x: Tensor) -> Tensor:
        fused = self.training and not self.batch_only
        return self._normalize_parts(x) if fused else plain(self, x)

    monkeypatch.setattr(ViewBatchNorm2d, "normalize", normalize)
    assert_agree("bayesncl-gs", backend, "objective.block=12")


def test_another_seed_compiles_the_same_graphs() -> None:
    """So the cache finds them; torch does not cache a graph that enters autocast."""
    graphs: list[str] = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    for seed in (0, 1):
        torch._dynamo.reset()
        model = training_model(tiny_recipe("bayesncl-gs", f"run.seed={seed}"))
        forward(model, first_batch(), compiled_parts(note))
    assert len(graphs) == 8 and graphs[:4] == graphs[4:]
    assert not any("autocast" in graph for graph in graphs)


def test_lost_gradients_are_found() -> None:
    model, batch = training_model(tiny_recipe()), first_batch()
    assert model.gate is not None
    weight = model.gate[0].weight

    def backward() -> None:
        model.zero_grad()
        forward(model, batch)[0].backward()

    backward()
    assert find_lost_gradients(model, backward) == []
    weight.grad *= 0.01  # as if the gates received the gradient of the KL alone
    assert find_lost_gradients(model, backward) == ["head.gate.0.weight"]
    backward()
    first, *_, last = (name for name, _ in model.named_parameters())
    model.get_parameter(first).grad = None
    model.get_parameter(last).grad.zero_()  # type: ignore[union-attr]
    assert find_lost_gradients(model, backward) == sorted([first, last])

    def too_large() -> None:
        raise torch.OutOfMemoryError

    assert find_lost_gradients(model, too_large) == []  # the eager step needs more memory
    backward()
    weight.grad.zero_()
    hook = weight.register_hook(lambda g: 1e-9 * g)  # rounding errors only
    assert find_lost_gradients(model, backward) == []
    hook.remove()


def test_rehearsal_and_recording_leave_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU's path with a compiler and a recorder that do nothing: same bytes, also resumed."""
    images, recipe = tiny_images(), tiny_recipe("bayesncl")
    train(recipe, images, tmp_path / "plain", device=CPU)
    recorded = []

    def capture(body: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], None]:
        with unchanged(state):
            for _ in range(3):
                body()
        recorded.append(len(state))
        return body

    monkeypatch.setattr(compile, "capture", capture)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(loop, "compiles", lambda *_: True)
    kernel = SimpleNamespace(move=lars.move)
    monkeypatch.setitem(sys.modules, "bayesncl.training.kernels.layers", kernel)
    with pytest.raises(Stopped):
        train(recipe, images, tmp_path / "fast", device=CPU, after_epoch=stop_after(2))
    train(recipe, images, tmp_path / "fast", device=CPU)
    assert len(recorded) == 2
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "fast"))
    assert one == other
