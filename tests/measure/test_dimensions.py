"""The table of per-dimension statistics against loops."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from bayesncl.errors import InputError
from bayesncl.measure import rows
from bayesncl.measure.dimensions import describe, most_mixed, most_suppressed
from tests.conftest import unit_length


@pytest.fixture
def world() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((90, 12)) * (rng.random((90, 12)) < 0.5)
    z[:, 3] = 0  # dead
    z[:, 4] = 0
    z[:5, 4] = 1  # nearly dead
    z[7] = 0  # an image without features
    z *= rng.uniform(0.5, 20, (90, 1))
    open = rng.random((90, 12)) < 0.7
    open[:, 6] = True  # never closed
    return {
        "z": z,
        "labels": rng.choice([-1, 5, 7, 2**40], 90),
        "backgrounds": rng.choice([-3, 0, 9, 11, 12, 13], 90),
        "open": open,
    }


def nats(weights: list[float]) -> float:
    return -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights if w)


def test_against_loops(world: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ENTRIES_PER_BLOCK", 12 * 20)  # several blocks
    z, y, open = world["z"], world["labels"], world["open"]
    table = describe(z, y, backgrounds=world["backgrounds"], open=open)
    unit = np.abs(unit_length(z))
    assert table.classes.tolist() == [5, 7, 2**40]
    sizes = [int((y == c).sum()) for c in table.classes]
    for k in range(12):
        fires = [i for i in range(90) if unit[i, k] > 1e-5]
        assert table.support[k] == len(fires)
        assert table.mass[k] == pytest.approx(unit[fires, k].sum())
        by_class = [sum(y[i] == c for i in fires) for c in table.classes]
        assert table.class_counts[k].tolist() == by_class
        places = Counter(world["backgrounds"][fires].tolist())
        assert table.background_counts[k].tolist() == [places[b] for b in (0, 9, 11, 12, 13)]
        assert table.open_rate[k] == pytest.approx(100 * open[:, k].mean())
        assert table.open_counts[k].tolist() == [int(open[y == c, k].sum()) for c in table.classes]
        if not fires:
            assert table.best_class[k] == -1
            names = "consistency", "recall", "entropy_freq", "entropy_sum", "entropy_mean"
            for name in (*names, "closed_rate"):
                assert np.isnan(getattr(table, name)[k]), name
            continue
        best = int(table.best_class[k])
        assert by_class[best] == max(by_class)
        assert table.consistency[k] == pytest.approx(100 * max(by_class) / sum(by_class))
        assert table.recall[k] == pytest.approx(100 * by_class[best] / sizes[best])
        mass = [unit[[i for i in fires if y[i] == c], k].sum() for c in table.classes]
        assert table.entropy_freq[k] == pytest.approx(nats(by_class))
        assert table.entropy_sum[k] == pytest.approx(nats(mass))
        assert table.entropy_mean[k] == pytest.approx(nats([m / s for m, s in zip(mass, sizes)]))
        assert table.closed_rate[k] == pytest.approx(
            100 * sum(not open[i, k] for i in fires) / len(fires)
        )
    firing = unit > 1e-5
    assert np.flatnonzero(table.dead).tolist() == [3] and table.l0 == firing.sum() / 90
    assert np.flatnonzero(~table.counted).tolist() == [3, 4]


def test_rankings(world: dict[str, np.ndarray]) -> None:
    table = describe(world["z"], world["labels"], open=world["open"])
    mixed, suppressed = most_mixed(table), most_suppressed(table)
    assert set(mixed) == set(range(12)) - {3, 4}
    assert set(suppressed) == set(mixed) - {6}
    assert (np.diff(table.entropy_sum[mixed]) <= 0).all()
    assert (np.diff(table.closed_rate[suppressed]) <= 0).all()
    unlabeled = describe(world["z"])
    assert (np.diff(unlabeled.support[most_mixed(unlabeled)]) <= 0).all()
    same = describe(np.concatenate([world["z"][:, :1]] * 3, axis=1) * [1, 3, 2], np.arange(90) % 2)
    assert most_mixed(same).tolist()[0] == 1  # equals by mass
    with pytest.raises(InputError, match="no gates"):
        most_suppressed(unlabeled)


def test_without_labels_what_needs_them_is_none(world: dict[str, np.ndarray]) -> None:
    table = describe(torch.from_numpy(world["z"]), None, open=world["open"])
    assert table.classes is table.consistency is table.entropy_sum is None
    assert table.open_counts is None
    assert table.closed_rate is not None
    assert describe(world["z"]).closed_rate is None
    for bad in ({"labels": np.arange(3)}, {"open": np.ones((2, 2), bool)}):
        with pytest.raises(InputError):
            describe(world["z"], **bad)
