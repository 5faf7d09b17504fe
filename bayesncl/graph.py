"""Making a step fast on a GPU: compile it, rehearse it, look for lost gradients, record it as a CUDA graph.

What is recorded is a `body` without arguments or result. It reads and writes tensors that stay where they are, and does
not wait for the host.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import distributed
from .errors import InputError
from .files import cache_folder

LOST = 0.05  # of a gradient's length as written: what is shorter once compiled has lost something
ROUNDING = 1e-6  # of the longest gradient: shorter ones may be rounding alone
COMPILER: dict[str, str | int | bool | Callable[..., object]] = {
    "loop_ordering_after_fusion": False,  # takes the compiler an eighth of its time, and gains nothing here
    "triton.persistent_reductions": False,  # sums over an image of 5 x 5 are twice as fast in a loop
}

CACHED = "autograd_cache_allow_custom_autograd_functions"


def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function compiled for a GPU, with those of our options that this torch has."""
    # a graph with our BatchNorm, whose gradient is written out, is otherwise traced anew in every process
    if hasattr(torch._functorch.config, CACHED):
        setattr(torch._functorch.config, CACHED, True)
    known = set(torch._inductor.list_options())
    options = {name: value for name, value in COMPILER.items() if name in known}
    return torch.compile(function, dynamic=False, options=options)


def keep_compiled() -> None:
    """Have torch and Triton keep what they compile in our cache folder: their own are lost when a machine restarts."""
    with contextlib.suppress(InputError, OSError):
        place = cache_folder() / "compiled" / platform.node()  # several machines may share the cache folder
        place.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place))
        os.environ.setdefault("TRITON_CACHE_DIR", str(place / "triton"))


def fast(
    body: Callable[[], None],
    state: Callable[[], Sequence[Tensor]],
    device: torch.device,
    check: Callable[[], None] | None = None,
) -> Callable[[], None]:
    """A function that does what `body` does; on a GPU it is recorded at its first call.

    `state` gives every tensor that `body` changes and that outlives a call; it is asked at the first call. `check` is
    called once, after a rehearsal of `body`, to look at the gradients which that left. With several processes nothing
    is recorded: collectives are left out of graphs.
    """
    run: Callable[[], object] | None = None

    def step() -> None:
        nonlocal run
        if run is not None:
            run()
            return
        # kernels and graphs are made on the current device, which may be another
        with distributed.patience(), torch.cuda.device(device if device.type == "cuda" else -1):
            if check is not None:
                rehearse(body, state(), check)
            run = capture(body, state(), device) if distributed.world_size() == 1 else body
            run()

    return step


def rehearse(body: Callable[[], None], state: Sequence[Tensor], check: Callable[[], None]) -> None:
    """Run `body` once, then `check` what gradients it left; `state` stays as it was, for `check` too."""
    saved = [tensor.clone() for tensor in state]
    body()
    put_back(state, saved)
    check()
    put_back(state, saved)


def capture(body: Callable[[], None], state: Sequence[Tensor], device: torch.device) -> Callable[[], object]:
    """Record `body` as a CUDA graph; the warm-up runs it needs leave `state` as it was."""
    saved = [tensor.clone() for tensor in state]
    with torch.cuda.device(device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                body()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: the feed's thread may pin memory meanwhile
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
            body()
    put_back(state, saved)
    return graph.replay


@torch.no_grad()
def put_back(state: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    """Copy saved values into `state`, in place."""
    for tensor, value in zip(state, saved):
        tensor.copy_(value)


def check_gradients(model: nn.Module, backward_as_written: Callable[[], None]) -> None:
    """InputError if the compiled backward pass, whose gradients the model holds, lost one."""
    lost = find_lost_gradients(model, backward_as_written)
    if lost:
        raise InputError(
            f"compiled with torch {torch.__version__} this step lacks the gradient of {lost[0]} ({len(lost)} "
            "parameters): start again with --set run.compile=false and another --out, or with another torch"
        )


def find_lost_gradients(model: nn.Module, backward_as_written: Callable[[], None]) -> list[str]:
    """Parameters whose gradient, left by the compiled backward pass, is far shorter than the one as written.

    Compilers have dropped gradients without a word. A lost path that leaves more than 5 % of the length is not found.
    Directions are not compared, since in bf16 they differ too much, nor gradients that are nothing but rounding. Where
    the step as written does not fit into memory nothing is compared.
    """

    def lengths() -> dict[str, float]:
        return {name: 0.0 if p.grad is None else float(p.grad.norm()) for name, p in model.named_parameters()}

    compiled = lengths()
    model.zero_grad(set_to_none=True)
    try:
        backward_as_written()
    except torch.OutOfMemoryError:  # the step as written takes more memory, and may not be wanted
        if distributed.world_size() > 1:  # the others are waiting in a collective
            raise
        return []
    written = lengths()
    least = ROUNDING * max(written.values())
    return sorted(name for name, length in written.items() if length > least and compiled[name] < LOST * length)
