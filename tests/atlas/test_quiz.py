"""The joined results of the intruder quiz."""

import json
from pathlib import Path

import pytest
from scipy import stats

from bayesncl.measure.labelfree import wilson
from tests.commands import call


def answer(dim: int, right: bool, run: str = "NCL", n: int = 0) -> dict:
    return {
        "codes": f"of {run}", "run": run, "dim": dim, "images": [1, 2, 3, 4, 5], "intruder": 2,
        "chosen": 2 if right else 1, "seconds": 1.5, "time": f"2026-05-01T10:00:{n:02d}Z",
    }  # fmt: skip


def write(path: Path, author: str, answers: list[dict]) -> Path:
    tree = {"format": "bayesncl-quiz-1", "atlas": "a", "author": author, "answers": answers}
    path.write_text(json.dumps(tree))
    return path


@pytest.mark.parametrize(("right", "asked"), [(0, 5), (5, 5), (7, 20), (300, 400)])
def test_wilson_agrees_with_scipy(right: int, asked: int) -> None:
    interval = stats.binomtest(right, asked).proportion_ci(method="wilson")
    assert wilson(right, asked) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_answers_are_joined_by_method_and_dimension(tmp_path: Path, capsys) -> None:
    ann = [answer(3, True, n=1), answer(3, False, n=2), answer(4, True, "BayesNCL", n=3)]
    a = write(tmp_path / "a.json", "Ann", ann)
    b = write(tmp_path / "b.json", "Ben", [answer(3, True, n=4)])
    assert call("quiz", a, b, a, "--json", tmp_path / "out.json") == 0
    joined = json.loads((tmp_path / "out.json").read_text())
    assert (joined["people"], joined["questions"]) == (2, 4)  # a file given twice counts once
    low, high = wilson(2, 3)
    expected = {"right": 2, "asked": 3, "share": 2 / 3, "low": low, "high": high}
    assert joined["methods"]["NCL"] == pytest.approx(expected)
    scores = {(d["run"], d["dim"]): d["right"] for d in joined["dimensions"]}
    assert scores == {("NCL", 3): 2, ("BayesNCL", 4): 1}
    shown = capsys.readouterr().out
    assert "2 of 3" in shown and "NCL, dimension 3" in shown
    assert "dimension 4" not in shown  # asked once


@pytest.mark.parametrize("change", [{"chosen": -1}, {"intruder": 5}, {"dim": True}])
def test_an_answer_out_of_range_is_refused(tmp_path: Path, capsys, change: dict) -> None:
    path = write(tmp_path / "a.json", "Ann", [answer(3, True) | change])
    assert call("quiz", path) == 2
    assert "is not a valid quiz.json" in capsys.readouterr().err
