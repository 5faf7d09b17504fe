"""Random numbers that depend on what they are for, not on what was drawn before.

A number is a hash of (seed, epoch, image, stream, position): the same image gets the same views whatever the batch,
the number of processes or the device, and a resumed run needs no generator state. Everything is int64 arithmetic in
torch, so the bits agree between CPU and GPU, eager and compiled.

The hash is splitmix64 (Steele, Lea and Flood, 2014): the n-th number of a key is mix((key + n) GAMMA), output n of
that generator started at key GAMMA. Its 64-bit arithmetic is unsigned; here int64 wraps around to the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """The int64 with the low 64 bits of `word`."""
    return (word + 2**63) % 2**64 - 2**63


GAMMA = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)


def _shift(x: Tensor, bits: int) -> Tensor:
    # >> on int64 copies the sign bit; the mask takes the copies away
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def make_key(seed: int | Tensor, epoch: int | Tensor, index: Tensor, stream: int = 0) -> Tensor:
    """Keys, int64 and shaped like `index`, of the random numbers of some images in one epoch.

    Of `seed` the low 64 bits count. It and `epoch` are integers, or int64 tensors that broadcast against `index` (0-d,
    they stay on their device). `index`, int64 [...], has the number of each image in the data set; `stream` says which
    of several independent sequences for the same image.
    """
    key = _mix(index + GAMMA)
    # each word is added to an already mixed key, so that (index, seed) = (4, 1) and (5, 0) have nothing in common
    for word in (seed if isinstance(seed, Tensor) else _signed(seed), stream, epoch):
        key = _mix(key + GAMMA + word)
    return key


def uniform(key: Tensor, n: int) -> Tensor:
    """n numbers in [0, 1) per key of `make_key`: float32 [..., n], multiples of 2^-24.

    The first m of n numbers are the m numbers `uniform(key, m)` gives.
    """
    position = torch.arange(1, n + 1, device=key.device)
    # GAMMA multiplies the sum: position * GAMMA alone would be an index to the compiler, which it must not overflow
    bits = _shift(_mix((key.unsqueeze(-1) + position) * GAMMA), 40)  # 24 bits: exact in float32
    return bits.to(torch.float32) * 2.0**-24
