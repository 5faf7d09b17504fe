"""Images like a photo and images strong in named dimensions."""

from pathlib import Path

import numpy as np
import pytest

from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Annotations, Entry, write_names
from bayesncl.errors import InputError
from bayesncl.jobs.find import find_similar, find_strongest
from tests.commands import draw_folder
from tests.conftest import unit_length

RNG = np.random.default_rng(0)


def test_similar_rows_equal_a_sort() -> None:
    x, q = RNG.normal(size=(50, 8)).astype(np.float32), RNG.normal(size=8).astype(np.float32)
    index, cosine = find_similar(q, x, 7)
    expected = unit_length(x - x.mean(0)) @ unit_length((q - x.mean(0))[None])[0]
    np.testing.assert_array_equal(index, np.argsort(-expected)[:7])
    np.testing.assert_allclose(cosine, np.sort(-expected)[:7] * -1, atol=1e-5)
    assert len(find_similar(x[3], x, 99)[0]) == 50 and find_similar(x[3], x)[0][0] == 3


def test_strongest_rows_equal_a_loop() -> None:
    codes = RNG.random((30, 5)) * (RNG.random((30, 5)) < 0.5)
    index, score = find_strongest(codes, [[0, 1], [2]], [[3]], 10)
    slow = [max(r[0], r[1]) + r[2] - r[3] for r in codes / codes.max(0)]
    best = [i for i in sorted(range(30), key=lambda i: -slow[i]) if slow[i] > 0][:10]
    np.testing.assert_array_equal(index, best)
    np.testing.assert_allclose(score, [slow[i] for i in best], atol=1e-6)


def test_a_name_means_all_its_dimensions() -> None:
    names = Annotations("", "", 4, {0: [Entry("Sky")], 2: [Entry("sky")], 3: [Entry("road")]})
    assert names.find(" SKY ") == [0, 2] and names.find("z1") == [1]
    assert names.find("sky (z2)") == [2] and names.find("road") == [3]
    for wrong in ("", "z4", "sky (z3)"):
        with pytest.raises(InputError, match=r"use z0 to z3 or a name \(Sky, road, sky\)"):
            names.find(wrong)


def test_find_by_name_from_the_command_line(run, tmp_path: Path) -> None:
    np.savez("x.npz", z=RNG.random((60, 8)), y=np.arange(60) % 3)
    assert run("fit", "x.npz", "-o", "codes", "--components", "4", "--quiet").status == 0
    folder = CodesFolder("codes")
    named = Annotations(folder.fingerprint(), "", 4, {1: [Entry("sky")], 2: [Entry("road")]})
    write_names(tmp_path / "codes" / "names.json", [named])
    command = ("find", "codes", "--name", "Sky", "--without", "road", "-n", "5", "--quiet")
    answer = run(*command, "-o", "t.csv")
    assert answer.status == 0, answer
    codes = folder.codes("cpu").transform(folder.embeddings())
    index, _ = find_strongest(codes, [[1]], [[2]], 5)
    found = [line.split()[-1] for line in answer.out.splitlines()]
    assert found == [folder.rows().names[i] for i in index]
    assert Path("t.csv").read_text().count("\n") == len(index) + 1


def test_find_a_photo_from_the_command_line(run, tmp_path: Path) -> None:
    photos = draw_folder(tmp_path / "photos", each=20)
    module = "nn.Sequential(nn.AvgPool2d(8), nn.Flatten())"
    Path("pooled.py").write_text(f"from torch import nn\ndef make():\n    return {module}\n")
    encoder = ("--encoder", "pooled:make", "--quiet")
    assert run("fit", photos, "-o", "codes", "--size", "16", *encoder).status == 0
    lines = run("find", "codes", photos / "ant" / "03.png", "-n", "9", *encoder).out.splitlines()
    assert lines[0].split() == ["1.000", "ant", "ant/03.png"]
    assert [line.split()[1] for line in lines] == ["ant"] * 9
