"""Order and batches: what each step gets, from memory or from a memory-mapped file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl import distributed, feed
from bayesncl.errors import InputError
from bayesncl.feed import ahead, batch_rows, batches, epoch_order, settle

CPU = torch.device("cpu")
N = 21


@pytest.fixture
def pixels() -> np.ndarray:
    """Image i holds the number i everywhere."""
    return np.broadcast_to(np.arange(N, dtype=np.uint8)[:, None, None, None], (N, 3, 4, 4)).copy()


def test_order_is_a_permutation_of_seed_and_epoch() -> None:
    orders = {(s, e): tuple(epoch_order(s, e, 50).tolist()) for s in range(4) for e in range(4)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len(set(orders.values())) == 16
    torch.rand(3)
    assert tuple(epoch_order(2, 3, 50).tolist()) == orders[2, 3]
    assert sorted(epoch_order(2**63 - 1, 10**6, 5).tolist()) == list(range(5))


def test_every_place_is_as_likely() -> None:
    first = np.bincount([int(epoch_order(0, e, 4)[0]) for e in range(400)], minlength=4)
    assert first.min() > 60  # 100 expected, standard deviation 8.7


def test_batches_follow_the_order_and_drop_the_rest(pixels: np.ndarray) -> None:
    order = epoch_order(3, 5, N).tolist()
    found = list(batches(pixels, 4, 3, 5, 0, CPU))
    assert len(found) == N // 4
    for step, (part, index) in enumerate(found):
        wanted = order[4 * step : 4 * step + 4]
        assert index.tolist() == wanted
        assert index.dtype == torch.int64
        assert part.dtype == torch.uint8
        assert part.shape == (4, 3, 4, 4)
        assert part[:, 0, 0, 0].tolist() == wanted
        assert (part == part[:, :1, :1, :1]).all()


@pytest.mark.parametrize("first", [0, 1, 3, 4, 5])
def test_goes_on_from_a_step(pixels: np.ndarray, first: int) -> None:
    whole = list(batches(pixels, 4, 0, 1, 0, CPU))
    rest = list(batches(pixels, 4, 0, 1, first, CPU))
    assert len(rest) == len(whole) - first
    for (a, i), (b, j) in zip(whole[first:], rest):
        assert torch.equal(a, b)
        assert torch.equal(i, j)


def test_a_memory_mapped_file_and_a_tensor_give_the_same(pixels: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", pixels)
    mapped = np.load(tmp_path / "pixels.npy", mmap_mode="r")
    assert settle(mapped, CPU) is mapped
    forms = [list(batches(form, 6, 1, 2, 0, CPU)) for form in (pixels, mapped, torch.from_numpy(pixels))]
    for steps in zip(*forms):
        for part, index in steps[1:]:
            assert torch.equal(part, steps[0][0])
            assert torch.equal(index, steps[0][1])
    forms[1][0][0].zero_()  # a batch is a copy, the file stays
    assert np.array_equal(np.load(tmp_path / "pixels.npy"), pixels)


def test_processes_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    order = epoch_order(0, 0, N)
    whole = [batch_rows(order, step, 6).tolist() for step in range(3)]
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    for step in range(3):
        shares = []
        for rank in range(3):
            monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
            shares += batch_rows(order, step, 6).tolist()
        assert shares == whole[step]


def test_images_that_vanish_are_one_line(pixels: np.ndarray) -> None:
    class Gone(np.ndarray):
        def __getitem__(self, key: object) -> np.ndarray:
            raise OSError(5, "Input/output error")

    with pytest.raises(InputError, match=r"can no longer be read: .*Input/output error"):
        next(batches(pixels.view(Gone), 4, 0, 0, 0, CPU))


# reading ahead


def test_ahead_gives_the_same_items() -> None:
    for depth in (1, 4, 100):
        assert list(ahead(iter(range(37)), depth)) == list(range(37))
    assert list(ahead(iter([None, 0, ()]), 2)) == [None, 0, ()]  # no item is taken for the end
    assert list(ahead(iter([]), 2)) == []


def test_ahead_is_never_further_ahead_than_asked() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for i in range(20):
            made.append(i)
            yield i

    for i in ahead(items(), 3):
        assert len(made) <= i + 1 + 3 + 1  # taken, ready, and the one in hand
    assert made == list(range(20))


def test_ahead_passes_errors_on_in_their_turn() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("third")

    stream = ahead(items(), 4)
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(stream)


def test_ahead_ends_its_thread_when_the_reader_leaves() -> None:
    before = threading.active_count()
    stream = ahead(iter(range(10**9)), 2)
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    stream.close()
    assert threading.active_count() == before


def test_read_puts_rows_back_in_order(pixels: np.ndarray) -> None:
    rows = torch.tensor([9, 2, 2, 20, 0])
    assert feed._read(pixels, rows)[:, 0, 0, 0].tolist() == rows.tolist()
