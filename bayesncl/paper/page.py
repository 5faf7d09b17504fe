"""docs/results.md, generated from the ledger: every table and figure, published next to ours."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bayesncl.data import DATASETS
from bayesncl.io import write_atomic
from bayesncl.measure import registry
from bayesncl.measure.dimensions import MIN_SUPPORT
from bayesncl.measure.interpretability import MATCHED, at_l0
from bayesncl.paper import figures, ledger, tables
from bayesncl.paper.tables import MAIN, METHODS, NOT_RUN, Row, Table, has_runs, mean, summary
from bayesncl.progress import plural
from bayesncl.report.tables import format_table

# sound measures beyond the paper's, and their decimals
SOUND = (
    ("consistency", 2), ("consistency_mass", 2), *((at_l0(n), 2) for n in MATCHED), ("l0", 1),
    ("near_dead_share", 1), ("dead_share", 1), ("detector_ap", 3), ("classes_owned", 1),
)  # fmt: skip
SUPPORTS = ("1", "2", "5", "10", "20", "50", "100")
KEPT = ("32", "64", "96", "128", "192", "256")
SHARES = (0.25, 0.5, 0.75)  # of the dimensions in use
CONFLICTS = ("0.5", "0.9")  # products of two classes' firing probabilities
TRENDS = ("spearman_variance", "spearman_mean_to_deviation")  # with the conflict
SPEARMAN = "filtering: Spearman of prevalence and open rate"
CLOSED = "filtering: closed dimensions, best gamma"

Measures = dict[str, Any]  # of a run, as in the ledger
Column = tuple[str, Callable[[Measures], float | None], int]  # head, value of a run, decimals
markdown = partial(format_table, kind="markdown", left=1)


def write(folder: Path, entries: list[ledger.Entry]) -> Path:
    """Write results.md and figures/ into a folder.

    Sheets of test images are left out: we may not publish the images.
    """
    found = ledger.by_setting(entries)
    experiments = tables.EXPERIMENTS.items()
    every = {name: tables.fill(experiment, found) for name, experiment in experiments}
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name, table in every.items():
        figures.draw(name, table, folder / "figures")
    path = folder / "results.md"
    write_atomic(path, render(entries, found, every))
    return path


def render(entries: list[ledger.Entry], found: tables.Entries, every: dict[str, Table]) -> str:
    """The page as Markdown."""
    filled, published = tables.count_filled(found)
    main = {d: lines for d, lines in every["interpretability"].items() if has_runs(lines)}
    parts = [
        "# Results\n",
        prose("intro", runs=ledger_summary(entries), filled=filled, published=published),
        "## Findings\n", "".join(f"- {finding}\n" for finding in notes()["findings"] if entries),
        "## The paper's claims\n", prose("claims"),
        *(claims_table(dataset, every) for dataset in main),
        "## Where the consistency gain comes from\n", prose("consistency"),
        *pictures("figure-support", "Consistency by minimum support", every["figure-support"]),
        *consistency_gain(main), prose("figure-support"),
        "## Where the retrieval gain comes from\n", *retrieval_gain(main.get(MAIN, [])),
        "## Theory\n", *theory(every),
        "## How to read the tables\n", prose("reading"),
    ]  # fmt: skip
    for name, experiment in tables.EXPERIMENTS.items():
        if name != "figure-support":  # shown above
            part = figure_part if experiment.is_figure else table_part
            parts += [f"## {name}\n", f"{experiment.title}.\n", prose(name)]
            parts += part(experiment, every[name])
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def claims_table(dataset: str, every: dict[str, Table]) -> str:
    """The paper's claims about a dataset, published and ours."""
    head = [f"claim, {DATASETS[dataset].title}", "paper", "ours", "sound"]
    rows = [tables.claim_row(claim, every, dataset) for claim in tables.PAPER["claims"]]
    return markdown([*head, "holds in ours", "holds in sound"], [row for row in rows if row])


def ledger_summary(entries: list[ledger.Entry]) -> str:
    """Number of runs by dataset and device."""
    if not entries:
        return "no runs yet"
    sets = Counter(entry["recipe"]["data"]["name"] for entry in entries)
    devices = sorted({entry["environment"]["device"] for entry in entries})
    counted = ", ".join(f"{n} on {DATASETS[name].title}" for name, n in sorted(sets.items()))
    return f"{plural(len(entries), 'run')} ({counted}; trained on {', '.join(devices)})"


def at(*path: str, times: float = 1.0) -> Callable[[Measures], float | None]:
    """Function of a run's measures that returns the one at a path, times a factor."""

    def value(run: Measures) -> float | None:
        found = registry.value(run, path)
        return None if found is None else times * found

    return value


def method_table(
    lines: list[Row], columns: Sequence[Column], methods: Sequence[str] = (), first: str = "method"
) -> str:
    """A row per method: mean and spread over its runs of each column, and the number of runs."""
    rows = []
    for line in lines:
        if not methods or line.method in methods:
            runs = [entry["measures"] for entry in line.runs]
            values = [
                summary([v for run in runs if (v := value(run)) is not None], decimals)
                for _, value, decimals in columns
            ]
            rows.append([METHODS[line.method], *values, str(len(runs) or NOT_RUN)])
    return markdown([first, *(head for head, *_ in columns), "runs"], rows)


def consistency_gain(table: Table) -> list[str]:
    """Consistency by minimum support, with shuffled labels, and every sound measure."""
    consistency, shuffled = at("paper", "consistency"), at("chance", "paper", "consistency")

    def difference(run: Measures) -> float | None:
        a, b = consistency(run), shuffled(run)
        return None if a is None or b is None else a - b

    def sound(*above: str) -> list[Column]:
        measures = [(registry.named(key), decimals) for key, decimals in SOUND]
        return [
            (m.short, at(*above, "sound", m.key, times=100 if m.unit == "share" else 1), decimals)
            for m, decimals in measures
        ]

    by_labels = {"Cons.": consistency, "labels shuffled": shuffled, "difference": difference}
    labels: list[Column] = [(*each, 2) for each in by_labels.items()]
    supports = [(s, at("curves", "consistency_by_support", s), 2) for s in SUPPORTS]
    titled = [(DATASETS[dataset].title, lines) for dataset, lines in table.items()]
    parts = [
        method_table(lines, supports, tables.PAIR, f"{title}, support at least")
        for title, lines in titled
    ]
    parts += [prose("shuffled"), *(method_table(lines, labels, (), t) for t, lines in titled)]
    for title, lines in titled:
        every = (
            f"{prose('sound')}\n{method_table(lines, sound())}\n"
            f"The same with shuffled labels:\n\n"
            f"{method_table(lines, sound('chance'), tables.PAIR)}"
        )
        parts.append(folded(f"{title}: all sound measures of the main methods", every))
    return [*parts, gate_use(table.get(MAIN, []))]


def gate_use(lines: list[Row]) -> str:
    """Share of the gates of the trained BayesNCL that are closed."""
    gates = [e["measures"]["gates"] for x in lines if x.method == "bayesncl" for e in x.runs]
    gates = [g for g in gates if g["open_where_active"] is not None]
    closed = summary([100 * (1 - g["open_where_active"]) for g in gates], 1)
    opened = summary([100 * g["open"] for g in gates], 1)
    return prose("gates", closed=closed, opened=opened) if gates else ""


def retrieval_gain(lines: list[Row]) -> list[str]:
    """Retrieval by number and by share of kept dimensions."""
    used = at("curves", "dimensions_by_support", str(MIN_SUPPORT))

    def at_share(run: Measures, share: float) -> float:
        curve = {int(k): p["5"] for k, p in run["curves"]["retrieval_sound"].items()}
        kept = share * (used(run) or 0)
        return float(np.interp(kept, sorted(curve), [curve[k] for k in sorted(curve)]))

    by_number = [(f"K {k}", at("curves", "retrieval_sound", k, "5"), 2) for k in KEPT]
    by_share = [(f"{100 * share:.0f} %", partial(at_share, share=share), 2) for share in SHARES]
    return [
        prose("retrieval"), method_table(lines, [("in use", used, 0), *by_number]),
        prose("retrieval-share"), method_table(lines, by_share),
    ]  # fmt: skip


def theory(every: dict[str, Table]) -> list[str]:
    """The paper's theory beside our runs: gates, conflicting features, gradients, suppression."""
    gated: dict[str, Row] = {}  # settings with gates that open and close
    for name, table in every.items():
        for line in [] if tables.EXPERIMENTS[name].is_figure else chain(*table.values()):
            if any(run["measures"].get("theory") for run in line.runs):
                gated.setdefault(ledger.setting(line.recipe), line)
    lines = sorted(gated.values(), key=lambda row: tables.DATASET_ORDER.index(row.dataset))
    if not lines:
        return [f"{NOT_RUN.capitalize()}.\n"]
    conflicts = [
        (head, at("conflicting", t, key), 1)
        for t in CONFLICTS
        for head, key in ((f"at {t}", "count"), ("by chance", "chance_count"))
    ]
    main = [(d, rows) for d, rows in every["interpretability"].items() if has_runs(rows)]
    return [
        prose("filtering"), filtering_table(lines), prose("conflicting"),
        *(method_table(rows, conflicts, (), DATASETS[d].title) for d, rows in main),
        prose("instability"), instability_table(every["gradients"][MAIN]),
        prose("suppression"), folded("most suppressed dimensions", suppression_table(lines)),
        prose("theory"),
    ]  # fmt: skip


def titled(row: Row) -> str:
    """The label of a row, with its dataset unless that is the main one."""
    return tables.label(row) + f", {DATASETS[row.dataset].title}" * (row.dataset != MAIN)


def filtering_table(lines: list[Row]) -> str:
    """Gates, correlation of prevalence and open rate, predicted and observed closed dimensions."""
    rows = []
    for line in lines:
        measures = [run["measures"] for run in line.runs]
        ranks, closed = (
            [row for m in measures for row in m["theory"] if row["statement"] == statement]
            for statement in (SPEARMAN, CLOSED)
        )
        rows.append([
            titled(line),
            listed([100 * m["gates"]["open"] for m in measures], "{:.1f}"),
            listed([100 * m["gates"]["open_where_active"] for m in measures], "{:.1f}"),
            listed([r["observed"] for r in ranks], "{:+.2f}"), holds(ranks),
            listed([c["predicted"] for c in closed], "{:.0f}"),
            listed([c["observed"] for c in closed], "{:.0f}"), holds(closed),
        ])  # fmt: skip
    head = [
        "method", "gates open %", "open where firing %", "prevalence and open rate", "holds",
        "closed, predicted", "closed, observed", "holds",
    ]  # fmt: skip
    return markdown(head, rows)


def listed(values: Sequence[float | None], form: str) -> str:
    """Values by seed."""
    return ", ".join("–" if v is None else form.format(v) for v in values)


def holds(rows: Sequence[dict[str, Any]]) -> str:
    """In how many of the runs that can tell a statement holds."""
    known = [row["holds"] for row in rows if row["holds"] is not None]
    if len(known) > 1:
        return f"{sum(known)} of {len(known)}"
    return ("yes" if known[0] else "no") if known else "cannot tell"


def instability_table(lines: list[Row]) -> str:
    """Records in which the instability proposition holds, by threshold of the conflict."""
    rows = []
    runs = {line.method: line.runs for line in lines if line.runs}
    for method in (method for method in tables.PAIR if method in runs):
        records = [record["instability"] for run in runs[method] for record in run["dynamics"]]
        verdicts = [taken(records, t, "holds") for t in CONFLICTS]
        trends = [taken(records, key) for key in TRENDS]
        rows.append([
            METHODS[method],
            *(f"{sum(each)} of {len(each)}" for each in verdicts),
            *(f"{mean(each):+.2f}" if each else "–" for each in trends),
            str(len(runs[method])),
        ])  # fmt: skip
    head = ["method", *(f"holds at {t}" for t in CONFLICTS), "with variance", "with mean", "runs"]
    return markdown(head, rows)


def taken(trees: Sequence[Measures], *path: str) -> list[float]:
    """Values at a path of those trees that have it."""
    return [value for tree in trees if (value := registry.value(tree, path)) is not None]


def suppression_table(lines: list[Row]) -> str:
    """The most suppressed dimensions of each run and the commonest class of their images."""
    rows = []
    for line in lines:
        for run in line.runs:
            for d in (d for d in run["exemplars"].get("suppressed", []) if d["value"]):
                name, count = Counter(d["classes"]).most_common(1)[0]
                common = f"{name} ({count} of {len(d['classes'])})" if count > 1 else "none twice"
                numbers = [str(d["dim"]), f"{d['value']:.2f}", str(d["support"])]
                rows.append([f"{titled(line)}, seed {run['seed']}", *numbers, common])
    return markdown(["run", "dimension", "closed where it would fire", "fires on", "class"], rows)


def table_part(experiment: tables.Experiment, table: Table) -> list[str]:
    """A table of the paper by dataset."""
    parts = []
    for dataset, lines in table.items():
        done = sum(bool(line.runs) for line in lines)
        some = "all rows run" if done == len(lines) else f"{done} of {len(lines)} rows run"
        title = f"{DATASETS[dataset].title}: {some if done else NOT_RUN}"
        parts.append(folded(title, markdown(*tables.text(lines), left=2)))
    return parts


def figure_part(experiment: tables.Experiment, table: Table) -> list[str]:
    """A figure for each dataset with runs; instead of a sheet, the classes of its images."""
    name, found = experiment.name, figures.sheet_entries(experiment.name, table)
    head = "{}: the dimensions and the classes of their images"
    parts = [
        folded(head.format(DATASETS[dataset].title), exemplar_table(name, entry))
        for dataset, entry in found.items()
    ]
    if parts:
        command = f"`bayesncl reproduce {name} --data DIR`"
        parts.insert(0, f"{command} draws them; we may not publish the images.\n")
    if name in figures.FIGURES:
        parts = pictures(name, experiment.title, table)
    return parts or [f"{NOT_RUN.capitalize()}.\n"]


def pictures(name: str, title: str, table: Table) -> list[str]:
    """The pictures of a figure, one for each dataset with runs."""
    return [
        f"{DATASETS[dataset].title}:\n\n![{title}](figures/{figures.file_name(name, dataset)})\n"
        for dataset, lines in table.items()
        if has_runs(lines)
    ]


def exemplar_table(name: str, entry: ledger.Entry) -> str:
    """The dimensions of a sheet and the classes of their images."""
    about = tables.PAPER["figures"][name]
    rows = [
        [str(d["dim"]), f"{d['value']:.2f}", str(d["support"]), ", ".join(d["classes"])]
        for d in entry["exemplars"][about["exemplars"]]
    ]
    head = ["dimension", about["value"], "fires on", f"classes of {about['images']}"]
    return markdown(head, rows)


def folded(summary: str, body: str) -> str:
    """Text that a reader unfolds."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n</details>\n"


@cache
def notes() -> dict[str, list[str]]:
    """Paragraphs of notes.md by heading: those on a table have its name."""
    text = (Path(__file__).parent / "notes.md").read_text("utf-8")
    _, *parts = re.split(r"^# (.+)\n", text, flags=re.M)
    return {key: body.strip().split("\n\n") for key, body in zip(parts[::2], parts[1::2])}


def prose(key: str, **values: object) -> str:
    """The paragraphs under a heading, if there are any, with values in their places."""
    text = "\n\n".join(notes().get(key, []))
    return f"{text.format(**values) if values else text}\n" if text else ""
