"""docs/results.md: page.md, with the tables and numbers of the ledger filled in."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path

import numpy as np

from bayesncl.data import DATASETS
from bayesncl.io import write_atomic
from bayesncl.measure.dimensions import CONFLICTS, MIN_SUPPORT
from bayesncl.measure.interpretability import MATCHED, at_l0
from bayesncl.measure.registry import named
from bayesncl.measure.result import look_up
from bayesncl.paper import figures, ledger, tables
from bayesncl.paper.ledger import Entry
from bayesncl.paper.tables import MAIN, METHODS, NOT_RUN, PAIR, Row, Table, mean, summary
from bayesncl.paper.theory import CLOSED_AS_PREDICTED, RANK_CORRELATION
from bayesncl.progress import plural
from bayesncl.report.tables import format_table

HERE = Path(__file__).parent
# sound measures beyond the paper's, and their decimals
SOUND = (
    ("consistency", 2), ("consistency_mass", 2), *((at_l0(n), 2) for n in MATCHED), ("l0", 1),
    ("near_dead_share", 1), ("dead_share", 1), ("detector_ap", 3), ("classes_owned", 1),
)  # fmt: skip
SOUND_LEGEND = (
    "*At L0 k*: all features cut at one threshold that leaves *k* active dimensions per image; "
    "*AP*: average precision of a dimension as a detector of its best class."
)
CONSISTENCY, SHUFFLED = "measures/paper/consistency", "measures/chance/paper/consistency"
IN_USE = f"measures/curves/dimensions_by_support/{MIN_SUPPORT}"
OPEN, OPEN_WHERE_ACTIVE = "measures/gates/open", "measures/gates/open_where_active"
SPEARMAN, CLOSED = f"measures/theory/{RANK_CORRELATION}", f"measures/theory/{CLOSED_AS_PREDICTED}"

Column = tuple[str, Callable[[Row], str]]  # its head, and the cell of a row
markdown = partial(format_table, kind="markdown", left=1)


def write(folder: Path, entries: list[Entry]) -> Path:
    """Write results.md and figures/ into a folder.

    Sheets of test images are left out: we may not publish the images.
    """
    found = ledger.by_setting(entries)
    every = {name: tables.fill(e, found) for name, e in tables.EXPERIMENTS.items()}
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name, table in every.items():
        figures.draw(name, table, folder / "figures")
    filled, published = tables.count_filled(found)
    numbers = {"runs": count_runs(entries), "filled": filled, "published": published}
    text = (HERE / "page.md").read_text("utf-8").format(**numbers, **blocks(every))
    path = folder / "results.md"
    write_atomic(path, re.sub(r"\n{3,}", "\n\n", text))
    return path


def blocks(every: dict[str, Table]) -> dict[str, str]:
    """What fills the places in page.md, by their names; `every` has the tables by experiment."""
    main = {d: rows for d, rows in every["interpretability"].items() if tables.has_runs(rows)}
    pair = {d: [row for row in rows if row.method in PAIR] for d, rows in main.items()}
    here, gated = main.get(MAIN, []), gated_rows(every)
    dynamics = {row.method: row for row in every["gradients"][MAIN] if row.runs}
    bayesncl = [row for row in here if row.method == "bayesncl"]
    shown_above = "figure-support"
    others = (e for name, e in tables.EXPERIMENTS.items() if name != shown_above)
    return {
        "claims": joined(claims_table(dataset, every) for dataset in main),
        "pictures": joined(pictures(shown_above, every[shown_above])),
        "by_support": by_dataset(pair, BY_SUPPORT, ", support at least"),
        "by_labels": by_dataset(main, BY_LABELS),
        "every_sound_measure": joined(sound_tables(d, rows, pair[d]) for d, rows in main.items()),
        "closed": "".join(map(closed_share, bayesncl)) or NOT_RUN,
        "opened": "".join(map(average(OPEN, 1, 100), bayesncl)) or NOT_RUN,
        "by_number": table(here, BY_NUMBER),
        "by_share": table(here, BY_SHARE),
        "filtering": table(gated, FILTERING, label=titled),
        "conflicting": by_dataset(main, CONFLICTING),
        "instability": table([dynamics[m] for m in PAIR if m in dynamics], INSTABILITY),
        "suppression": folded("most suppressed dimensions", suppression_table(gated)),
        "experiments": joined(section(e, every[e.name]) for e in others),
    }


def joined(parts: Iterable[str]) -> str:
    """Blocks with a blank line between them."""
    return "\n\n".join(part.strip() for part in parts)


def folded(summary: str, body: str) -> str:
    """Text that a reader unfolds."""
    return f"<details><summary>{summary}</summary>\n\n{body.strip()}\n\n</details>"


def count_runs(entries: list[Entry]) -> str:
    """Number of runs by dataset and device."""
    sets = Counter(entry["recipe"]["data"]["name"] for entry in entries)
    devices = sorted({entry["environment"]["device"] for entry in entries})
    counted = ", ".join(f"{n} on {DATASETS[name].title}" for name, n in sorted(sets.items()))
    return f"{plural(len(entries), 'run')} ({counted}; trained on {', '.join(devices)})"


def claims_table(dataset: str, every: dict[str, Table]) -> str:
    """The paper's claims about a dataset, published and ours."""
    head = [f"claim, {DATASETS[dataset].title}", "paper", "ours", "sound"]
    rows = [tables.claim_row(claim, every, dataset) for claim in tables.PAPER["claims"]]
    return markdown([*head, "holds in ours", "holds in sound"], [row for row in rows if row])


# tables with a line per method, from columns


def table(
    rows: Sequence[Row], columns: Sequence[Column], head: str = "method",
    label: Callable[[Row], str] = lambda row: METHODS[row.method],
) -> str:  # fmt: skip
    """A line for each row."""
    body = [[label(row), *(cell(row) for _, cell in columns)] for row in rows]
    return markdown([head, *(name for name, _ in columns)], body)


def by_dataset(rows: dict[str, list[Row]], columns: Sequence[Column], more: str = "") -> str:
    """A table for each dataset, which its head names."""
    return joined(table(lines, columns, DATASETS[d].title + more) for d, lines in rows.items())


def average(path: str, decimals: int, times: float = 1.0) -> Callable[[Row], str]:
    """Cell: mean and spread over runs of the measure at a path, times a factor."""
    return lambda row: summary([times * v for v in row.measured(path)], decimals)


def by_seed(path: str, form: str, times: float = 1.0) -> Callable[[Row], str]:
    """Cell: the measure at a path of each run."""

    def cell(row: Row) -> str:
        values = (tables.measured(run, path) for run in row.runs)
        return ", ".join("–" if v is None else form.format(times * v) for v in values)

    return cell


def holds(path: str) -> Callable[[Row], str]:
    """Cell: in how many of the runs that can tell the statement at a path holds."""

    def cell(row: Row) -> str:
        known = row.measured(f"{path}/holds")
        if len(known) > 1:
            return f"{sum(known)} of {len(known)}"
        return ("yes" if known[0] else "no") if known else "cannot tell"

    return cell


def difference(row: Row) -> str:
    """Consistency by the paper's definition, less that with shuffled labels."""
    pairs = zip(row.measured(CONSISTENCY), row.measured(SHUFFLED))
    return summary([a - b for a, b in pairs], 2)


def closed_share(row: Row) -> str:
    """Percentage of the gates that are closed where a feature would fire."""
    return summary([100 * (1 - v) for v in row.measured(OPEN_WHERE_ACTIVE)], 1)


def precision_at(share: float) -> Callable[[Row], str]:
    """Cell: precision@5 with a share of the dimensions in use, between the measured numbers."""

    def value(run: Entry) -> float:
        curve = {int(k): p["5"] for k, p in run["measures"]["curves"]["retrieval_sound"].items()}
        kept = share * (tables.measured(run, IN_USE) or 0)
        return float(np.interp(kept, sorted(curve), [curve[k] for k in sorted(curve)]))

    return lambda row: summary([value(run) for run in row.runs], 2)


def instabilities(row: Row, *path: str) -> list[float]:
    """Values at a path in the records of the gradient dynamics that have it."""
    records = [record["instability"] for run in row.runs for record in run["dynamics"]]
    return [v for each in records if (v := look_up(each, path)) is not None]


def instability_holds(threshold: str) -> Callable[[Row], str]:
    """Cell: in how many records the instability proposition holds."""

    def cell(row: Row) -> str:
        verdicts = instabilities(row, threshold, "holds")
        return f"{sum(verdicts)} of {len(verdicts)}"

    return cell


def trend(key: str) -> Callable[[Row], str]:
    """Cell: mean over records of a correlation with the conflict."""
    return lambda row: f"{mean(found):+.2f}" if (found := instabilities(row, key)) else "–"


def sound_columns(above: str) -> list[Column]:
    """The sound measures of a branch."""
    measures = ((named(key), decimals) for key, decimals in SOUND)
    return [
        (m.short, average(f"{above}/{m.key}", decimals, 100 if m.unit == "share" else 1))
        for m, decimals in measures
    ] + [RUNS]


RUNS: Column = ("runs", lambda row: str(len(row.runs) or NOT_RUN))
BY_SUPPORT: list[Column] = [
    (str(s), average(f"measures/curves/consistency_by_support/{s}", 2))
    for s in (1, 2, 5, 10, 20, 50, 100)
] + [RUNS]
BY_LABELS: list[Column] = [
    ("Cons.", average(CONSISTENCY, 2)), ("labels shuffled", average(SHUFFLED, 2)),
    ("difference", difference), RUNS,
]  # fmt: skip
BY_NUMBER: list[Column] = [
    ("in use", average(IN_USE, 0)),
    *(
        (f"K {k}", average(f"measures/curves/retrieval_sound/{k}/5", 2))
        for k in (32, 64, 96, 128, 192, 256)
    ),
    RUNS,
]
BY_SHARE: list[Column] = [
    *((f"{100 * share:.0f} %", precision_at(share)) for share in (0.25, 0.5, 0.75)), RUNS
]  # fmt: skip
FILTERING: list[Column] = [
    ("gates open %", by_seed(OPEN, "{:.1f}", 100)),
    ("open where firing %", by_seed(OPEN_WHERE_ACTIVE, "{:.1f}", 100)),
    ("prevalence and open rate", by_seed(f"{SPEARMAN}/observed", "{:+.2f}")),
    ("holds", holds(SPEARMAN)),
    ("closed, predicted", by_seed(f"{CLOSED}/predicted", "{:.0f}")),
    ("closed, observed", by_seed(f"{CLOSED}/observed", "{:.0f}")),
    ("holds", holds(CLOSED)),
]
CONFLICTING: list[Column] = [
    (head, average(f"measures/conflicting/{t}/{key}", 1))
    for t in sorted(CONFLICTS)
    for head, key in ((f"at {t}", "count"), ("by chance", "chance_count"))
] + [RUNS]
INSTABILITY: list[Column] = [
    *((f"holds at {t}", instability_holds(str(t))) for t in sorted(CONFLICTS)),
    ("with variance", trend("spearman_variance")),
    ("with mean", trend("spearman_mean_to_deviation")),
    RUNS,
]


def sound_tables(dataset: str, rows: list[Row], pair: list[Row]) -> str:
    """Every sound measure, with the true labels and with shuffled ones."""
    first = table(rows, sound_columns("measures/sound"))
    shuffled = table(pair, sound_columns("measures/chance/sound"))
    title = f"{DATASETS[dataset].title}: all sound measures of the main methods"
    parts = SOUND_LEGEND, first, "The same with shuffled labels:", shuffled
    return folded(title, joined(parts))


def gated_rows(every: dict[str, Table]) -> list[Row]:
    """The settings with gates that open and close and have runs, each once, by dataset."""
    found: dict[str, Row] = {}
    for name, table in every.items():
        for row in [] if tables.EXPERIMENTS[name].is_figure else chain(*table.values()):
            if any(run["measures"].get("theory") for run in row.runs):
                found.setdefault(ledger.setting(row.recipe), row)
    return sorted(found.values(), key=lambda row: tables.DATASET_ORDER.index(row.dataset))


def titled(row: Row) -> str:
    """The label of a row, with its dataset unless that is the main one."""
    return tables.label(row) + f", {DATASETS[row.dataset].title}" * (row.dataset != MAIN)


def suppression_table(rows: list[Row]) -> str:
    """The most suppressed dimensions of each run and the commonest class of their images."""
    body = []
    for row, run in [(each, run) for each in rows for run in each.runs]:
        for d in (d for d in run["exemplars"].get("suppressed", []) if d["value"]):
            name, count = Counter(d["classes"]).most_common(1)[0]
            common = f"{name} ({count} of {len(d['classes'])})" if count > 1 else "none twice"
            numbers = [str(d["dim"]), f"{d['value']:.2f}", str(d["support"])]
            body.append([f"{titled(row)}, seed {run['seed']}", *numbers, common])
    return markdown(["run", "dimension", "closed where it would fire", "fires on", "class"], body)


# the paper's tables and figures


def section(experiment: tables.Experiment, table: Table) -> str:
    """An experiment with our notes on it; instead of a sheet of images, their classes."""
    name = experiment.name
    if not experiment.is_figure:
        parts = [dataset_table(dataset, rows) for dataset, rows in table.items()]
    elif name in figures.FIGURES:
        parts = pictures(name, table)
    elif parts := [
        folded(f"{DATASETS[d].title}: the dimensions and the classes of their images", text)
        for d, entry in figures.sheet_entries(name, table).items()
        if (text := exemplar_table(name, entry))
    ]:
        command = f"`bayesncl reproduce {name} --data DIR`"
        parts.insert(0, f"{command} draws them; we may not publish the images.")
    parts = parts or [f"{NOT_RUN.capitalize()}."]
    return joined([f"## {name}", f"{experiment.title}.", *notes().get(name, []), *parts])


def dataset_table(dataset: str, rows: list[Row]) -> str:
    """A table of the paper, for one dataset."""
    done = sum(bool(row.runs) for row in rows)
    some = "all rows run" if done == len(rows) else f"{done} of {len(rows)} rows run"
    title = f"{DATASETS[dataset].title}: {some if done else NOT_RUN}"
    return folded(title, markdown(*tables.text(rows), left=2))


def pictures(name: str, table: Table) -> list[str]:
    """The pictures of a figure, one for each dataset with runs."""
    title = tables.EXPERIMENTS[name].title
    return [
        f"{DATASETS[dataset].title}:\n\n![{title}](figures/{figures.file_name(name, dataset)})"
        for dataset, rows in table.items()
        if tables.has_runs(rows)
    ]


def exemplar_table(name: str, entry: Entry) -> str:
    """The dimensions of a sheet and the classes of their images."""
    about = tables.PAPER["figures"][name]
    body = [
        [str(d["dim"]), f"{d['value']:.2f}", str(d["support"]), ", ".join(d["classes"])]
        for d in entry["exemplars"][about["exemplars"]]
    ]
    head = ["dimension", about["value"], "fires on", f"classes of {about['images']}"]
    return markdown(head, body)


@cache
def notes() -> dict[str, list[str]]:
    """Paragraphs of notes.md by experiment."""
    _, *parts = re.split(r"^# (.+)\n", (HERE / "notes.md").read_text("utf-8"), flags=re.M)
    return {key: body.strip().split("\n\n") for key, body in zip(parts[::2], parts[1::2])}
