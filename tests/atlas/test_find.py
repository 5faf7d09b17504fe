"""The search of the page finds what the arrays say."""

from pathlib import Path

import numpy as np
import pytest

from bayesncl.jobs.find import find_strongest
from tests.atlas.browser import Keys, arrive, click, data, press, text, visit, wait_for
from tests.atlas.conftest import Case


def scores(driver) -> list[float]:
    return [float(t.split("·")[-1]) for t in text(driver, ".wall .caption")]


def test_several_dimensions_are_added_and_subtracted(driver, index: Path, case: Case) -> None:
    visit(driver, index, "#/dim/2")
    click(driver, ".actions a[href*='find']")
    arrive(driver, "#/find?plus=2")
    driver.find_element("id", "add").send_keys("dimension 7", Keys.ENTER)
    arrive(driver, "#/find?plus=2%2C7")
    driver.find_element("id", "add").send_keys("5")
    click(driver, "form [value=minus]")
    arrive(driver, "#/find?plus=2%2C7&minus=5")
    want, score = find_strongest(case.z, [[2], [7]], [[5]], 60)
    click(driver, ".more")
    wait_for(driver, "document.querySelectorAll('.wall .picture').length > 24")
    shown = data(driver, ".wall .picture", "image")
    assert scores(driver) == pytest.approx(score[: len(shown)], abs=0.006)
    assert set(shown[:20]) <= set(want[:24])  # ties apart
    click(driver, ".chip.minus .sign")  # turned around
    arrive(driver, "#/find?plus=2%2C7%2C5")
    assert scores(driver)[0] == pytest.approx(find_strongest(case.z, [[2], [7], [5]])[1][0], abs=0.006)
    click(driver, ".chip [aria-label^=Remove]")
    arrive(driver, "#/find?plus=7%2C5")
    driver.find_element("id", "add").send_keys("nothing", Keys.ENTER)
    wait_for(driver, "document.querySelector('form .note').textContent.includes('nothing')")
    press(driver, Keys.TAB)


def test_images_like_one_with_less_of_a_dimension(driver, index: Path, case: Case) -> None:
    cosine = case.z @ case.z[5]
    cosine[5] = -1
    visit(driver, index, "#/image/5")
    click(driver, ".portrait .actions a[href*='find']")
    arrive(driver, "#/find?image=5")
    shown = data(driver, ".wall .picture", "image")
    assert cosine[shown] == pytest.approx(np.sort(cosine)[::-1][: len(shown)], abs=1e-3)
    visit(driver, index, "#/find?image=5&minus=2")
    best = np.argmax(cosine - case.z[:, 2] / case.z[:, 2].max())
    assert data(driver, ".wall .picture", "image")[0] == best
