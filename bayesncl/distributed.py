"""Several processes under torchrun: joining them, and the collectives of the package."""

import datetime
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from bayesncl.errors import InputError, first_line

TIMEOUT = datetime.timedelta(minutes=10)  # of a collective; then another process counts as lost
BARRIER_TIMEOUT = datetime.timedelta(hours=24)  # process 0 may be decoding a dataset

_barriers: dist.ProcessGroup | None = None  # gloo, on the CPU


def start() -> None:
    """Join the other processes if torchrun started several; otherwise do nothing."""
    global _barriers
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or dist.is_initialized():
        return
    if "MASTER_ADDR" not in os.environ:
        raise InputError(f"WORLD_SIZE is {world}, MASTER_ADDR is not set: start with torchrun")
    gpus, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
    if gpus:
        if local >= gpus:
            raise InputError(f"this machine has {gpus} GPUs: use torchrun --nproc-per-node {gpus}")
        torch.cuda.set_device(local)
    with lost_process_as_error():
        store, rank, world = next(rendezvous("env://", timeout=TIMEOUT))
        if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
            # On one machine torchrun keeps its store across restarts, with the addresses of dead
            # processes; several need TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (docs/scaling.md).
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = dist.PrefixStore(f"attempt-{attempt}", store)
        backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT
        )
        _barriers = dist.new_group(backend="gloo", timeout=BARRIER_TIMEOUT)


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Number of this process; process 0 writes files."""
    return dist.get_rank() if dist.is_initialized() else 0


def restarted() -> bool:
    """Whether torchrun restarted this process after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def lost_process_as_error() -> Iterator[None]:
    """Raise ConnectionError if a collective fails because another process died or hangs."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # gloo raises no narrower type
        if world_size() == 1 and not isinstance(error, dist.DistError):
            raise
        raise ConnectionError(
            errno.ECONNRESET,
            f"another process ended or did not answer ({first_line(error)}). Continue from the "
            "last checkpoint: bayesncl resume, or torchrun --max-restarts",
            f"process {rank()} of {world_size()}",
        ) from error


def barrier() -> None:
    if world_size() > 1:
        with lost_process_as_error():
            dist.barrier(group=_barriers)


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Sum the gradients of parameters over processes, in one message."""
    if world_size() == 1:
        return
    shares = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([share.flatten() for share in shares])
    dist.all_reduce(flat)
    for share, part in zip(shares, flat.split([share.numel() for share in shares])):
        share.copy_(part.view_as(share))


def gather_arrays(x: Tensor) -> Tensor:
    """Rows of all processes in rank order; they may have different numbers of rows."""
    if world_size() == 1:
        return x
    with lost_process_as_error():
        counts = torch.zeros(world_size(), dtype=torch.int64, device=x.device)
        counts[rank()] = len(x)
        dist.all_reduce(counts)
        padded = x.new_zeros(int(counts.max()), *x.shape[1:])
        padded[: len(x)] = x
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
    return torch.cat([part[:n] for part, n in zip(parts, counts.tolist())])


class _AllReduceSum(torch.autograd.Function):
    """torch.distributed.nn has this too, deprecated since torch 2.13 and not for compiled code."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.contiguous().clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _AllReduceSum.forward(ctx, gradients[0])


def all_reduce_sum(x: Tensor) -> Tensor:
    """Sum over processes; its gradient is summed over processes too."""
    return _AllReduceSum.apply(x) if world_size() > 1 else x
