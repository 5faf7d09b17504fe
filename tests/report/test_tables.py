"""Tables of results: terminal, CSV, Markdown."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from bayesncl.evaluate import measure_features
from bayesncl.measure.result import Result
from bayesncl.report.tables import render, render_costs, render_theory, show


@pytest.fixture(scope="module")
def result() -> Result:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 120)
    z = np.maximum(rng.standard_normal((120, 80)) + 2 * np.eye(80)[labels] - 1, 0)
    return measure_features(z.astype(np.float32), labels)


def test_csv_has_every_number_with_its_chance_level(result: Result) -> None:
    rows = list(csv.DictReader(io.StringIO(render(result, "csv"))))
    sound = {row["measure"]: row for row in rows if row["definition"] == "sound"}
    assert result.sound is not None
    assert float(sound["consistency"]["value"]) == result.sound["consistency"]
    assert float(sound["consistency"]["chance"]) == result.chance["sound"]["consistency"]
    assert sound["l0"]["chance"] == ""
    precision = sound["retrieval, 64 dimensions, precision at 5"]
    assert float(precision["chance"]) == result.chance["retrieval"]["sound"]["64"]["5"]


def test_markdown_and_headlines(result: Result) -> None:
    assert result.sound is not None
    assert f"{result.sound['consistency_mass']:.2f}" in render(result)
    assert "effective rank" not in render(result)
    assert "effective rank" in render(result, everything=True)
    markdown = render(result, "markdown").splitlines()
    assert markdown[0] == "| definition | measure | value | chance |"
    assert all(line.count("|") == 5 for line in markdown)


def test_tables_fit_the_terminal_and_are_never_cut_off(
    result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = render(result, everything=True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    for columns, widest in (("80", 80), ("30", 60), ("200", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        table = re.sub(r"\x1b\[\d*m", "", render(result, everything=True))
        assert max(map(len, table.splitlines())) <= widest
        assert sorted(table.split()) == sorted(whole.split())


def test_costs_stand_side_by_side_under_their_names_in_words() -> None:
    one = {"params": 14_319_168, "params_by_part": {"gate": 7}, "seconds_per_step": 0.5}
    text = render_costs({"a": one, "b": {"params": 3, "macs_per_image": None}})
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["parameters", "14,319,168", "3"],
        ["gate", "7", "-"],
        ["seconds", "per", "step", "0.500", "-"],
        ["multiply-adds", "per", "image", "-", "-"],
    ]


def test_the_verdict_is_printed_even_if_a_file_cannot_be_written(
    result: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        show(result, {"json": tmp_path / "file" / "m.json"})
    assert "consistency" in capsys.readouterr().out
    show(result, {"json": tmp_path / "m.json", "markdown": tmp_path / "m.md", "csv": None})
    assert json.loads((tmp_path / "m.json").read_text())["sound"]
    assert (tmp_path / "m.md").read_text().startswith("| definition")


def test_theory_table() -> None:
    rows = [
        {"statement": "a", "predicted": 1.5, "observed": None, "holds": None, "note": "[b]x[/b]"},
        {"statement": "c", "predicted": 2.0, "observed": 3.0, "holds": False, "note": "so"},
    ]
    text = render_theory(rows)
    assert "[b]x[/b]" in text  # text, not markup
    assert ["c", "2.000", "3.000", "no"] in [line.split() for line in text.splitlines()]
