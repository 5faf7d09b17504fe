"""Results of the atlas's intruder quiz, joined over people: how often was the image that does not belong found?

    {"format": "bayesncl-quiz-1", "atlas": "title", "author": "Ann",
     "answers": [{"codes": "9f8e...", "run": "NCL", "dim": 17, "images": [3, 8, 21, 40, 5], "intruder": 2, "chosen": 2,
                  "seconds": 3.1, "time": "2026-05-01T10:00:00.000Z"}]}

`images` are in the order shown; `intruder` and `chosen` are places in it, 0 to 4. Guessing finds one in five.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from .errors import InputError, printable
from .measure import wilson
from .names import MOST_DIMS, read_json

FORMAT = "bayesncl-quiz-1"
PLACES = 5
CHANCE = 1 / PLACES


@dataclass(frozen=True)
class Answer:
    """One question answered by one person."""

    author: str
    codes: str
    run: str
    dim: int
    images: tuple[int, ...]
    intruder: int
    chosen: int
    time: str


@dataclass(frozen=True)
class Found:
    """How often the intruder was found: `low` to `high` is the 95 % Wilson interval of `share`."""

    right: int
    asked: int
    share: float
    low: float
    high: float


def read_quiz(path: Path | str) -> list[Answer]:
    """The answers in a file the quiz exported; whether each is right is worked out again."""
    path = Path(path)
    found = read_json(path, "results of the quiz")
    if not isinstance(found, dict) or found.get("format") != FORMAT or not isinstance(found.get("answers"), list):
        raise InputError(f"{path}: not results of the quiz as the atlas exports them (no format {FORMAT!r} in it)")
    author = found.get("author")
    return [_answer(each, author if isinstance(author, str) else "", path) for each in found["answers"]]


def _answer(found: object, author: str, path: Path) -> Answer:
    given = found if isinstance(found, dict) else {}

    def take(what: str, kind: type[Any], end: int = 0) -> Any:
        value: Any = given.get(what)
        if type(value) is not kind or (kind is int and not 0 <= value < end):
            raise InputError(f"{path}: an answer whose {what} is {printable(repr(value), 40)}")
        return printable(value, 200) if kind is str else value

    images = given.get("images")
    if not isinstance(images, list) or len(images) != PLACES or not all(type(i) is int and i >= 0 for i in images):
        raise InputError(f"{path}: an answer without its {PLACES} images")
    return Answer(
        printable(author, 60), take("codes", str), take("run", str), take("dim", int, MOST_DIMS), tuple(images),
        take("intruder", int, PLACES), take("chosen", int, PLACES), take("time", str),
    )  # fmt: skip


def join_quizzes(files: Sequence[Path | str]) -> dict:
    """Join the results of several files. An answer that is in two files counts once.

    Returns the numbers of `people` and `questions`; under `methods` the `Found` of each run, under `dimensions` that of
    each (run, dimension).
    """
    answers = list(dict.fromkeys(answer for path in files for answer in read_quiz(path)))
    runs: dict[str, str] = {}  # fingerprint to name; two runs of one name are told apart by it
    for answer in answers:
        twice = any(name == answer.run and codes != answer.codes for codes, name in runs.items())
        runs.setdefault(answer.codes, f"{answer.run} ({answer.codes[:8]})" if twice else answer.run)

    def counted(key: Callable[[Answer], Any]) -> dict[Any, Found]:
        found = {}
        for name, group in groupby(sorted(answers, key=key), key):
            right = [answer.chosen == answer.intruder for answer in group]
            found[name] = Found(sum(right), len(right), sum(right) / len(right), *wilson(sum(right), len(right)))
        return found

    return {
        "people": len({answer.author for answer in answers}),
        "questions": len(answers),
        "methods": counted(lambda answer: runs[answer.codes]),
        "dimensions": counted(lambda answer: (runs[answer.codes], answer.dim)),
    }


def render_quiz(joined: dict) -> str:
    """The joined results as lines of text."""
    def line(name: str, f: Found) -> str:
        share, low, high = (100 * x for x in (f.share, f.low, f.high))
        return f"{name:<34.34} {f.right:>5} of {f.asked:<5} {share:5.1f} %   {low:5.1f} to {high:5.1f} %"

    people = f"{joined['people']} {'person' if joined['people'] == 1 else 'people'}"
    lines = [f"Intruder found, {people}, {joined['questions']} questions; guessing finds {100 * CHANCE:.0f} %"]
    lines += [line(name, found) for name, found in joined["methods"].items()]
    several = {key: found for key, found in joined["dimensions"].items() if found.asked > 1}
    if several:
        lines += ["", "Dimensions asked about more than once"]
        order = sorted(several.items(), key=lambda item: (-item[1].share, item[0]))
        lines += [line(f"{run}, dimension {k}", found) for (run, k), found in order]
    return "\n".join(lines)


def quiz_json(joined: dict) -> str:
    """The joined results as JSON."""
    by_dim = [{"run": run, "dim": k} | vars(found) for (run, k), found in joined["dimensions"].items()]
    methods = {name: vars(found) for name, found in joined["methods"].items()}
    return json.dumps(joined | {"chance": CHANCE, "methods": methods, "dimensions": by_dim}, indent=1) + "\n"
