"""Results of the intruder quiz of the atlas, from several people.

    {"format": "bayesncl-quiz-1", "atlas": "title", "author": "Ann",
     "answers": [{"codes": "9f8e...", "run": "NCL", "dim": 17, "images": [3, 8, 21, 40, 5],
                  "intruder": 2, "chosen": 2, "seconds": 3.1, "time": "2026-05-01T10:00:00.000Z"}]}

`images` are in the order shown; `intruder` and `chosen` are positions in it. Chance is 1 in 5.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesncl.codes.names import read_json
from bayesncl.errors import InputError, printable
from bayesncl.measure import wilson

FORMAT = "bayesncl-quiz-1"
CHOICES = 5
FIELDS = {"codes": str, "run": str, "dim": int, "intruder": int, "chosen": int, "time": str}


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
class Score:
    """How often the intruder was found, with the 95 % Wilson interval of the share."""

    right: int
    asked: int
    share: float
    low: float
    high: float


def read_quiz(path: Path | str) -> list[Answer]:
    """Read the answers that the page exported."""
    tree = read_json(Path(path))
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise InputError(f"{path} is not a quiz.json exported by the atlas (format {FORMAT!r})")
    try:
        return [_parse(answer, str(tree.get("author"))) for answer in tree["answers"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a valid quiz.json: {printable(str(error), 120)}") from None


def _parse(answer: dict[str, Any], author: str) -> Answer:
    for name, kind in FIELDS.items():
        if type(answer[name]) is not kind:
            raise ValueError(f"{name} is {answer[name]!r}")
    images = tuple(answer["images"])
    if len(images) != CHOICES or any(type(i) is not int for i in images):
        raise ValueError(f"images must be {CHOICES} numbers")
    if not {answer["intruder"], answer["chosen"]} <= set(range(CHOICES)):
        raise ValueError(f"intruder and chosen must be below {CHOICES}")
    return Answer(author=author, images=images, **{name: answer[name] for name in FIELDS})


def join_quizzes(files: Sequence[Path | str]) -> dict[str, Any]:
    """Join the answers in several files; duplicates count once.

    Returns the numbers of `people` and `questions`, the `Score` of each run under `methods`, and
    that of each (run, dimension) under `dimensions`.
    """
    answers = list(dict.fromkeys(answer for path in files for answer in read_quiz(path)))
    names: dict[str, str] = {}  # by fingerprint, which distinguishes two runs of the same name
    for a in answers:
        clash = any(name == a.run and codes != a.codes for codes, name in names.items())
        name = f"{a.run} ({a.codes[:8]})" if clash else a.run
        names.setdefault(a.codes, printable(name, 200))

    methods: dict[str, list[bool]] = defaultdict(list)
    dimensions: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for a in answers:
        methods[names[a.codes]].append(a.chosen == a.intruder)
        dimensions[names[a.codes], a.dim].append(a.chosen == a.intruder)
    return {
        "people": len({answer.author for answer in answers}),
        "questions": len(answers),
        "methods": {name: _score(right) for name, right in sorted(methods.items())},
        "dimensions": {key: _score(right) for key, right in sorted(dimensions.items())},
    }


def _score(right: list[bool]) -> Score:
    hits, asked = sum(right), len(right)
    return Score(hits, asked, hits / asked, *wilson(hits, asked))


def render_quiz(joined: dict[str, Any]) -> str:
    """Format the joined results as text."""
    def line(name: str, s: Score) -> str:
        share, low, high = (100 * x for x in (s.share, s.low, s.high))
        interval = f"{low:5.1f} to {high:5.1f} %"
        return f"{name:<34.34} {s.right:>5} of {s.asked:<5} {share:5.1f} %   {interval}"

    people = f"{joined['people']} {'person' if joined['people'] == 1 else 'people'}"
    questions = f"{joined['questions']} questions, chance {100 / CHOICES:.0f} %"
    lines = [f"Intruders found: {people}, {questions}"]
    lines += [line(name, score) for name, score in joined["methods"].items()]
    repeated = [(key, score) for key, score in joined["dimensions"].items() if score.asked > 1]
    if repeated:
        lines += ["", "Dimensions with more than one question"]
        repeated.sort(key=lambda item: (-item[1].share, item[0]))
        lines += [line(f"{run}, dimension {k}", score) for (run, k), score in repeated]
    return "\n".join(lines)


def quiz_json(joined: dict[str, Any]) -> str:
    """Format the joined results as JSON."""
    methods = {name: vars(score) for name, score in joined["methods"].items()}
    dims = [{"run": run, "dim": k} | vars(s) for (run, k), s in joined["dimensions"].items()]
    result = joined | {"chance": 1 / CHOICES, "methods": methods, "dimensions": dims}
    return json.dumps(result, indent=1) + "\n"
