"""Other processes: joining them under torchrun, and every collective that the package uses."""

from __future__ import annotations

import datetime
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from .errors import InputError

TIMEOUT = datetime.timedelta(seconds=60)  # a collective of the step that waits longer means that a process is lost
PATIENCE = datetime.timedelta(hours=24)  # at a barrier process 0 may be decoding a data set; its death ends the wait

_patient: dist.ProcessGroup | None = None  # of barriers, on the CPU
# what backends speak of when another process is gone
BACKEND = re.compile("gloo|nccl|socket|connection|peer|time.?out|timed out|pipe", re.IGNORECASE)


def start() -> None:
    """Join the other processes if torchrun started several; otherwise do nothing."""
    global _patient
    world = _number("WORLD_SIZE", 1)
    if world == 1 or dist.is_initialized():
        return
    if "MASTER_ADDR" not in os.environ:
        raise InputError(f"WORLD_SIZE is {world} but MASTER_ADDR is not set: start several processes with torchrun")
    gpus, local = torch.cuda.device_count(), _number("LOCAL_RANK", 0)
    if gpus:
        if local >= gpus:
            raise InputError(
                f"{gpus} GPUs on this machine, so no more processes than that: torchrun --nproc-per-node {gpus}"
            )
        torch.cuda.set_device(local)
    store, rank, world = checked(lambda: next(rendezvous("env://", timeout=TIMEOUT)))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # on one machine torchrun keeps its store over restarts, and in it the addresses of the dead;
        # on several it needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for a fresh one (docs/scaling.md)
        store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    checked(dist.init_process_group, backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    _patient = checked(dist.new_group, backend="gloo", timeout=PATIENCE)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise InputError(f"{variable} is {text!r}, expected a number: start several processes with torchrun")
    return int(text)


def stop() -> None:
    """Leave the group."""
    global _patient
    if dist.is_initialized():
        _patient = None
        dist.destroy_process_group()


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Which one this is; 0 writes."""
    return dist.get_rank() if dist.is_initialized() else 0


def restarted() -> bool:
    """Whether torchrun started this process again after a failure."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def barrier() -> None:
    """Wait for all, however long it takes."""
    if world_size() > 1:
        checked(dist.barrier, group=_patient)


@contextmanager
def patience() -> Iterator[None]:
    """Within: collectives wait as long as barriers do. For the first step: processes may compile minutes apart."""
    if world_size() == 1:
        yield
        return
    _set_timeout(PATIENCE)
    try:
        yield
        barrier()  # all of them are through before the clock runs again
    finally:
        _set_timeout(TIMEOUT)


def _set_timeout(timeout: datetime.timedelta) -> None:
    c10d = dist.distributed_c10d
    c10d._set_pg_timeout(timeout, dist.group.WORLD)
    c10d._get_default_store().set_timeout(timeout)  # by which NCCL's first collective finds the others


def agree(value: int) -> bool:
    """Whether all processes hold the same number."""
    if world_size() == 1:
        return True
    ends = torch.tensor([value, -value])
    checked(dist.all_reduce, ends, dist.ReduceOp.MAX, group=_patient)
    return bool(ends[0] == -ends[1])


def all_reduce_sum(x: Tensor) -> Tensor:
    """Sum over processes, with gradient (the gradient of a sum over processes is again summed over them)."""
    return _AllReduceSum.apply(x) if world_size() > 1 else x


def all_gather_rows(x: Tensor) -> Tensor:
    """[world * N, D]: the rows of all processes in rank order, with gradient."""
    return _AllGatherRows.apply(x) if world_size() > 1 else x


def any_of(flag: bool) -> bool:
    """Whether any process says so."""
    device = "cuda" if dist.is_initialized() and dist.get_backend() == "nccl" else "cpu"
    return bool(all_reduce_sum(torch.tensor(float(flag), device=device)) > 0)


def sum_gradients(parameters: Iterable[Tensor], *others: Tensor) -> None:
    """Add up every parameter's gradient over the processes, and other tensors, in place and in one message."""
    if world_size() == 1:
        return
    shares = [*(p.grad for p in parameters if p.grad is not None), *others]
    flat = torch.cat([share.flatten() for share in shares])
    checked(dist.all_reduce, flat)
    for share, part in zip(shares, flat.split([share.numel() for share in shares])):
        share.copy_(part.view_as(share))


def gather_arrays(x: Tensor) -> Tensor:
    """Rows of all processes (which may hold different numbers of them) in rank order, without gradient."""
    if world_size() == 1:
        return x
    counts = [torch.zeros(1, dtype=torch.int64, device=x.device) for _ in range(world_size())]
    checked(dist.all_gather, counts, torch.tensor([len(x)], device=x.device))
    most = max(int(c) for c in counts)
    padded = torch.zeros(most, *x.shape[1:], dtype=x.dtype, device=x.device)
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in range(world_size())]
    checked(dist.all_gather, parts, padded)
    return torch.cat([part[: int(c)] for part, c in zip(parts, counts)])


def checked(collective: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call what has collectives in it; what a backend says when another process has died or hangs becomes one line."""
    try:
        return collective(*arguments, **options)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not BACKEND.search(str(error)):
            raise
        reason = re.sub(r"\[/\S*\] ", "", str(error).splitlines()[0])[:120]  # without the backend's source lines
        raise ConnectionError(
            errno.ECONNRESET,
            f"another process ended or did not answer in time ({reason}); stopping. "
            "Continue from the last checkpoint with bayesncl resume, or let torchrun --max-restarts do it",
            f"process {os.environ.get('RANK', '0')} of {os.environ.get('WORLD_SIZE', '1')}",
        ) from None


def _summed(x: Tensor) -> Tensor:
    y = x.contiguous().clone()
    checked(dist.all_reduce, y)
    return y


class _AllReduceSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return _summed(x)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return _summed(gradients[0])


class _AllGatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x) for _ in range(world_size())]
        checked(dist.all_gather, parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return _summed(gradients[0]).chunk(world_size())[rank()]
