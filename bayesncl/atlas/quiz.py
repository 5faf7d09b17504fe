"""Results of the intruder quiz of the atlas, from several people.

    {"format": "bayesncl-quiz-1", "atlas": "title", "author": "Ann",
     "answers": [{"codes": "9f8e...", "run": "NCL", "dim": 17, "images": [3, 8, 21, 40, 5],
                  "intruder": 2, "chosen": 2, "seconds": 3.1, "time": "2026-05-01T10:00:00.000Z"}]}

`images` are in the order shown; `intruder` and `chosen` are positions in it. Chance is 1 in 5.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from bayesncl.codes.names import read_json
from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.measure import wilson

FORMAT = "bayesncl-quiz-1"
CHOICES = 5


class Answer(NamedTuple):
    """One question answered by one person."""

    author: str
    codes: str
    run: str
    dim: int
    right: bool
    time: str


def read_quiz(path: Path | str) -> list[Answer]:
    """Read the answers that the page exported."""
    tree = read_json(Path(path))
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        raise InputError(f"{path} is not a quiz.json exported by the atlas (format {FORMAT!r})")
    answers = []
    damage = (LookupError, TypeError, ValueError, AttributeError)
    with as_input_error(f"{path} is not a valid quiz.json", *damage):
        for each in tree["answers"]:
            codes, run, time = (printable(each[key], 200) for key in ("codes", "run", "time"))
            chosen, intruder = (range(CHOICES)[each[key]] for key in ("chosen", "intruder"))
            author, dim = str(tree.get("author")), range(1 << 30)[each["dim"]]
            answers.append(Answer(author, codes, run, dim, chosen == intruder, time))
    return answers


def join_quizzes(files: Sequence[Path | str]) -> dict[str, Any]:
    """Join the answers in several files; duplicates count once.

    Returns the numbers of `people` and `questions`, `chance`, and the scores of runs under
    `methods` and of single dimensions under `dimensions`.
    """
    answers = list(dict.fromkeys(answer for path in files for answer in read_quiz(path)))
    names: dict[str, str] = {}  # by fingerprint, which distinguishes two runs of the same name
    for a in answers:
        name = f"{a.run} ({a.codes[:8]})" if a.run in names.values() else a.run
        names.setdefault(a.codes, name)
    by_dim = _scores([((names[a.codes], a.dim), a.right) for a in answers])
    return {
        "people": len({answer.author for answer in answers}),
        "questions": len(answers),
        "chance": 1 / CHOICES,
        "methods": _scores([(names[a.codes], a.right) for a in answers]),
        "dimensions": [{"run": run, "dim": k, **each} for (run, k), each in by_dim.items()],
    }


def _scores(answers: list[tuple[Any, bool]]) -> dict[Any, dict[str, float]]:
    """How often the intruder was found, by key, with the 95 % Wilson interval of the share."""
    scores = {}
    for key, group in groupby(sorted(answers), itemgetter(0)):
        right = [hit for _, hit in group]
        hits, asked = sum(right), len(right)
        low, high = wilson(hits, asked)
        share = hits / asked
        scores[key] = {"right": hits, "asked": asked, "share": share, "low": low, "high": high}
    return scores


def render_quiz(joined: dict[str, Any]) -> str:
    """Format the joined results as text."""
    def line(name: str, s: dict[str, float]) -> str:
        interval = f"{100 * s['low']:5.1f} to {100 * s['high']:5.1f} %"
        found = f"{s['right']:>5} of {s['asked']:<5} {100 * s['share']:5.1f} %"
        return f"{name:<34.34} {found}   {interval}"

    people = f"{joined['people']} {'person' if joined['people'] == 1 else 'people'}"
    questions = f"{joined['questions']} questions, chance {joined['chance']:.0%}"
    lines = [f"Intruders found: {people}, {questions}"]
    lines += [line(name, score) for name, score in joined["methods"].items()]
    repeated = [each for each in joined["dimensions"] if each["asked"] > 1]
    if repeated:
        lines += ["", "Dimensions with more than one question"]
        repeated.sort(key=lambda each: -each["share"])
        lines += [line(f"{each['run']}, dimension {each['dim']}", each) for each in repeated]
    return "\n".join(lines)
