"""Results of the intruder quiz of the atlas, from several people; see docs/files.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.io import read_json
from bayesncl.measure.labelfree import wilson
from bayesncl.report.tables import format_table

FORMAT = "bayesncl-quiz-1"
CHOICES = 5
MAX_DIMENSIONS = 1 << 30


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
            chosen, intruder = (_index(each[key], CHOICES) for key in ("chosen", "intruder"))
            dim = _index(each["dim"], MAX_DIMENSIONS)
            author = str(tree.get("author"))
            answers.append(Answer(author, codes, run, dim, chosen == intruder, time))
    return answers


def _index(value: Any, count: int) -> int:
    """A value of the file as an integer from 0 to count - 1; ValueError if it is none."""
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"expected an integer from 0 to {count - 1}, got {value!r:.40}")
    return value


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
    for key in sorted({key for key, _ in answers}):
        right = [hit for each, hit in answers if each == key]
        hits, asked = sum(right), len(right)
        low, high = wilson(hits, asked)
        share = hits / asked
        scores[key] = {"right": hits, "asked": asked, "share": share, "low": low, "high": high}
    return scores


def render_quiz(joined: dict[str, Any]) -> str:
    """Format the joined results as text, with the dimensions that were asked more than once."""
    repeated = [each for each in joined["dimensions"] if each["asked"] > 1]
    repeated.sort(key=lambda each: -each["share"])
    rows = []
    named = [(f"{each['run']:.40}, dimension {each['dim']}", each) for each in repeated]
    for name, s in [*joined["methods"].items(), *named]:
        right, low, high = f"{s['right']} of {s['asked']}", f"{s['low']:.1%}", f"{s['high']:.1%}"
        rows.append((f"{name:.60}", right, f"{s['share']:.1%}", f"{low} to {high}"))
    people = f"{joined['people']} {'person' if joined['people'] == 1 else 'people'}"
    title = f"{people}, {joined['questions']} questions, chance {joined['chance']:.0%}"
    header = ("method or dimension", "intruders found", "share", "95 % interval")
    return f"{title}\n\n{format_table(header, rows, left=1)}".rstrip()
