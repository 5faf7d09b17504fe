"""Naming, the quiz and heat maps in the browser."""

import json
import socket
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.atlas.page_data import arguments
from bayesncl.atlas.quiz import join_quizzes
from bayesncl.codes.fit import Options, fit
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.heat import Heatmaps
from bayesncl.codes.names import Annotations, Entry, read_names, write_names
from bayesncl.progress import Display
from tests.atlas.browser import Keys
from tests.atlas.conftest import HOSTILE, Case, serving

STATUS = "document.querySelector('main .note[role=status]').textContent"


def fingerprint(index: Path) -> str:
    core = json.loads(arguments(index.parent / "data" / "atlas.js"))[1]
    return core["runs"][0]["fingerprint"]


def test_a_name_is_stored_at_once_and_shown_everywhere(driver, index: Path, case: Case) -> None:
    name = f"loops {HOSTILE}"
    largest = np.argsort(-case.z[5] * case.z[8])[:4]
    k = int(largest[case.clarity[largest].argmax()])  # also in the overview
    driver.visit(index, f"#/dim/{k}")
    driver.type("name", name)
    driver.type("note", "round <b>things</b>")
    driver.click(".mark input[value=readable]")
    assert driver.text("h1") == [name]
    assert driver.text(".progress") == [f"1 of {(case.dims.support > 0).sum()} named or marked"]
    driver.get("about:blank")
    for address, selector in (
        ("#/", ".tile-name"), ("#/image/5", ".feature-name b"), ("#/pair/5/8", ".lede"),
        ("#/names", ".said b"), ("#/dims", ".name b"),
    ):  # fmt: skip
        driver.visit(index, address)
        assert any("loops" in t for t in driver.text(selector)), address
    driver.visit(index, f"#/dim/{k}")
    assert driver.find_element("id", "note").get_attribute("value") == "round <b>things</b>"
    driver.visit(index, f"#/dim/{k}?run=1")  # the dimensions of the other run are others
    assert driver.find_element("id", "name").get_attribute("value") == ""


def test_unnamed_dimensions_are_visited_by_keyboard(driver, index: Path, case: Case) -> None:
    order = np.lexsort((-case.dims.mass, -case.clarity)).tolist()
    order = [k for k in order if case.dims.support[k]]
    driver.visit(index)
    driver.press("u")
    driver.arrive(f"#/dim/{order[0]}")
    driver.press("3")
    assert driver.run("document.querySelector('.mark input:checked').value") == "noise"
    driver.press("u")
    driver.arrive(f"#/dim/{order[1]}")
    driver.press("e")
    driver.press("hook", Keys.ENTER)
    driver.arrive(f"#/dim/{order[2]}")
    driver.press("bar")  # the name field has the focus
    driver.visit(index, "#/names")
    assert driver.text(".lede")[0].startswith(f"3 of {len(order)} named")
    assert driver.text(".said b") == ["–", "hook", "bar"]


def import_file(driver, path: Path) -> str:
    driver.execute_script(f"{STATUS} = ''")
    driver.type("import", str(path))
    return driver.wait_for(STATUS)


def test_names_are_exported_and_merged_and_conflicts_shown(driver, index, tmp_path: Path) -> None:
    driver.visit(index, "#/names")
    driver.type("author", *Keys.SELECT_ALL, "Ann", Keys.TAB)
    driver.visit(index, "#/dim/2")
    driver.type("name", "hook")
    driver.visit(index, "#/names")
    codes, other = read_names(driver.download(".controls button", tmp_path / "names.json"))
    assert [(e.name, e.author) for e in codes.dimensions[2]] == [("hook", "Ann")]
    assert not other.dimensions
    ben = Entry("Haken", "", "mixed", "Ben", "2026-01-01T00:00:00.000Z")
    codes.dimensions = {2: [ben], 5: [ben]}
    write_names(tmp_path / "ben.json", [codes, Annotations("elsewhere", "x", 9)])
    answer = import_file(driver, tmp_path / "ben.json")
    assert "2 dimensions" in answer and "1 set" in answer
    assert driver.text("section h2")[0] == "1 conflict"
    assert driver.data("section:first-of-type tbody tr", "dim") == [2]
    driver.visit(index, "#/dim/2")
    assert driver.text("h1") == ["hook"]  # your own name wins
    assert "Haken" in driver.text(".others")[0] and "Ben" in driver.text(".others")[0]
    driver.visit(index, "#/dim/5")
    assert driver.text("h1") == ["Haken"]


def test_invalid_names_files_and_damaged_storage(driver, index: Path, tmp_path: Path) -> None:
    driver.visit(index, "#/names")
    files = ["", "[]", '{"format": "bayesncl-names-1"}']
    for dims in ('{"1": [{"name": 5}]}', '{"99": []}', '{"__proto__": []}', "[1]"):
        codes = f'{{"fingerprint": "{fingerprint(index)}", "dims": 24, "dimensions": {dims}}}'
        files.append(f'{{"format": "bayesncl-names-1", "codes": [{codes}]}}')
    for content in files:
        (tmp_path / "bad.json").write_text(content)
        assert import_file(driver, tmp_path / "bad.json").startswith("Import failed"), content
    key = f"atlas-names-{fingerprint(index)}"
    driver.execute_script("localStorage.setItem(arguments[0], '{\"1\": 5}')", key)
    driver.get("about:blank")
    driver.visit(index, "#/names")
    assert driver.text(".lede")[0].startswith("0 of ")


def test_the_page_works_without_storage(driver, index: Path) -> None:
    deny = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })"
    script = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": deny})
    driver.get("about:blank")
    driver.visit(index, "#/dim/2")
    assert "Export" in driver.text(".warning")[0]
    driver.type("name", "hook")
    driver.visit(index, "#/names")
    assert driver.text(".said b") == ["hook"]
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_names_of_the_codes_are_shown_and_your_own_win(driver, case: Case, tmp_path: Path) -> None:
    score = Entry("loops", "suggested, score 0.90", "", "bayesncl:labels", "2026-01-02")
    hook = Entry(f"hook {HOSTILE}", "", "", "Ann", "2026-01-01")
    names = Annotations("f" * 16, "r", 24, {2: [score], 3: [hook, score], 5: [score]})
    run = AtlasRun("r", case.z, fingerprint="f" * 16, names=names)
    page = build_atlas(tmp_path / "atlas", [run], case.images, "Named")
    driver.visit(page, "#/dim/3")
    assert driver.text("h1") == [f"hook {HOSTILE}"]
    assert not driver.text("h1.suggested")  # a person's name wins over a suggestion
    driver.visit(page, "#/dim/5")
    assert driver.text("h1.suggested") == ["loops"]
    assert "score 0.90, from labels" in driver.text(".lede")[0]
    firing = (case.dims.support > 0).sum()
    assert driver.text(".progress") == [f"1 of {firing} named or marked, 2 more suggested"]
    driver.press("a")
    assert driver.text("h1") == ["loops"] and not driver.text("h1.suggested")
    driver.visit(page, "#/dim/3")
    driver.type("name", "mine")
    driver.visit(page, "#/names")
    assert driver.text("section:last-of-type .said b.suggested") == ["loops"]
    build_atlas(tmp_path / "atlas", [replace(run, names=None)], case.images, "Named")
    driver.get("about:blank")
    driver.visit(page, "#/names")  # suggestions of the file are not stored in the browser
    assert sorted(driver.text(".said b")) == ["loops", "mine"]


@pytest.fixture
def codes(case: Case, tmp_path: Path) -> CodesFolder:
    np.savez(tmp_path / "e.npz", z=case.z[:60])
    options = Options(n_components=24)
    fit(tmp_path / "e.npz", tmp_path / "codes", options, torch.device("cpu"), Display(quiet=True))
    return CodesFolder(tmp_path / "codes")


def served_atlas(codes: CodesFolder, case: Case, out: Path) -> Path:
    run = AtlasRun("codes", case.z, fingerprint=codes.fingerprint())
    return build_atlas(out, [run], case.images, "Served")


def wait_for_file(path: Path, content: str, there: bool = True) -> None:
    for _ in range(100):
        if path.exists() and (content in path.read_text()) == there:
            return
        time.sleep(0.05)
    raise AssertionError(f"{content} is {'not ' if there else ''}in {path.name}")


def test_the_server_saves_names_into_the_codes(driver, case: Case, codes, tmp_path: Path) -> None:
    page = served_atlas(codes, case, tmp_path / "atlas")
    own = codes.names()
    own.dimensions[7] = [Entry("kept", author="Ben", time="2026-01-01")]
    codes.save_names(own)
    with serving(page, [codes]) as base:
        driver.visit(base, "#/dim/7")
        assert driver.text("h1") == ["kept"]  # read from the file, not from the page
        driver.visit(base, "#/dim/2")
        driver.type("name", "hook")
        wait_for_file(codes.names_file, "hook")
        assert codes.names().name(2) == "hook" and codes.names().name(7) == "kept"
        driver.visit(base, "#/names")
        driver.type("author", *Keys.SELECT_ALL, "Ann", Keys.TAB)
        wait_for_file(codes.names_file, "Ann")
        driver.execute_script("localStorage.clear(); localStorage.setItem('atlas-author', 'Ann')")
        driver.get("about:blank")
        driver.visit(base, "#/dim/2")  # another browser
        driver.type("name", *Keys.SELECT_ALL, Keys.DELETE)
        driver.get("about:blank")  # sent when the page is left
        wait_for_file(codes.names_file, "hook", there=False)
        assert sorted(codes.names().dimensions) == [7]


def test_only_the_page_may_save(case: Case, codes, tmp_path: Path) -> None:
    page = served_atlas(codes, case, tmp_path / "atlas")
    entry = {"name": "x", "author": "A", "time": "1"}
    tree = {"fingerprint": codes.fingerprint(), "dims": 24, "dimensions": {"1": [entry]}}
    good = json.dumps({"format": "bayesncl-names-1", "codes": [tree]}).encode()

    def post(base: str, body: bytes, path: str = "names.json", **headers: str) -> int:
        origin = {"Origin": base.rstrip("/"), **headers}
        request = urllib.request.Request(base + path, body, origin, method="POST")
        try:
            return urllib.request.urlopen(request, timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code

    with serving(page) as base:
        assert post(base, good) == 404  # not of codes
    with serving(page, [codes]) as base:
        evil = "http://evil.example"
        assert post(base, good, Origin=evil) == 403
        assert post(base, good, Origin="null") == 403
        assert post(base, good, Origin=evil, Host="evil.example") == 403
        assert post(base, good, "atlas.js") == 404
        assert post(base, good, **{"Content-Length": "99999999"}) == 413
        for body in (b"", b"[" * 100_000, good.replace(b'"1":', b'"99":')):
            assert post(base, body) == 400
        assert not codes.names_file.exists()
        other = good.replace(tree["fingerprint"].encode(), b"0" * 16)
        assert post(base, other) == 200 and not codes.names_file.exists()
        host = base.split("/")[2]
        with socket.create_connection(tuple(host.split(":"))) as slow:
            head = f"POST /names.json HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
            slow.sendall(f"{head}Content-Length: 9\r\n\r\n".encode())
            assert post(base, good) == 200 and codes.names().name(1) == "x"


def test_the_quiz_is_blind_and_counts(driver, index: Path, case: Case, tmp_path: Path) -> None:
    driver.visit(index, "#/quiz")
    for _ in range(20):
        shown = driver.run("document.querySelector('main').innerText + switches.innerText")
        assert not any(word in shown for word in ("NCL", "tiger", "petals", "imension 1"))
        driver.press("2")
    driver.arrive("#/quiz/results")
    path = driver.download(".actions button", tmp_path / "quiz.json")
    joined = join_quizzes([path])
    assert {score["asked"] for score in joined["methods"].values()} == {10}  # 10 per method
    ours = joined["methods"]["BayesNCL"]
    row = driver.text("section:first-of-type tbody tr")[0].replace("0.0 %", "0 %")
    assert f"{ours['right']} of 10" in row
    assert f"{100 * ours['low']:.0f} % to {100 * ours['high']:.0f} %" in row
    for answer in json.loads(path.read_text())["answers"]:
        z = case.gated if answer["run"] == "BayesNCL" else case.other
        assert z[answer["images"], answer["dim"]].argmin() == answer["intruder"]
        assert answer["chosen"] == 1


def test_heat_maps_are_switched_on_and_off(driver, case: Case, tmp_path: Path) -> None:
    dims = np.argsort(-case.z, axis=1, kind="stable")[:, :3]
    maps = np.full((600, 3, 4, 4), 255, np.uint8)
    heat = Heatmaps(dims, maps, {"hottest": 0.4, "random": 0.1}, share=1.0)
    runs = [AtlasRun("hot", case.z, heat=heat), AtlasRun("cold", case.other, heat="a reason")]
    page = build_atlas(tmp_path / "atlas", runs, case.images, "Heat")

    def portrait() -> np.ndarray:
        driver.execute_async_script("setTimeout(arguments[0], 300)")
        canvas = "document.querySelector('.portrait canvas').getContext('2d')"
        pixels = driver.run(f"[...{canvas}.getImageData(0, 0, 32, 32).data]")
        return np.array(pixels).reshape(32, 32, 4)[..., :3].transpose(2, 0, 1)

    with serving(page) as base:  # a canvas cannot be read from disk
        driver.visit(base, "#/image/5")
        assert len(driver.text(".where")) == 3 and "40 %" in driver.text("main")[0]
        assert (portrait() == case.images.pixels[5]).all()
        driver.click(".where")
        assert (portrait() != case.images.pixels[5]).any(0).all()
        driver.click(".where")
        assert (portrait() == case.images.pixels[5]).all()
        driver.visit(base, "#/image/5?run=1")
        assert "No heat maps: a reason." in driver.text("main")[0]
        assert driver.text(".where") == []
        driver.get("about:blank")
