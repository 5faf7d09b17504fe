"""The compiled step against the step as it is written, on the CPU: same losses, same weights."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import cache_dir

from bayesncl import graph, train
from bayesncl.backbones import ViewBatchNorm2d, set_views
from bayesncl.feed import batches
from bayesncl.graph import COMPILER, compile_function, find_lost_gradients, keep_compiled, rehearse
from bayesncl.model import build_model
from bayesncl.recipes import Recipe
from bayesncl.train import losses, make_optimiser, momenta, schedule
from tests.conftest import Stopped, assert_same_way, stop_after, tiny_images, tiny_recipe

CPU = torch.device("cpu")
STEPS = 5
# float32, and the compiler adds in another order; five steps of the optimiser magnify that.
LOSS = 1e-4  # relative
WEIGHTS = 0.02  # distance between the two, as a share of the way they went


def curve(recipe: Recipe, loss_function: Callable[..., Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses of the first steps, and the weights after them."""
    model = build_model(recipe).to(memory_format=torch.channels_last).train()
    set_views(model, 2)
    optimiser = make_optimiser(model, CPU)
    images = tiny_images(16 * STEPS)
    rates = schedule(recipe, STEPS)
    seen = []
    for step, (pixels, index) in enumerate(batches(images.pixels, 16, recipe.run.seed, 0, 0, CPU)):
        for group, rate in zip(optimiser.param_groups, rates[step]):
            group["lr"].copy_(rate)
        optimiser.zero_grad()
        loss, averages, active = loss_function(model, pixels, index, torch.tensor(0), torch.float32)
        loss.backward()
        optimiser.step()
        assert averages.shape == (5,)
        assert active.shape == (recipe.model.dim,)
        seen.append(loss.detach())
    return torch.stack(seen), {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_agree(method: str, backend: str, *changes: str) -> None:
    small = ("run.epochs=2", "optimiser.warmup_epochs=0", "optimiser.lr=0.1", "gate.lr=0.02")
    recipe = tiny_recipe(method, *small, *changes)
    eager, weights = curve(recipe, losses)
    torch._dynamo.reset()
    compiled, others = curve(recipe, compiled_losses(backend))
    assert eager.shape == (STEPS,)
    torch.testing.assert_close(compiled, eager, rtol=LOSS, atol=0)
    assert_same_way(recipe, others, weights, WEIGHTS, least=1e-3)


def compiled_losses(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """Each part compiled into one graph."""
    return partial(losses, made=cache(partial(torch.compile, dynamic=False, backend=backend, fullgraph=True)))


def test_another_seed_compiles_the_same_graphs() -> None:
    """Which a cache then finds; torch keeps no graph that enters autocast."""
    graphs: dict[int, list[str]] = {}
    for seed in (0, 1):
        torch._dynamo.reset()
        graphs[seed] = []

        def note(graph: torch.fx.GraphModule, _: Any, found: list[str] = graphs[seed]) -> Callable[..., Any]:
            found.append(graph.code)
            return graph.forward

        model = build_model(tiny_recipe("bayesncl-gs", f"run.seed={seed}")).train()
        set_views(model, 2)
        pixels, index = torch.from_numpy(tiny_images(16).pixels), torch.arange(16)
        compiled_losses(note)(model, pixels, index, torch.tensor(0), torch.float32)
    assert len(graphs[0]) == 4
    assert graphs[0] == graphs[1]
    assert not any("autocast" in graph for graph in graphs[0])


def test_options_of_the_compiler_that_torch_has_no_more_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(COMPILER) <= set(torch._inductor.list_options())
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: asked.append(how) or function)
    assert compile_function(losses) is losses
    monkeypatch.setattr(torch._inductor, "list_options", lambda: ["triton.persistent_reductions", "others"])
    compile_function(losses)
    assert [how["options"] for how in asked] == [COMPILER, {"triton.persistent_reductions": False}]


def test_what_is_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    for name in places:
        monkeypatch.setenv(name, "elsewhere")
    keep_compiled()
    assert [os.environ[name] for name in places] == ["elsewhere"] * 2  # who names a place gets it
    for name in places:
        monkeypatch.delenv(name)
    (tmp_path / "file").touch()
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "file"))
    keep_compiled()
    assert not any(name in os.environ for name in places)  # no folder can be there: torch chooses
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    keep_compiled()
    kept = tmp_path / "cache" / "compiled" / platform.node()
    assert cache_dir() == str(kept) and os.environ["TRITON_CACHE_DIR"] == str(kept / "triton")


@pytest.fixture(params=["built-in", "fused"])
def batch_norm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of the per-view BatchNorm: a CPU's, and the one that the compiler fuses on a GPU."""
    if request.param == "fused":
        plain = ViewBatchNorm2d.normalise

        def normalise(self: ViewBatchNorm2d, x: Tensor) -> Tensor:
            return self._normalise_parts(x) if self.training and not self.batch_only else plain(self, x)

        monkeypatch.setattr(ViewBatchNorm2d, "normalise", normalise)


@pytest.mark.usefixtures("batch_norm")
@pytest.mark.parametrize(
    ("batch_norm", "method"), [("built-in", "bayesncl"), ("fused", "bayesncl-gs")], indirect=["batch_norm"]
)
def test_traced_step(method: str) -> None:
    assert_agree(method, "aot_eager")


def test_traced_step_with_a_loss_in_blocks() -> None:
    assert_agree("bayesncl", "aot_eager", "objective.block=12")


def test_lost_gradients_are_found() -> None:
    model = build_model(tiny_recipe()).train()
    set_views(model, 2)
    pixels, index = torch.from_numpy(tiny_images(16).pixels), torch.arange(16)

    def loss() -> Tensor:
        return losses(model, pixels, index, torch.tensor(0), torch.float32)[0]

    loss().backward()
    assert find_lost_gradients(model, lambda: loss().backward()) == []
    assert model.gate is not None
    model.gate[0].weight.grad *= 0.01  # as where the gates hear of the KL alone
    assert find_lost_gradients(model, lambda: loss().backward()) == ["head.gate.0.weight"]

    def too_large() -> None:
        raise torch.OutOfMemoryError

    assert find_lost_gradients(model, too_large) == []  # the step as written takes more memory
    loss().backward()
    names = [name for name, _ in model.named_parameters()]
    model.get_parameter(names[0]).grad = None
    model.get_parameter(names[-1]).grad = torch.zeros_like(model.get_parameter(names[-1]))
    assert find_lost_gradients(model, lambda: loss().backward()) == sorted([names[0], names[-1]])
    model.zero_grad()
    loss().backward()
    weight = model.gate[0].weight
    weight.grad.zero_()  # and as written nothing but rounding
    keep = weight.register_hook(lambda g: 1e-9 * g)
    assert find_lost_gradients(model, lambda: loss().backward()) == []
    keep.remove()
    # where nothing flows as written, nothing was lost
    weight = model.gate[0].weight
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    weight.grad = None
    assert find_lost_gradients(model, lambda: (model.projector[0].weight ** 2).sum().backward()) == []


def test_a_gradient_that_is_zero_at_first_is_not_taken_for_lost() -> None:
    """Many residual networks start with gains of zero: the weights before them get a gradient from step two on."""
    recipe = tiny_recipe("ncl", "model.backbone=resnet18")
    model = build_model(recipe).train()
    set_views(model, 2)
    for block in model.backbone.blocks:
        torch.nn.init.zeros_(block.bn2.weight)
    optimiser = make_optimiser(model, CPU)
    for group in optimiser.param_groups:
        group["lr"].fill_(0.1)
    pixels, index = torch.from_numpy(tiny_images(16).pixels), torch.arange(16)
    found: list[str] = []

    def loss() -> Tensor:
        return losses(model, pixels, index, torch.tensor(0), torch.float32)[0]

    def body() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    state = [*model.state_dict().values(), *momenta(optimiser)]
    before = [tensor.clone() for tensor in state]
    rehearse(body, state, lambda: found.extend(find_lost_gradients(model, lambda: loss().backward())))
    assert found == []
    assert all(torch.equal(tensor, value) for tensor, value in zip(state, before))
    body()
    # which is why the state is put back before they are compared
    assert find_lost_gradients(model, lambda: loss().backward()) != []


def test_rehearsing_and_recording_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way a GPU takes, with a compiler and a recorder that do nothing: the same bytes, also when resumed."""
    images, recipe = tiny_images(), tiny_recipe("bayesncl")
    train.train(recipe, images, tmp_path / "plain", device=CPU)
    recorded = []

    def capture(body: Callable[[], None], state: Sequence[Tensor], device: torch.device) -> Callable[[], None]:
        saved = [tensor.clone() for tensor in state]
        for _ in range(3):
            body()
        graph.put_back(state, saved)
        recorded.append(len(state))
        return body

    monkeypatch.setattr(graph, "capture", capture)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(train, "compiles", lambda *_: True)
    monkeypatch.setattr(train.LARS, "use_kernel", lambda _: None)
    with pytest.raises(Stopped):
        train.train(recipe, images, tmp_path / "fast", device=CPU, after_epoch=stop_after(2))
    train.train(recipe, images, tmp_path / "fast", device=CPU)
    assert len(recorded) == 2
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("plain", "fast"))
    assert one == other


@pytest.mark.slow
@pytest.mark.usefixtures("batch_norm")
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="inductor needs a C++ compiler")
def test_compiled_step() -> None:
    assert_agree("bayesncl", "inductor")
