"""The atlas folder against the arrays it was made from."""

from __future__ import annotations

import base64
import json
import math
import threading
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayesncl.atlas import AtlasRun, build_atlas, galleries
from bayesncl.atlas.build import MARKER, SCRIPTS
from bayesncl.atlas.contents import prepare
from bayesncl.atlas.dimensions import (
    MIN_SUPPORT,
    describe_dimensions,
    describe_gates,
    headline,
    one_hot,
    rank_entropy,
    rank_suppressed,
    unit_rows,
)
from bayesncl.atlas.serve import make_server
from bayesncl.atlas.sprites import thumbnail_size, write_sprites
from bayesncl.atlas.vectors import SCALE, histograms, nearest_rows, quantise, sparsify, top_images
from bayesncl.data.images import Images
from bayesncl.errors import InputError

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028$x"
KINDS = {"Uint8Array": "u1", "Uint16Array": "<u2", "Uint32Array": "<u4", "Int16Array": "<i2", "Float32Array": "<f4"}


def make_features(n: int = 60, d: int = 23, seed: int = 0, signed: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    z = rng.gamma(1, 1, (n, d)) * (rng.random((n, d)) < rng.random(d))
    z[:, 3] = 0  # dead
    z[:, 4] = 0
    z[7, 4] = 1  # nearly dead
    return unit_rows(z * np.where(rng.random((n, d)) < 0.5, -1, 1) if signed else z)


def make_images(n: int = 60, labelled: bool = True, side: int = 12, seed: int = 0) -> Images:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, 3, side, side), dtype=np.uint8)
    if not labelled:
        return Images(pixels)
    names = ("cat", HOSTILE, "dog", "tiger")
    files = tuple(f"{HOSTILE}{i}.png" for i in range(n))
    return Images(pixels, rng.integers(0, 4, n), rng.integers(0, 2, n), names, ("sky", "grass"), files)


def read(folder: Path, key: str) -> dict:
    """What atlasData is called with, arrays decoded."""
    text = (folder / "data" / f"{key}.js").read_text(encoding="ascii")
    assert text.startswith("atlasData(")
    assert text.endswith(");\n")
    name, plain, arrays = json.loads("[" + text[len("atlasData(") : -3] + "]")
    assert name == key
    return plain | {k: np.frombuffer(base64.b64decode(b), KINDS[kind]) for k, (kind, b) in arrays.items()}


def slow_dimension(z: np.ndarray, labels: np.ndarray, classes: int, k: int) -> dict[str, float]:
    count, total, members = [0] * classes, [0.0] * classes, [0] * classes
    for value, y in zip(z[:, k].astype(np.float64), labels):
        members[y] += 1
        total[y] += abs(value)
        if abs(value) > 1e-5:
            count[y] += 1

    def entropy(w: list[float]) -> float:
        return -sum(x / sum(w) * math.log(x / sum(w)) for x in w if x > 0) if sum(w) > 0 else 0.0

    support = sum(count)
    return {
        "support": support, "mass": sum(total), "consistency": max(count) / support if support else 0.0,
        "entropy_freq": entropy([float(c) for c in count]), "entropy_sum": entropy(total),
        "entropy_mean": entropy([t / max(m, 1) for t, m in zip(total, members)]),
    }  # fmt: skip


@pytest.mark.parametrize("signed", [False, True])
def test_describes_dimensions_like_a_plain_loop(signed: bool) -> None:
    z, images = make_features(signed=signed), make_images()
    dims = describe_dimensions(z, one_hot(images.labels, 4), one_hot(images.backgrounds, 2))
    for k in range(z.shape[1]):
        slow = slow_dimension(z, images.labels, 4, k)
        for name, value in slow.items():
            assert getattr(dims, name)[k] == pytest.approx(value, abs=1e-5), (k, name)
        fires = np.abs(z[:, k]) > 1e-5
        assert dims.class_counts[k].tolist() == [int((fires & (images.labels == c)).sum()) for c in range(4)]
        assert dims.background_counts[k].tolist() == [int((fires & (images.backgrounds == b)).sum()) for b in range(2)]
        if slow["support"]:
            assert dims.class_counts[k, dims.best[k]] == max(dims.class_counts[k])


def test_an_image_without_label_counts_for_support_only() -> None:
    z = np.ones((4, 1), np.float32)
    dims = describe_dimensions(z, one_hot(np.array([0, 0, 1, -1]), 2))
    assert dims.support[0] == 4
    assert dims.consistency[0] == pytest.approx(2 / 3)


def test_describes_gates_like_a_plain_loop() -> None:
    z, images = make_features(), make_images()
    gates_open = np.random.default_rng(1).random(z.shape) < 0.7
    gates = describe_gates(z, gates_open, one_hot(images.labels, 4))
    for k in range(z.shape[1]):
        firing = [i for i in range(len(z)) if z[i, k] > 1e-5]
        closed = sum(not gates_open[i, k] for i in firing) / len(firing) if firing else 0
        assert gates.closed_rate[k] == pytest.approx(closed)
        assert gates.open_rate[k] == pytest.approx(sum(gates_open[:, k]) / len(z))
        assert gates.open_counts[k].tolist() == [int(gates_open[images.labels == c, k].sum()) for c in range(4)]


def test_galleries_rank_supported_dimensions_only() -> None:
    z, images = make_features(), make_images()
    classes = one_hot(images.labels, 4)
    dims = describe_dimensions(z, classes)
    gates = describe_gates(z, np.random.default_rng(1).random(z.shape) < 0.7, classes)
    order = rank_entropy(dims)
    assert set(order) == {k for k in range(23) if dims.support[k] >= MIN_SUPPORT}
    assert all(dims.entropy_freq[a] >= dims.entropy_freq[b] for a, b in pairwise(order))
    order = rank_suppressed(dims, gates)
    assert 4 not in order
    assert all(gates.closed_rate[a] >= gates.closed_rate[b] for a, b in pairwise(order))
    bare = describe_dimensions(z)
    order = rank_entropy(bare)
    assert all(bare.support[a] >= bare.support[b] for a, b in pairwise(order))


def test_headline_counts_dead_and_active_dimensions() -> None:
    z, images = make_features(), make_images()
    numbers = headline(z, dims := describe_dimensions(z, one_hot(images.labels, 4)))
    assert numbers["dead"] == sum(not (z[:, k] > 1e-5).any() for k in range(23)) >= 1
    assert numbers["active"] == pytest.approx(np.mean([(row > 1e-5).sum() for row in z]))
    assert numbers["consistency"] == pytest.approx(dims.consistency[dims.support >= 10].mean())


@pytest.mark.parametrize("keep", [1, 5, 23])
def test_sparse_rows_hold_the_strongest_entries(keep: int) -> None:
    z = make_features(signed=True)
    gates_open = np.random.default_rng(1).random(z.shape) < 0.6
    gated = unit_rows(z * gates_open)
    rows = sparsify(z, gated, gates_open, keep)
    for i in range(len(z)):
        score = np.maximum(np.abs(z[i]), np.abs(gated[i]))
        want = sorted((k for k in range(23) if score[k] > 1e-5), key=lambda k: -score[k])[:keep]
        part = slice(rows.start[i], rows.start[i + 1])
        assert rows.dims[part].tolist() == want
        assert np.allclose(rows.z[part] / SCALE, z[i, want], atol=1 / SCALE)
        assert np.allclose(rows.gated[part] / SCALE, gated[i, want], atol=1 / SCALE)
        assert rows.open[part].tolist() == gates_open[i, want].tolist()
        assert rows.covered[0, i] == pytest.approx((z[i, want] ** 2).sum() / max((z[i] ** 2).sum(), 1e-12), abs=1e-5)


def test_nearest_rows_leave_self_out_by_identity() -> None:
    x = make_features()
    x[11] = x[12]  # twins: each is the other's nearest, though self has the same similarity
    index, value = nearest_rows(x, 5)
    assert index[11, 0] == 12
    assert index[12, 0] == 11
    for i in range(len(x)):
        s = sorted((float(x[i] @ x[j]) for j in range(len(x)) if j != i), reverse=True)[:5]
        assert np.allclose(value[i], s, atol=1e-6)
        assert i not in index[i]
    assert nearest_rows(x[:1], 5)[0].shape == (1, 0)
    opposite = np.array([[1, 0], [-1, 0]], np.float32)
    assert nearest_rows(opposite, 1)[0].tolist() == [[1], [0]]


def test_top_images_and_histograms_like_plain_loops() -> None:
    z = make_features()
    index, value = top_images(z, 9)
    counts, edges = histograms(z, 6)
    for k in range(23):
        want = sorted(range(len(z)), key=lambda i: (-z[i, k], i))[:9]
        held = value[k] > 0
        assert index[k][held].tolist() == [i for i in want if z[i, k] > 1e-5]
        firing = z[z[:, k] > 1e-5, k]
        assert counts[k].sum() == len(firing)
        if len(firing):
            assert counts[k].tolist() == np.histogram(firing, 6, (0, z[:, k].max()))[0].tolist()
            assert edges[k, 1] == z[:, k].max()


def test_top_images_are_those_that_fire_upwards() -> None:
    index, value = top_images(np.array([[-0.9], [5e-6], [0.4]], np.float32), 3)
    assert index[0, 0] == 2
    assert value[0] == pytest.approx([0.4, 0, 0])


def test_sprites_keep_small_images_exactly(tmp_path: Path) -> None:
    pixels = make_images(130, side=12).pixels
    layout = write_sprites(pixels, tmp_path / "sprites")
    sheet = np.asarray(Image.open(tmp_path / layout["files"][0]))
    assert layout["tile"] == [16, 16]
    for i in (0, 63, 64, 129):
        y, x = i // layout["columns"] * 16, i % layout["columns"] * 16
        assert (sheet[y : y + 12, x : x + 12] == pixels[i].transpose(1, 2, 0)).all()


def test_sprites_shrink_large_images_and_fill_several_sheets(tmp_path: Path) -> None:
    assert thumbnail_size(32, 32, 10_000) == (32, 32)
    assert thumbnail_size(224, 112, 10) == (96, 48)
    assert thumbnail_size(224, 224, 10_000) == (64, 64)
    pixels = np.zeros((130, 3, 200, 200), np.uint8)
    pixels[129] = 255
    layout = write_sprites(pixels, tmp_path / "sprites")
    assert layout["size"] == [96, 96]
    assert len(layout["files"]) == 2
    place = 129 - layout["columns"] * layout["rows"]
    y, x = place // layout["columns"] * 96, place % layout["columns"] * 96
    sheet = np.asarray(Image.open(tmp_path / layout["files"][1]))
    assert sheet[y : y + 96, x : x + 96].min() == 255
    assert sheet[:y].max(initial=0) == 0


def test_folder_holds_the_numbers_of_both_runs(tmp_path: Path) -> None:
    images, z = make_images(), make_features()
    gates_open = np.random.default_rng(1).random(z.shape) < 0.7
    other = make_features(d=9, seed=5, signed=True)
    sound = {"consistency": np.float32(11.5), "l0": np.nan}
    summary = {"paper": {"consistency": 12.5, "curve": [1, 2]}, "sound": sound}
    runs = [AtlasRun("gated", 3 * z, None, gates_open, summary, "One."), AtlasRun(HOSTILE, other)]
    index = build_atlas(tmp_path / "atlas", runs, images, HOSTILE)
    folder = index.parent
    assert sorted(p.name for p in tmp_path.iterdir()) == ["atlas"]

    core = read(folder, "atlas")
    assert core["classes"] == list(images.class_names)
    assert (core["labels"] - 1).tolist() == images.labels.tolist()
    assert core["runs"][0]["summary"] == {"columns": ["paper", "sound"], "rows": [["consistency", 12.5, 11.5]]}
    assert core["runs"][1]["name"] == HOSTILE
    assert read(folder, "names-0")["names"] == list(images.names)

    gated = unit_rows(z * gates_open)
    run = read(folder, "run0")
    for stage, x in (("before", z), ("after", gated)):
        dims = describe_dimensions(x, one_hot(images.labels, 4))
        assert run[f"{stage}.support"].tolist() == dims.support.tolist()
        assert np.allclose(run[f"{stage}.consistency"], dims.consistency)
        counts = read(folder, "run0-classes")[f"{stage}.classes"].reshape(23, 4)
        assert (counts == dims.class_counts).all()
        near, _ = nearest_rows(x, 12)
        assert (read(folder, "run0-images-0")[f"{stage}.near"].reshape(60, 12) == near).all()
    part = read(folder, "run0-images-0")
    for i in (0, 41):
        e = slice(part["start"][i], part["start"][i + 1])
        dense = np.zeros(23)
        dense[part["dims"][e]] = part["gated"][e] / SCALE
        assert np.allclose(dense, gated[i], atol=1 / SCALE)
        bits = np.unpackbits(part["open"], bitorder="little")[e]
        assert bits.tolist() == gates_open[i, part["dims"][e]].tolist()
    assert run["whole"] is True

    second = read(folder, "run1")
    assert second["signed"] is True
    assert list(second["stages"]) == ["before"]
    cosine = unit_rows(z.T) @ unit_rows(other.T).T
    match = read(folder, "compare")
    assert match["first.match"][0] == cosine[0].argmax()
    assert match["second.cosine"][2] == quantise(cosine[:, 2].max())


def test_hostile_names_stay_data(tmp_path: Path) -> None:
    index = build_atlas(tmp_path / "a", [AtlasRun(HOSTILE, make_features())], make_images(), HOSTILE)
    for path in index.parent.rglob("*.js"):
        if path.parent.name == "data":
            assert "<" not in path.read_text(encoding="ascii")
    page = index.read_text(encoding="ascii")
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "default-src 'none'" in page


def test_page_writes_no_markup_from_data_and_asks_no_network() -> None:
    page = Path(__file__).parent.parent / "bayesncl" / "atlas" / "page"
    assert sorted(p.name for p in page.glob("*.js")) == sorted(SCRIPTS)
    for name in SCRIPTS:
        text = (page / name).read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "https:"):
            assert word not in text, (name, word)


def test_works_without_labels_names_or_gates(tmp_path: Path) -> None:
    index = build_atlas(tmp_path / "a", [AtlasRun("plain", make_features())], make_images(labelled=False))
    core, run = read(index.parent, "atlas"), read(index.parent, "run0")
    assert core["classes"] is None
    assert "labels" not in core
    assert "before.consistency" not in run
    assert run["stages"]["before"]["consistency"] is None
    assert not (index.parent / "data" / "run0-classes.js").exists()
    single = build_atlas(tmp_path / "b", [AtlasRun("one", np.ones((1, 1)))], make_images(1, labelled=False))
    assert read(single.parent, "run0")["before.support"].tolist() == [1]


def test_truncation_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesncl.atlas.contents.ENTRIES", 1)
    z = unit_rows(np.random.default_rng(0).random((20, 100)))
    run = read(build_atlas(tmp_path / "a", [AtlasRun("dense", z)], make_images(20)).parent, "run0")
    assert run["keep"] == 64
    assert run["whole"] is False
    assert run["covered"][0] == pytest.approx(np.mean([np.sort(row**2)[-64:].sum() for row in z]), abs=1e-5)


def test_replaces_an_atlas_but_no_other_folder(tmp_path: Path) -> None:
    images, run = make_images(), AtlasRun("a", make_features())
    out = tmp_path / "out"
    out.mkdir()
    build_atlas(out, [run], images, "first")
    build_atlas(out, [run], images, "second")
    assert json.loads((out / MARKER).read_text())["title"] == "second"
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter1.tex").write_text("x")
    with pytest.raises(InputError, match="not an atlas"):
        build_atlas(thesis, [run], images)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "thesis"]
    assert [p.name for p in thesis.iterdir()] == ["chapter1.tex"]


def test_a_failed_build_leaves_the_old_atlas_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, run = make_images(), AtlasRun("a", make_features())
    build_atlas(tmp_path / "out", [run], images, "first")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}

    def fail(*args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("bayesncl.atlas.build.write_run", fail)
    with pytest.raises(OSError, match="disk full"):
        build_atlas(tmp_path / "out", [run], images, "second")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (AtlasRun("r", np.ones((59, 3))), r"z must be \[60, D\] for 60 images, got \[59, 3\]"),
        (AtlasRun("r", np.ones(60)), r"got \[60\]"),
        (AtlasRun("r", np.ones((60, 3)), None, np.ones((60, 2), bool)), r"open must be \[60, 3\] .*got \[60, 2\]"),
        (AtlasRun("r", np.full((60, 3), np.nan)), "z holds 180 values that are not finite"),
    ],
)
def test_bad_arrays_are_named(run: AtlasRun, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(run, make_images())


def test_bad_requests_are_named(tmp_path: Path) -> None:
    run = AtlasRun("r", make_features())
    with pytest.raises(InputError, match="one or two runs, got 3"):
        build_atlas(tmp_path / "a", [run] * 3, make_images())
    few = make_images()
    with pytest.raises(InputError, match="labels go up to 3 but there are 2 names"):
        build_atlas(tmp_path / "a", [run], Images(few.pixels, few.labels, None, ("a", "b")))
    assert not list(tmp_path.iterdir())


def test_gated_equal_to_z_is_no_gate() -> None:
    z = make_features()
    assert prepare(AtlasRun("ncl", z, z, None), make_images()).gated is None
    soft = prepare(AtlasRun("soft", z, z * np.linspace(0.1, 1, 23), None), make_images())
    assert soft.gated is not None
    assert soft.open is None


def test_serves_the_atlas_on_this_machine_only(tmp_path: Path) -> None:
    index = build_atlas(tmp_path / "a", [AtlasRun("r", make_features())], make_images())
    with pytest.raises(InputError, match="is not an atlas"):
        make_server(tmp_path, 0)
    with make_server(index.parent, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{base}/") as reply:
            assert reply.read() == index.read_bytes()
        for path in ("/data/", "/../secret"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(base + path)
        server.shutdown()


def test_galleries_are_figures(tmp_path: Path) -> None:
    z, images = make_features(), make_images()
    gates_open = np.random.default_rng(1).random(z.shape) < 0.7
    files = galleries(AtlasRun("r", z, None, gates_open), images, tmp_path, rows=3, columns=4)
    assert [f.name for f in files] == ["high-entropy.png", "most-suppressed.png"]
    for file in files:
        drawn = np.asarray(Image.open(file).convert("RGB"))
        assert drawn.shape[1] > 600
        assert (drawn != 255).any(-1).mean() > 0.2
    bare = galleries(AtlasRun("r", z), make_images(labelled=False), tmp_path / "b")
    assert [f.name for f in bare] == ["high-entropy.png"]
