"""Measuring files of features."""

from pathlib import Path

import numpy as np
import pytest

from bayesncl import evaluate as module
from bayesncl.data.images import spread_evenly
from bayesncl.errors import InputError
from bayesncl.evaluate import measure_features, measure_file
from bayesncl.measure import verdict
from bayesncl.measure.interpretability import interpretability
from bayesncl.measure.result import Result
from bayesncl.measure.retrieval import retrieval

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 120)
FEATURES = (RNG.standard_normal((120, 80)) + 2 * np.eye(80)[LABELS] - 1).clip(0).astype("f4")


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    np.savez(tmp_path / "features.npz", z=FEATURES, y=LABELS)
    return tmp_path / "features.npz"


def test_result_is_the_functions_by_name(npz: Path) -> None:
    result = measure_file(npz)
    branches = "paper sound retrieval chance parameters verdict readable kept detectors coverage"
    assert set(result.to_dict()) == {*branches.split(), "independence", "whole"}
    for definition in ("paper", "sound"):
        expected = interpretability(FEATURES, LABELS, definition)
        found = {k: v for k, v in getattr(result, definition).items() if v is not None}
        assert found == pytest.approx({key: expected[key] for key in found}, rel=1e-6)
        by_dims = result.retrieval[definition]
        assert set(by_dims) == {"64", "all"}
        for kept, dims in (("64", 64), ("all", None)):
            by_k = retrieval(FEATURES, LABELS, dims, definition=definition)
            assert by_dims[kept] == pytest.approx({str(k): v for k, v in by_k.items()})
    shuffled = np.random.default_rng(0).permutation(LABELS)
    by_chance = interpretability(FEATURES, shuffled)
    assert result.chance["sound"]["consistency"] == pytest.approx(by_chance["consistency"])
    assert "l0" not in result.chance["sound"]
    assert set(result.chance["retrieval"]) == {"paper", "sound"}
    parameters, counts = result.parameters, np.bincount(LABELS)
    assert (parameters["images"], parameters["classes"], parameters["queries"]) == (120, 4, 120)
    assert parameters["images_per_class"] == [counts.min(), counts.max()]
    # nothing JSON cannot hold; a second run gives the same
    assert Result.from_json(result.to_json()) == result
    assert measure_file(npz) == result


def test_without_labels(npz: Path, tmp_path: Path) -> None:
    """What can be said without them; a second encoder tells what is alike."""
    np.savez(tmp_path / "z.npz", z=FEATURES)
    result = measure_file(tmp_path / "z.npz")
    assert result.coverage == measure_file(npz).coverage
    np.save(tmp_path / "e.npy", np.eye(4)[LABELS] + 0.1 * RNG.standard_normal((120, 4)))
    judged = measure_file(tmp_path / "z.npz", None, tmp_path / "e.npy")
    assert judged.labelfree["by"] == "a second encoder"
    assert judged.readable["count"] > judged.chance["readable"]["count"]


def test_what_else_a_file_may_hold(tmp_path: Path) -> None:
    more = {"h": FEATURES, "y_coarse": LABELS // 2, "again": FEATURES[:, ::-1]}
    np.savez(tmp_path / "all.npz", z=FEATURES, y=LABELS, control=RNG.random((120, 80)), **more)
    result = measure_file(tmp_path / "all.npz")
    assert result.labelfree["by"] == "the embeddings given"
    assert result.seeds["mean_cosine"] == pytest.approx(1, abs=1e-4)
    assert result.readable["by"] == "class or superclass"
    p5 = [branch["5"]["p5"] for branch in (result.control["kept"], result.chance["kept"])]
    assert max(p5) < result.kept["5"]["p5"]
    assert result.control["coverage"]["l0"] == 80
    assert Result.from_json(result.to_json()) == result


def test_many_rows_are_sampled(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 90)
    monkeypatch.setattr(module, "SAMPLED_QUERIES", 30)
    result = measure_file(npz)
    assert (result.parameters["images"], result.parameters["rows_measured"]) == (120, 90)
    assert result.parameters["queries"] == 30
    rows = spread_evenly(120, 90)
    asked = np.sort(np.random.default_rng(0).choice(90, 30, replace=False))
    wanted = retrieval(FEATURES[rows], LABELS[rows], queries=asked)[5]
    assert result.retrieval["sound"]["all"]["5"] == pytest.approx(wanted)
    wanted = interpretability(FEATURES[rows], LABELS[rows])["consistency"]
    assert result.sound["consistency"] == pytest.approx(wanted)
    assert "90 of 120" in verdict.render(result.verdict)


def test_features_by_definition_and_strict_ranking() -> None:
    other = FEATURES[:, ::-1] ** 2
    ranking = np.arange(80.0)
    result = measure_features(other, LABELS, paper=FEATURES, ranking=ranking, dims=(8,))
    by_paper = interpretability(FEATURES, LABELS, "paper")["consistency"]
    assert result.paper["consistency"] == pytest.approx(by_paper)
    by_sound = interpretability(other, LABELS)["consistency"]
    assert result.sound["consistency"] == pytest.approx(by_sound)
    ranked = retrieval(other, LABELS, 8, ranking=ranking)[5]
    assert result.retrieval["sound"]["8"]["5"] == pytest.approx(ranked)
    by_paper = retrieval(FEATURES, LABELS, 8, definition="paper")[5]
    assert result.retrieval["paper"]["8"]["5"] == pytest.approx(by_paper)


def test_what_is_not_needed_is_not_read(tmp_path: Path) -> None:
    """Arrays of objects, class names, or labels under a second name are ignored."""
    y = np.arange(60) % 3
    z = np.eye(3)[y] + 0.01
    pickled = np.array(["a", None, "c"], object)
    extra = {"names": pickled, "class_names": pickled, "labels": pickled}
    np.savez(tmp_path / "f.npz", z=z, y=y, **extra)
    assert measure_file(tmp_path / "f.npz").sound["classes_owned"] is not None
    np.savez(tmp_path / "h.npz", h=z)  # which is what is measured, and no embedding to judge it by
    assert not measure_file(tmp_path / "h.npz").readable


@pytest.mark.filterwarnings("ignore")
def test_labels_that_were_asked_for_must_be_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", z=np.eye(6), y=np.arange(6) % 2)
    (tmp_path / "names.csv").write_text("name\n" + "\n".join("abcdef") + "\n")
    np.save(tmp_path / "measured.npy", np.linspace(0, 1, 6))
    for name in ("names.csv", "measured.npy"):
        with pytest.raises(InputError, match="labels"):
            measure_file(tmp_path / "f.npz", tmp_path / name)
