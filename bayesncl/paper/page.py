"""docs/results.md, generated from the ledger: every table and figure, published next to ours."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bayesncl.data import DATASETS
from bayesncl.io import write_atomic
from bayesncl.measure import registry
from bayesncl.measure.counts import MIN_SUPPORT
from bayesncl.measure.interpretability import MATCHED, at_l0
from bayesncl.paper import cells, figures, ledger
from bayesncl.paper.cells import NOT_RUN, Entries, Line, label, lines_of, summary
from bayesncl.paper.claims import CLAIMS, claim_row
from bayesncl.paper.experiments import EXPERIMENTS, MAIN, PAIR, Experiment, paper, rows
from bayesncl.progress import plural
from bayesncl.report.tables import format_table

# sound measures beyond the paper's, and their decimals; shares are shown as percent
SOUND = {
    registry.named(key): decimals
    for key, decimals in (
        ("consistency", 2), ("consistency_mass", 2), *((at_l0(n), 2) for n in MATCHED), ("l0", 1),
        ("near_dead_share", 1), ("dead_share", 1), ("detector_ap", 3), ("classes_owned", 1),
    )
}  # fmt: skip
SUPPORTS = ("1", "2", "5", "10", "20", "50", "100")
KEPT = ("32", "64", "96", "128", "192", "256")
SHARES = (0.25, 0.5, 0.75)  # of the dimensions in use
CONFLICTS = ("0.5", "0.9")  # products of two classes' firing probabilities
SPEARMAN = "filtering: Spearman of prevalence and open rate"
CLOSED = "filtering: closed dimensions, best gamma"

Measures = dict[str, Any]  # of a run, as in the ledger
Column = tuple[str, Callable[[Measures], float | None], int]  # head, value of a run, decimals
Drawn = dict[tuple[str, str], str]  # files of pictures by figure and dataset
markdown = partial(format_table, kind="markdown", left=1)


def write(folder: Path, entries: list[ledger.Entry]) -> Path:
    """Write results.md and figures/ into a folder.

    Sheets of test images are left out: we may not publish the images.
    """
    found = ledger.by_setting(entries)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn: Drawn = {}
    for name in figures.FIGURES:
        for dataset in datasets_of(EXPERIMENTS[name]):
            path = folder / "figures" / figures.file_name(name, dataset)
            if figures.draw(EXPERIMENTS[name], found, path, dataset):
                drawn[name, dataset] = path.name
    path = folder / "results.md"
    write_atomic(path, render(entries, found, drawn))
    return path


def datasets_of(experiment: Experiment) -> list[str]:
    """Datasets of an experiment, that of the claims first."""
    names = dict.fromkeys(row.dataset for row in rows(experiment))
    return sorted(names, key=lambda name: name != MAIN)


def render(entries: list[ledger.Entry], found: Entries, drawn: Drawn) -> str:
    """The page as Markdown."""
    filled, published = cells.count_filled(found)
    runs = ledger_summary(entries)
    parts = [
        "# Results\n", prose("intro", runs=runs, filled=filled, published=published),
        "## Findings\n", "".join(f"- {finding}\n" for finding in notes()["findings"] if entries),
        claims(found), consistency_gain(found, drawn), retrieval_gain(found), theory(found),
        "## How to read the tables\n", prose("reading"),
    ]  # fmt: skip
    every = EXPERIMENTS.values()
    parts += [table_part(e, found) for e in every if not e.is_figure]
    shown = [e for e in every if e.is_figure and e.name != "figure-support"]
    parts += [figure_part(e, found, drawn) for e in shown]
    return "\n".join(parts).rstrip() + "\n"


def ledger_summary(entries: list[ledger.Entry]) -> str:
    """Number of runs by dataset and device."""
    if not entries:
        return "no runs yet"
    sets = Counter(entry["recipe"]["data"]["name"] for entry in entries)
    devices = sorted({entry["environment"]["device"] for entry in entries})
    counted = ", ".join(f"{n} on {DATASETS[name].title}" for name, n in sorted(sets.items()))
    return f"{plural(len(entries), 'run')} ({counted}; trained on {', '.join(devices)})"


def claims(found: Entries) -> str:
    """The paper's claims about CIFAR-100, and whether our runs agree."""
    rows = [claim_row(claim, found) for claim in CLAIMS]
    head = ["claim, CIFAR-100", "paper", "ours", "sound", "holds in ours", "holds in sound"]
    return "\n".join(["## The paper's claims\n", prose("claims"), markdown(head, rows)])


def consistency_gain(found: Entries, drawn: Drawn) -> str:
    """Consistency by minimum support, with shuffled labels, and every sound measure."""
    lines = lines_of("interpretability", found)

    def by_support(run: Measures, support: str) -> float | None:
        return run["curves"]["consistency_by_support"].get(support)

    def consistency(run: Measures) -> float | None:
        return run["paper"]["consistency"]

    def shuffled(run: Measures) -> float | None:
        return consistency(run["chance"])

    def difference(run: Measures) -> float | None:
        a, b = consistency(run), shuffled(run)
        return None if a is None or b is None else a - b

    def sound(run: Measures, measure: registry.Measure) -> float | None:
        value = run["sound"].get(measure.key)
        return value if value is None or measure.unit != "share" else 100 * value

    def chance(run: Measures, measure: registry.Measure) -> float | None:
        return sound(run["chance"], measure)

    by_sound, by_chance = (
        [(measure.short, partial(value, measure=measure), d) for measure, d in SOUND.items()]
        for value in (sound, chance)
    )
    supports = [(s, partial(by_support, support=s), 2) for s in SUPPORTS]
    labels = [
        ("Cons.", consistency, 2),
        ("labels shuffled", shuffled, 2),
        ("difference", difference, 2),
    ]
    shuffled_sound = method_table(lines, by_chance, PAIR)
    parts = [
        "## Where the consistency gain comes from\n", prose("consistency"),
        *pictures("figure-support", "Consistency by minimum support", drawn),
        method_table(lines, supports, PAIR, "CIFAR-100, support at least"),
        prose("shuffled"), method_table(lines, labels),
        folded(
            "all sound measures of the main methods",
            f"{prose('sound')}\n{method_table(lines, by_sound)}\n"
            f"The same with shuffled labels:\n\n{shuffled_sound}",
        ),
        gate_use(lines), prose("figure-support"),
    ]  # fmt: skip
    return "\n".join(part for part in parts if part)


def method_table(
    lines: list[Line], columns: Sequence[Column], methods: Sequence[str] = (), first: str = "method"
) -> str:
    """A row per method: mean and spread over its runs of each column, and the number of runs."""
    rows = []
    for line in lines:
        if not methods or line.row.method in methods:
            runs = [entry["measures"] for entry in line.runs]
            values = [
                summary([v for run in runs if (v := value(run)) is not None], decimals)
                for _, value, decimals in columns
            ]
            rows.append([paper()["methods"][line.row.method], *values, str(len(runs) or NOT_RUN)])
    return markdown([first, *(head for head, *_ in columns), "runs"], rows)


def gate_use(lines: list[Line]) -> str:
    """Share of the gates of the trained BayesNCL that are closed."""
    (line,) = (line for line in lines if line.row.method == "bayesncl")
    gates = [entry["measures"]["gates"] for entry in line.runs]
    gates = [g for g in gates if g["open_where_active"] is not None]
    if not gates:
        return ""
    closed = summary([100 * (1 - g["open_where_active"]) for g in gates], 1)
    opened = summary([100 * g["open"] for g in gates], 1)
    return prose("gates", closed=closed, opened=opened)


def retrieval_gain(found: Entries) -> str:
    """Retrieval by number and by share of kept dimensions."""
    lines = lines_of("interpretability", found)

    def used(run: Measures) -> float:
        return float(run["curves"]["dimensions_by_support"][str(MIN_SUPPORT)])

    def with_kept(run: Measures, kept: str) -> float | None:
        return run["curves"]["retrieval_sound"].get(kept, {}).get("5")

    def at_share(run: Measures, share: float) -> float:
        curve = {int(k): p["5"] for k, p in run["curves"]["retrieval_sound"].items()}
        return float(np.interp(share * used(run), sorted(curve), [curve[k] for k in sorted(curve)]))

    numbers: list[Column] = [("in use", used, 0)]
    numbers += [(f"K {k}", partial(with_kept, kept=k), 2) for k in KEPT]
    shares = [(f"{100 * share:.0f} %", partial(at_share, share=share), 2) for share in SHARES]
    return "\n".join([
        "## Where the retrieval gain comes from\n", prose("retrieval"),
        method_table(lines, numbers), prose("retrieval-share"), method_table(lines, shares),
    ])  # fmt: skip


def theory(found: Entries) -> str:
    """The paper's theory beside our runs: gates, conflicting features, gradients, suppression."""
    lines = [line for line in gated_lines(found) if line.runs]
    if not lines:
        return f"## Theory\n\n{NOT_RUN.capitalize()}.\n"
    return "\n".join([
        "## Theory\n",
        prose("filtering"), filtering_table(lines),
        prose("conflicting"), conflict_table(lines_of("interpretability", found)),
        prose("instability"), instability_table(lines_of("gradients", found)),
        prose("suppression"), folded("most suppressed dimensions", suppression_table(lines)),
        prose("theory"),
    ])  # fmt: skip


def gated_lines(found: Entries) -> Iterator[Line]:
    """Lines of all settings with gates that open and close, each setting once."""
    seen = set()
    for experiment in EXPERIMENTS.values():
        for line in [] if experiment.is_figure else lines_of(experiment, found):
            key = ledger.setting(line.row.recipe)
            if key not in seen and any(run["measures"].get("theory") for run in line.runs):
                seen.add(key)
                yield line


def filtering_table(lines: list[Line]) -> str:
    """Gates, correlation of prevalence and open rate, predicted and observed closed dimensions."""
    rows = []
    for line in lines:
        measures = [run["measures"] for run in line.runs]
        statements = [{row["statement"]: row for row in m["theory"]} for m in measures]
        ranks, closed = ([s[key] for s in statements] for key in (SPEARMAN, CLOSED))
        shares = [
            listed([100 * m["gates"][key] for m in measures], "{:.1f}")
            for key in ("open", "open_where_active")
        ]
        rows.append([
            label(line.row), *shares,
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
    if not known:
        return "cannot tell"
    if len(known) == 1:
        return "yes" if known[0] else "no"
    return f"{sum(known)} of {len(known)}"


def conflict_table(lines: list[Line]) -> str:
    """Number of conflicting dimensions by threshold."""

    def number(run: Measures, threshold: str, key: str) -> float:
        return float(run["conflicting"][threshold][key])

    columns = [
        (head, partial(number, threshold=t, key=key), 1)
        for t in CONFLICTS
        for head, key in ((f"at {t}", "count"), ("by chance", "chance_count"))
    ]
    return method_table(lines, columns)


def instability_table(lines: list[Line]) -> str:
    """Records in which the instability proposition holds, by threshold of the conflict."""
    rows = []
    for method in PAIR:
        runs = next((line.runs for line in lines if line.row.method == method), [])
        records = [record["instability"] for run in runs for record in run["dynamics"]]
        if not records:
            continue
        verdicts = [
            [r[t]["holds"] for r in records if r[t]["holds"] is not None] for t in CONFLICTS
        ]
        trends = [
            [r[key] for r in records if r.get(key) is not None]
            for key in ("spearman_variance", "spearman_mean_to_deviation")
        ]
        rows.append([
            paper()["methods"][method],
            *(f"{sum(each)} of {len(each)}" for each in verdicts),
            *(f"{cells.mean(each):+.2f}" if each else "–" for each in trends),
            str(len(runs)),
        ])  # fmt: skip
    head = ["method", *(f"holds at {t}" for t in CONFLICTS), "with variance", "with mean", "runs"]
    return markdown(head, rows)


def suppression_table(lines: list[Line]) -> str:
    """The most suppressed dimensions of each run and the commonest class of their images."""
    rows = []
    for line in lines:
        for run in line.runs:
            for d in (d for d in run["exemplars"].get("suppressed", []) if d["value"]):
                name, count = Counter(d["classes"]).most_common(1)[0]
                common = f"{name} ({count} of {len(d['classes'])})" if count > 1 else "none twice"
                rows.append([
                    f"{label(line.row)}, seed {run['seed']}", str(d["dim"]), f"{d['value']:.2f}",
                    str(d["support"]), common,
                ])  # fmt: skip
    return markdown(["run", "dimension", "closed where it would fire", "fires on", "class"], rows)


def table_part(experiment: Experiment, found: Entries) -> str:
    """A table of the paper with its notes; datasets without a run come last."""
    parts = [f"## {experiment.name}\n", f"{experiment.title}.\n", prose(experiment.name)]
    for section in sorted(cells.sections(experiment, found), key=lambda section: not section.runs):
        header, rows = cells.text(section)
        done, total = sum(bool(line.runs) for line in section.lines), len(section.lines)
        some = "all rows run" if done == total else f"{done} of {total} rows run"
        title = f"{DATASETS[section.dataset].title}: {some if done else NOT_RUN}"
        parts.append(folded(title, markdown(header, rows, left=2)))
    return "\n".join(part for part in parts if part)


def figure_part(experiment: Experiment, found: Entries, drawn: Drawn) -> str:
    """A figure for each dataset with runs; instead of a sheet, the classes of its images."""
    name, title = experiment.name, experiment.title
    parts = [f"## {name}\n", f"{title}.\n", prose(name)]
    shown = pictures(name, title, drawn)
    for dataset in datasets_of(experiment) if name in figures.SHEETS else ():
        entry = figures.sheet_entry(experiment, found, dataset)
        if entry is not None:
            table = exemplar_table(figures.SHEETS[name], entry)
            head = f"{DATASETS[dataset].title}: the dimensions and the classes of their images"
            shown.append(folded(head, table))
    if shown and name in figures.SHEETS:
        command = f"`bayesncl reproduce {name} --data DIR`"
        parts.append(f"{command} draws them; we may not publish the images.\n")
    parts += shown or [f"{NOT_RUN.capitalize()}.\n"]
    return "\n".join(part for part in parts if part)


def pictures(name: str, title: str, drawn: Drawn) -> list[str]:
    """The drawn pictures of a figure, with their datasets."""
    return [
        f"{DATASETS[dataset].title}:\n\n![{title}](figures/{path})\n"
        for (figure, dataset), path in drawn.items()
        if figure == name
    ]


def exemplar_table(kind: str, entry: ledger.Entry) -> str:
    """The dimensions of a sheet and the classes of their images."""
    value, images = {
        "high_entropy": ("class entropy of its mass (nats)", "its strongest test images"),
        "suppressed": ("closed where it would fire", "its strongest test images"),
        "pairs": ("product of its two values", "the pair"),
    }[kind]
    rows = [
        [str(d["dim"]), f"{d['value']:.2f}", str(d["support"]), ", ".join(d["classes"])]
        for d in entry["exemplars"][kind]
    ]
    return markdown(["dimension", value, "fires on", f"classes of {images}"], rows)


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
