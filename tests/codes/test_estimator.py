"""ReadableCodes: its codes, files and scikit-learn interface, and the input it refuses."""

import copy
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import bayesncl
from bayesncl import inputs
from bayesncl.codes import estimator
from bayesncl.codes.estimator import ReadableCodes, choose_components
from bayesncl.errors import InputError
from bayesncl.measure import preprocess
from bayesncl.measure.columns import twin_share
from bayesncl.method.heads import HEADS, Prototypes

METHODS = list(HEADS)


def make_rows(n: int = 120, width: int = 20, seed: int = 0, groups: int = 8) -> np.ndarray:
    """Rows around `groups` centers; row i belongs to group i % groups."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(7).normal(size=(groups, width))
    return centers[np.arange(n) % groups] + 0.5 * rng.normal(size=(n, width))


def make_codes(
    dim: int | str = 8, max_iter: int = 20, seed: int = 0, **options: Any
) -> ReadableCodes:
    """A small estimator with a fixed seed."""
    return ReadableCodes(dim, max_iter=max_iter, random_state=seed, **options)


@pytest.fixture(scope="module")
def fitted() -> dict[str, ReadableCodes]:
    return {method: make_codes(16, 120, method=method).fit(make_rows()) for method in METHODS}


def assert_unit_rows(z: np.ndarray) -> None:
    assert (z >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)


# ---- codes


@pytest.mark.parametrize("method", METHODS)
def test_code_depends_on_its_row_alone(fitted: dict[str, ReadableCodes], method: str) -> None:
    model, x = fitted[method], make_rows(300, seed=1)
    z = model.transform(x)
    assert z.shape == (300, 16) and z.dtype == np.float32
    assert_unit_rows(z)
    order = np.random.default_rng(0).permutation(300)
    assert (model.transform(x[order]) == z[order]).all()
    assert (np.concatenate([model.transform(x[i : i + 1]) for i in range(20)]) == z[:20]).all()
    assert (model.transform(x[17:290]) == z[17:290]).all()
    single = x.astype(np.float32)
    assert (model.transform(np.asfortranarray(single)) == model.transform(single)).all()


@pytest.mark.parametrize("method", ["prototypes", "factors"])
def test_automatic_width_has_few_twins(method: str, tmp_path: Path) -> None:
    x = make_rows(800, groups=12)
    every, auto = (
        make_codes(dim, 300, method=method, n_active=3).fit(x) for dim in (128, "auto")
    )
    assert every.n_components_ == choose_components(800) == 128
    assert twin_share(every.dense(x)) > 0.5 and twin_share(auto.dense(x)) == 0
    assert 12 <= auto.n_components_ < 64
    assert auto.transform(x).shape == auto.dense(x).shape == (800, auto.n_components_)
    assert len(auto.groups_) == len(auto.get_feature_names_out()) == auto.n_components_
    auto.save(tmp_path / "codes.safetensors")
    again = ReadableCodes.load(tmp_path / "codes.safetensors")
    assert (again.transform(x) == auto.transform(x)).all()
    width = auto.n_components_
    assert again.set_params(warm_start=True).fit(x).n_components_ == width


def test_dropping_prototypes_keeps_the_others() -> None:
    torch.manual_seed(0)
    head, x = Prototypes(20, 16).eval(), torch.randn(30, 20)
    z, left = head(x).gated, torch.tensor([0, 3, 4, 9, 15])
    head.thin(torch.arange(0, 16))
    head.thin(left)
    expected = torch.nn.functional.normalize(z[:, left])
    torch.testing.assert_close(head(x).gated, expected)
    head.finish()
    assert head.dim == 5 and head.prototypes.shape == (5, 20)
    torch.testing.assert_close(head(x).gated, expected)


@pytest.mark.parametrize("method", METHODS)
def test_warm_start_continues(method: str) -> None:
    x, more = make_rows(400), np.concatenate([make_rows(400), make_rows(40, seed=1)])
    model = make_codes(16, 200, method=method).fit(x)
    z = model.transform(x)
    model.set_params(warm_start=True, random_state=1).fit(more)
    after = model.transform(x)
    cosine = (z * after).sum(0) / np.linalg.norm(z, axis=0) / np.linalg.norm(after, axis=0)
    assert np.nanmean(cosine) > 0.97 and not (after == z).all()
    assert after.shape == z.shape
    with pytest.raises(ValueError, match="20 features"):
        model.fit(x[:, :5])
    with pytest.raises(InputError, match="warm_start continues 16 dimensions"):
        model.set_params(n_components=8).fit(x)
    with pytest.raises(InputError, match="at least 2 rows"):
        model.set_params(n_components=16).fit(x[:1])


def test_a_fit_that_fails_keeps_the_codes() -> None:
    x = make_rows(400)
    model = make_codes("auto", 60).fit(x)
    z, width = model.transform(x), model.n_components_
    with pytest.raises(InputError, match="are the same"):
        model.fit(np.ones((4000, x.shape[1])))
    assert model.n_components_ == width
    np.testing.assert_array_equal(model.transform(x), z)


def test_automatic_width_of_a_few_clusters() -> None:
    x = make_rows(800)
    assert 8 <= make_codes("auto", 300).fit(x).n_components_ < 40
    assert make_codes("auto", 0).fit(x).n_components_ == choose_components(800)
    assert make_codes("auto", 100, n_active=50).fit(x).n_components_ >= 50


def test_automatic_width_keeps_copies_that_differ_in_details() -> None:
    rng = np.random.default_rng(5)
    heap, cluster = rng.integers(0, 3, 1000), rng.integers(0, 5, 1000)
    x = (20 * rng.normal(size=(3, 64)))[heap] + (0.45 * rng.normal(size=(3, 5, 64)))[heap, cluster]
    x += rng.normal(size=x.shape)
    assert make_codes("auto", 300).fit(x).n_components_ == choose_components(1000)


@pytest.mark.parametrize("method", METHODS)
def test_codes_separate_groups(fitted: dict[str, ReadableCodes], method: str) -> None:
    z, group = fitted[method].transform(make_rows(300, seed=1)), np.arange(300) % 8
    closest = (z @ z.T - 2 * np.eye(300)).argmax(1)
    assert (group[closest] == group).mean() > 0.9
    if method == "prototypes":
        best = z.argmax(1)
        purity = [np.bincount(group[best == k]).max() / (best == k).sum() for k in np.unique(best)]
        assert len(purity) >= 14 and np.mean(purity) > 0.9


@pytest.mark.parametrize("method", ["prototypes", "sae"])
def test_n_active_and_sparse_output(fitted: dict[str, ReadableCodes], method: str) -> None:
    x = make_rows(50)
    full = fitted[method].transform(x)
    model = copy.deepcopy(fitted[method]).set_params(n_active=3)
    z = model.transform(x)
    assert ((z > 0).sum(1) <= 3).all()
    assert_unit_rows(z)
    assert (np.sort(np.argsort(-z, 1)[:, :3]) == np.sort(np.argsort(-full, 1)[:, :3])).all()
    sparse = model.set_params(sparse_output=True).transform(x)
    assert scipy.sparse.issparse(sparse) and sparse.format == "csr"
    assert (sparse.toarray() == z).all()


def test_input_types() -> None:
    x = np.round(8 * make_rows())  # exact in every type
    wide = np.zeros((240, 40))
    wide[::2, ::2] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    expected = make_codes().fit_transform(x)
    for given in (
        x.astype(np.float16), x.astype(np.float32), x.astype(np.int32), np.asfortranarray(x),
        torch.from_numpy(x).requires_grad_(), torch.from_numpy(x).half(), wide[::2, ::2], frozen,
    ):  # fmt: skip
        np.testing.assert_allclose(make_codes().fit(given).transform(given), expected, atol=2e-4)


def test_more_rows_than_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A memory map is read in blocks; some rows of a large one are read, all are refused."""
    np.save(tmp_path / "x.npy", make_rows(400))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = make_codes().fit_transform(make_rows(400))
    monkeypatch.setattr(preprocess, "BYTES_PER_BLOCK", 8 * 20 * 64)
    np.testing.assert_allclose(make_codes().fit(mapped).transform(mapped), expected, atol=1e-5)
    monkeypatch.setattr(inputs, "physical_memory", lambda: 4 * 400 * 20)
    with pytest.raises(InputError, match="max_samples"):
        make_codes().fit(mapped)
    seen: set[int] = set()
    model = make_codes(max_samples=100)
    model.fit(mapped, progress=lambda done, total, what: seen.add(total))
    assert 100 in seen and 400 not in seen and model.transform(mapped).shape == (400, 8)


def test_row_lengths_offsets_and_constant_columns_do_not_matter() -> None:
    x = make_rows(200, 32)
    stretched = x * np.exp(2 * np.random.default_rng(0).normal(size=(200, 1)))
    constant = np.concatenate([x[:, :3], np.full((200, 2), 3.0)], 1)
    for one, two, tolerance in (
        (x, stretched, 1e-3), (x[:, :3], x[:, :3] * 1e6 + 1e8, 1e-2),
    ):  # fmt: skip
        a, b = (make_codes(max_iter=40).fit_transform(v) for v in (one, two))
        np.testing.assert_allclose(a, b, atol=tolerance)
    model = make_codes().fit(constant)
    assert (model.transform(constant + [0, 0, 0, 9, 9]) == model.transform(constant)).all()


@pytest.mark.parametrize("shape", [(2, 3), (3, 1), (7, 2), (20, 500), (40, 64)])
@pytest.mark.parametrize("method", METHODS)
def test_small_shapes(method: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    for dim in ("auto", 30):
        assert_unit_rows(make_codes(dim, 10, method=method).fit_transform(x))


def test_random_state_is_exact() -> None:
    x = make_rows()
    a, b, c = (make_codes(seed=s).fit_transform(x) for s in (3, 3, 4))
    assert (a == b).all()
    assert (a != c).any()
    state = torch.random.get_rng_state()
    ReadableCodes(8, max_iter=3).fit(x)
    assert torch.equal(state, torch.random.get_rng_state()), "the caller's generator is untouched"


@pytest.mark.parametrize("way", ["no_grad", "inference_mode", "autocast", "float64"])
def test_torch_settings_of_the_caller_do_not_matter(way: str, tmp_path: Path) -> None:
    x = make_rows()
    expected = make_codes().fit_transform(x)
    contexts = {"no_grad": torch.no_grad(), "inference_mode": torch.inference_mode()}
    context = contexts.get(way, nullcontext())
    try:
        with torch.autocast("cpu", torch.float16) if way == "autocast" else context:
            torch.set_default_dtype(torch.float64 if way == "float64" else torch.float32)
            found = make_codes().fit(torch.from_numpy(x) * 1)
        found.save(tmp_path / "codes.safetensors")
        assert (found.transform(x) == expected).all()
    finally:
        torch.set_default_dtype(torch.float32)
    assert (ReadableCodes.load(tmp_path / "codes.safetensors").transform(x) == expected).all()


def test_pairs_replace_neighbors() -> None:
    """Noise paired at random: only a fit that gets the pairs can find them."""
    x = np.random.default_rng(0).normal(size=(200, 40))
    pairs = np.arange(200) ^ 1

    def gain(z: np.ndarray) -> float:
        """Cosine with the partner minus cosine with a random row."""
        return float((z * z[pairs]).sum(1).mean() - (z * np.roll(z, 2, 0)).sum(1).mean())

    paired = make_codes(16, 200).fit(x, pairs=pairs).transform(x)
    assert gain(paired) > 0.3 > 0.1 > gain(make_codes(16, 200).fit_transform(x))
    twice = make_codes(16, 200).fit(x, pairs=np.stack([pairs, pairs], 1)).transform(x)
    assert (twice == paired).all()


@pytest.mark.parametrize("method", ["sae", "csr"])
def test_inverse_transform_reconstructs(fitted: dict[str, ReadableCodes], method: str) -> None:
    x = make_rows(200, seed=1)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    model = copy.deepcopy(fitted[method]).set_params(unit_norm=False)
    z = model.transform(x)
    directions = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    np.testing.assert_allclose(directions, fitted[method].transform(x), atol=1e-5)
    found = model.inverse_transform(z)
    assert found.shape == x.shape
    share = 1 - ((unit - found) ** 2).sum() / ((unit - unit.mean(0)) ** 2).sum()
    assert share > 0.5 and fitted[method].explained_variance(x) == pytest.approx(share, abs=1e-4)
    # linear in the codes, with components_ as its slope
    origin = model.inverse_transform(np.zeros((1, 16)))
    np.testing.assert_allclose(found, origin + z @ model.components_, atol=1e-4)
    sparse = model.set_params(sparse_output=True).transform(x)
    np.testing.assert_allclose(model.inverse_transform(sparse), found, atol=1e-6)


# ---- scikit-learn


def test_pipeline_names_and_old_options() -> None:
    line = make_pipeline(StandardScaler(), make_codes(8, 10)).fit(make_rows())
    assert list(line.get_feature_names_out()) == [f"z{i}" for i in range(8)]
    assert bayesncl.ReadableCodes is ReadableCodes
    with pytest.warns(FutureWarning) as warned:
        old = ReadableCodes(dim=8, keep=3)
    assert len(warned) == 2 and old.get_params() == ReadableCodes(8, n_active=3).get_params()
    with pytest.raises(TypeError, match="color"):
        ReadableCodes(color="red")


@pytest.mark.parametrize("method", METHODS)
def test_check_estimator(method: str) -> None:
    check_estimator(ReadableCodes(method=method, max_iter=8))


def test_long_neighbor_search_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, searches = tmp_path / "neighbors", []
    real = estimator.nearest
    monkeypatch.setattr(estimator, "nearest", lambda *args: (searches.append(1), real(*args))[1])
    expected = make_codes().fit(make_rows(), neighbors_file=path).transform(make_rows())
    assert not path.exists()  # it took no time
    monkeypatch.setattr(estimator, "NEIGHBOR_SECONDS", -1.0)
    for count in (2, 2):  # the second fit reads the file
        z = make_codes().fit(make_rows(), neighbors_file=path).transform(make_rows())
        assert (z == expected).all() and len(searches) == count
    make_codes().fit(make_rows(seed=5), neighbors_file=path)  # other rows
    path.write_bytes(b"damaged")
    make_codes().fit(make_rows(), neighbors_file=path)
    assert len(searches) == 4


# ---- files


@pytest.mark.parametrize("method", METHODS)
def test_round_trip(tmp_path: Path, method: str) -> None:
    x = make_rows()
    x[:, 3] = 7.0  # a constant column
    fitted = make_codes(8, 5, method=method, seed=np.int64(3)).fit(x)
    z = fitted.transform(x)
    fitted.save(tmp_path / "a.safetensors")
    fitted.save_pretrained(tmp_path / "folder")
    names = {path.name for path in (tmp_path / "folder").iterdir()}
    assert names == {"config.json", "model.safetensors"}
    assert json.loads((tmp_path / "folder/config.json").read_text())["params"]["method"] == method
    for again in (
        ReadableCodes.load(tmp_path / "a.safetensors"),
        ReadableCodes.from_pretrained(tmp_path / "folder"),
    ):
        assert (again.transform(x) == z).all()
        assert again.get_params() == fitted.get_params()
        assert (again.n_iter_, again.n_components_, again.n_features_in_) == (5, 8, 20)
    again.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_the_method_of_the_fit_is_saved(tmp_path: Path) -> None:
    fitted = make_codes(8, 2, method="sae").fit(make_rows()).set_params(method="csr")
    fitted.save(tmp_path / "x.safetensors")
    assert ReadableCodes.load(tmp_path / "x.safetensors").method == "sae"


def test_every_damaged_byte_is_noticed(tmp_path: Path, fitted: dict[str, ReadableCodes]) -> None:
    fitted["prototypes"].save(tmp_path / "x")
    good = (tmp_path / "x").read_bytes()
    flips = [0, 9, *np.random.default_rng(0).integers(0, len(good), 40).tolist(), len(good) - 1]
    spoiled = [good[:i] + bytes([good[i] ^ 0x10]) + good[i + 1 :] for i in flips]
    for bad in spoiled + [good[:end] for end in (0, 7, 100, len(good) - 1)]:
        (tmp_path / "y").write_bytes(bad)
        with pytest.raises(InputError):
            ReadableCodes.load(tmp_path / "y")


def test_paths_that_cannot_be_used(
    tmp_path: Path, fitted: dict[str, ReadableCodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    small = fitted["prototypes"]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for act, argument, message in (
        (small.save, tmp_path / "none" / "x", "cannot write"),
        (small.save, tmp_path, "cannot write"),
        (small.save_pretrained, tmp_path / "file", "cannot write"),
        (ReadableCodes.load, tmp_path / "missing", "no such file"),
        (ReadableCodes.from_pretrained, tmp_path, "no such file"),
        (ReadableCodes.from_pretrained, "somebody/codes", "hub"),
    ):
        with pytest.raises(InputError, match=message):
            act(argument)


# ---- interruptions


def at_step(step: int, act: Callable[[], None]) -> Callable[[int, int, str], None]:
    def progress(done: int, total: int, what: str) -> None:
        if what == "training" and done == step:
            act()

    return progress


def test_ctrl_c_keeps_what_was_learned() -> None:
    stopped = make_codes(max_iter=30)
    stopped.fit(make_rows(), progress=at_step(12, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert stopped.interrupted_ and stopped.n_iter_ == 12
    assert_unit_rows(stopped.transform(make_rows()))
    assert not make_codes().fit(make_rows()).interrupted_


# ---- refused input


@pytest.mark.parametrize(
    "options",
    [
        {"method": "pca"}, {"n_active": 0}, {"n_active": 9, "n_components": 8}, {"n_active": 10**6},
        {"n_components": "many"}, {"n_components": 2.5}, {"n_components": 1 << 30},
        {"max_iter": -1}, {"positives": "friends"}, {"device": "toaster"}, {"max_samples": 1},
        {"sparse_output": True},
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        ReadableCodes(**options).fit(make_rows())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((10, 4)), "same"),
        (np.ones((1, 4)), "n_samples=1"),
        (np.where(np.eye(30) > 0, np.nan, 1.0), "row 0"),
        (np.where(np.arange(90).reshape(30, 3) == 13, np.inf, 1.0), "row 4"),
        (np.float32([[1, 2], [3, 1e25]]).repeat(9, 1), "row 1"),  # its square overflows
        (torch.ones(4), "2D"),
        (torch.eye(4).to_sparse(), "dense"),
        (torch.ones(4, 4, dtype=torch.complex64), "Complex"),
    ],
)
def test_bad_rows(x: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ReadableCodes().fit(x)


def test_bad_rows_and_options_in_transform(fitted: dict[str, ReadableCodes]) -> None:
    bad = make_rows()
    bad[77, 3] = np.nan
    for method, x, options, message in (
        ("ncl", bad, {}, "row 77"), ("ncl", bad[:, :5], {}, "20 features"),
        ("ncl", torch.ones(3, 5), {}, "20 features"), ("ncl", make_rows(), {"n_active": 99}, "n_active"),
        ("ncl", make_rows(), {"unit_norm": False}, "sae or csr"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            fitted[method].with_options(**options).transform(x)
    assert fitted["ncl"].explained_variance(make_rows()) is None
    assert not hasattr(fitted["ncl"], "components_")
    with pytest.raises(InputError, match="unit_norm"):
        fitted["sae"].inverse_transform(np.zeros((1, 16)))


@pytest.mark.parametrize(
    "pairs", [np.arange(5), np.full(120, 120), np.zeros(120), np.zeros((120, 0), int)]
)
def test_bad_pairs(pairs: np.ndarray) -> None:
    with pytest.raises(InputError, match="pairs"):
        make_codes().fit(make_rows(), pairs=pairs)
