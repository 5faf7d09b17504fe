"""Interpretability against slow twins (loops, float64), worked examples and limits."""

import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from bayesncl.errors import InputError
from bayesncl.measure import rows
from bayesncl.measure.interpretability import DEFINITIONS, THRESHOLDS, interpretability, score

EPS = 1e-5

# The example of docs/measures.md: six images, two classes, four dimensions. Rows have unit length.
PAIR, ONE = [0.6, 0.8, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]
EXAMPLE = np.array([[1.0, 0.0, 0.0, 0.0], PAIR, PAIR, ONE, ONE, [0.8, 0.6, 0.0, 0.000012]])
EXAMPLE_LABELS = np.array([0, 0, 0, 1, 1, 1])


def sparse(
    n: int = 300, d: int = 40, classes: int = 7, scale: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Features that predict unbalanced labels, with dead, near-dead and faint columns."""
    rng = np.random.default_rng(0)
    labels = rng.choice(classes, n, p=np.arange(1, classes + 1) / (classes * (classes + 1) / 2))
    labels[:classes] = np.arange(classes)
    own = np.arange(d) % classes == labels[:, None]
    z = np.maximum(rng.standard_normal((n, d)) - 1 + 2 * own, 0)
    z[:, 3] = 0  # dead
    z[:, 4] = 0
    z[5, 4] = 1  # fires once
    z[:, 6] = 0
    z[8, 6] = 3e-5  # fires once, faintly
    z[:, 9] = 1e-7  # below the threshold everywhere, yet its sum is not
    z[11] = 0  # an image without features
    if scale:  # signed, and of any length
        z *= rng.uniform(0.5, 20, (n, 1)) * rng.choice([-1, 1], (n, d))
    else:
        z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    return z, labels


def twin_entropy(weights: list[float], floor: float) -> float:
    total = sum(weights)
    return -sum(w / total * math.log(w / total) for w in weights if w / total > floor)


def twin_paper(z: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    n, d = z.shape
    classes = sorted(set(labels.tolist()))
    size = Counter(labels.tolist())
    unit = np.array([row / max(np.linalg.norm(row), 1e-12) for row in z])
    shares, h_sum, h_mean, h_freq = [], [], [], []
    for j in range(d):
        column = np.abs(z[:, j])
        if column.sum() > 0:
            fired = [labels[i] for i in range(n) if abs(unit[i, j]) > EPS]
            if fired:
                shares.append(max(Counter(fired).values()) / len(fired))
        if column.sum() > EPS:
            sums = [column[labels == c].sum() for c in classes]
            means = [column[labels == c].sum() / (size[c] + EPS) for c in classes]
            freq = [float((column[labels == c] > EPS).sum()) for c in classes]
            h_sum.append(twin_entropy(sums, EPS))
            if sum(means) >= EPS:
                h_mean.append(twin_entropy(means, EPS))
            if sum(freq) > 0:
                h_freq.append(twin_entropy(freq, EPS))
    s = np.linalg.svd(z, compute_uv=False)
    p = s / s.sum()
    columns = z / np.maximum(np.linalg.norm(z, axis=0), 1e-12)
    return {
        "consistency": 100 * np.mean(shares),
        "entropy_sum": np.mean(h_sum),
        "entropy_mean": np.mean(h_mean),
        "entropy_freq": np.mean(h_freq),
        "activation_ratio": sum(np.abs(z[:, j]).mean() > 0 for j in range(d)) / d,
        "sparsity": 1 - (np.abs(z) > EPS).mean(),
        "effective_rank": -(p * np.log(p + 1e-6)).sum(),
        "orthogonality": (np.abs(columns.T @ columns - np.eye(d)) / (d * (d - 1))).mean(),
    }


def twin_sound(
    z: np.ndarray, labels: np.ndarray, threshold: float = EPS, least: int = 10
) -> dict[str, float]:
    signed = np.array([row / max(np.linalg.norm(row), 1e-12) for row in z])
    unit = np.abs(signed)
    n, d = unit.shape
    classes = sorted(set(labels.tolist()))
    size = {c: int((labels == c).sum()) for c in classes}
    support, share, mass, ap, owned = [], [], [], [], set()
    h_sum, h_mean, h_freq = [], [], []
    for j in range(d):
        on = unit[:, j] > threshold
        support.append(int(on.sum()))
        freq = [float((on & (labels == c)).sum()) for c in classes]
        share.append(max(freq) / sum(freq) if sum(freq) else math.nan)
        sums = [unit[on & (labels == c), j].sum() for c in classes]
        mass.append(sum(sums))
        means = [s / size[c] for s, c in zip(sums, classes)]
        if support[-1]:
            detected = classes[int(np.argmax(means))]
            ap.append(average_precision_score(labels == detected, np.where(on, unit[:, j], 0)))
        if support[-1] >= least:
            h_sum.append(twin_entropy(sums, 0))
            h_mean.append(twin_entropy(means, 0))
            h_freq.append(twin_entropy(freq, 0))
            enough = [c for c, f in zip(classes, freq) if f / size[c] >= 0.1]
            owned |= {c for c in enough if freq[classes.index(c)] / support[-1] >= 0.5}
    live = [j for j in range(d) if support[j]]
    kept = [j for j in range(d) if support[j] >= least]
    s = np.linalg.svd(signed, compute_uv=False)
    p = s[s > 1e-9] / s.sum()
    columns = signed[:, unit.any(0)] / np.linalg.norm(unit[:, unit.any(0)], axis=0)
    pairs = [abs(columns[:, a] @ columns[:, b]) for a in range(columns.shape[1]) for b in range(a)]
    return {
        "consistency": 100 * np.mean([share[j] for j in kept]),
        "consistency_mass": 100 * np.average([share[j] for j in live], None, [mass[j] for j in live]),
        "entropy_sum": np.mean(h_sum),
        "entropy_mean": np.mean(h_mean),
        "entropy_freq": np.mean(h_freq),
        "activation_ratio": len(live) / d,
        "dead_share": 1 - len(live) / d,
        "near_dead_share": sum(0 < s < least for s in support) / d,
        "l0": sum(support) / n,
        "sparsity": 1 - sum(support) / (n * d),
        "detector_ap": np.mean(ap),
        "classes_owned": len(owned),
        "effective_rank": math.exp(-(p * np.log(p)).sum()),
        "orthogonality": np.mean(pairs),
    }


def assert_agree(fast: dict, slow: dict, rel: float = 1e-6) -> None:
    for key, value in slow.items():
        assert fast[key] == (value if value is None else pytest.approx(value, rel, 1e-9)), key


@pytest.mark.parametrize("scale", [False, True])
def test_both_definitions_agree_with_loops(scale: bool) -> None:
    z, labels = sparse(scale=scale)
    assert_agree(interpretability(z, labels, "paper", spectrum=True), twin_paper(z, labels))
    fast = interpretability(z, labels, spectrum=True)
    assert_agree(fast, twin_sound(z, labels))
    for threshold in THRESHOLDS[1:]:
        at = twin_sound(z, labels, threshold)
        assert fast[f"l0_at_{threshold:g}"] == pytest.approx(at["l0"])
        assert fast[f"consistency_at_{threshold:g}"] == pytest.approx(at["consistency"])
        assert fast[f"classes_owned_at_{threshold:g}"] == at["classes_owned"]


def test_worked_example() -> None:
    """Every number of the example in docs/measures.md, which derives them."""
    page = (Path(__file__).parents[2] / "docs" / "measures.md").read_text()
    paper = interpretability(EXAMPLE, EXAMPLE_LABELS, "paper")
    sound = interpretability(EXAMPLE, EXAMPLE_LABELS, min_support=2)
    for definition, name, shown in (
        (paper, "consistency", "78.33"), (paper, "entropy_sum", "0.4148"),
        (paper, "entropy_mean", "0.6222"), (paper, "entropy_freq", "0.4118"),
        (sound, "consistency", "67.50"), (sound, "consistency_mass", "66.25"),
        (sound, "detector_ap", "0.7889"),
    ):  # fmt: skip
        assert f"{definition[name]:.{len(shown.split('.')[1])}f}" == shown
        assert shown in page


def test_every_key_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "measures.md").read_text()
    z, labels = sparse()
    for key in {*interpretability(z, labels), *interpretability(z, labels, "paper")}:
        name = re.sub(r"_at_0\.\d+$", "_at_T", key)
        name = re.sub(r"_at_l0_\d+$", "_at_l0_10", name)
        assert f"`{name}`" in page, name


def test_matched_sparsity_has_the_wanted_l0() -> None:
    rng = np.random.default_rng(0)
    z = np.abs(rng.standard_normal((400, 50)))
    labels = np.arange(400) % 4
    z[:, :4] += 2 * np.eye(4)[labels]
    result = interpretability(z, labels)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    for l0 in (10, 5, 2):
        threshold = np.sort(unit.ravel())[-l0 * 400 - 1]
        assert (unit > threshold).sum() == l0 * 400
        wanted = twin_sound(z, labels, threshold)["consistency"]
        assert result[f"consistency_at_l0_{l0}"] == pytest.approx(wanted)
    # 5 or 20 entries per image: no threshold leaves 10 or 2
    tied = np.tile([3.0] * 5 + [1.0] * 15, (40, 1))
    result = interpretability(tied, np.arange(40) % 2)
    assert [result[f"consistency_at_l0_{l0}"] for l0 in (10, 5, 2)] == [None, 50, None]


def test_inputs_of_every_kind_agree() -> None:
    z, labels = sparse()
    z = np.round(z * 64) / 64  # exact in float16
    expected = interpretability(z, labels)
    tensor = torch.from_numpy(z)
    for other in (z.astype(np.float16), z.astype(np.float32), tensor, tensor.bfloat16()):
        assert_agree(interpretability(other, labels), expected, rel=1e-5)
    for other in (
        labels * 5 - 9, labels.astype(float), np.array(list("abcdefg"))[labels],
        torch.from_numpy(labels),
    ):
        assert interpretability(z, other) == expected


def test_blocks_and_shared_labelings_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    z, labels = sparse()
    mixed = np.random.default_rng(0).permutation(labels)
    whole = [{d: interpretability(z, y, d) for d in DEFINITIONS} for y in (labels, mixed)]
    monkeypatch.setattr(rows, "ENTRIES_PER_BLOCK", 7 * z.shape[1])
    for definition in DEFINITIONS:
        for found, expected in zip(score(z, [labels, mixed], definition), whole):
            assert_agree(found, expected[definition])


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.ones((4, 2)), [0, 0, 0, 0], "one class"),
        (np.ones((0, 2)), [], "empty"),
        (np.array([[1.0, 2.0], [np.inf, 1.0]]), [0, 1], "row 1"),
        (np.array([[1.0, 2.0], [3e38, 3e38]], np.float32), [0, 1], "row 1"),
        (np.ones((2, 2)), [0.5, 1], "labels"),
        (np.ones((2, 2)), [np.nan, 1], "labels"),
        (np.ones((2, 2), complex), [0, 1], "complex"),
        (np.ones((1, 2)), [0], "one row"),
    ],
)
def test_bad_input(features: np.ndarray, labels: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        interpretability(features, labels)


def test_nothing_fires() -> None:
    with pytest.raises(InputError, match="min_support"):
        interpretability(np.eye(4), [0, 1, 0, 1], min_support=0)
    for definition in ("paper", "sound"):
        result = interpretability(np.zeros((20, 3)), np.arange(20) % 2, definition)
        assert (result["consistency"], result["activation_ratio"]) == (None, 0)
