"""The paper reproduced: experiments as data, tables and page from the ledger, and every name at smoke scale."""

from __future__ import annotations

import copy
import json
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from bayesncl.cli import app
from bayesncl.data import load
from bayesncl.errors import InputError
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, change, named
from bayesncl.report import plots
from bayesncl.report.plots import CORRELATIONS
from bayesncl.reproduce import command, figures, ledger, page, runner, tables
from bayesncl.reproduce.experiments import EXPERIMENTS, SMOKE, find, paper, recipe_of, rows, runs
from bayesncl.run import Run
from bayesncl.train import Interrupted

ASKED = [
    "interpretability", "downstream", "gradients", "ablation", "gating", "head-depth", "resnet50", "background",
    "efficiency", "feature-selection", "dimensions", "prior", "kl-weight", "gate-lr", "batch-size",
    "batch-tradeoff", "figure-retrieval", "figure-dimensions", "figure-tradeoff", "figure-high-entropy",
    "figure-suppressed", "background-like", "figure-support",
]  # fmt: skip


def smoke(method: str, *changes: str) -> Recipe:
    return change(named(f"scenes-{method}"), [*SMOKE, *changes])


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger that the tests of this module share, as the experiments do."""
    return tmp_path_factory.mktemp("smoke")


@pytest.fixture
def entry(smoked: Path) -> dict[str, Any]:
    """A real entry."""
    command.reproduce("gradients", scale="smoke", results=smoked)
    return copy.deepcopy(ledger.by_identity(ledger.read(smoked))[ledger.identity(smoke("bayesncl"))])


def at_full_size(entry: dict[str, Any], recipe: Recipe, consistency: float = 10.0) -> dict[str, Any]:
    """The entry as if it were of another recipe: for the layout of tables, never for results."""
    new = copy.deepcopy(entry)
    new |= {"recipe": recipe.to_dict(), "name": recipe.name, "seed": recipe.run.seed}
    new["measures"]["paper"]["consistency"] = consistency
    return new


# experiments


def test_every_table_and_figure_has_its_name() -> None:
    assert set(ASKED) <= set(EXPERIMENTS)


def test_published_values_are_as_printed() -> None:
    printed = {
        ("interpretability", "cifar100", "ncl"): {"consistency": 9.91, "entropy_sum": 3.29, "activation_ratio": 0.9},
        ("interpretability", "imagenet100", "bayesncl"): {"consistency": 36.14},
        ("downstream", "cifar100", "bayesncl"): {"acc1": 60.69, "p@5": 28.47, "p@10": 26.61},
        ("efficiency", "cifar100", "bayesncl"): {"running_time_min": 75.12, "flops": 1.419e9},
    }
    for (name, dataset, method), values in printed.items():
        (row,) = [r for r in rows(EXPERIMENTS[name]) if (r.dataset, r.method) == (dataset, method)]
        assert {key: row.published[key] for key in values} == values
    assert all(
        v is None for r in rows(EXPERIMENTS["downstream"]) if r.method == "bayesncl-gs" for v in r.published.values()
    )


@pytest.mark.parametrize(
    ("name", "method", "axes", "wanted"),
    [
        ("prior", "bayesncl", {"rho": 0.1}, {"gate.prior": 0.1}),
        ("prior", "bayesncl", {"rho": 0.8}, {}),
        ("kl-weight", "bayesncl", {"lambda": 9e-5}, {"gate.weight": 9e-5}),
        ("gate-lr", "bayesncl", {"gate_lr": 0.4}, {"gate.lr": 0.4}),
        ("batch-size", "ncl", {"batch_size": 4096}, {"run.batch": 4096}),
        ("dimensions", "cl", {"dim": 1024}, {"model.dim": 1024}),
        ("head-depth", "bayesncl-3layer", {"layers": 3}, {"gate.depth": 3}),
        ("ablation", "bayesncl-nodetach", {}, {"gate.detach": False}),
    ],
)  # fmt: skip
def test_a_row_is_the_named_recipe_but_for_what_the_table_varies(
    name: str, method: str, axes: dict[str, float], wanted: dict[str, Any]
) -> None:
    (row,) = [r for r in rows(EXPERIMENTS[name]) if (r.dataset, r.method, r.axes) == ("cifar100", method, axes)]
    base = named(f"cifar100-{method.removesuffix('-3layer').removesuffix('-nodetach')}").to_dict()
    differs = {
        f"{part}.{field}": value
        for part, values in row.recipe.to_dict().items()
        if part != "name"
        for field, value in values.items()
        if value != base[part][field] and field != "dynamics_every"
    }
    assert differs == wanted


def test_resnet50_and_background_start_from_imagenet100() -> None:
    assert {(r.recipe.data.name, r.recipe.model.backbone) for r in rows(EXPERIMENTS["resnet50"])} == {
        ("imagenet100", "resnet50")
    }
    assert {r.recipe.data.name for r in rows(EXPERIMENTS["background"])} == {"imagenet100"}
    assert {r.recipe.data.name for r in rows(EXPERIMENTS["background-like"])} == {"cifar100"}


def test_runs_come_data_set_by_data_set_first_seeds_first_and_once() -> None:
    todo = runs(EXPERIMENTS["downstream"])
    assert len({ledger.identity(r) for r in todo}) == len(todo) == 5 * 3 * 3
    order = [(r.data.name, r.run.seed) for r in todo]
    assert order == sorted(order, key=lambda pair: (["cifar100", "cifar10", "imagenet100"].index(pair[0]), pair[1]))
    assert len(runs(EXPERIMENTS["feature-selection"])) == 2 * 3 * 3  # K is no run of its own


def test_tables_share_runs() -> None:
    main = {ledger.identity(r) for r in runs(EXPERIMENTS["interpretability"])}
    for name in ("downstream", "gradients", "efficiency", "feature-selection", "background-like", "figure-support"):
        assert {ledger.identity(r) for r in runs(EXPERIMENTS[name])} <= main


def test_main_runs_record_the_dynamics() -> None:
    assert recipe_of("cifar100-ncl", ["run.seed=1"]).run.dynamics_every == 10
    assert recipe_of("cifar100-ncl", ["model.dim=64"]).run.dynamics_every == 0


@pytest.mark.parametrize("name", ["nonsense", "", "Interpretability", "../results"])
def test_an_unknown_name_is_one_clear_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no table or figure"):
        find(name)
    with pytest.raises(InputError, match="smoke, got 'huge'"):
        command.reproduce("prior", scale="huge", results=tmp_path)


def test_notes_on_our_runs_are_printed_only_beside_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = page.notes()["interpretability"][0][:40]
    for results, ours in ((tmp_path, False), (Path(__file__).parent.parent / "results", True)):
        command.reproduce("interpretability", results=results, dry=True, display=Display())
        said = capsys.readouterr()
        assert (note in said.out) == ours
        assert ("ours are in a clone of the repository" in said.err) != ours


# every name at smoke scale


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_name_runs_at_smoke_scale(name: str, smoked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.reproduce(name, scale="smoke", results=smoked)
    shown = capsys.readouterr().out
    assert "not run" not in shown
    assert command.missing(EXPERIMENTS[name], ledger.read(smoked), "smoke") == []
    for section in tables.sections(EXPERIMENTS[name], ledger.by_setting(ledger.read(smoked)), "smoke"):
        for line in section.lines:
            assert line.runs
            assert all(np.isfinite(v) for c in line.cells.values() for v in c.ours)
            assert sum(bool(c.ours) for c in line.cells.values()) >= len(line.cells) - 1  # a correlation may not exist
    if EXPERIMENTS[name].is_figure:
        assert (smoked / "work" / "figures" / figures.file_name(name)).stat().st_size > 500


def test_a_run_in_the_ledger_is_not_trained_again(smoked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command.reproduce("interpretability", scale="smoke", results=smoked)
    before = {path: path.read_bytes() for path in smoked.glob("*.json")}
    monkeypatch.setattr(runner, "train", lambda *a, **k: pytest.fail("trained again"))
    command.reproduce("interpretability", scale="smoke", results=smoked)
    assert {path: path.read_bytes() for path in smoked.glob("*.json")} == before


def test_smoke_runs_stay_out_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command.reproduce("figure-suppressed", scale="smoke")
    assert not Path("results").exists()
    assert len(list(Path("runs/smoke/results").glob("*.json"))) == 1
    assert Path("runs/smoke/figures/suppressed.png").exists()


# cells


def test_mean_and_spread_against_the_standard_library() -> None:
    values = [3.0, 4.5, 9.25]
    assert tables.mean(values) == pytest.approx(statistics.mean(values))
    assert tables.spread(values) == pytest.approx(statistics.stdev(values))
    assert tables.spread([3.0]) == 0.0
    assert tables.summary(values, 2) == f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert tables.number(5.8007e12, None) == "5.801 T"
    assert tables.number(1416176128, None) == "1.416 G"


@pytest.mark.parametrize(
    ("published", "ours", "mark"),
    [
        (10.0, (10.5, 11.5), ""),
        (10.0, (12.0, 12.1), "▲"),
        (10.0, (7.0, 7.1), "▼"),
        (10.0, (99.0,), ""),
        (None, (1.0, 2.0), ""),
    ],
)
def test_a_difference_is_marked_only_beyond_the_seeds_spread(
    published: float | None, ours: tuple[float, ...], mark: str
) -> None:
    assert tables.Cell("consistency", published, ours).verdict() == mark


def test_cells_come_from_where_they_should(entry: dict[str, Any]) -> None:
    measures = entry["measures"]
    (row,) = [r for r in rows(EXPERIMENTS["downstream"]) if (r.dataset, r.method) == ("cifar100", "bayesncl")]
    measures["retrieval"]["paper"]["128"] = {"1": 1.0, "3": 2.0, "5": 3.5, "10": 4.0}
    assert tables.value(entry, row, "p@5", "paper") == 3.5
    assert tables.value(entry, row, "p@5", "sound") is None
    assert tables.value(entry, row, "acc1", "paper") == measures["probe"]["fast"]["acc1"]
    assert tables.cell(row, "acc1", [entry]).mark == tables.FAST
    measures["probe"]["paper"] = {"acc1": 61.5, "acc5": 87.0}
    assert tables.value(entry, row, "acc1", "paper") == 61.5
    assert tables.value(entry, row, "acc1", "sound") == measures["probe"]["fast"]["acc1"]
    assert tables.cell(row, "acc1", [entry]).mark == ""
    for definition in ("paper", "sound"):
        assert tables.value(entry, row, "entropy_freq", definition) == measures[definition]["entropy_freq"]
    entry["seconds"]["train"] = 90.0
    assert tables.value(entry, row, "running_time_min", "paper") == 1.5
    slower = entry | {"seconds": {"train": 200.0}}  # shared its GPU
    assert tables.cell(row, "running_time_min", [slower, entry, slower]).ours == (1.5,)
    assert tables.cell(row, "running_time_min", []).ours == ()
    (late,) = [r for r in rows(EXPERIMENTS["gradients"], "smoke") if r.method == "bayesncl" and r.axes["epoch"] == 2]
    assert tables.value(entry, late, "af_sc", "sound") == entry["dynamics"][1]["sound"]["af_sc"]


def test_operations_are_the_published_ones() -> None:
    by_name = {
        name: {(r.dataset, r.method): tables.cell(r, "flops", []) for r in rows(EXPERIMENTS[name])}
        for name in ("efficiency", "batch-tradeoff")
    }
    for cells in by_name.values():
        for cell in cells.values():
            assert tables.number(cell.ours[0], None) == tables.number(cell.published or 0, None)


def test_a_table_shows_paper_ours_and_sound(entry: dict[str, Any]) -> None:
    entries = [at_full_size(entry, recipe_of("cifar100-bayesncl", [f"run.seed={s}"]), 20.0 + s) for s in range(3)]
    (section,) = [
        s
        for s in tables.sections(EXPERIMENTS["interpretability"], ledger.by_setting(entries))
        if s.dataset == "cifar100"
    ]
    _, body = tables.text(section)
    assert ["NCL", "paper", "9.91", "3.29", "3.30", "3.77", "0.90", "not run"] in body
    at = next(i for i, line in enumerate(body) if line[0] == "BayesNCL")
    assert [line[1] for line in body[at : at + 3]] == ["paper", "ours", "sound"]
    assert body[at][2] == "22.02"
    assert body[at + 1][2] == "21.00 ± 1.00"
    assert body[at + 1][-1] == "3"
    assert body[at + 2][2] == tables.summary([entry["measures"]["sound"]["consistency"]] * 3, 2)


# the page


def test_the_page_of_an_empty_ledger_says_so(tmp_path: Path) -> None:
    text = page.write(tmp_path, []).read_text()
    assert "The ledger holds no runs yet" in text
    assert "![" not in text
    for name, experiment in EXPERIMENTS.items():
        assert (f"## {name}\n" in text) == (name != "figure-support"), experiment
    for row in rows(EXPERIMENTS["dimensions"]):
        assert f"{row.published['consistency']:.2f}" in text
    assert list((tmp_path / "figures").iterdir()) == []


def test_the_page_is_the_same_each_time_and_shows_every_figure(tmp_path: Path, entry: dict[str, Any]) -> None:
    command_runs = [
        *runs(EXPERIMENTS["figure-support"]),
        *runs(EXPERIMENTS["figure-tradeoff"]),
        *runs(EXPERIMENTS["figure-dimensions"]),
    ]
    unique = {ledger.identity(r): r for r in command_runs if r.data.name == "cifar100"}
    entries = [at_full_size(entry, recipe) for recipe in unique.values()]
    first = page.write(tmp_path / "a", entries).read_bytes()
    assert page.write(tmp_path / "b", entries[::-1]).read_bytes() == first
    drawn = {path.name for path in (tmp_path / "a" / "figures").iterdir()}
    figure_names = {n for n in EXPERIMENTS if n.startswith("figure-")}
    assert drawn == {figures.file_name(n) for n in figure_names - set(figures.SHEETS)}
    assert all(f"figures/{name})" in first.decode() for name in drawn)
    for name in figures.SHEETS:  # no images on the page, but what they are of
        assert f"`bayesncl reproduce {name} --data DIR` draws them" in first.decode()
        assert ", ".join(entry["exemplars"][figures.SHEETS[name]][0]["classes"]) in first.decode()
    assert f"{len(unique)} runs ({len(unique)} on CIFAR-100" in first.decode()


def test_retrieval_stands_beside_the_dimensions_in_use(entry: dict[str, Any]) -> None:
    ncl, bayesncl = (at_full_size(entry, named(f"cifar100-{method}")) for method in ("ncl", "bayesncl"))
    for one, used, precision in ((ncl, 234, 13.2), (bayesncl, 167, 15.4)):
        one["measures"]["curves"]["dimensions_by_support"]["10"] = used
        one["measures"]["curves"]["retrieval_sound"] = {"64": {"1": 99.0, "5": precision}}
    again = copy.deepcopy(ncl)
    again["seed"] = again["recipe"]["run"]["seed"] = 1
    again["measures"]["curves"]["retrieval_sound"]["64"]["5"] = 13.4
    text = page.where_retrieval_gains(ledger.by_setting([ncl, again, bayesncl]))
    assert "| NCL | 234 ± 0 |  | 13.30 ± 0.14 |  |  |  |  | 2 |\n" in text
    assert "| BayesNCL | 167 |  | 15.40 |  |  |  |  | 1 |\n" in text
    assert "| CL |  |  |  |  |  |  |  | not run |\n" in text


def test_consistency_stands_beside_what_shuffled_labels_give(entry: dict[str, Any]) -> None:
    ncl, bayesncl = (at_full_size(entry, named(f"cifar100-{method}")) for method in ("ncl", "bayesncl"))
    again = copy.deepcopy(ncl)
    again["seed"] = again["recipe"]["run"]["seed"] = 1
    for one, value, chance in ((ncl, 10.0, 2.0), (again, 11.0, 2.5), (bayesncl, None, None)):
        one["measures"]["paper"]["consistency"] = value
        one["measures"]["chance"]["paper"]["consistency"] = chance
    text = page.where_the_gain_comes_from(ledger.by_setting([ncl, again, bayesncl]), {})
    assert "| NCL | 10.50 ± 0.71 | 2.25 ± 0.35 | 8.25 ± 0.35 | 2 |\n" in text
    assert "| BayesNCL |  |  |  | 1 |\n" in text  # nothing fires
    assert "| CL |  |  |  | not run |\n" in text


def test_runs_of_the_repositorys_ledger_go_elsewhere(tmp_path: Path) -> None:
    for ledger_folder, work in command.WORK.items():
        assert command.workplace(ledger_folder) == command.workplace(ledger_folder.resolve()) == work
    assert command.workplace(tmp_path) == tmp_path / "work"


def test_a_claim_says_which_probe_and_the_gates_what_they_close(entry: dict[str, Any]) -> None:
    ncl, bayesncl = (at_full_size(entry, named(f"cifar100-{method}")) for method in ("ncl", "bayesncl"))
    for one, accuracy in ((ncl, 62.5), (bayesncl, 62.0)):
        one["measures"]["probe"] = {"fast": {"acc1": accuracy, "acc5": 87.0}}
    (claim,) = [c for c in page.CLAIMS if c.column == "acc1"]
    found = ledger.by_setting([ncl, bayesncl])
    assert page.claim_row(claim, found)[2:] == ["-0.50†", "-0.50", "yes (one run)", "yes (one run)"]
    for one, accuracy in ((ncl, 60.0), (bayesncl, 61.5)):
        one["measures"]["probe"]["paper"] = {"acc1": accuracy, "acc5": 87.0}
    assert page.claim_row(claim, found)[2:] == ["+1.50", "-0.50", "no (one run)", "yes (one run)"]
    bayesncl["measures"]["gates"] = {"open": 0.9, "open_where_active": 0.75}
    assert "close 25.0 % of the features that would fire" in page.where_the_gain_comes_from(found, {})


def test_numbers_of_the_readme_are_the_ledgers() -> None:
    root = Path(__file__).parents[1]
    found = ledger.by_setting(ledger.read(root / "results"))
    text = (root / "README.md").read_text()
    for row in rows(EXPERIMENTS["interpretability"]):
        name = paper()["methods"][row.method]
        if row.dataset != "cifar100":
            continue
        runs = [entry["measures"] for entry in found.get(ledger.setting(row.recipe), [])]
        if not runs:
            assert f"| {name} |" not in text
            continue
        cells = [
            name,
            f"{row.published['consistency']:.2f}",
            tables.summary([m["paper"]["consistency"] for m in runs], 2),
            tables.summary([m["chance"]["paper"]["consistency"] for m in runs], 2),
            tables.summary([m["sound"]["consistency"] for m in runs], 2),
        ]
        assert f"| {' | '.join(cells)} |\n" in text
        if row.method == "bayesncl":
            closed = statistics.mean(100 * (1 - m["gates"]["open_where_active"]) for m in runs)
            assert f"close only {closed:.1f} % of" in text


@pytest.mark.parametrize(
    ("a", "b", "sign", "text", "verdict"),
    [
        ((), (1.0,), 1, "not run", ""),
        ((3.0,), (1.0, 1.1), 1, "+1.95", "sign only"),
        ((3.0,), (1.0,), -1, "+2.00", "no (one run)"),
        ((3.0, 3.2), (1.0, 1.2), 1, "+2.00 ± 0.14", "yes"),
        ((3.0, 3.2), (1.0, 1.2), -1, "+2.00 ± 0.14", "no, the reverse"),
        ((1.0, 3.0), (1.5, 2.0), 1, "+0.25 ± 1.03", "no difference seen"),
        ((60.5,), (60.0,), 0, "+0.50", "yes (one run)"),
        ((62.5, 62.7), (60.0, 60.2), 0, "+2.50 ± 0.14", "no"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_claim(
    a: tuple[float, ...], b: tuple[float, ...], sign: int, text: str, verdict: str
) -> None:
    found = page.difference(a, b)
    assert (found.text, found.verdict(sign)) == (text, verdict)


def test_every_claim_names_rows_that_exist() -> None:
    differences = [page.claim_row(claim, {}) for claim in page.CLAIMS]
    assert differences[0][1:3] == ["+12.11", "not run"]
    assert differences[-1][1] == "+16.36"
    assert all(row[1] for row in differences)


def test_notes_belong_to_experiments() -> None:
    assert set(page.notes()) <= {*EXPERIMENTS, "findings"}
    assert set(paper()["methods"]) >= {row.method for e in EXPERIMENTS.values() for row in rows(e)}


def test_a_sheet_has_a_row_per_dimension(tmp_path: Path, entry: dict[str, Any]) -> None:
    test = load(smoke("ncl").data, "test")
    chosen = entry["exemplars"]["high_entropy"]
    sheet = np.asarray(Image.open(figures.draw_sheet("high_entropy", entry, test, tmp_path / "s.png")))
    step = plots.TILE + 2
    margin = sheet.shape[1] - (10 * step - 2)
    assert len(sheet) == len(chosen) * step - 2
    assert sheet[:, :margin].min() < 99  # numbers stand there
    left = margin + 2 * step
    tile = sheet[step : step + plots.TILE, left : left + plots.TILE]
    wanted = test.pixels[chosen[1]["images"][2]].transpose(1, 2, 0)
    assert np.array_equal(tile[:: plots.TILE // 16, :: plots.TILE // 16], wanted)


# the command


def test_the_list_counts_runs_and_minutes(tmp_path: Path, entry: dict[str, Any]) -> None:
    recipe = recipe_of("cifar100-bayesncl")
    known = at_full_size(entry, recipe)
    known |= {"epochs": 200, "seconds": {"train": 540.0, "per_epoch": 2.7, "evaluate": 60.0}}
    known["checksum"] = ledger.checksum(known)
    (tmp_path / ledger.file_name(recipe)).write_text(json.dumps(known))
    result = CliRunner().invoke(app, ["reproduce", "--list", "--results", str(tmp_path)])
    assert result.exit_code == 0
    lines = {line.split()[0]: line.split() for line in result.output.splitlines() if line.strip()}
    assert lines["prior"][-3:] == ["9", "1", "80"]  # eight left at ten minutes each
    assert lines["figure-suppressed"][-3:] == ["3", "1", "25"]  # CIFAR-10 and ImageNet-100, as stated
    assert set(ASKED) <= set(lines)


def test_wrong_folders_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="nowhere: no such folder"):
        command.reproduce("interpretability", data=str(tmp_path / "nowhere"), results=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        command.reproduce("interpretability", scale="smoke", results=tmp_path / "file" / "results")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InputError, match="cannot be written to"):
        command.reproduce("interpretability", scale="smoke", results=tmp_path / "read-only")
    command.reproduce("interpretability", results=tmp_path / "none")  # which trains nothing, and so writes nothing
    assert not (tmp_path / "none").exists()


def test_a_method_has_one_colour_in_all_figures() -> None:
    drawn: dict[str | None, set[int]] = {}
    for name, axis, column in (("figure-dimensions", "dim", "consistency"), ("figure-retrieval", "K", "p@5")):
        (section,) = [s for s in tables.sections(EXPERIMENTS[name], {}, "paper") if s.dataset == "cifar100"]
        for curve in figures.theirs_and_ours(section.lines, axis, column):
            drawn.setdefault(curve.name, set()).add(curve.colour)
    assert drawn == {"NCL, published": {0}, "BayesNCL, published": {1}, "CL, published": {2}}


def test_a_stopped_run_ends_the_command_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise Interrupted(Run(tmp_path), 1, 2)

    monkeypatch.setattr(command, "run_list", stopped)
    result = CliRunner().invoke(app, ["reproduce", "prior", "--scale", "smoke", "--results", str(tmp_path)])
    assert result.exit_code == 130
    assert "stopped; the same command continues from here" in result.output + result.stderr


def test_dynamics_are_averaged_over_runs() -> None:
    def row(epoch: int, value: float | None) -> dict[str, Any]:
        return {"epoch": epoch, "sound": dict.fromkeys(CORRELATIONS, value), "chance": dict.fromkeys(CORRELATIONS, 0.5)}

    found = figures.mean_dynamics([[row(10, 0.2), row(20, None), row(30, 1.0)], [row(10, 0.6), row(20, 0.1)]])
    assert [r["epoch"] for r in found] == [10, 20]  # what both recorded
    assert found[0]["sound"]["af_gv"] == pytest.approx(0.4)
    assert found[0]["chance"]["gv_sc"] == 0.5
    assert found[1]["sound"]["af_sc"] is None


def test_without_data_the_ledger_is_shown_and_what_is_missing_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["reproduce", "batch-tradeoff", "--results", str(tmp_path), "--pages", str(tmp_path / "p")]
    )
    assert result.exit_code == 0
    assert "5.801 T" in result.output
    assert "not run" in result.output
    assert "2 runs are not in the ledger" in result.output + result.stderr
    assert (tmp_path / "p" / "results.md").exists()


def test_a_bad_device_or_an_edited_ledger_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no device 'abacus'"):
        command.reproduce("prior", results=tmp_path, device="abacus")
    (tmp_path / "x.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match="checksum"):
        command.reproduce("prior", results=tmp_path, dry=True)
