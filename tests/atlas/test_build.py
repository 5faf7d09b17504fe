"""The atlas folder against the arrays it was built from."""

import base64
import json
import socket
import struct
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import sparse

from bayesncl.atlas import AtlasRun, Photos, build_atlas
from bayesncl.atlas.build import MARKER
from bayesncl.atlas.page_data import arguments, prepare
from bayesncl.atlas.pictures import large_side, write_sprites
from bayesncl.atlas.server import make_server
from bayesncl.data.images import Images
from bayesncl.errors import InputError
from tests.atlas.conftest import HOSTILE, serving
from tests.conftest import unit_length


def make_features(n: int = 60, d: int = 23, seed: int = 0, signed: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    z = rng.gamma(1, 1, (n, d)) * (rng.random((n, d)) < rng.random(d))
    z[:, 3:5] = 0  # dead
    z[7, 4] = 1  # nearly dead
    z = z * np.where(rng.random((n, d)) < 0.5, -1, 1) if signed else z
    return unit_length(z).astype(np.float32)


def make_images(n: int = 60, labeled: bool = True, side: int = 12) -> Images:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (n, 3, side, side), dtype=np.uint8)
    if not labeled:
        return Images(pixels)
    classes, grounds = ("cat", HOSTILE, "dog", "tiger"), ("sky", "grass")
    files = tuple(f"{HOSTILE}{i}.png" for i in range(n))
    return Images(pixels, rng.integers(0, 4, n), rng.integers(0, 2, n), classes, grounds, files)


def unpack(tree):
    """The arguments of atlasData with decoded arrays."""
    if isinstance(tree, dict) and "base64" in tree:
        return np.frombuffer(base64.b64decode(tree["base64"]), np.dtype(tree["array"]))
    return {k: unpack(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def read(folder: Path, key: str) -> dict:
    name, tree = json.loads(arguments(folder / "data" / f"{key}.js"))
    assert name == key
    return unpack(tree)


def tile(folder: Path, layout: dict, i: int) -> np.ndarray:
    """Image `i`, cut out of its sheet."""
    sheet, cell = divmod(i, layout["columns"] * layout["rows"])
    (tile_h, tile_w), (h, w) = layout["tile"], layout["size"]
    y, x = cell // layout["columns"] * tile_h, cell % layout["columns"] * tile_w
    return np.asarray(Image.open(folder / layout["files"][sheet]))[y : y + h, x : x + w]


def test_sprites_keep_small_images_exactly_and_shrink_large_ones(tmp_path: Path) -> None:
    assert (large_side(1000), large_side(1_000_000)) == (320, 0)
    images = make_images(130)
    layout = write_sprites(images, tmp_path / "small", 96)
    assert all((tile(tmp_path, layout, i) == images.pixels[i].transpose(1, 2, 0)).all() for i in range(130))
    pixels = np.zeros((130, 3, 224, 112), np.uint8)
    pixels[129] = 255
    layout = write_sprites(Images(pixels), tmp_path / "large", 96)
    assert layout["size"] == [96, 48]
    assert len(layout["files"]) == 1 + 129 // (layout["columns"] * layout["rows"])
    assert tile(tmp_path, layout, 129).min() == 255
    assert tile(tmp_path, layout, 128).max() == 0


def test_photos_are_whole_if_large_and_gray_if_unreadable(tmp_path: Path) -> None:
    stripes = np.repeat(np.arange(4, dtype=np.uint8) * 60, 100)  # 400 columns in four tones
    paths = [tmp_path / f"{name}.png" for name in ("wide", "small", "broken", "missing")]
    Image.fromarray(np.tile(stripes[None, :, None], (200, 1, 3))).save(paths[0])
    Image.fromarray(np.full((50, 20, 3), 200, np.uint8)).save(paths[1])
    paths[2].write_bytes(b"not an image")
    folder = build_atlas(tmp_path / "a", [AtlasRun("r", np.eye(4))], Photos(paths)).parent
    assert read(folder, "names-0")["names"][1] == "small.png"
    core = read(folder, "atlas")
    sizes = [[160, 320], [50, 20], [320, 320], [320, 320]]
    assert core["large"]["sizes"].reshape(4, 2).tolist() == sizes
    wide = tile(folder, core["large"], 0)
    assert abs(wide[80, [20, 100, 180, 300], 0].astype(int) - [0, 60, 120, 180]).max() <= 3
    square = tile(folder, core["sprites"], 0)  # the central half
    assert abs(square[48, [10, 80], 0].astype(int) - [60, 120]).max() <= 3
    assert [int(tile(folder, core["sprites"], i)[48, 48, 0]) for i in (2, 3)] == [128, 128]


def test_texts_are_escaped_and_figures_are_single_numbers(tmp_path: Path) -> None:
    images, other = make_images(), make_features(d=9, seed=5, signed=True)
    sound = {"consistency": np.float32(11.5), "l0": np.nan}
    summary = {"paper": {"consistency": 12.5, "curve": [1, 2]}, "sound": sound}
    runs = [AtlasRun("plain", make_features(), summary=summary), AtlasRun(HOSTILE, other)]
    index = build_atlas(tmp_path / "atlas", runs, images, HOSTILE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["atlas"]
    folder, page = index.parent, index.read_text(encoding="ascii")
    assert "<img" not in page and "default-src 'none'" in page
    assert not any("<" in path.read_text("ascii") for path in (folder / "data").iterdir())
    core = read(folder, "atlas")
    assert core["classes"] == list(images.class_names)
    assert (core["labels"] - 1).tolist() == images.labels.tolist()
    sound = {"consistency": 11.5, "l0": None}
    assert core["runs"][0]["summary"] == {"paper": {"consistency": 12.5}, "sound": sound}
    assert core["runs"][1]["name"] == HOSTILE
    assert read(folder, "names-0")["names"] == list(images.names)


@pytest.mark.parametrize("z", [np.ones((1, 1)), np.zeros((1, 2))])
def test_works_with_one_image_or_if_nothing_fires(z: np.ndarray, tmp_path: Path) -> None:
    index = build_atlas(str(tmp_path / "a"), [AtlasRun("r", z)], make_images(1))
    assert read(index.parent, "run0")["before"]["support"].tolist() == z[0].tolist()


def test_truncated_features_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesncl.atlas.page_data.FEATURES_PER_RUN", 1)
    z = unit_length(np.random.default_rng(0).random((20, 100)))
    run = read(build_atlas(tmp_path / "a", [AtlasRun("r", z)], make_images(20)).parent, "run0")
    assert (run["keep"], run["whole"]) == (64, False)
    stored = np.sort(z**2)[:, -64:].sum(1).mean()
    assert run["covered"][0] == pytest.approx(stored, abs=1e-5)


def title(folder: Path) -> str:
    return json.loads((folder / MARKER).read_text())["title"]


def test_replaces_an_atlas_but_keeps_added_files_and_other_folders(tmp_path: Path) -> None:
    images, run, out = make_images(), AtlasRun("a", make_features()), tmp_path / "out"
    out.mkdir()
    build_atlas(out, [run], images, "first")
    (out / "names.json").write_text("{}")
    (out / "mine/data").mkdir(parents=True)
    (out / "sprites/old.png").write_text("")
    linked = tmp_path / "linked"
    linked.symlink_to("out")
    build_atlas(linked, [run], images, "second")
    assert linked.is_symlink() and title(out) == "second"
    assert (out / "names.json").read_text() == "{}" and (out / "mine/data").is_dir()
    assert not (out / "sprites/old.png").exists()
    (out / MARKER).unlink()  # no longer an atlas
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(InputError, match="not an atlas"):
        build_atlas(out, [run], images)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_kill_while_replacing_keeps_the_old_atlas(tmp_path: Path, monkeypatch) -> None:
    images, run, out = make_images(), AtlasRun("a", make_features()), tmp_path / "out"
    build_atlas(out, [run], images, "first")
    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        if Path(target) == out:
            raise SystemExit("killed")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(SystemExit):
            build_atlas(out, [run], images, "second")
    assert not out.exists()
    with pytest.raises(InputError):  # the next build restores it, even if it fails
        build_atlas(out, [AtlasRun("b", np.ones((3, 3)))], images, "third")
    assert title(out) == "first"
    build_atlas(out, [run], images, "fourth")
    assert title(out) == "fourth"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_scale_of_rows_does_not_matter() -> None:
    z, images = make_features(), make_images()
    scaled = z.astype(np.float64) * np.logspace(-10, 10, 60)[:, None]
    for x in (scaled, sparse.csr_array(scaled), 1e10 * z):
        assert np.allclose(prepare(AtlasRun("r", x), images).z.toarray(), z, atol=1e-6)


def test_the_server_serves_only_the_atlas_and_only_to_this_machine(tmp_path: Path, capfd) -> None:
    index = build_atlas(tmp_path / "a", [AtlasRun("r", make_features())], make_images())
    (tmp_path / "secret").write_text("x")
    (index.parent / "link").symlink_to(tmp_path / "secret")
    (index.parent / "folder").symlink_to(tmp_path)
    (index.parent / "alias.js").symlink_to("atlas.js")
    with pytest.raises(InputError, match="not an atlas"):
        make_server(tmp_path, 0)
    with serving(index) as base:
        assert base.startswith("http://127.0.0.1:")
        port = base.split(":")[-1].strip("/")
        with socket.create_connection(("127.0.0.1", int(port))) as browser:  # that gives up
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            browser.sendall(b"GET")
        for name, file in (("", "index.html"), ("alias.js", "atlas.js")):
            with urllib.request.urlopen(base + name) as reply:
                assert reply.read() == (index.parent / file).read_bytes()
        for path in ("data/", "../secret", "link", "folder/secret", "%00", "data/%00.js"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(base + path)
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example"):
            with pytest.raises(urllib.error.HTTPError, match="421"):
                urllib.request.urlopen(urllib.request.Request(base, headers={"Host": host}))
    assert capfd.readouterr().err == ""
