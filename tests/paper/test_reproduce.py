"""Experiments as data, tables and page from the ledger, and every experiment at smoke scale."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bayesncl.data import load
from bayesncl.paper import figures, ledger, measures, page, reproduce, tables
from bayesncl.paper.tables import EXPERIMENTS, METHODS, choose, rows, runs
from bayesncl.recipes import Recipe, change, named
from bayesncl.report import plots
from bayesncl.report.plots import CORRELATIONS
from bayesncl.training.run_folder import RunFolder

from .conftest import ROOT, at_full_size, smoke, smoked_experiment

# experiments


@pytest.mark.parametrize(
    ("name", "method", "axes", "wanted"),
    [
        ("prior", "bayesncl", {"rho": 0.1}, {"gate.prior": 0.1}),
        ("prior", "bayesncl", {"rho": 0.8}, {}),
        ("batch-size", "ncl", {"batch_size": 4096}, {"run.batch": 4096}),
        ("head-depth", "bayesncl-3layer", {"layers": 3}, {"gate.depth": 3}),
        ("variants", "bayesncl-on-z", {}, {"gate.input": "z"}),
    ],
)
def test_a_row_is_the_named_recipe_with_the_values_of_its_axes(
    name: str, method: str, axes: dict[str, float], wanted: dict[str, Any]
) -> None:
    every = rows(EXPERIMENTS[name])
    (row,) = [r for r in every if (r.dataset, r.method, r.axes) == ("cifar100", method, axes)]
    base = named(f"cifar100-{method.split('-')[0]}").to_dict()
    differs = {
        f"{part}.{field}": value
        for part, values in row.recipe.to_dict().items()
        if part != "name"
        for field, value in values.items()
        if value != base[part][field] and field != "dynamics_every"
    }
    assert differs == wanted
    assert row.recipe.run.dynamics_every == (10 if (method, wanted) == ("bayesncl", {}) else 0)


def test_runs_come_dataset_by_dataset_first_seeds_first_and_once() -> None:
    todo = runs(EXPERIMENTS["downstream"])
    assert len({ledger.identity(r) for r in todo}) == len(todo) == 5 * 3 * 3
    order = [(r.data.name, r.run.seed) for r in todo]
    names = ["cifar100", "cifar10", "imagenet100"]
    assert order == sorted(order, key=lambda pair: (names.index(pair[0]), pair[1]))
    main = {ledger.identity(r) for r in runs(EXPERIMENTS["interpretability"])}
    for name in ("downstream", "gradients", "feature-selection", "figure-support"):
        assert {ledger.identity(r) for r in runs(EXPERIMENTS[name])} <= main


def test_other_seeds_and_changes(run) -> None:
    (experiment,) = choose("gate-lr", "4,7", ["run.epochs=3"])
    todo = runs(experiment)
    assert {(r.run.seed, r.run.epochs) for r in todo} == {(4, 3), (7, 3)}
    assert {r.gate.lr for r in todo} == {0.04, 0.1, 0.2, 0.4}
    words = ("reproduce", "figure-suppressed", "--scale", "smoke", "--set", "run.epochs=1")
    answer = run(*words, "--seeds", "3", "--keep-weights", "kept")
    assert answer.status == 0, answer
    assert not Path("results").exists(), "smoke runs stay out of the ledger"
    (found,) = ledger.read(Path("runs/smoke/results"))
    assert (found["seed"], found["epochs"]) == (3, 1)
    assert Path("runs/smoke/figures/suppressed-scenes.png").exists()
    (folder,) = Path("kept").iterdir()
    assert RunFolder(folder).finished()


# every experiment at smoke scale; `make test-long` does those whose runs differ only in a number

QUICK = {
    "interpretability", "background-like", "feature-selection", "batch-size", "figure-gradients",
    "figure-comparison", "figure-retrieval", "figure-suppressed",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(e, marks=[] if e in QUICK else pytest.mark.slow) for e in EXPERIMENTS],
)
def test_every_experiment_runs_at_smoke_scale(
    name: str, smoked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = smoked_experiment(name)
    reproduce.reproduce(name, scale="smoke", results=smoked)
    entries = ledger.read(smoked)
    assert reproduce.missing(experiment, entries) == []
    (lines,) = tables.fill(experiment, ledger.by_setting(entries)).values()
    for line in lines:
        assert line.runs
        assert np.isfinite([v for c in line.published for v in line.values(c, "ours")]).all()
        # no published probe at smoke scale, and a correlation may not exist
        wanted = [c for c in line.published if c not in ("acc1", "acc5")]
        assert sum(bool(line.values(c, "ours")) for c in wanted) >= len(wanted) - 1
    if experiment.is_figure:
        path = smoked / "work" / "figures" / figures.file_name(name, "scenes")
        assert path.stat().st_size > 500
    before = {path: path.read_bytes() for path in smoked.glob("*.json")}
    monkeypatch.setattr(reproduce, "train", lambda *a, **k: pytest.fail("trained again"))
    reproduce.reproduce(name, scale="smoke", results=smoked)
    assert {path: path.read_bytes() for path in smoked.glob("*.json")} == before


# cells


def test_an_accuracy_has_one_probe_protocol(entry: dict[str, Any]) -> None:
    """Entries without the published probe are missing in `ours`, never mixed in, and incomplete."""
    recipes = [change(named("cifar100-bayesncl"), [f"run.seed={s}"]) for s in range(3)]
    entries, experiment = [at_full_size(entry, r) for r in recipes], EXPERIMENTS["downstream"]
    for i, each in enumerate(entries):
        each["measures"]["probe"] = {"fast": {"acc1": 62.0 + i, "acc5": 87.0}}
    assert all(reproduce.lacking(e, experiment) == {tables.PROBE} for e in entries)
    assert not any(reproduce.lacking(e, smoked_experiment("downstream")) for e in entries)
    entries[1]["measures"]["probe"]["paper"] = {"acc1": 40.0, "acc5": 80.0}
    assert reproduce.lacking(entries[1], experiment) == set()
    body = tables.text(tables.fill(experiment, ledger.by_setting(entries))["cifar100"])[1]
    at = next(i for i, line in enumerate(body) if line[0].startswith("BayesNCL, K"))
    assert [body[at + i][2] for i in (1, 2)] == ["40.00 (1 of 3 runs)", "63.00 ± 1.00†"]


# the page


def test_the_page_of_a_second_dataset(tmp_path: Path, entry: dict[str, Any]) -> None:
    recipes = named("cifar10-ncl"), named("cifar10-bayesncl")
    entries = [at_full_size(entry, recipe) for recipe in recipes]
    text = page.write(tmp_path, entries).read_text()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    names = "support", "comparison", "retrieval", "dimensions"
    assert drawn == {f"{name}-cifar10.png" for name in names}
    assert all(f"figures/{name})" in text for name in drawn)
    for name, kind in figures.SHEETS.items():  # classes instead of images
        assert f"`bayesncl reproduce {name} --data DIR`" in text
        assert ", ".join(entry["exemplars"][kind][0]["classes"]) in text
    assert text.count("<summary>CIFAR-10: the dimensions and the classes") == len(figures.SHEETS)
    assert "2 runs (2 on CIFAR-10" in text
    for row in rows(EXPERIMENTS["dimensions"]):  # also without a run
        assert f"{row.published['consistency']:.2f}" in text


def test_the_readme_has_the_numbers_of_the_ledger() -> None:
    text = (ROOT / "README.md").read_text()
    entries = ledger.by_setting(ledger.read(ROOT / "results"))
    for line in tables.fill(EXPERIMENTS["interpretability"], entries)["cifar100"]:
        name = METHODS[line.method]
        if f"| {name} |" not in text:
            continue
        chance = [e["measures"]["chance"]["paper"]["consistency"] for e in line.runs]
        published, ours, sound = (
            line.values("consistency", source) for source in ("published", "ours", "sound")
        )
        numbers = [tables.summary(values, 2) for values in (published, ours, chance, sound)]
        assert f"| {name} | {' | '.join(numbers)} |\n" in text


def test_verdicts_on_a_claim_that_the_page_lacks() -> None:
    assert tables.compare((60.5,), (60.0,), 0) == ("+0.50", "yes (one run)")
    assert tables.compare((62.5, 62.7), (60.0, 60.2), 0) == ("+2.50 ± 0.14", "no")


def test_a_sheet_has_a_row_of_images_per_dimension(tmp_path: Path, entry: dict[str, Any]) -> None:
    test = load(smoke("ncl").data, "test")
    exemplars = entry["exemplars"]["high_entropy"]
    path = figures.draw_sheet("figure-high-entropy", entry, test, tmp_path / "s.png")
    sheet, step = np.asarray(Image.open(path)), plots.TILE + 2
    left = sheet.shape[1] - (10 * step - 2) + 2 * step
    assert len(sheet) == len(exemplars) * step - 2
    tile = sheet[step : step + plots.TILE, left : left + plots.TILE]
    wanted = test.pixels[exemplars[1]["images"][2]].transpose(1, 2, 0)
    assert np.array_equal(tile[:: plots.TILE // 16, :: plots.TILE // 16], wanted)


def test_pairs_share_their_most_similar_dimension_and_background() -> None:
    rng = np.random.default_rng(0)
    z = np.maximum(rng.normal(size=(60, 8)), 0)
    labels, places = rng.integers(3, size=60), rng.integers(2, size=60)
    for backgrounds in (None, places):
        slow: dict[int, tuple[float, set[int]]] = {}
        for k in range(8):
            for i, j in itertools.combinations(np.argsort(-z[:, k])[:20], 2):
                fits = backgrounds is None or places[i] == places[j]
                fits &= labels[i] != labels[j] and np.argmax(z[i] * z[j]) == k
                if fits and z[i, k] * z[j, k] > slow.get(k, (0.0, set()))[0]:
                    slow[k] = z[i, k] * z[j, k], {i, j}
        found = measures.shared_pairs(z, labels, backgrounds)
        assert {k: (value, set(images)) for k, value, images in found} == slow
        assert len(found) > 3
        assert [value for _, value, _ in found] == sorted((v for v, _ in slow.values()))[::-1]


def test_dynamics_are_averaged_over_runs() -> None:
    def row(epoch: int, value: float | None) -> dict[str, Any]:
        sound, chance = (dict.fromkeys(CORRELATIONS, v) for v in (value, 0.5))
        return {"epoch": epoch, "sound": sound, "chance": chance}

    first = [row(10, 0.2), row(20, None), row(30, 1.0)]
    found = figures.mean_dynamics([first, [row(10, 0.6), row(20, 0.1)]])
    assert [r["epoch"] for r in found] == [10, 20]  # recorded by both
    assert (found[0]["sound"]["af_gv"], found[0]["chance"]["gv_sc"]) == pytest.approx((0.4, 0.5))
    assert np.isnan(found[1]["sound"]["af_sc"])


# the command


def write_entry(results: Path, entry: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    known = at_full_size(entry, recipe)
    known["checksum"] = ledger.checksum(known)
    results.mkdir()
    (results / ledger.file_name(recipe)).write_text(json.dumps(known))
    return known


def test_the_list_counts_runs_minutes_and_filled_cells(run, entry: dict[str, Any]) -> None:
    known = write_entry(Path("r"), entry, named("cifar100-bayesncl"))
    out = run("reproduce", "--list", "--results", "r").out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert set(EXPERIMENTS) <= set(lines)
    assert lines["prior"][-3:] == ["9", "0", "45"]  # nine at five minutes: one lacks the probe
    assert lines["figure-suppressed"][-3:] == ["3", "1", "30"]  # 5 and 25 minutes
    assert lines["resnet50"][-3:] == ["3", "0", "170"]
    filled = tables.count_filled(ledger.by_setting([known]))[0]
    last = f"{filled} of 749 published numbers have a run beside them"
    assert out.splitlines()[-1] == last


def test_a_dry_run_writes_nothing(
    tmp_path: Path, smoked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in smoked.rglob("*")}
    for name, scale in (("figure-support", "smoke"), ("gradients", "paper")):
        reproduce.reproduce(name, scale=scale, results=smoked, dry=True)
    assert {path: path.stat().st_mtime_ns for path in smoked.rglob("*")} == before
    assert list(tmp_path.iterdir()) == []


def test_without_data_the_ledger_is_shown_and_the_page_written(run, entry: dict[str, Any]) -> None:
    words = ("reproduce", "batch-tradeoff", "--results", "r", "--pages", "p")
    answer = run(*words)
    assert answer.status == 0
    assert "5.801 T" in answer.out
    assert "2 runs are missing" in answer.err and "no runs in r" in answer.err
    assert not Path("r").exists() and not Path("p").exists()
    write_entry(Path("r"), entry, named("cifar100-bayesncl"))
    assert run(*words).status == 0
    assert Path("p/results.md").exists()
