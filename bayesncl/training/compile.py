"""Fast training steps on a GPU: kernels, torch's compiler, gradient check, CUDA graph.

`accelerate` is the entry point. A recorded step is a function without arguments or result that
reads and writes tensors at fixed addresses and does not wait for the host.
"""

import contextlib
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from bayesncl import distributed
from bayesncl.errors import InputError
from bayesncl.io import cache_folder
from bayesncl.method.backbones import Kernels, ResNet
from bayesncl.method.encoder import Encoder
from bayesncl.method.lars import LARS
from bayesncl.recipes import Recipe
from bayesncl.training.log import Meter
from bayesncl.training.step import EAGER, Batch, Parts, forward, train_step

LOST_SHARE = 0.05  # a compiled gradient shorter than this share of the eager one has lost a path
ROUNDING = 1e-6  # gradients shorter than this share of the longest one may be rounding errors
COMPILER: dict[str, str | int | bool | Callable[..., object]] = {
    "loop_ordering_after_fusion": False,  # an eighth of the compile time, no gain here
    "triton.persistent_reductions": False,  # sums over 5 x 5 maps are twice as fast in a loop
}
CUSTOM_AUTOGRAD_CACHE = "autograd_cache_allow_custom_autograd_functions"


def compiles(recipe: Recipe, device: torch.device) -> bool:
    """Whether to use kernels and the compiler; both need Triton."""
    return recipe.run.compile and device.type == "cuda" and find_spec("triton") is not None


def accelerate(model: Encoder, optimizer: LARS, meter: Meter, batch: Batch) -> Callable[[], None]:
    """A function that does what `train_step` does, with faster parts, as a recorded graph."""
    keep_compiled()  # before triton is imported
    from bayesncl.training.kernels import layers

    optimizer.move = layers.move
    parts = choose_parts(model, batch.pixels)
    # the remaining float32 products are those of InfoNCE, which need the precision
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
    return record_at_first_call(
        partial(train_step, model, optimizer, meter, batch, parts),
        changing_tensors(model, optimizer, meter),
        batch.pixels.device,
        partial(check_gradients, model, batch, parts),
    )


def changing_tensors(model: Encoder, optimizer: LARS, meter: Meter) -> list[Tensor]:
    """Every tensor that a step changes and that outlives it."""
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    return [*model.state_dict().values(), *meter.state, *momenta]


def choose_parts(model: Encoder, pixels: Tensor) -> Parts:
    """For each part a kernel if there is one, else the compiled part.

    A ResNet in one process has its own kernels; so have small views. With both, head and loss stay
    eager: they are too small to be worth importing torch's compiler, which takes six seconds.
    """
    has_kernels = isinstance(model.backbone, ResNet) and distributed.world_size() == 1
    if has_kernels:
        from bayesncl.training.kernels import views

        if views.fits(model.recipe.views, (pixels.shape[2], pixels.shape[3])):
            return Parts(draw=draw_with_kernel, embed=embed_with_kernels)
    torch.compiler.reset()  # torch keeps eight compiled forms of a function; a ninth is eager
    compiled = Parts(*map(compile_function, EAGER))
    return compiled._replace(embed=embed_with_kernels) if has_kernels else compiled


def draw_with_kernel(
    model: Encoder, pixels: Tensor, index: Tensor, epoch: Tensor, seed: Tensor
) -> tuple[Tensor, Tensor | None]:
    """`step.draw` with a kernel."""
    from bayesncl.training.kernels import views

    x = views.make_views(pixels, index, epoch, seed, model.recipe.views, model.mean, model.std)
    return x, model.head.draw_uniform(index, epoch, seed)


def embed_with_kernels(model: Encoder, x: Tensor) -> Tensor:
    """`Encoder.embed` with kernels between the convolutions."""
    with use_kernels():
        return model.embed(x)


@contextlib.contextmanager
def use_kernels() -> Iterator[None]:
    """Use the kernels for BatchNorm and max-pooling in training on a GPU, in one process."""
    from bayesncl.training.kernels import layers

    before = Kernels.norm, Kernels.pool
    Kernels.norm, Kernels.pool = layers.NormReLU.apply, layers.MaxPool.apply
    try:
        yield
    finally:
        Kernels.norm, Kernels.pool = before


def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for a GPU with those of our options that this torch has."""
    # otherwise a graph with a custom autograd function is traced anew in every process
    if hasattr(torch._functorch.config, CUSTOM_AUTOGRAD_CACHE):
        setattr(torch._functorch.config, CUSTOM_AUTOGRAD_CACHE, True)
    known = set(torch._inductor.list_options())
    options = {name: value for name, value in COMPILER.items() if name in known}
    return torch.compile(function, dynamic=False, options=options)


def keep_compiled() -> None:
    """Let torch and Triton cache in our folder: their own caches do not survive a restart."""
    with contextlib.suppress(InputError, OSError):
        folder = cache_folder() / "compiled" / platform.node()  # machines may share the cache
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))


def record_at_first_call(
    body: Callable[[], None], state: Sequence[Tensor], device: torch.device,
    check: Callable[[], None] | None = None,
) -> Callable[[], None]:
    """A function that does what `body` does; its first call records `body` as a CUDA graph.

    `state` has every tensor that `body` changes and that outlives a call. `check` is called before
    the recording. With several processes nothing is recorded: graphs would not contain the
    collectives.
    """

    @cache
    def recorded() -> Callable[[], object]:
        # kernels and graphs belong to the current device
        with torch.cuda.device(device if device.type == "cuda" else -1):
            if check is not None:
                with unchanged(state):
                    check()
            return capture(body, state) if distributed.world_size() == 1 else body

    def step() -> None:
        recorded()()

    return step


@contextlib.contextmanager
def unchanged(state: Sequence[Tensor]) -> Iterator[None]:
    """Restore the values of `state` afterwards, in place."""
    saved = [tensor.clone() for tensor in state]
    yield
    with torch.no_grad():
        for tensor, value in zip(state, saved):
            tensor.copy_(value)


def capture(body: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], object]:
    """Record `body` as a CUDA graph; the warm-up runs leave `state` unchanged."""
    graph = torch.cuda.CUDAGraph()
    with unchanged(state):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                body()
        torch.cuda.current_stream().wait_stream(stream)
        # thread_local: the loader's thread may pin memory meanwhile
        with torch.cuda.graph(
            graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"
        ):
            body()
    return graph.replay


def check_gradients(model: Encoder, batch: Batch, parts: Parts) -> None:
    """Raise InputError if the gradient of a parameter is lost with these parts."""

    def backward(parts: Parts = EAGER) -> None:
        model.zero_grad(set_to_none=True)
        forward(model, batch, parts)[0].backward()
        distributed.sum_gradients(model.parameters())

    backward(parts)
    lost = find_lost_gradients(model, backward)
    if lost:
        raise InputError(
            f"torch {torch.__version__} compiles this step without the gradient of {lost[0]} "
            f"({len(lost)} parameters): use --set run.compile=false with another --out, or "
            "another torch"
        )


def find_lost_gradients(model: nn.Module, backward: Callable[[], None]) -> list[str]:
    """Parameters whose current gradient is far shorter than the one that `backward` computes.

    Compilers have silently dropped gradients. A lost path that leaves more than 5 % of the length
    is not found. Directions differ too much in bf16 to be compared. If the eager step does not fit
    into memory, nothing is compared.
    """

    def lengths() -> dict[str, float]:
        gradients = ((name, p.grad) for name, p in model.named_parameters())
        return {name: 0.0 if g is None else float(g.norm()) for name, g in gradients}

    compiled = lengths()
    try:
        backward()
    except torch.OutOfMemoryError:
        if distributed.world_size() > 1:  # the others are waiting in a collective
            raise
        return []
    eager = lengths()
    shortest = ROUNDING * max(eager.values())
    return sorted(
        name for name, length in eager.items()
        if length > shortest and compiled[name] < LOST_SHARE * length
    )
