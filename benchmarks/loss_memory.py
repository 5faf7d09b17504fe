"""InfoNCE whole and in blocks: seconds and memory of value and gradient, beyond the features themselves.

    python benchmarks/loss_memory.py [--device cuda] [--batch 32768] [--dim 2048] [--block 1024]

By count, for N = 2 batch rows of D float32 features. Whole: N x N similarities, several times over (masked, the
logsumexp's scratch, their gradients). In blocks of R rows: the same with R x N, one block at a time, once in the forward
and once more in the backward pass.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bayesncl import info_nce
from bayesncl.method.losses import BLOCK_ROWS, unit_rows

PAGE = 4096


def measure(loss: Callable[[Tensor], Tensor], z: Tensor) -> tuple[float, int, float, Tensor]:
    """Seconds, peak bytes beyond what is held now, value and gradient."""
    z = z.detach().requires_grad_()
    if z.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        began = time.perf_counter()
        value = loss(z)
        value.backward()
        torch.cuda.synchronize()
        seconds, peak = time.perf_counter() - began, torch.cuda.max_memory_allocated() - held
    else:
        seconds, peak, value = resident_peak(loss, z)
    assert z.grad is not None
    return seconds, peak, value.item(), z.grad


def resident_peak(loss: Callable[[Tensor], Tensor], z: Tensor) -> tuple[float, int, Tensor]:
    """On a CPU: the growth of resident memory, looked at every millisecond."""
    done, peak = threading.Event(), 0
    held = resident()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, resident() - held)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    value = loss(z)
    value.backward()
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return seconds, peak, value


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, nargs="+", help="images; default sizes that take seconds")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--block", type=int, default=BLOCK_ROWS)
    args = parser.parse_args()
    gpu = args.device.startswith("cuda")
    if not gpu:
        ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: freed tensors go back to the system, and count
    limit = torch.cuda.mem_get_info()[0] if gpu else 8 << 30
    print(f"{'batch':>7} {'rows':>7} {'dim':>5} {'kind':>8} {'seconds':>8} {'MiB':>8} {'by count':>9}   value")
    for batch in args.batch or ([1024, 4096, 32768] if gpu else [512, 1024, 2048]):
        rows = 2 * batch
        z = unit_rows(torch.rand(rows, args.dim, generator=torch.Generator().manual_seed(0))).to(args.device)
        gradients = []
        for kind, block in (("whole", rows), ("blocks", args.block)):
            gradient_bytes = 4 * rows * args.dim
            count = 4 * 4 * block * rows + gradient_bytes
            if count > 0.8 * limit:
                print(f"{batch:7} {rows:7} {args.dim:5} {kind:>8} {'':8} {'too much':>8} {count >> 20:9}")
                continue
            # info_nce chooses blocks by itself above 8192 rows; the dense path is asked for by its formula
            loss = dense if kind == "whole" else lambda z, block=block: info_nce(z, block=block)
            measure(loss, z[: 2 * min(batch, 64)])  # warm up
            seconds, peak, value, gradient = measure(loss, z)
            gradients.append(gradient)
            size = f"{batch:7} {rows:7} {args.dim:5} {kind:>8}"
            print(f"{size} {seconds:8.2f} {peak / 2**20:8.0f} {count >> 20:9}   {value:.6f}")
        if len(gradients) == 2:
            scale = gradients[0].abs().max()
            apart = float((gradients[0] - gradients[1]).abs().max() / scale)
            print(f"        largest difference of the gradients: {apart:.1e} of the largest entry")


def dense(z: Tensor, temperature: float = 0.2) -> Tensor:
    """The loss by its formula, everything at once."""
    n = len(z)
    s = z @ z.T / temperature
    other = (torch.arange(n, device=z.device) + n // 2) % n
    pull = s.gather(1, other[:, None]).squeeze(1)
    s = s.masked_fill(torch.eye(n, dtype=torch.bool, device=z.device), float("-inf"))
    return (torch.logsumexp(s, 1) - pull).mean()


if __name__ == "__main__":
    main()
