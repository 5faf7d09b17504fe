"""The registry of measures: complete, consistent, and what results are read through."""

from __future__ import annotations

import numpy as np
import pytest

from bayesncl.errors import InputError
from bayesncl.evaluate import measure_features
from bayesncl.measure.interpretability import DEFINITIONS, interpretability
from bayesncl.measure.measures import BY_PATH, MEASURES, find, named, title
from bayesncl.measure.result import Result

RNG = np.random.default_rng(0)
LABELS = np.arange(60) % 3
FEATURES = np.abs(RNG.standard_normal((60, 8))) + 2 * np.eye(8)[LABELS]


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_every_key_of_interpretability_is_registered(definition: str) -> None:
    found, shuffled = (interpretability(FEATURES, y, definition) for y in (LABELS, RNG.permutation(LABELS)))
    assert set(found) == {m.key for m in MEASURES if definition in m.definitions}
    for key in found:
        if not named(key).needs_labels:
            assert shuffled[key] == found[key]


def test_measures_are_told_apart() -> None:
    assert len({m.key for m in MEASURES}) == len(MEASURES)
    assert len({title(path) for path in BY_PATH}) == len(BY_PATH)
    assert all(m.doc.endswith(".") for m in MEASURES)


def test_values_are_found_by_measure() -> None:
    result = measure_features(FEATURES, LABELS, dims=(4,))
    for definition in DEFINITIONS:
        assert result.value(named("consistency"), definition) == getattr(result, definition)["consistency"]
        measure, said = find(("retrieval", definition, "4", "5"))
        assert said == definition
        assert result.value(measure, definition) == result.retrieval[definition]["4"]["5"]
    assert result.value(named("probe/fast/acc1")) is None
    assert find(("parameters", "seed")) is None
    assert title(("paper", "consistency")) == "consistency, paper's definition (%)"
    assert named("l0").text(1234.56) == "1,234.6"
    assert named("l0").text(None) == "-"


def test_a_result_survives_json_and_knows_its_curves() -> None:
    result = measure_features(FEATURES, LABELS)
    assert Result.from_json(result.to_json()) == result
    active, consistency = result.by_threshold()
    assert active[0] == result.sound["l0"]
    assert active[2] == result.sound["l0_at_0.1"]
    assert consistency[2] == pytest.approx(result.sound["consistency_at_0.1"], nan_ok=True)
    result.curves = {"consistency_by_support": {"1": 3.0, "10": None}, "retrieval_paper": {"16": {"5": 2.0}}}
    assert result.by_support() == {1: 3.0, 10: None}
    assert result.by_dims(5, "paper") == {16: 2.0}
    for text in ("[1]", "{}", "", '{"paper": 3}', "[" * 100_000):
        with pytest.raises(InputError, match="x: not the results of an evaluation"):
            Result.from_json(text, "x")
