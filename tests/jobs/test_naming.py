"""bayesncl names: from labels, words, other codes and the atlas."""

import sys
import types
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesncl.codes.encoders import Request
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Annotations, Entry, write_names
from bayesncl.jobs.naming import describe, directions, name_by_labels, name_by_words
from tests.commands import refused
from tests.conftest import unit_length

RNG = np.random.default_rng(0)
CENTERS = RNG.normal(0, 1, (4, 600))
WORDS = ["ant", "bee", "cat", "dog"]
FIT = ("fit", "x.npz", "-o", "codes", "--components", "8", "--quiet")


@pytest.fixture
def codes(run, tmp_path: Path) -> CodesFolder:
    """Codes of 200 rows in four classes, in the current folder."""
    y = np.arange(200) % 4
    x = (CENTERS[y] + 0.2 * RNG.normal(0, 1, (200, 600))).astype(np.float32)
    np.savez("x.npz", z=x, y=np.array(WORDS)[y])
    assert run(*FIT).status == 0
    return CodesFolder("codes")


def test_name_by_labels_against_counting() -> None:
    z, labels = RNG.random((60, 7)), RNG.integers(0, 2, 60)
    z[labels == 1, 0] += 1
    unit = unit_length(z)
    slow = []
    for k in range(7):
        top = sorted(range(60), key=lambda i: -unit[i, k])[:10]
        label, count = Counter(labels[top].tolist()).most_common(1)[0]
        if count >= 7:
            slow.append((k, label, count / 10))
    assert name_by_labels(z, labels) == slow and slow[0][:2] == (0, 1)


def test_directions_and_words_against_loops() -> None:
    z, x = RNG.random((30, 3)), RNG.normal(2, 1, (30, 20))
    e = unit_length(x.astype(np.float32))
    e = unit_length(e - e.mean(0))
    found = directions(z, x)
    for k in range(3):
        slow = sum(z[i, k] ** 2 * e[i] for i in range(30))
        np.testing.assert_allclose(found[k], slow / np.linalg.norm(slow), atol=1e-5)
    vectors = np.concatenate([found + 5, RNG.normal(5, 0.2, (40, 20))])
    best, cosine, _ = name_by_words(found, vectors)
    centered = vectors - vectors.mean(0)
    slow = [[d @ v / np.linalg.norm(v) for v in centered] for d in found]
    assert best.tolist() == np.argmax(slow, 1).tolist() == [0, 1, 2]
    np.testing.assert_allclose(cosine, np.max(slow, 1))


def test_names_from_labels_do_not_replace_those_of_people(run, codes: CodesFolder) -> None:
    own = codes.names()
    write_names("n.json", [Annotations(own.fingerprint, "", 8, {0: [Entry("mine", author="Ann")]})])
    assert run("names", "codes", "n.json", "--quiet").status == 0
    for _ in range(2):  # again replaces the suggestions
        answer = run("names", "codes", "--from-labels", "--quiet")
        assert answer.status == 0 and "z0     mine\n" in answer.out and "score" in answer.out
    names, z = codes.names(), codes.codes().transform(codes.embeddings())
    labels = np.array(WORDS)[codes.rows().labels]
    for k, entries in names.dimensions.items():
        assert len(entries) == 1 + (k == 0)
        assert names.name(k) == ("mine" if k == 0 else labels[z[:, k].argmax()])
    columns = codes.codes().get_feature_names_out()
    assert columns[0] == "mine" and columns.tolist() == names.columns(8)


def test_words_are_suggested_where_they_fit_and_not_otherwise(run, codes: CodesFolder) -> None:
    noise = RNG.normal(0, 1, (300, 600))
    Path("words.txt").write_text("\n".join([*WORDS, *(f"word {i}" for i in range(296))]))
    words = ("names", "codes", "--words", "words.txt", "--vectors", "words.npy", "--quiet")
    np.save("words.npy", noise)
    assert run(*words).out == "0 of 8 dimensions have a name\n"
    np.save("words.npy", np.concatenate([CENTERS, noise[4:]]))
    assert run(*words).status == 0
    names, z = codes.names(), codes.codes().transform(codes.embeddings())
    assert len(names.dimensions) >= 6
    for k in names.dimensions:
        assert names.name(k) == WORDS[codes.rows().labels[z[:, k].argmax()]]
        assert names.dimensions[k][0].suggested


def test_names_move_from_other_codes(run, codes: CodesFolder) -> None:
    assert run("names", "codes", "--from-labels", "--quiet").status == 0
    assert run(*FIT[:2], "-o", "other", "--components", "6", "--quiet").status == 0
    answer = run("names", "other", "--from", "codes")
    assert answer.status == 0 and "moved" in answer.err
    other = CodesFolder("other")
    z, labels = other.codes().transform(other.embeddings()), other.rows().labels
    moved = other.names()
    assert len(moved.dimensions) >= 4
    for k in moved.dimensions:
        assert moved.name(k) == WORDS[labels[z[:, k].argmax()]]


class Classifying(torch.nn.Module):
    """What timm makes: a network with a classifier of so many classes, or with none."""

    def __init__(self, rows: np.ndarray | None) -> None:
        super().__init__()
        self.num_classes = 0 if rows is None else len(rows)
        self.head = torch.nn.Identity() if rows is None else torch.nn.Conv2d(1, 1, 1)
        if rows is not None:  # some of its networks classify by a convolution
            weight = torch.from_numpy(rows).float()[:, :, None, None]
            self.head.weight = torch.nn.Parameter(weight)

    def get_classifier(self) -> torch.nn.Module:
        return self.head


def test_names_from_the_classifier_of_a_timm_model(
    run, codes: CodesFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = replace(codes.about(), encoder=Request("timm:tiny"))
    codes.about_file.write_text(about.to_json())
    rows = np.concatenate([CENTERS, RNG.normal(0, 1, (996, 600))])
    timm, data = types.ModuleType("timm"), types.ModuleType("timm.data")
    texts = [f"{word}, {word} of a kind" for word in [*WORDS, *(f"word {i}" for i in range(996))]]
    info = types.SimpleNamespace(label_descriptions=lambda: texts)
    data.infer_imagenet_subset = lambda network: {1000: "imagenet-1k"}.get(network.num_classes)
    data.ImageNetInfo = {"imagenet-1k": info}.__getitem__
    timm.is_model, timm.get_pretrained_cfg = lambda name: name == "tiny", lambda name: None
    timm.create_model = lambda name, pretrained: Classifying(rows if pretrained else None)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    answer = run("names", "codes", "--from-classifier")
    assert answer.status == 0 and "from classifier" in answer.out
    names, z = codes.names(), codes.codes().transform(codes.embeddings())
    assert len(names.dimensions) >= 6
    for k in names.dimensions:
        assert names.name(k) == WORDS[codes.rows().labels[z[:, k].argmax()]]
    timm.create_model = lambda name, pretrained: Classifying(None)
    refused(run("names", "codes", "--from-classifier", "--quiet"), "--words")
    about = replace(about, encoder=Request("model.onnx"))
    codes.about_file.write_text(about.to_json())
    refused(run("names", "codes", "--from-classifier", "--quiet"), "--words")


def test_the_list_shows_names_sources_and_marks() -> None:
    named = Annotations("f", "", 9, {
        2: [Entry("gull", mark="readable", author="Ann"), Entry("tern", author="bayesncl:words")],
        3: [Entry("sea", "suggested, score 0.80", author="bayesncl:labels")],
        5: [Entry(mark="irrelevant", author="Ben")],
        6: [Entry(note="look again", author="Ben")],
    })  # fmt: skip
    assert describe(named) == [
        "z2     gull  [readable]",
        "z3     sea  (suggested, score 0.80, from labels)",
        "z5     -  [irrelevant]",
        "2 of 9 dimensions have a name",
    ]
