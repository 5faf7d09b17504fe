"""The page of a classifier, in a browser."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from bayesncl.atlas import AtlasRun, build_atlas
from tests.conftest import tiny_images

HOSTILE = '<img src=x onerror="window.hacked=1">'


def test_the_page_shows_dimensions_for_and_against_a_class(driver, tmp_path: Path) -> None:
    images = tiny_images(40)
    z = np.random.default_rng(0).random((40, 6))
    common = {"name": "", "group": "sea", "irrelevant": "no"}
    weights = [
        {"label": HOSTILE, "dimension": 4, "weight": 1.25, **common},
        {"label": HOSTILE, "dimension": 2, "weight": -0.5, **common},
    ]
    scores = {"codes, few dimensions": {"average": 63.2, "worst": 20.1}}
    found = {"scores": scores, "weights": weights, "group_share": 87.0}
    page = build_atlas(tmp_path / "atlas", [AtlasRun("a", z, explain=found)], images)
    driver.get(f"{page.as_uri()}#/explain")
    main = driver.find_element("id", "main")
    for _ in range(100):
        if main.get_attribute("data-view"):
            break
        time.sleep(0.1)
    text = main.text
    assert HOSTILE in text and not driver.execute_script("return window.hacked")
    assert "63.2 %" in text and "20.1 %" in text and "87 %" in text and "sea" in text
    tiles = driver.find_elements("css selector", "a.tile")
    assert [tile.get_attribute("href").split("#")[1] for tile in tiles] == ["/dim/4", "/dim/2"]
    assert text.index("For") < text.index("+1.25") < text.index("Against") < text.index("0.50")
