"""The page and the browser of the atlas's browser tests: a plugin, so that two files share them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayesncl.atlas import build_atlas

from .atlas_page import HOSTILE, Case
from .chromium import MISSING, find_chromium, open_chromium, resize, set_dark


@pytest.fixture(scope="session")
def case() -> Case:
    return Case()


@pytest.fixture(scope="session")
def index(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_atlas(tmp_path_factory.mktemp("page") / "atlas", case.runs, case.images, f"Digits {HOSTILE}")


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    pytest.importorskip("selenium", reason="no browser tests: selenium is not installed")
    if find_chromium() is None:
        pytest.skip(MISSING)
    with open_chromium() as driver:
        yield driver


@pytest.fixture
def driver(chromium) -> Iterator:
    """The browser; after each test its console must be clean and every request must have stayed on this machine."""
    resize(chromium, 1280, 900)
    set_dark(chromium, False)
    yield chromium
    console = [entry for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert [entry for entry in console if "getImageData" not in entry["message"]] == []  # which only the tests call
    for entry in chromium.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            assert url.startswith(("file:///", "http://127.0.0.1:", "chrome", "data:", "blob:")), url
    assert chromium.execute_script("return window.hacked") is None
    if chromium.current_url.startswith("file:"):
        chromium.execute_script("try { localStorage.clear() } catch {}")
    chromium.get("about:blank")  # the next test begins with an empty page and an empty memory


