"""The atlas as a person uses it: Chromium clicks through every view and finds what the arrays say."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from bayesncl.atlas import AtlasRun, build, build_atlas
from bayesncl.atlas.build import make_server
from bayesncl.atlas.telling import pick_wall
from bayesncl.atlas.vectors import nearest_rows, top_images
from bayesncl.data.images import Images
from bayesncl.measure.dimensions import most_mixed, most_suppressed
from benchmarks.atlas import make_images, make_run

from .atlas_page import HOSTILE, NAMES, VIEWS, Case, arrive, click, data, press, text, wait_for
from .chromium import resize, set_dark, visit
from .conftest import unit_length

pytest_plugins = ["tests.atlas_fixtures"]


def test_overview_shows_sentence_figures_and_every_live_dimension(driver, index: Path, case: Case) -> None:
    visit(driver, index)
    alive = case.dims.support > 0
    active = (case.z > 1e-5).sum(1).mean()
    said = f"A run with gates. {alive.sum()} of 24 dimensions fire; an image uses {active:.1f} on average."
    assert text(driver, ".lede") == [said]
    assert not driver.find_element("css selector", "details table").is_displayed()  # numbers are folded
    fires = case.z > 1e-5
    figures = text(driver, ".figure-number strong")
    assert figures[0] == str(alive.sum())
    assert figures[1] == f"{fires.sum(1).mean():.1f}"
    assert figures[2] == f"{100 * case.consistency[case.dims.support >= 10].mean():.1f} %"
    assert figures[3] == f"{100 * (fires & ~case.open).sum() / fires.sum():.1f} %"
    assert {"18.5", "11.3", "4.500"} <= set(text(driver, "td.number"))
    assert "Of features after the gates, whatever is shown elsewhere." in driver.page_source
    shown = data(driver, ".dots a:not(.gone)", "dim")
    assert sorted(shown) == np.flatnonzero(alive).tolist()
    places = driver.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.dots a')].map(a => [a.dataset.dim,"
        " a.firstChild.style.transform.match(/[-\\d.]+/g).map(Number)]))"
    )
    right, up = max(shown, key=lambda k: case.dims.support[k]), max(shown, key=lambda k: case.consistency[k])
    assert places[str(right)][0] == max(places[str(k)][0] for k in shown)
    assert places[str(up)][1] == min(places[str(k)][1] for k in shown)


def test_map_shows_top_images_on_hover_and_opens_on_click(driver, index: Path, case: Case) -> None:
    from selenium.webdriver import ActionChains

    visit(driver, index)
    k = data(driver, ".dots a:has(.hung)", "dim")[-1]
    dot = driver.find_element("css selector", f".dots a[data-dim='{k}'] .hung rect")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", dot)
    driver.execute_async_script("setTimeout(arguments[0], 100)")
    ActionChains(driver).move_to_element(dot).pause(0.2).move_by_offset(1, 1).perform()  # scrolling hides the card
    wait_for(driver, "!document.getElementById('card').hidden")
    assert text(driver, "#card .card-title") == [f"Dimension {k}"]
    assert f"fires on {100 * case.dims.support[k] / 600:.0f} %" in text(driver, "#card")[0]
    ActionChains(driver).click(dot).perform()
    arrive(driver, f"#/dim/{k}")


def test_map_moves_when_the_gates_are_applied(driver, index: Path, case: Case) -> None:
    visit(driver, index)
    click(driver, "#switches a[href*='stage=after']")
    wait_for(driver, "document.querySelector('#switches a[aria-current][href*=after]')")
    figures = text(driver, ".figure-number strong")
    assert figures[1] == f"{(case.gated > 1e-5).sum(1).mean():.1f}"


def test_the_axes_of_the_map_have_a_number_at_both_ends(driver, index: Path) -> None:
    visit(driver, index)
    code = Path(build.__file__).with_name("page").joinpath("map.js").read_text()
    scale = f"{code}; return rootScale(arguments[0], 900, 52).ticks"
    for low, high in ((0.5, 0.75), (0.02, 0.05), (0.3, 0.4), (0, 1)):
        ticks = driver.execute_script(scale, [low + 1e-4, high])
        assert (ticks[-1], ticks[0]) == (low, high)
    assert driver.execute_script(scale, [0.5, 0.5])[-1] == 0
    rightmost, leftmost = driver.execute_script("""
        const box = (query) => [...document.querySelectorAll(query)].map((node) => node.getBoundingClientRect());
        return [Math.max(...box('.grid text[text-anchor=end]:not(.axis-name)').map((b) => b.right)),
                Math.min(...box('.dots a:not(.gone) circle, .hung rect').map((b) => b.left))]""")
    assert rightmost < leftmost  # no dot covers a number


def test_everything_is_reached_by_keyboard(driver, index: Path, case: Case) -> None:
    from selenium.webdriver.common.keys import Keys

    visit(driver, index, "#/dims")
    visit(driver, index, "#/")
    driver.execute_script("document.querySelector('.dots a[tabindex=\"0\"]').focus()")
    assert len(data(driver, ".dots a[tabindex='0']", "dim")) == 1
    start = driver.execute_script("return Number(document.activeElement.dataset.dim)")
    assert start == max(range(24), key=lambda k: case.dims.support[k])
    press(driver, Keys.ARROW_LEFT)
    moved = driver.execute_script("return Number(document.activeElement.dataset.dim)")
    assert case.dims.support[moved] < case.dims.support[start]
    spoken = driver.execute_script("return document.activeElement.getAttribute('aria-label')")
    assert spoken.startswith(f"Dimension {moved}:")
    press(driver, Keys.ENTER)
    arrive(driver, f"#/dim/{moved}")
    assert driver.execute_script("return document.activeElement.tagName") == "H1"
    press(driver, "n")
    arrive(driver, f"#/dim/{moved + 1}")
    press(driver, "/")
    press(driver, "tiger", Keys.ENTER)
    arrive(driver, "#/class/3")
    press(driver, "?")
    assert wait_for(driver, "document.querySelector('dialog').open")
    press(driver, Keys.ESCAPE)
    assert wait_for(driver, "!document.querySelector('dialog').open")


def test_dimension_page_shows_the_arrays(driver, index: Path, case: Case) -> None:
    k = int(most_suppressed(case.dims)[0])
    visit(driver, index, f"#/dim/{k}")
    order, value = case.top
    want = order[k][value[k] > 0]
    shown = data(driver, ".wall .picture", "image")
    assert shown == want[: len(shown)].tolist()
    assert len(shown) >= min(48, len(want))
    closed = data(driver, ".wall .thumb.closed .picture", "image")
    assert closed == [i for i in shown if not case.open[i, k]]
    counts = case.dims.class_counts[k]
    labels = text(driver, "aside section:nth-child(2) .bar-label")
    assert labels[0] == NAMES[counts.argmax()]
    assert text(driver, "aside section:nth-child(2) .bar-text")[0] == f"{100 * counts.max() / counts.sum():.0f} %"
    gate = [float(t.removesuffix(" %")) for t in text(driver, "aside ul[aria-label='Gate open'] .bar-text")]
    assert gate == pytest.approx([100 * case.open[:, k].mean(), 100 - case.dims.closed_rate[k]], abs=0.51)
    near, _ = nearest_rows(csr_array(unit_length(case.z.T)), 6)
    assert text(driver, "aside .tile-name")[0] == f"Dimension {near[k][0]}"
    assert sum(int(t.split(": ")[1].split()[0]) for t in text(driver, ".histogram title")) == case.dims.support[k]
    assert len(want) > len(shown)
    driver.execute_script("document.querySelector('.more').scrollIntoView({behavior: 'instant'})")
    wait_for(driver, "document.querySelectorAll('.wall .picture').length > arguments[0]", len(shown))


def test_dead_dimension_says_so(driver, index: Path) -> None:
    visit(driver, index, "#/dim/11")
    assert "dead dimension" in text(driver, ".lede")[0]


def test_list_sorts_filters_and_finds_a_class(driver, index: Path, case: Case) -> None:
    visit(driver, index, "#/dims")
    click(driver, "button[data-sort='consistency']")
    shown = [int(t) for t in text(driver, "tbody th a")]
    assert case.consistency[shown].tolist() == sorted(case.consistency.tolist(), reverse=True)
    click(driver, "button[data-sort='consistency']")
    assert case.consistency[int(text(driver, "tbody th a")[0])] == case.consistency.min()
    driver.find_element("css selector", "#list-search").send_keys("tiger")
    shown = [int(t) for t in text(driver, "tbody th a")]
    named = (case.stands[0] == 3) & (case.stands[2] <= case.grounded[2])
    assert sorted(shown) == np.flatnonzero(named).tolist()
    assert len(shown) > 0
    assert driver.current_url.endswith("#/dims?sort=consistency&order=up&q=tiger")
    visit(driver, index, "#/dims?show=dead")
    assert text(driver, "tbody th a") == [str(k) for k in np.flatnonzero(case.dims.support == 0)]


def test_image_page_shows_features_gates_and_neighbours(driver, index: Path, case: Case) -> None:
    visit(driver, index, "#/image/5")
    order = sorted((k for k in range(24) if case.z[5, k] > 1e-5), key=lambda k: -case.z[5, k])
    assert data(driver, ".features li", "dim") == order[:16]
    values = text(driver, ".features .feature-bar:first-child .bar-text")
    assert values == [f"before {case.z[5, k]:.3f}" for k in order[:16]]
    assert text(driver, ".features .gate") == ["open" if case.open[5, k] else "closed" for k in order[:16]]
    near, similarity = nearest_rows(csr_array(case.z), 12)
    assert data(driver, ".large .picture", "image") == near[5].tolist()
    assert text(driver, ".large .caption")[0].endswith(f" · {similarity[5, 0]:.2f}")
    assert f"{HOSTILE}/005.png" in text(driver, ".facts dd")
    click(driver, ".large .why")
    arrive(driver, f"#/pair/5/{near[5, 0]}")


def test_pair_page_adds_up_to_the_similarity(driver, index: Path, case: Case) -> None:
    visit(driver, index, "#/pair/5/8")
    before, after = case.z[5] * case.z[8], case.gated[5] * case.gated[8]
    assert text(driver, ".verdict strong") == [f"{before.sum():.3f}", f"{after.sum():.3f}"]
    assert text(driver, "h1") == [f"Cosine {before.sum():.2f} before gates"]
    shared = data(driver, ".pair-list li", "dim")
    assert set(shared) == set(np.flatnonzero(before > 1e-9).tolist())
    bars = text(driver, ".pair-list .bar-text")
    for n, k in enumerate(shared):
        assert float(bars[2 * n].removeprefix("before ")) == pytest.approx(before[k], abs=1e-4)
        assert float(bars[2 * n + 1].removeprefix("after ")) == pytest.approx(after[k], abs=1e-4)
    assert "Every feature of both images is counted." in text(driver, ".note")


def test_a_pair_is_picked_with_two_clicks(driver, index: Path) -> None:
    visit(driver, index, "#/images?pick=1")
    click(driver, ".wall .thumb:nth-child(4)")
    arrive(driver, "#/images?with=3")
    click(driver, ".wall .thumb:nth-child(1)")
    arrive(driver, "#/pair/3/0")


def test_compare_puts_both_runs_side_by_side(driver, index: Path, case: Case) -> None:
    visit(driver, index, "#/compare?image=9")
    assert text(driver, ".side h3")[:2] == ["BayesNCL", f"NCL {HOSTILE}"]
    assert len(text(driver, "svg.map")) == 2
    cosine = unit_length(case.z.T) @ unit_length(case.other.T).T
    dims, matches = data(driver, ".matches li", "dim"), data(driver, ".matches li", "match")
    assert dims[0] == case.telling.argmax()
    assert matches == [int(cosine[k].argmax()) for k in dims]
    assert text(driver, ".match b")[0] == f"{cosine[dims[0]].max():.2f}"
    order = np.argsort(-case.other[9], kind="stable")[:6]
    assert data(driver, ".side:nth-child(2) .features li", "dim") == order.tolist()


def test_class_page_ranks_dimensions_by_precision_and_recall(driver, index: Path, case: Case) -> None:
    visit(driver, index, "#/class/3")
    fires, member = case.z > 1e-5, case.labels == 3
    hits = fires[member].sum(0)
    precision, recall = hits / np.maximum(fires.sum(0), 1), hits / member.sum()
    score = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    shown = data(driver, "tbody tr", "dim")
    assert all(score[a] >= score[b] - 1e-12 for a, b in pairwise(shown))
    assert set(shown) == set(np.flatnonzero(hits).tolist())
    first = text(driver, "tbody tr:first-child td.number")
    assert first[:2] == [f"{100 * precision[shown[0]]:.0f} %", f"{100 * recall[shown[0]]:.0f} %"]
    assert set(case.labels[data(driver, ".wall .picture", "image")]) == {3}


def test_galleries_are_one_click_away(driver, index: Path, case: Case) -> None:
    visit(driver, index, "#/dim/2")
    click(driver, ".actions a[href*='gallery/suppressed']")
    arrive(driver, "#/gallery/suppressed")
    assert data(driver, "article", "dim") == most_suppressed(case.dims)[:24].tolist()
    click(driver, ".actions a[href*='gallery/entropy']")
    arrive(driver, "#/gallery/entropy")
    assert data(driver, "article", "dim") == most_mixed(case.dims)[:24].tolist()


def test_the_wall_leads_with_the_most_telling_dimensions(driver, index: Path, case: Case) -> None:
    visit(driver, index)
    order = pick_wall(csr_array(case.z), case.top[0], case.telling, 24)
    assert order[0] == case.telling.argmax()
    assert text(driver, ".telling .tile-name") == [f"Dimension {k}" for k in order[:12]]
    k = int(order[0])
    label, share, times = case.stands[0][k], case.stands[1][k], case.labels
    word = NAMES[label]
    if case.grounded[2][k] < case.stands[2][k]:
        label, share, times = case.grounded[0][k], case.grounded[1][k], case.grounds
        word = "on " + ("sky", "leaves", "sand", "petals")[label]
    lift = share / (times == label).mean()
    want = f"{100 * share:.0f} % {word}, {lift:.1f} times chance" if lift < 10 else f"{100 * share:.0f} % {word}"
    assert text(driver, ".telling .tile-line")[0].startswith(want)


def test_search_finds_names_backgrounds_and_numbered_classes(driver, index: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    visit(driver, index)
    assert "tiger" not in driver.find_element("id", "find").get_attribute("placeholder")
    for words, address in (("petals", "#/dims?q=petals"), ("class 3", "#/class/3"), ("seven", "#/class/7")):
        press(driver, "/")
        press(driver, words)
        wait_for(driver, "document.querySelectorAll('#found [data-href]').length > 0")
        press(driver, Keys.ENTER)
        arrive(driver, address)
        visit(driver, index, "#/")


def test_three_runs_share_an_atlas(driver, case: Case, tmp_path: Path) -> None:
    runs = [AtlasRun(name, z) for name, z in (("A", case.z), ("B", case.other), ("C", case.gated))]
    page = build_atlas(tmp_path / "atlas", runs, case.images, "Three")
    visit(driver, page, "#/dim/2?run=2")
    assert data(driver, ".wall .picture", "image")[0] == case.gated[:, 2].argmax()
    visit(driver, page, "#/compare?run=2")
    assert text(driver, ".side h3")[:2] == ["A", "C"]
    assert text(driver, "#switches a") == ["B", "C"]
    visit(driver, page, "#/quiz")
    assert len(text(driver, ".choice")) == 5


def test_on_a_phone_the_header_is_small_and_cut_tables_say_so(driver, index: Path) -> None:
    resize(driver, 390, 800)
    visit(driver, index, "#/dims")
    top = driver.execute_script("return document.querySelector('main').getBoundingClientRect().top + scrollY")
    assert top < 0.16 * 800
    assert driver.find_element("css selector", ".sideways").is_displayed()
    resize(driver, 1280, 800)
    visit(driver, index, "#/class/3")
    assert not any(e.is_displayed() for e in driver.find_elements("css selector", ".sideways"))


def test_hostile_names_stay_text(driver, index: Path) -> None:
    visit(driver, index, "#/class/9")
    assert text(driver, "h1") == [HOSTILE]
    for address in VIEWS:
        visit(driver, index, address)
        assert driver.execute_script("return document.querySelectorAll('img, main script, main iframe').length") == 0
    assert text(driver, ".brand") == [f"Digits {HOSTILE}"]


def test_wrong_addresses_are_answered(driver, index: Path) -> None:
    for address in ("#/dim/999", "#/dim", "#/image/-1", "#/image", "#/class/77", "#/nowhere", "#/pair/1/x", "#/pair/5"):
        visit(driver, index, address)
        assert text(driver, "h1") == ["Not here"]
        assert "undefined" not in text(driver, "main")[0]


CONTRAST = """
const linear = (x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(linear);
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
  if (ratio < 4.5) low.push(`${e.tagName}.${e.className} ${ratio.toFixed(2)} ${e.textContent.slice(0, 30)}`);
}
return low;
"""
UNNAMED = """
return [...document.querySelectorAll('a, button, input, select')].filter((e) => e.checkVisibility()
  && !e.textContent.trim() && !e.ariaLabel && !e.labels?.length && !e.querySelector('[aria-label]')
  && !e.closest('[aria-hidden], svg')).map((e) => e.outerHTML.slice(0, 90));
"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (768, False), (390, False), (390, True)])
def test_readable_in_light_and_dark_wide_and_narrow(driver, index: Path, width: int, dark: bool) -> None:
    resize(driver, width, 800)
    set_dark(driver, dark)
    for address in VIEWS[:14]:
        visit(driver, index, address)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width, address
        assert driver.execute_script(CONTRAST) == [], address
        assert driver.execute_script(UNNAMED) == [], address
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (int(ground.split("(")[1].split(",")[0]) < 60) == dark


def test_theme_button_wins_over_the_system(driver, index: Path) -> None:
    visit(driver, index)
    ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    click(driver, "#theme")
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") != ground
    click(driver, "#theme")
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == ground
    driver.execute_script("localStorage.removeItem('atlas-theme'); delete document.documentElement.dataset.theme")


def test_prints_without_controls(driver, index: Path) -> None:
    visit(driver, index, "#/dim/2")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    parts = [".top", "#switches", "h1", ".wall"]
    script = "return arguments[0].map(s => document.querySelector(s).checkVisibility())"
    visible = driver.execute_script(script, parts)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert visible == [False, False, True, True]


def test_served_pictures_are_the_images(driver, index: Path, case: Case) -> None:
    with make_server(index.parent, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        visit(driver, f"http://127.0.0.1:{server.server_address[1]}/", "#/image/599")
        script = "const c = document.querySelector('.portrait canvas'); return [...c.getContext('2d').getImageData"
        drawn = np.array(driver.execute_script(script + "(0, 0, 32, 32).data]")).reshape(32, 32, 4)
        driver.get("about:blank")
        server.shutdown()
    assert (drawn[..., :3] == case.images.pixels[599].transpose(1, 2, 0)).all()


def test_without_labels_or_gates_every_other_view_works(driver, case: Case, tmp_path: Path) -> None:
    bare = Images(case.images.pixels)
    plain = build_atlas(tmp_path / "atlas", [AtlasRun("plain", case.other)], bare, "Bare")
    for address in ("#/", "#/dims", "#/dim/2", "#/image/5", "#/images", "#/pair/5/8", "#/gallery/entropy"):
        visit(driver, plain, address)
        assert text(driver, "h1") != ["Not here"], address
        assert not any("NaN" in t or "undefined" in t for t in text(driver, "main")), address
    assert "Classes" not in text(driver, "nav a")
    visit(driver, plain, "#/quiz")
    assert len(text(driver, ".choice")) == 5
    visit(driver, plain, "#/pair/5/8")
    assert text(driver, ".verdict strong") == [f"{case.other[5] @ case.other[8]:.3f}"]


def test_signed_features_work(driver, case: Case, tmp_path: Path) -> None:
    z = unit_length(np.random.default_rng(0).normal(size=(600, 20)))
    signed = build_atlas(tmp_path / "atlas", [AtlasRun("CL", z)], case.images, "CL")
    visit(driver, signed, "#/pair/5/8")
    assert text(driver, ".verdict strong") == [f"{z[5] @ z[8]:.3f}".replace("-", "−")]
    visit(driver, signed, "#/dim/2")
    assert data(driver, ".wall .picture", "image")[0] == z[:, 2].argmax()


def test_ten_thousand_images_and_2048_dimensions(driver, tmp_path: Path) -> None:
    images = make_images(10_000)
    run = make_run("large", images.labels, 2_048, 0, False)
    large = build_atlas(tmp_path / "atlas", [run], images, "Large")
    assert sum(f.stat().st_size for f in large.parent.rglob("*") if f.is_file()) < 60e6
    z = unit_length(run.z)
    visit(driver, large)
    assert len(data(driver, ".dots a:not(.gone)", "dim")) == (z > 1e-5).any(0).sum()
    visit(driver, large, "#/dim/2000")
    assert data(driver, ".wall .picture", "image") == []  # one of the dead
    visit(driver, large, "#/dim/700")
    want = top_images(csr_array(z[:, 700:701]), 200)[0][0]
    assert data(driver, ".wall .picture", "image")[:40] == want[:40].tolist()
    visit(driver, large, "#/pair/17/9999")
    assert float(text(driver, ".verdict strong")[0]) == pytest.approx(float(z[17] @ z[9999]), abs=0.02)
    for address in ("#/dims", "#/class/5", "#/classes", "#/images", "#/gallery/entropy", "#/image/9999"):
        visit(driver, large, address)
        assert text(driver, "h1") != ["Not here"], address
