"""The joined results of the intruder quiz."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy import stats

from bayesncl.errors import InputError
from bayesncl.measure import wilson
from bayesncl.quiz import join_quizzes, quiz_json, render_quiz
from tests.commands import call


def answer(dim: int, right: bool, run: str = "NCL", n: int = 0) -> dict:
    return {
        "codes": f"of {run}", "run": run, "dim": dim, "images": [1, 2, 3, 4, 5], "intruder": 2,
        "chosen": 2 if right else 1, "seconds": 1.5, "time": f"2026-05-01T10:00:{n:02d}Z",
    }  # fmt: skip


def write(path: Path, author: str, answers: list[dict]) -> Path:
    path.write_text(json.dumps({"format": "bayesncl-quiz-1", "atlas": "a", "author": author, "answers": answers}))
    return path


@pytest.mark.parametrize(("right", "asked"), [(0, 5), (5, 5), (7, 20), (300, 400)])
def test_wilson_agrees_with_scipy(right: int, asked: int) -> None:
    interval = stats.binomtest(right, asked).proportion_ci(method="wilson")
    assert wilson(right, asked) == pytest.approx((interval.low, interval.high), abs=1e-9)


def test_answers_are_joined_by_method_and_dimension(tmp_path: Path) -> None:
    ann = [answer(3, True, n=1), answer(3, False, n=2), answer(4, True, "BayesNCL", n=3)]
    files = [write(tmp_path / "a.json", "Ann", ann), write(tmp_path / "b.json", "Ben", [answer(3, True, n=4)])]
    joined = join_quizzes([*files, files[0]])  # a file given twice counts once
    assert (joined["people"], joined["questions"]) == (2, 4)
    ncl = joined["methods"]["NCL"]
    assert (ncl.right, ncl.asked, ncl.share) == (2, 3, pytest.approx(2 / 3))
    assert (ncl.low, ncl.high) == wilson(2, 3)
    assert joined["dimensions"]["BayesNCL", 4].right == 1
    assert json.loads(quiz_json(joined))["methods"]["NCL"]["right"] == 2
    shown = render_quiz(joined)
    assert "2 people, 4 questions" in shown
    assert "NCL, dimension 3" in shown
    assert "dimension 4" not in shown  # asked once


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    other = answer(3, True) | {"codes": "another"}
    joined = join_quizzes([write(tmp_path / "a.json", "Ann", [answer(3, False), other])])
    assert sorted(joined["methods"]) == ["NCL", "NCL (another)"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("chosen", 5), ("chosen", True), ("intruder", -1), ("dim", 1e9), ("dim", "3"), ("images", [1]), ("run", None)],
)
def test_wrong_answers_are_one_line(field: str, value: object, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", "Ann", [answer(3, True) | {field: value}])
    with pytest.raises(InputError, match=rf"a\.json: an answer .*{field}"):
        join_quizzes([path])
    for text in ("", "[]", "{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(InputError, match=r"a\.json"):
            join_quizzes([path])


def test_the_command_joins_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path / f"{name}.json", name, [answer(3, name == "Ann")]) for name in ("Ann", "Ben")]
    assert call("quiz", *files, "--json", tmp_path / "out.json") == 0
    assert "1 of 2" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["methods"]["NCL"]["share"] == 0.5
    assert call("quiz", tmp_path / "none.json") == 2
