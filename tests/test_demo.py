"""The demonstration, at a size that takes seconds."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from bayesncl import demo
from bayesncl.cli import app
from bayesncl.codes_folder import CodesFolder
from bayesncl.demo import METHODS, ROWS, run_demo, run_methods
from bayesncl.errors import InputError
from bayesncl.measure.result import Result
from bayesncl.progress import Display
from bayesncl.report.html import CAPTIONS, better, summarise, write_report
from bayesncl.report.tables import write
from bayesncl.run import Run
from bayesncl.train import Interrupted
from tests.conftest import TINY

CHANGES = [*TINY, "run.epochs=1", "data.train_images=120", "data.test_images=80"]


class Page(HTMLParser):
    """What a page refers to, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") and value]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo")
    run_methods(out, CHANGES, False, Display(quiet=True))
    return out


def test_textures_end_in_a_sentence_and_an_atlas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skimage")
    opened: list[str] = []
    monkeypatch.setattr(demo.webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    run_demo(tmp_path, CHANGES, True, Display(quiet=True))
    said = capsys.readouterr().out
    found = re.match(r"(\d+) of the 64 dimensions show one photograph each: at least 7 of their 10\sstrongest", said)
    verdict = json.loads((tmp_path / "codes" / "verdict.json").read_text())
    assert found and int(found[1]) == verdict["lines"][0]["value"]
    assert "readable" in verdict["lines"][0]["text"]
    page = tmp_path / "atlas" / "index.html"
    assert opened == [page.resolve().as_uri()]
    assert f"open {page}" in said
    codes = CodesFolder(tmp_path / "codes").codes()
    assert (codes.dim_, codes.keep) == (64, 5)

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(demo, "train", forbidden)
    run_demo(tmp_path, CHANGES, False, Display(quiet=True))
    assert capsys.readouterr().out == said
    assert len(opened) == 1


def test_better_means_by_more_than_seeds_may_differ() -> None:
    row = ROWS[0]._replace(more=True, apart=2.0)
    assert better({"a": 10.0, "b": 12.5, "c": 11.0}, row) == "b, c"
    assert better({"a": 10.0, "b": 12.5, "c": 11.0}, row._replace(more=False)) == "a, c"
    assert better({"a": 10.0, "b": 11.5, "c": 11.0}, row) == "even"
    assert better({"a": 10.0, "b": None}, row) == "-"


def test_three_runs_with_their_evaluations(shown: Path) -> None:
    for method in METHODS:
        assert (shown / method / "model.safetensors").is_file()
        results = json.loads((shown / method / "evaluation.json").read_text())
        assert {"paper", "sound", "chance", "probe", "conflict", "stability", "balanced"} <= set(results)


def test_the_report_shows_the_table_and_pictures_that_exist(shown: Path) -> None:
    text = (shown / "report" / "index.html").read_text()
    page = Page(text)
    pictures = [link for link in page.links if link.endswith(".png")]
    assert len(pictures) >= 6
    for link in page.links:
        assert (shown / "report" / link).is_file(), link
    for name in pictures:
        with Image.open(shown / "report" / name) as picture:
            picture.load()
            assert min(picture.size) > 50
        assert f"<figcaption>{CAPTIONS[name]}</figcaption>" in text
    table = json.loads((shown / "report" / "table.json").read_text())
    assert list(table) == [row.label for row in ROWS]
    assert len(table) <= 6
    for label, cells in table.items():
        assert len(cells) == 4
        row = re.search(rf"<td>{re.escape(label).replace(chr(39), '(?:&#39;|.)')}</td>(.*?)</tr>", text)
        assert row, label
        assert re.findall("<td>(.*?)</td>", row[1]) == cells
    results = json.loads((shown / "ncl" / "evaluation.json").read_text())
    assert table["images of a dimension that share a class (%)"][1] == f"{results['sound']['consistency']:.1f}"
    assert table["object read from h (%)"][1] == f"{results['balanced']['object']['acc1']:.1f}"
    assert table["active dimensions per image"][1] == f"{results['sound']['l0']:.1f}"
    assert "What the theory predicts" in text


def test_the_atlas_is_there(shown: Path) -> None:
    assert (shown / "atlas" / "index.html").is_file()


def test_again_nothing_is_trained(
    shown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("trained again")

    weights = {method: (shown / method / "model.safetensors").read_bytes() for method in METHODS}
    table = (shown / "report" / "table.json").read_text()
    opened: list[str] = []
    monkeypatch.setattr(demo, "train", forbidden)
    monkeypatch.setattr(demo, "evaluate", forbidden)
    monkeypatch.setattr(demo.webbrowser, "open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    run_methods(shown, CHANGES, True, Display())
    out, err = capsys.readouterr()
    for method in METHODS:
        assert method in out
        assert f"{shown / method} is trained already" in err
        assert (shown / method / "model.safetensors").read_bytes() == weights[method]
    assert "object read from h" in out
    assert (shown / "report" / "table.json").read_text() == table
    assert opened == [(shown / "report" / "index.html").resolve().as_uri()]


def test_a_run_of_another_recipe_is_left_alone(shown: Path, tmp_path: Path) -> None:
    import shutil

    from bayesncl.recipes import change, named
    from tests.conftest import tiny_images

    folder = tmp_path / "cl"
    shutil.copytree(shown / "cl", folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    recipe = change(named("scenes-cl"), [*CHANGES, "run.seed=1"])
    with pytest.raises(InputError, match="cl holds a run of another recipe"):
        demo.trained(recipe, folder, tiny_images(40), Display(quiet=True))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_stopped_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise Interrupted(Run(tmp_path), 3, 9)

    monkeypatch.setattr(demo, "train", stopped)
    result = CliRunner().invoke(app, ["demo", "--methods", "--out", str(tmp_path / "out"), "--no-open"])
    assert result.exit_code == 130
    assert "stopped after 3 of 9 steps; the same command continues" in result.output + result.stderr


def test_html_is_escaped(tmp_path: Path) -> None:
    nasty = "<script>alert('x')</script>&\""
    row = {"statement": nasty, "note": nasty, "predicted": nasty, "observed": 1.0, "holds": None}
    (tmp_path / "<i>.png").touch()
    verdict = {"lines": [{"text": nasty, "measured_by": nasty}]}
    page = write_report(tmp_path, METHODS, [(nasty, [nasty] * 4)], ["<i>.png"], [row], {nasty: verdict})
    text = page.read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 11
    found = Page(text)
    assert "<i>.png" in found.links
    assert "i" not in found.tags


def test_missing_values_are_dashes() -> None:
    results = {"a": Result(sound={"l0": 3.14159, "consistency": None}), "b": Result()}
    table = dict(summarise(results, ROWS))
    assert table["active dimensions per image"] == ["3.1", "-", "-"]
    assert table["images of a dimension that share a class (%)"] == ["-", "-", "-"]


def test_the_table_on_the_terminal() -> None:
    text = write(("", *METHODS, "better"), [("some measure", "1.0", "-", "22.50", "even")], left=1)
    header, row = text.splitlines()[:2]
    assert header.split() == ["cl", "ncl", "bayesncl", "better"]
    assert row.split() == ["some", "measure", "1.0", "-", "22.50", "even"]


def test_no_browser_is_started_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(demo.sys, "platform", "linux")
    opened: list[str] = []
    monkeypatch.setattr(demo.webbrowser, "open", opened.append)
    demo.show_page(Path("page.html"), True)
    assert not opened
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    demo.show_page(Path("page.html"), False)
    demo.show_page(Path("page.html"), True)
    assert opened == [Path("page.html").resolve().as_uri()]
