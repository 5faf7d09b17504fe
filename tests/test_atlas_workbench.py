"""The atlas as a workbench: names that stay, travel and are joined, and the quiz."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.atlas.build import make_server
from bayesncl.heat import Heat
from bayesncl.names import Codes, Entry, read_names, write_names
from bayesncl.quiz import join_quizzes

from .atlas_page import HOSTILE, Case, arrive, arrived, click, data, press, text, wait_for
from .chromium import visit

pytest_plugins = ["tests.atlas_fixtures"]


def marks(index: Path) -> list[str]:
    """Fingerprints of the runs of an atlas."""
    core = (index.parent / "data" / "atlas.js").read_text()
    return [run["fingerprint"] for run in json.loads(core[10:-3].join("[]"))[1]["runs"]]


def test_a_name_is_kept_at_once_and_shown_everywhere(driver, index: Path, case: Case) -> None:
    from selenium.webdriver.common.keys import Keys

    name = f"loops {HOSTILE}"
    largest = np.argsort(-case.z[5] * case.z[8])[:4]
    k = int(largest[case.telling[largest].argmax()])  # one that the wall shows, too
    visit(driver, index, f"#/dim/{k}")
    driver.find_element("id", "name").send_keys(name)
    driver.find_element("id", "note").send_keys("round <b>things</b>")
    driver.find_element("css selector", ".mark input[value=readable]").click()
    assert text(driver, "h1") == [name]
    assert text(driver, ".progress") == [f"1 of {(case.dims.support > 0).sum()} named"]
    driver.get("about:blank")  # nothing was saved by hand
    for address, selector in (
        ("#/", ".tile-name"), ("#/", ".dot-name"), ("#/image/5", ".feature-name b"), ("#/pair/5/8", ".lede"),
        ("#/names", ".said b"), ("#/dims", "td.name b"),
    ):  # fmt: skip
        visit(driver, index, address)
        assert any(t.strip().startswith("loops") or f"{name} 0." in t for t in text(driver, selector)), address
    part = case.z[5, k] * case.z[8, k]
    visit(driver, index, "#/pair/5/8")
    assert text(driver, ".lede")[0].startswith("Both: ")
    assert f"{name} {part:.2f}" in text(driver, ".lede")[0]
    press(driver, "/")
    press(driver, "loops")
    wait_for(driver, "document.querySelectorAll('#found [data-href]').length > 0")
    press(driver, Keys.ENTER)
    arrive(driver, f"#/dim/{k}")
    assert driver.find_element("id", "note").get_attribute("value") == "round <b>things</b>"
    visit(driver, index, f"#/dim/{k}?run=1")  # the other run has dimensions of its own
    assert driver.find_element("id", "name").get_attribute("value") == ""


def test_unnamed_dimensions_are_walked_by_keyboard_most_telling_first(driver, index: Path, case: Case) -> None:
    from selenium.webdriver.common.keys import Keys

    order = [int(k) for k in np.lexsort((-case.dims.mass, -case.telling)) if case.dims.support[k]]
    visit(driver, index)
    press(driver, "u")
    arrive(driver, f"#/dim/{order[0]}")
    press(driver, "3")
    assert driver.execute_script("return document.querySelector('.mark input:checked').value") == "noise"
    press(driver, "u")
    arrive(driver, f"#/dim/{order[1]}")
    press(driver, "e")
    press(driver, "hook", Keys.ENTER)
    arrive(driver, f"#/dim/{order[2]}")
    assert driver.execute_script("return document.activeElement.id") == "name"  # type on
    press(driver, "bar")
    visit(driver, index, "#/names")
    assert text(driver, ".lede")[0].startswith(f"3 of {len(order)} named")
    assert text(driver, ".said b") == ["–", "hook", "bar"]


def imported(driver, path: Path) -> str:
    driver.find_element("id", "import").send_keys(str(path))
    wait_for(driver, "document.querySelector('main .note[role=status]').textContent !== ''")
    answer = text(driver, "main .note[role=status]")[0]
    driver.execute_script("document.querySelector('main .note[role=status]').textContent = ''")
    return answer


def test_names_are_exported_joined_and_conflicts_shown(driver, index: Path, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    visit(driver, index, "#/names")
    driver.find_element("id", "author").send_keys(Keys.CONTROL, "a", Keys.NULL, "Ann", Keys.TAB)
    visit(driver, index, "#/dim/2")
    driver.find_element("id", "name").send_keys("hook")
    visit(driver, index, "#/names")
    click(driver, ".controls button")
    file = tmp_path / "names.json"
    arrived(file)
    (codes, other) = read_names(file)
    assert [e.name for e in codes.dimensions[2]] == ["hook"]
    assert codes.dimensions[2][0].author == "Ann"
    assert not other.dimensions
    ben = Entry("Haken", "", "mixed", "Ben", "2026-01-01T00:00:00.000Z")
    codes.dimensions = {2: [ben], 5: [ben]}
    write_names(tmp_path / "ben.json", [codes, Codes("elsewhere", "x", 9)])
    assert imported(driver, tmp_path / "ben.json").startswith("Took what it says of 2 dimensions. 1 set of names")
    assert text(driver, "section h2")[0] == "1 conflict"
    assert data(driver, "section:first-of-type tbody tr", "dim") == [2]
    visit(driver, index, "#/dim/2")
    assert text(driver, "h1") == ["hook"]  # one's own first
    assert "Haken" in text(driver, ".others")[0]
    assert "Ben" in text(driver, ".others")[0]
    visit(driver, index, "#/dim/5")
    assert text(driver, "h1") == ["Haken"]


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", "null", '{"format": "bayesncl-names-1"}', "[" * 50_000,
        '{"1": [{"name": 5}]}', '{"99": []}', '{"__proto__": []}', "[1]", '{"1": [null]}',
    ],
)  # fmt: skip
def test_a_hostile_names_file_is_refused_whole(driver, index: Path, content: str, tmp_path: Path) -> None:
    visit(driver, index, "#/names")
    if content.startswith(("{\"1", "{\"9", "{\"_", "[1")):  # of dimensions
        codes = f'"codes": [{{"fingerprint": "F", "dims": 24, "dimensions": {content}}}]'
        content = f'{{"format": "bayesncl-names-1", {codes}}}'
    (tmp_path / "bad.json").write_text(content.replace('"F"', f'"{marks(index)[0]}"'))
    assert imported(driver, tmp_path / "bad.json").startswith("This file was not taken: ")
    assert text(driver, ".lede")[0].startswith("0 of ")


def test_damaged_storage_counts_as_none(driver, index: Path) -> None:
    visit(driver, index)
    driver.execute_script(
        "for (const run of arguments[0]) localStorage.setItem('atlas-names-' + run, '{\"1\": 5}')",
        marks(index),
    )
    driver.get("about:blank")
    visit(driver, index, "#/names")
    assert text(driver, ".lede")[0].startswith("0 of ")


def test_without_storage_the_page_works_and_says_so(driver, index: Path) -> None:
    source = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no'); } })"
    script = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    driver.get("about:blank")
    visit(driver, index, "#/dim/2")
    assert "Export before you close it" in text(driver, ".warning")[0]
    driver.find_element("id", "name").send_keys("hook")
    visit(driver, index, "#/names")
    assert text(driver, ".said b") == ["hook"]
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    driver.get("about:blank")


def test_the_quiz_is_blind_and_counts_what_was_found(driver, index: Path, case: Case, tmp_path: Path) -> None:
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    visit(driver, index, "#/quiz")
    for _ in range(20):
        shown = driver.execute_script("return document.querySelector('main').innerText + switches.innerText")
        assert not any(word in shown for word in ("NCL", "tiger", "petals", "imension 1"))
        assert driver.execute_script("return [...document.querySelectorAll('.choice')].map((b) => b.ariaLabel)") == [
            f"Picture {i}" for i in range(1, 6)
        ]
        press(driver, "2")
    arrive(driver, "#/quiz/results")
    click(driver, ".actions button")
    arrived(tmp_path / "quiz.json")
    joined = join_quizzes([tmp_path / "quiz.json"])
    assert {found.asked for found in joined["methods"].values()} == {10}  # as many of each method
    assert joined["questions"] == 20
    rows = text(driver, "section:first-of-type tbody tr")
    ours = joined["methods"]["BayesNCL"]
    assert f"{ours.right} of 10" in rows[0]
    assert f"{100 * ours.low:.0f} % to {100 * ours.high:.0f} %" in rows[0].replace("0.0 %", "0 %")
    for answer in json.loads((tmp_path / "quiz.json").read_text())["answers"]:
        z = case.gated if answer["run"] == "BayesNCL" else case.other
        a = z[answer["images"], answer["dim"]]
        assert a.argmin() == answer["intruder"]
        assert answer["chosen"] == 1




def test_heat_is_laid_over_the_picture_and_taken_off_again(driver, case: Case, tmp_path: Path) -> None:
    dims = np.argsort(-case.z, axis=1, kind="stable")[:, :3]
    maps = np.zeros((600, 3, 2, 2), np.uint8)
    maps[:, :, 0, 0] = 255  # the upper left corner
    heat = Heat(dims, maps, {"hottest": 0.4, "random": 0.1}, share=0.875)  # from pixel 2 to pixel 30 of 32
    runs = [AtlasRun("hot", case.z, heat=heat), AtlasRun("cold", case.other, heat="its maps mean nothing")]
    page = build_atlas(tmp_path / "atlas", runs, case.images, "Heat")
    with make_server(page.parent, 0) as server:  # from disk a canvas may not be read
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        visit(driver, address, "#/image/5")
        assert len(text(driver, ".where")) == 3
        corner = "return [...document.querySelector('{}').getContext('2d').getImageData({}, {}, 1, 1).data]"
        before = driver.execute_script(corner.format(".portrait canvas", 3, 3))
        click(driver, ".where")
        driver.execute_async_script("setTimeout(arguments[0], 200)")
        hot, cold = (driver.execute_script(corner.format(".portrait canvas", p, p)) for p in (3, 31))
        assert hot[0] > before[0]
        assert hot[2] < before[2]
        assert cold[:3] == case.images.pixels[5, :, 31, 31].tolist()
        click(driver, ".where")
        driver.execute_async_script("setTimeout(arguments[0], 200)")
        assert driver.execute_script(corner.format(".portrait canvas", 3, 3)) == before
        assert "loses 40 % of its strongest dimension" in text(driver, "main")[0]
        k = int(dims[5, 0])
        visit(driver, address, f"#/dim/{k}")
        i = data(driver, ".wall .picture", "image")[0]
        click(driver, "#heat")
        driver.execute_async_script("setTimeout(arguments[0], 400)")
        drawn = driver.execute_script(corner.format(".wall canvas", 3, 3))
        assert (drawn[:3] != case.images.pixels[i, :, 3, 3].tolist()) == (k in dims[i])
        visit(driver, address, "#/image/5?run=1")
        assert "is not shown: its maps mean nothing." in text(driver, "main")[0]
        assert text(driver, ".where") == []
        driver.get("about:blank")
        server.shutdown()
