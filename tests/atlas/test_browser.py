"""Chromium clicks through every view and finds what the arrays say."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from bayesncl.atlas import AtlasRun, build_atlas
from bayesncl.atlas.ranking import Labels, pick_diverse, prominent_class
from bayesncl.data.images import Images
from bayesncl.jobs.find import find_strongest
from bayesncl.measure.dimensions import most_mixed, most_suppressed
from bayesncl.measure.neighbors import nearest_rows
from bayesncl.measure.vectors import top_images
from benchmarks.atlas import make_images, make_run
from tests.atlas.browser import Keys
from tests.atlas.conftest import HOSTILE, NAMES, Case
from tests.conftest import unit_length

VIEWS = (
    "#/", "#/dims", "#/dim/2", "#/image/5", "#/images", "#/images?with=5", "#/pair/5/8",
    "#/compare", "#/classes", "#/class/9", "#/names", "#/quiz", "#/gallery/entropy",
    "#/gallery/suppressed", "#/find?plus=2&minus=5", "#/?stage=after", "#/dim/2?stage=after", "#/?run=1",
)  # fmt: skip


def test_overview_shows_figures_and_all_active_dimensions(driver, index: Path, case: Case) -> None:
    from selenium.webdriver import ActionChains

    fires, alive = case.z > 1e-5, case.dims.support > 0
    consistency = np.nan_to_num(case.dims.consistency)
    driver.visit(index)
    assert driver.text(".lede")[0].startswith(f"A run with gates. {alive.sum()} of 24 dimensions")
    assert not driver.find_element("css selector", "details table").is_displayed()
    figures = driver.text(".figure-number strong")
    assert figures[0] == str(alive.sum())
    assert figures[1] == f"{fires.sum(1).mean():.1f}"
    assert figures[2] == f"{consistency[case.dims.support >= 10].mean():.1f} %"
    assert figures[3] == f"{100 * (fires & ~case.open).sum() / fires.sum():.1f} %"
    assert {"18.5", "11.3", "4.500"} <= set(driver.text("td.number"))
    clearest = pick_diverse(csr_array(case.z), case.top, case.clarity, 24)[:12]
    assert driver.text(".clearest .tile-name") == [f"Dimension {k}" for k in clearest]
    shown = driver.data(".dots a:not(.gone)", "dim")
    assert sorted(shown) == np.flatnonzero(alive).tolist()
    places = driver.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.dots a')].map(a =>"
        " [a.dataset.dim, a.firstChild.style.transform.match(/[-\\d.]+/g).map(Number)]))"
    )
    right = max(shown, key=lambda k: case.dims.support[k])
    up = max(shown, key=lambda k: consistency[k])
    assert places[str(right)][0] == max(places[str(k)][0] for k in shown)
    assert places[str(up)][1] == min(places[str(k)][1] for k in shown)
    dot = driver.find_element("css selector", ".dots a:has(.hung) .hung rect")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", dot)
    hover = ActionChains(driver).pause(0.1).move_to_element(dot).pause(0.2)  # scrolling hides it
    hover.move_by_offset(1, 1).perform()
    driver.wait_for("document.querySelector('#card:not([hidden]) .card-title')")
    driver.click("#switches a[href*='stage=after']")
    driver.wait_for("document.querySelector('#switches a[aria-current][href*=after]')")
    assert driver.text(".figure-number strong")[1] == f"{(case.gated > 1e-5).sum(1).mean():.1f}"


def test_everything_is_reached_by_keyboard(driver, index: Path, case: Case) -> None:
    driver.visit(index)
    driver.execute_script("document.querySelector('.dots a[tabindex=\"0\"]').focus()")
    assert len(driver.data(".dots a[tabindex='0']", "dim")) == 1
    focused = "Number(document.activeElement.dataset.dim)"
    start = driver.run(focused)
    assert start == case.dims.support.argmax()
    driver.press(Keys.ARROW_LEFT)
    moved = driver.run(focused)
    assert case.dims.support[moved] < case.dims.support[start]
    spoken = driver.run("document.activeElement.getAttribute('aria-label')")
    assert spoken.startswith(f"Dimension {moved}:")
    driver.press(Keys.ENTER)
    driver.arrive(f"#/dim/{moved}")
    assert driver.run("document.activeElement.tagName") == "H1"
    driver.press("n")
    driver.arrive(f"#/dim/{moved + 1}")
    driver.press("?")
    assert driver.wait_for("document.querySelector('dialog').open")
    driver.press(Keys.ESCAPE)
    assert driver.wait_for("!document.querySelector('dialog').open")


def test_search_finds_names_backgrounds_and_numbered_classes(driver, index: Path) -> None:
    found = (("petals", "#/dims?q=petals"), ("class 3", "#/class/3"), ("tiger", "#/class/3"))
    for words, address in found:
        driver.visit(index)
        driver.press("/")
        driver.press(words)
        driver.wait_for("document.querySelectorAll('#found [data-href]').length > 0")
        driver.press(Keys.ENTER)
        driver.arrive(address)


def test_dimension_page_shows_the_arrays(driver, index: Path, case: Case) -> None:
    k = int(most_suppressed(case.dims)[0])
    driver.visit(index, f"#/dim/{k}")
    order, value = case.top
    want = order[k][value[k] > 0]
    shown = driver.data(".wall .picture", "image")
    assert shown == want[: len(shown)].tolist()
    assert min(48, len(want)) <= len(shown) < len(want)
    closed = driver.data(".wall .thumb.closed .picture", "image")
    assert closed == [i for i in shown if not case.open[i, k]]
    counts = case.dims.class_counts[k]
    assert driver.text("aside section:nth-child(2) .bar-label")[0] == NAMES[counts.argmax()]
    share = f"{100 * counts.max() / counts.sum():.0f} %"
    assert driver.text("aside section:nth-child(2) .bar-text")[0] == share
    gate = driver.text("aside ul[aria-label='Gate open'] .bar-text")
    rates = [100 * case.open[:, k].mean(), 100 - case.dims.closed_rate[k]]
    assert [float(t.removesuffix(" %")) for t in gate] == pytest.approx(rates, abs=0.51)
    near, _ = nearest_rows(csr_array(unit_length(case.z.T)), 6)
    assert driver.text("aside .tile-name")[0] == f"Dimension {near[k][0]}"
    bins = [int(t.split(": ")[1].split()[0]) for t in driver.text(".histogram title")]
    assert sum(bins) == case.dims.support[k]
    driver.execute_script("document.querySelector('.more').scrollIntoView({behavior: 'instant'})")
    count = "document.querySelectorAll('.wall .picture').length"
    driver.wait_for(f"{count} > arguments[0]", len(shown))


def test_list_sorts_filters_and_keeps_its_state_in_the_address(driver, index, case: Case) -> None:
    dims = "tbody tr th a"
    driver.visit(index, "#/dims")
    assert driver.text(dims)[0] == str(case.clarity.argmax())
    driver.click("[data-sort=support]")
    order = np.argsort(-case.dims.support, kind="stable")
    assert driver.text(dims) == [str(k) for k in order]
    assert "sort=support" in driver.current_url
    driver.visit(index, "#/dims?show=dead")
    assert driver.text(dims) == [str(k) for k in np.flatnonzero(case.dims.support == 0)]


def test_image_page_shows_features_gates_and_neighbors(driver, index: Path, case: Case) -> None:
    driver.visit(index, "#/image/5")
    order = sorted((k for k in range(24) if case.z[5, k] > 1e-5), key=lambda k: -case.z[5, k])[:16]
    assert driver.data(".features li", "dim") == order
    values = driver.text(".features .feature-bar:first-child .bar-text")
    assert values == [f"before {case.z[5, k]:.3f}" for k in order]
    gates = driver.text(".features .gate")
    assert gates == ["open" if case.open[5, k] else "closed" for k in order]
    near, similarity = nearest_rows(csr_array(case.z), 12)
    assert driver.data(".large .picture", "image") == near[5].tolist()
    assert driver.text(".large .caption")[0].endswith(f" · {similarity[5, 0]:.2f}")
    assert f"{HOSTILE}/005.png" in driver.text(".facts dd")
    driver.click(".large .why")
    driver.arrive(f"#/pair/5/{near[5, 0]}")


def test_pair_page_adds_up_to_the_similarity(driver, index: Path, case: Case) -> None:
    driver.visit(index, "#/images?pick=1")
    driver.click(".wall .thumb:nth-child(6)")
    driver.arrive("#/images?with=5")
    driver.click(".wall .thumb:nth-child(8)")  # image 5 itself is left out
    driver.arrive("#/pair/5/8")
    before, after = case.z[5] * case.z[8], case.gated[5] * case.gated[8]
    assert driver.text(".verdict strong") == [f"{before.sum():.3f}", f"{after.sum():.3f}"]
    shared = driver.data(".pair-list li", "dim")
    assert set(shared) == set(np.flatnonzero(before > 1e-9).tolist())
    bars = [float(t.split()[1]) for t in driver.text(".pair-list .bar-text")]
    assert bars[::2] == pytest.approx(before[shared], abs=1e-4)
    assert bars[1::2] == pytest.approx(after[shared], abs=1e-4)


def test_compare_shows_both_runs(driver, index: Path, case: Case) -> None:
    driver.visit(index, "#/compare?image=9")
    assert driver.text(".side h3")[:2] == ["BayesNCL", f"NCL {HOSTILE}"]
    assert len(driver.text("svg.map")) == 2
    cosine = unit_length(case.z.T) @ unit_length(case.other.T).T
    dims, matches = driver.data(".matches li", "dim"), driver.data(".matches li", "match")
    assert dims[0] == case.clarity.argmax()
    assert matches == [int(cosine[k].argmax()) for k in dims]
    assert driver.text(".match b")[0] == f"{cosine[dims[0]].max():.2f}"
    order = np.argsort(-case.other[9], kind="stable")[:6]
    assert driver.data(".side:nth-child(2) .features li", "dim") == order.tolist()


def test_class_page_ranks_dimensions_by_f1(driver, index: Path, case: Case) -> None:
    driver.visit(index, "#/class/3")
    fires, member = case.z > 1e-5, case.labels == 3
    hits = fires[member].sum(0)
    precision, recall = hits / np.maximum(fires.sum(0), 1), hits / member.sum()
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    shown = driver.data("tbody tr", "dim")
    assert all(f1[a] >= f1[b] - 1e-12 for a, b in pairwise(shown))
    assert set(shown) == set(np.flatnonzero(hits).tolist())
    first = driver.text("tbody tr:first-child td.number")[:2]
    assert first == [f"{100 * x[shown[0]]:.0f} %" for x in (precision, recall)]
    assert set(case.labels[driver.data(".wall .picture", "image")]) == {3}


def test_galleries(driver, index: Path, case: Case) -> None:
    driver.visit(index, "#/dim/2")
    driver.click(".actions a[href*='gallery/suppressed']")
    driver.arrive("#/gallery/suppressed")
    assert driver.data("article", "dim") == most_suppressed(case.dims)[:24].tolist()
    driver.click(".actions a[href*='gallery/entropy']")
    driver.arrive("#/gallery/entropy")
    share = prominent_class(case.top, Labels(case.labels, list(NAMES)))[1]
    mixed = [k for k in most_mixed(case.dims).tolist() if share[k] < 0.5]
    assert driver.data("article", "dim") == mixed[:24]


def test_twins_are_one_entry(driver, case: Case, tmp_path: Path) -> None:
    z = unit_length(np.c_[case.z, 0.9 * case.z[:, 2], 0.8 * case.z[:, 2]])  # 24 and 25 are twins
    page = build_atlas(tmp_path / "atlas", [AtlasRun("r", z)], case.images, "Twins")
    driver.visit(page, "#/dims?sort=number&order=up")
    shown = driver.text("tbody tr th a")
    assert "2" in shown and not {"24", "25"} & set(shown)
    driver.click("th .twins")
    assert driver.text("tbody tr.twin th a") == ["24", "25"]
    i, j = np.argsort(-z[:, 2])[:2].tolist()
    driver.visit(page, f"#/pair/{i}/{j}")
    (row,) = (n for n, k in enumerate(driver.data(".pair-list li", "dim")) if k in (2, 24, 25))
    part = (z[i] * z[j])[[2, 24, 25]]
    bars = [float(t) for t in driver.text(".pair-list .bar-text")]
    assert bars[row] == pytest.approx(part.sum(), abs=2e-4)
    driver.visit(page, f"#/image/{i}")
    assert len({2, 24, 25} & set(driver.data(".features li", "dim"))) == 1


def scores(driver) -> list[float]:
    return [float(t.split("·")[-1]) for t in driver.text(".wall .caption")]


def test_several_dimensions_are_added_and_subtracted(driver, index: Path, case: Case) -> None:
    driver.visit(index, "#/dim/2")
    driver.click(".actions a[href*='find']")
    driver.arrive("#/find?plus=2")
    driver.type("add", "dimension 7", Keys.ENTER)
    driver.arrive("#/find?plus=2%2C7")
    driver.type("add", "5")
    driver.click("form [value=minus]")
    driver.arrive("#/find?plus=2%2C7&minus=5")
    want, score = find_strongest(case.z, [[2], [7]], [[5]], 60)
    driver.click(".more")
    driver.wait_for("document.querySelectorAll('.wall .picture').length > 24")
    shown = driver.data(".wall .picture", "image")
    assert scores(driver) == pytest.approx(score[: len(shown)], abs=0.006)
    assert set(shown[:20]) <= set(want[:24])  # ties apart
    driver.click(".chip.minus .sign")  # turned around
    driver.arrive("#/find?plus=2%2C7%2C5")
    assert scores(driver)[0] == pytest.approx(find_strongest(case.z, [[2], [7], [5]])[1][0], abs=0.006)
    driver.click(".chip [aria-label^=Remove]")
    driver.arrive("#/find?plus=7%2C5")
    driver.type("add", "nothing", Keys.ENTER)
    driver.wait_for("document.querySelector('form .note').textContent.includes('nothing')")
    driver.press(Keys.TAB)


def test_images_like_one_with_less_of_a_dimension(driver, index: Path, case: Case) -> None:
    cosine = case.z @ case.z[5]
    cosine[5] = -1
    driver.visit(index, "#/image/5")
    driver.click(".portrait .actions a[href*='find']")
    driver.arrive("#/find?image=5")
    shown = driver.data(".wall .picture", "image")
    assert cosine[shown] == pytest.approx(np.sort(cosine)[::-1][: len(shown)], abs=1e-3)
    driver.visit(index, "#/find?image=5&minus=2")
    best = np.argmax(cosine - case.z[:, 2] / case.z[:, 2].max())
    assert driver.data(".wall .picture", "image")[0] == best


def test_groups_three_runs_and_signed_features(driver, case: Case, tmp_path: Path) -> None:
    groups, z = np.repeat([0, 1], [6, 18]), np.random.default_rng(0).normal(size=(600, 20))
    runs = [AtlasRun("A", case.z, groups=groups), AtlasRun("B", case.other), AtlasRun("C", z)]
    page = build_atlas(tmp_path / "atlas", runs, case.images, "Three")
    driver.visit(page, "#/image/5")
    assert driver.text("h3") == ["Group 1", "Group 2"]
    fires = [k for k in np.argsort(-case.z[5], kind="stable").tolist() if case.z[5, k] > 1e-5]
    shown = [driver.data(f".features:nth-of-type({n}) li", "dim") for n in (1, 2)]
    assert shown == [[k for k in fires if groups[k] == g] for g in (0, 1)]
    driver.visit(page, "#/pair/5/8?run=2")
    cosine = unit_length(z)[5] @ unit_length(z)[8]
    assert driver.text(".verdict strong") == [f"{cosine:.3f}".replace("-", "−")]
    driver.visit(page, "#/compare?run=2")
    assert driver.text(".side h3")[:2] == ["A", "C"]
    assert driver.text("#switches a") == ["B", "C"]


CONTRAST = """
const linear = (x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
const light = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const clear = (e) => /, 0\\)|transparent/.test(getComputedStyle(e).backgroundColor);
const low = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.checkVisibility() || e.closest('.unseen, .skip')) continue;
  let ground = e;
  while (ground.parentElement && clear(ground)) ground = ground.parentElement;
  const style = getComputedStyle(e);
  const ink = e.namespaceURI.endsWith('svg') ? style.fill : style.color;
  const [a, b] = [ink, getComputedStyle(ground).backgroundColor].map(light);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) low.push(`${e.tagName}.${e.className} ${ratio} ${e.textContent.slice(0, 30)}`);
}
return low;
"""
UNNAMED = """
return [...document.querySelectorAll('a, button, input, select')].filter((e) => e.checkVisibility()
  && !e.textContent.trim() && !e.ariaLabel && !e.labels?.length && !e.querySelector('[aria-label]')
  && !e.closest('[aria-hidden], svg')).map((e) => e.outerHTML.slice(0, 90));
"""


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_every_view_is_readable_and_fits(driver, index: Path, width: int, dark: bool) -> None:
    """Contrast, width, names of controls; names of strangers stay text."""
    driver.resize(width, 800)
    driver.set_dark(dark)
    for address in VIEWS:
        driver.visit(index, address)
        assert driver.run("document.documentElement.scrollWidth") <= width, address
        assert driver.execute_script(CONTRAST) == [], address
        assert driver.execute_script(UNNAMED) == [], address
        assert driver.text("img, main script, main iframe") == [], address
    ground = "getComputedStyle(document.body).backgroundColor"
    shown = driver.run(ground)
    assert (int(shown.split("(")[1].split(",")[0]) < 60) == dark
    driver.visit(index, "#/class/9")
    assert driver.text("h1") == [HOSTILE]
    assert driver.text(".brand") == [f"Digits {HOSTILE}"]
    driver.click("#theme")
    assert driver.run(ground) != shown
    driver.click("#theme")
    if width == 390:
        driver.visit(index, "#/dims")
        top = "document.querySelector('main').getBoundingClientRect().top + scrollY"
        assert driver.run(top) < 0.16 * 800
        assert driver.find_element("css selector", ".sideways").is_displayed()


def test_all_views_work_without_labels_or_gates(driver, case: Case, tmp_path: Path) -> None:
    run, bare = AtlasRun("plain", case.other), Images(case.images.pixels)
    page = build_atlas(tmp_path / "atlas", [run], bare, "Bare")
    for address in VIEWS[:7] + ("#/quiz", "#/gallery/entropy"):
        driver.visit(page, address)
        assert driver.text("h1") != ["Not found"], address
        assert not any("NaN" in t or "undefined" in t for t in driver.text("main")), address
    assert "Classes" not in driver.text("nav a")
    for address in ("#/dim/999", "#/image", "#/class/77", "#/nowhere", "#/pair/1/x", "#/pair/5"):
        driver.visit(page, address)
        assert driver.text("h1") == ["Not found"], address


def test_data_in_many_files(driver, tmp_path: Path) -> None:
    images = make_images(1_200)  # three files of images, sorted by dimension on the sheets
    run = make_run("large", images.labels, 300, 0, False)
    page = build_atlas(tmp_path / "atlas", [run], images, "Large")
    z = unit_length(run.z)
    driver.visit(page, "#/dim/299")
    assert driver.data(".wall .picture", "image") == []  # dead
    driver.visit(page, "#/dim/200")
    want = top_images(csr_array(z[:, 200:201]), 5)[0][0]
    assert driver.data(".wall .picture", "image")[:5] == want.tolist()
    driver.visit(page, "#/pair/17/1199")
    cosine = float(driver.text(".verdict strong")[0])
    assert cosine == pytest.approx(float(z[17] @ z[1199]), abs=0.02)
