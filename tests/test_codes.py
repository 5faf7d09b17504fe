"""ReadableCodes: what it gives, what it refuses, and the parts it is made of against obvious twins."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import bayesncl
from bayesncl import codes, rows
from bayesncl.codes import ReadableCodes, choose_batch, choose_dim, choose_neighbours, choose_steps
from bayesncl.errors import InputError
from bayesncl.heads import HEADS, Prototypes, SparseAutoencoder
from bayesncl.objective import balanced_assignment, swapped_cross_entropy

METHODS = list(HEADS)


def made(n: int = 120, width: int = 20, seed: int = 0, groups: int = 8) -> np.ndarray:
    """Rows around `groups` centres; row i belongs to group i % groups."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(size=(groups, width))
    return centres[np.arange(n) % groups] + 0.5 * rng.normal(size=(n, width))


@pytest.fixture(scope="module")
def fitted() -> dict[str, ReadableCodes]:
    return {method: ReadableCodes(16, method, steps=120).fit(made()) for method in METHODS}


# ---- the parts


def slow_balance(scores: np.ndarray, temperature: float, rounds: int) -> np.ndarray:
    """Sinkhorn-Knopp as it is told: prototypes to equal sums, then rows, again and again."""
    q = np.exp(scores / temperature)
    for _ in range(rounds):
        for k in range(q.shape[1]):
            q[:, k] /= q[:, k].sum() * q.shape[1]
        for i in range(q.shape[0]):
            q[i] /= q[i].sum() * q.shape[0]
    return q * len(q)


@pytest.mark.parametrize("rounds", [1, 3, 50])
def test_balanced_assignment(rounds: int) -> None:
    s = np.random.default_rng(0).uniform(-1, 1, (2, 12, 4))
    found = balanced_assignment(torch.from_numpy(s), 0.2, rounds).numpy()
    for half, twin in zip(found, s):
        np.testing.assert_allclose(half, slow_balance(twin, 0.2, rounds), rtol=1e-9)
    np.testing.assert_allclose(found.sum(2), 1)
    if rounds == 50:
        np.testing.assert_allclose(found.sum(1), 3, rtol=1e-3)


def test_balance_survives_scores_far_apart() -> None:
    s = torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    q = balanced_assignment(s, 0.01)  # exp(-200) is 0 in float32
    assert torch.isfinite(q).all()
    assert torch.allclose(q.sum(1), torch.ones(2))


def test_prototypes_balance_in_as_many_rounds_as_they_are_told() -> None:
    head = Prototypes(6, 8, rounds=1).train()
    features = head(torch.from_numpy(np.random.default_rng(0).normal(size=(20, 6))).float())
    losses = {}
    for head.rounds in (1, 2, 5):
        assert features.aux is not None
        s = features.aux.detach().unflatten(0, (2, -1))
        wanted = swapped_cross_entropy(s, balanced_assignment(s, head.sharpness, head.rounds), head.temperature) / 20
        losses[head.rounds] = float(head.loss(features).loss.detach())
        assert losses[head.rounds] == pytest.approx(float(wanted))
    assert len(set(losses.values())) == 3


def test_swapped_cross_entropy() -> None:
    rng = np.random.default_rng(0)
    s, q = rng.normal(size=(2, 5, 3)), rng.dirichlet(np.ones(3), (2, 5))
    slow = 0.0
    for side in (0, 1):
        for i in range(5):
            p = np.exp(s[side, i] / 0.1) / np.exp(s[side, i] / 0.1).sum()
            slow -= (q[1 - side, i] * np.log(p)).sum()
    assert float(swapped_cross_entropy(torch.from_numpy(s), torch.from_numpy(q), 0.1)) == pytest.approx(slow)


def test_autoencoder_loss() -> None:
    torch.manual_seed(0)
    head = SparseAutoencoder(6, 10, k=3)
    head.patience, head.revival = 2, 0.5
    x = torch.randn(8, 6)

    def slow(idle: np.ndarray) -> tuple[float, np.ndarray]:
        e, b, d = head.encoder.weight.detach().numpy(), head.bias.detach().numpy(), head.decoder.detach().numpy()
        d = d / np.linalg.norm(d, axis=1, keepdims=True)
        a = (x.numpy() - b) @ e.T + head.encoder.bias.detach().numpy()
        fires = np.zeros_like(a)
        for i, row in enumerate(a):
            for j in np.argsort(-row)[:3]:
                fires[i, j] = max(row[j], 0)
        rest = x.numpy() - b - fires @ d
        idle = np.where((fires > 0).any(0), 0, idle + 1)
        dead = np.flatnonzero(idle >= 2)
        revived = np.zeros_like(a)
        for i, row in enumerate(a):
            for j in dead[np.argsort(-row[dead])][:3]:
                revived[i, j] = max(row[j], 0)
        extra = ((rest - revived @ d) ** 2).sum() if len(dead) else 0.0
        return ((rest**2).sum() + 0.5 * extra) / x.numel(), idle

    with torch.no_grad():
        head.encoder.bias[:2] = -100.0  # these never fire
    idle = np.zeros(10)
    for _ in range(4):
        expected, idle = slow(idle)
        assert head.loss(head(x)).loss.item() == pytest.approx(expected, rel=1e-5)
    assert (idle[:2] == 4).all()
    assert head.idle.tolist() == idle.tolist()


def test_prototypes_start_on_the_principal_axes() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(500, 40))).float()
    x[:, :5] *= 5
    one, two = Prototypes(40, 12, width=5), Prototypes(40, 12, width=5)
    one.start(x)
    two.start(x)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters()))
    axes = torch.linalg.svd(x, full_matrices=False).Vh[:5]
    overlap = torch.linalg.svdvals(one.projection.weight.detach() @ axes.T)
    assert overlap.min() > 0.99
    np.testing.assert_allclose(one.prototypes.norm(dim=1).detach(), 1, rtol=1e-5)


# ---- what transform gives


@pytest.mark.parametrize("method", METHODS)
def test_codes_are_unit_rows_and_depend_on_the_row_alone(fitted: dict[str, ReadableCodes], method: str) -> None:
    model, x = fitted[method], made(300, seed=1)
    z = model.transform(x)
    assert z.shape == (300, 16) and z.dtype == np.float32
    assert (z >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-6)
    order = np.random.default_rng(0).permutation(300)
    assert (model.transform(x[order]) == z[order]).all()
    assert (np.concatenate([model.transform(x[i : i + 1]) for i in range(20)]) == z[:20]).all()
    assert (model.transform(x[17:290]) == z[17:290]).all()


@pytest.mark.parametrize("method", METHODS)
def test_groups_get_dimensions_of_their_own(fitted: dict[str, ReadableCodes], method: str) -> None:
    z, group = fitted[method].transform(made(300, seed=1)), np.arange(300) % 8
    nearest = (z @ z.T - 2 * np.eye(300)).argmax(1)
    assert (group[nearest] == group).mean() > 0.9
    if method == "prototypes":
        best = z.argmax(1)
        shares = [np.bincount(group[best == k]).max() / (best == k).sum() for k in np.unique(best)]
        assert len(shares) >= 14 and np.mean(shares) > 0.9


def test_keep_and_sparse_output(fitted: dict[str, ReadableCodes]) -> None:
    x, full = made(50), fitted["prototypes"].transform(made(50))
    for method in ("prototypes", "sae"):
        model = copy.deepcopy(fitted[method]).set_params(keep=3)
        z = model.transform(x)
        assert ((z > 0).sum(1) <= 3).all()
        np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-6)
        sparse = model.set_params(sparse_output=True).transform(x)
        assert scipy.sparse.issparse(sparse) and sparse.format == "csr"
        assert (sparse.toarray() == z).all()
        assert model.transform(torch.zeros(0, 20)).shape == (0, 16)
        with pytest.raises(InputError, match="X has 21 features"):
            model.transform(torch.zeros(3, 21))
    kept = copy.deepcopy(fitted["prototypes"]).set_params(keep=3).transform(x)
    strongest = np.argsort(-full, 1)[:, :3]
    assert (np.sort(np.argsort(-kept, 1)[:, :3]) == np.sort(strongest)).all()
    with pytest.raises(InputError, match="sparse_output needs keep"):
        ReadableCodes(16, sparse_output=True).fit(made())


@pytest.mark.parametrize("kind", ["float16", "float32", "int32", "torch", "torch16", "fortran", "strided", "readonly"])
def test_kinds_of_input(kind: str, tmp_path: Path) -> None:
    x = np.round(8 * made()) / 8  # exact in all of them
    if kind == "int32":
        x = np.round(8 * made())
    wide = np.zeros((240, 40))
    wide[::2, ::2] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    given = {
        "float16": lambda: x.astype(np.float16),
        "float32": lambda: x.astype(np.float32),
        "int32": lambda: x.astype(np.int32),
        "torch": lambda: torch.from_numpy(x).requires_grad_(),
        "torch16": lambda: torch.from_numpy(x).half(),
        "fortran": lambda: np.asfortranarray(x),
        "strided": lambda: wide[::2, ::2],
        "readonly": lambda: frozen,
    }[kind]()
    expected = ReadableCodes(8, steps=20).fit(x).transform(x)
    np.testing.assert_allclose(ReadableCodes(8, steps=20).fit(given).transform(given), expected, atol=2e-4)


def test_rows_out_of_memory_give_the_same_codes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x = made(400).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr(codes, "START_ROWS", 100)
    expected = ReadableCodes(8, steps=30, batch=48).fit(x).transform(x)
    monkeypatch.setattr(rows, "BLOCK_BYTES", 8 * 20 * 64)
    monkeypatch.setattr(rows, "free_memory", lambda device: 0)
    largest = 0
    read = rows._read

    def watched(*arguments: object) -> torch.Tensor:
        nonlocal largest
        found = read(*arguments)  # type: ignore[arg-type]
        largest = max(largest, len(found))
        return found

    monkeypatch.setattr(rows, "_read", watched)
    monkeypatch.setitem(codes.nearest.__globals__["ROWS"], "cpu", 100)
    monkeypatch.setitem(codes.nearest.__globals__["QUERIES"], "cpu", 100)
    model = ReadableCodes(8, steps=30, batch=48).fit(mapped)
    assert largest <= 100
    monkeypatch.undo()
    np.testing.assert_allclose(model.transform(x), expected, atol=1e-5)


def test_lengths_and_offsets_of_rows_do_not_matter() -> None:
    x = made(200, 32)
    stretched = x * np.exp(2 * np.random.default_rng(0).normal(size=(200, 1)))
    one, two = (ReadableCodes(8, steps=40).fit(v).transform(v) for v in (x, stretched))
    np.testing.assert_allclose(one, two, atol=1e-3)
    few = ReadableCodes(8, steps=40).fit(x[:, :3]).transform(x[:, :3])
    moved = ReadableCodes(8, steps=40).fit(x[:, :3] * 1e6 + 1e8).transform(x[:, :3] * 1e6 + 1e8)
    np.testing.assert_allclose(few, moved, atol=1e-2)


@pytest.mark.parametrize("shape", [(2, 3), (3, 1), (7, 2), (20, 500), (40, 64)])
@pytest.mark.parametrize("method", METHODS)
def test_small_and_odd_shapes(method: str, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    for dim in ("auto", 30):
        z = ReadableCodes(dim, method, steps=10).fit(x).transform(x)
        np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, atol=1e-5)


def test_constant_columns_say_nothing() -> None:
    x = made()
    more = np.concatenate([x, np.full((120, 5), 3.0)], 1)
    few = ReadableCodes(8, steps=20).fit(more[:, 15:])  # fewer than 16 columns: rows keep their length
    assert (few.moments_.scale == 0).tolist() == [False] * 5 + [True] * 5
    other = more.copy()
    other[:, 20:] = 100.0
    assert (few.transform(other[:, 15:]) == few.transform(more[:, 15:])).all()
    np.testing.assert_allclose(np.linalg.norm(ReadableCodes(8, steps=20).fit_transform(more), axis=1), 1, atol=1e-6)


def test_random_state_is_exact() -> None:
    a, b, c = (ReadableCodes(8, steps=30, random_state=s).fit(made()).transform(made()) for s in (3, 3, 4))
    assert (a == b).all()
    assert (a != c).any()
    state = torch.random.get_rng_state()
    ReadableCodes(8, steps=3).fit(made())
    assert torch.equal(state, torch.random.get_rng_state()), "the caller's generator is left alone"


@pytest.mark.parametrize("way", ["no_grad", "inference_mode", "autocast", "float64"])
def test_the_settings_of_the_caller_do_not_matter(way: str, tmp_path: Path) -> None:
    """Who has just embedded images may have turned gradients off; others compute in float64."""
    x = made()
    wanted = ReadableCodes(8, steps=20).fit(x)
    ways = {"no_grad": torch.no_grad(), "inference_mode": torch.inference_mode(), "float64": nullcontext()}
    context = ways.get(way) or torch.autocast("cpu", torch.float16)
    try:
        with context:
            torch.set_default_dtype(torch.float64 if way == "float64" else torch.float32)
            found = ReadableCodes(8, steps=20).fit(torch.from_numpy(x) * 1)
        found.save(tmp_path / "codes.safetensors")
        assert (found.transform(x) == wanted.transform(x)).all()
    finally:
        torch.set_default_dtype(torch.float32)
    assert (ReadableCodes.load(tmp_path / "codes.safetensors").transform(x) == wanted.transform(x)).all()


def test_pairs_replace_neighbours() -> None:
    """Rows of noise alone, paired at random: only who was told of the pairs finds them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 40))
    pairs = np.arange(200) ^ 1
    told = ReadableCodes(16, steps=200).fit(x, pairs=pairs).transform(x)
    alone = ReadableCodes(16, steps=200).fit(x).transform(x)

    def nearer(z: np.ndarray) -> float:
        """By how much the cosine with the partner exceeds that with a stranger."""
        return float((z * z[pairs]).sum(1).mean() - (z * np.roll(z, 2, 0)).sum(1).mean())

    assert nearer(told) > 0.3 > 0.1 > nearer(alone)
    many = ReadableCodes(16, steps=200).fit(x, pairs=np.stack([pairs, pairs], 1)).transform(x)
    assert (many == told).all()


# ---- scikit-learn's habits


@pytest.mark.parametrize("method", METHODS)
def test_check_estimator(method: str) -> None:
    check_estimator(ReadableCodes(method=method, steps=8))


def test_pipeline_names_and_pickle() -> None:
    x = load_digits().data[:200]
    line = make_pipeline(StandardScaler(), ReadableCodes(8, steps=10))
    z = line.fit_transform(x)
    assert list(line.get_feature_names_out()) == [f"readablecodes{i}" for i in range(8)]
    assert (pickle.loads(pickle.dumps(line)).transform(x) == z).all()
    assert bayesncl.ReadableCodes is ReadableCodes


def test_pandas_output() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(made(), columns=[f"c{i}" for i in range(20)], index=range(5, 125))
    model = ReadableCodes(8, steps=10).set_output(transform="pandas").fit(frame)
    out = model.transform(frame)
    assert list(out.columns) == [f"readablecodes{i}" for i in range(8)] and list(out.index) == list(range(5, 125))
    assert list(model.feature_names_in_) == list(frame.columns)
    assert not hasattr(model.fit(torch.from_numpy(made()[:, :5])), "feature_names_in_")


def test_choices_by_number_of_rows() -> None:
    assert [choose_dim(n) for n in (2, 50, 1000, 50_000, 1_000_000, 10**9)] == [2, 16, 128, 1024, 4096, 4096]
    assert choose_batch(3, 2) == 3 and choose_batch(50, 8) == 48
    assert choose_batch(50_000, 1024) == 512 and choose_batch(10**6, 4096) == 2048
    assert [choose_neighbours(n, d) for n, d in ((5, 2), (50, 8), (5000, 1024), (50_000, 1024), (10**6, 1024))] == [
        1, 5, 10, 24, 50
    ]
    assert choose_steps(30, 24) < 200 < choose_steps(50_000, 512)


def test_max_rows_draws_some() -> None:
    x = made(500)
    seen: list[int] = []
    model = ReadableCodes(8, steps=5, max_rows=100).fit(x, progress=lambda d, t, what: seen.append(t))
    assert 100 in seen and 500 not in seen
    assert model.transform(x).shape == (500, 8)


# ---- what it refuses


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "pca"}, "no method 'pca'; there are prototypes, ncl"),
        ({"keep": 0}, "keep must be a whole number, 1 or more, got 0"),
        ({"keep": 9, "dim": 8}, "keep must be a whole number from 1 to the 8 dimensions, got 9"),
        ({"dim": "many"}, "dim must be a whole number"),
        ({"dim": 2.5}, "dim must be a whole number"),
        ({"dim": 1 << 30}, "dim must be at most"),
        ({"steps": -1}, "steps must be"),
        ({"positives": "friends"}, "positives must be neighbours or self"),
        ({"device": "toaster"}, "no device 'toaster'"),
        ({"max_rows": 1}, "max_rows must be"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReadableCodes(**options).fit(made())  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [8, "auto"])
def test_too_many_to_keep_is_refused_before_rows_are_read(dim: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "measure", None)
    with pytest.raises(InputError, match="keep must be a whole number from 1 to"):
        ReadableCodes(dim, keep=10**6).fit(made())


def test_options_say_too_many_to_keep_without_rows() -> None:
    with pytest.raises(InputError, match="from 1 to the 8 dimensions, got 9"):
        ReadableCodes(8, keep=9)._check_options()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((10, 4)), "all 10 rows of X are the same"),
        (np.ones((1, 4)), "n_samples=1"),
        (np.where(np.eye(30) > 0, np.nan, 1.0), "NaN, first in row 0"),
        (np.where(np.arange(90).reshape(30, 3) == 13, np.inf, 1.0), "infinity, first in row 4"),
        (np.float32([[1, 2], [3, 1e25]]).repeat(9, 1), "1e[+]25 in row 1: divide X"),  # its square is infinite
        (np.zeros((2, 2**20 + 1), np.float16), "1,048,577 columns, at most 1,048,576 will do"),
        ((made() * 1e-25).astype(np.float32), "no number above [0-9]e-25: multiply X"),  # its square is 0
        (torch.ones(4), "matrix"),
        (torch.eye(4).to_sparse(), "sparse tensor"),
        (torch.ones(4, 4, dtype=torch.complex64), "complex"),
    ],
)
def test_bad_rows(x: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReadableCodes().fit(x)


def test_verbose_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("bayesncl.progress.PLAIN_SECONDS", (0.0, 0.0))
    ReadableCodes(8, steps=2).fit(made())
    assert capsys.readouterr().err == ""
    ReadableCodes(8, steps=2, verbose=True).fit(made())
    assert "training: 2/2" in capsys.readouterr().err


def test_bad_rows_in_transform(fitted: dict[str, ReadableCodes]) -> None:
    bad = made()
    bad[77, 3] = np.nan
    with pytest.raises(InputError, match="NaN, first in row 77"):
        fitted["ncl"].transform(bad)
    with pytest.raises(ValueError, match="20 features"):
        fitted["ncl"].transform(bad[:, :5])
    with pytest.raises(ValueError, match="expecting 20 features"):
        fitted["ncl"].transform(torch.ones(3, 5))
    model = copy.deepcopy(fitted["ncl"]).set_params(keep=99)
    with pytest.raises(InputError, match="got 99"):
        model.transform(made())


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (np.arange(5), "a row for each of the 120"),
        (np.full(120, 120), "numbers from 0 to 119"),
        (np.zeros(120), "numbers of rows"),
        (np.zeros((120, 0), int), "a row for each"),
    ],
)
def test_bad_pairs(pairs: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReadableCodes(8).fit(made(), pairs=pairs)


def test_help_names_every_method() -> None:
    from bayesncl.cli_codes import METHODS as named

    assert named == ", ".join(METHODS), "a list of its own, since help must not wait for torch"
