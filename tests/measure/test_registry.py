"""The registry of measures: complete, consistent, and what results are read through."""

import numpy as np
import pytest

from bayesncl.errors import InputError
from bayesncl.evaluate import measure_features
from bayesncl.measure.interpretability import DEFINITIONS, interpretability
from bayesncl.measure.registry import MEASURES, find, named
from bayesncl.measure.result import Result
from bayesncl.report.tables import render
from tests.conftest import unit_length

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 3
FEATURES = np.abs(RNG.standard_normal((60, 8))) + 2 * np.eye(8)[LABELS]


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_every_key_of_interpretability_is_registered(definition: str) -> None:
    found, shuffled = (
        interpretability(FEATURES, y, definition) for y in (LABELS, RNG.permutation(LABELS))
    )
    assert set(found) == {m.key for m in MEASURES if definition in m.definitions}
    for key in found:
        if not named(key).needs_labels:
            assert shuffled[key] == found[key]


def test_measures_are_told_apart() -> None:
    assert len({m.key for m in MEASURES}) == len(MEASURES)
    every = [(measure, each) for measure in MEASURES for each in measure.definitions or ("",)]
    assert len({(measure.title(), definition) for measure, definition in every}) == len(every)
    for measure, each in every:
        path = (each, measure.key) if each else tuple(measure.key.split("/"))
        assert find(path)[0] == measure


def test_what_is_no_result_is_refused() -> None:
    for text in ("[1]", "{}", "", '{"paper": 3}', "[" * 100_000):
        with pytest.raises(InputError):
            Result.from_json(text)


def test_numbers_of_codes_have_names() -> None:
    """Every number that --all prints has a label, except the clearest dimension."""
    codes, x = unit_length(FEATURES), RNG.standard_normal((60, 5))
    given = {"embeddings": x, "control": codes[:, ::-1].copy(), "everything": True}
    result = measure_features(codes, LABELS, **given)
    rows = [line[:12].split() for line in render(result, everything=True).splitlines()[1:]]
    assert {word for row in rows for word in row} <= {"paper", "sound", "readable"}, rows
