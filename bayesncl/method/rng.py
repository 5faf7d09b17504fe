"""Counter-based random numbers.

A number is a hash of (seed, epoch, image, stream, position): an image gets the same views whatever
the batch, the number of processes or the device, and a resumed run needs no generator state. All
arithmetic is int64 in torch, so CPU and GPU, eager and compiled code agree to the bit.

The hash is splitmix64 (Steele, Lea and Flood, 2014): number n of a key is mix((key + n) GAMMA),
output n of that generator started at key GAMMA. Its arithmetic is unsigned; int64 wraps around to
the same bits.
"""

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """The int64 with the low 64 bits of `word`."""
    return (word + 2**63) % 2**64 - 2**63


GAMMA = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)


def _shift(x: Tensor, bits: int) -> Tensor:
    # >> on int64 copies the sign bit; the mask removes the copies
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * MIX_1
    x = (x ^ _shift(x, 27)) * MIX_2
    return x ^ _shift(x, 31)


def make_key(
    seed: int | Tensor, epoch: int | Tensor, index: Tensor, stream: int = 0
) -> Tensor:
    """Keys of the random numbers of images `index` (int64 [...]) in one epoch, shaped like it.

    `seed` (its low 64 bits) and `epoch` are integers or int64 tensors that broadcast against
    `index`. `stream` selects one of several independent sequences for an image.
    """
    key = _mix(index + GAMMA)
    # each word is added to a mixed key, so (index, seed) = (4, 1) and (5, 0) are unrelated
    for word in (seed if isinstance(seed, Tensor) else _signed(seed), stream, epoch):
        key = _mix(key + GAMMA + word)
    return key


def uniform(key: Tensor, n: int) -> Tensor:
    """The first n numbers of each key: float32 [..., n] in [0, 1), multiples of 2^-24."""
    position = torch.arange(1, n + 1, device=key.device)
    # GAMMA multiplies the sum: the compiler would treat position * GAMMA as an overflowing index
    bits = _shift(_mix((key.unsqueeze(-1) + position) * GAMMA), 40)  # 24 bits: exact in float32
    return bits.to(torch.float32) * 2.0**-24


def epoch_order(seed: int, epoch: int, n: int) -> Tensor:
    """Permutation of n rows, a function of seed and epoch alone: the same in every process."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(n, generator=generator)
