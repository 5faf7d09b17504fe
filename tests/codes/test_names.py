"""names.json: round trip, merging, texts of others; names stay when codes are fitted again."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from bayesncl.codes import sources
from bayesncl.codes.estimator import ReadableCodes
from bayesncl.codes.folder import CodesFolder
from bayesncl.codes.names import Annotations, Entry, merge_names, read_names, write_names
from bayesncl.codes.transfer import Match, match_dimensions, transfer_names
from bayesncl.errors import InputError
from bayesncl.measure.columns import stability
from tests.conftest import unit_length

RNG = np.random.default_rng(0)
ANN = Entry("red", author="Ann", time="2026-01-01")
ANNE = Entry("autumn forest", "leaves, mostly", "readable", "Ann", "2026-05-01T10:00:00Z")
BEN = Entry("Wald", "", "mixed", "Ben", "2026-05-02T10:00:00Z")


def annotate(**entries: list[Entry]) -> Annotations:
    return Annotations("abcd", "NCL", 256, {int(k[1:]): e for k, e in entries.items()})


def test_round_trip(tmp_path: Path) -> None:
    odd = Entry("C:\\x", "two\nlines \\n", "", "Ann", "t")
    names = [annotate(d17=[ANNE, BEN], d3=[odd]), Annotations("efgh", "CL", 8)]
    write_names(tmp_path / "names.json", names)
    assert read_names(tmp_path / "names.json") == names


def test_merging_keeps_the_newest_entry_of_every_author_in_any_order() -> None:
    newer = Entry("birch", "", "", "Ann", "2026-06-01T10:00:00Z")
    files = [annotate(d17=[ANNE]), annotate(d17=[BEN], d4=[BEN]), annotate(d17=[newer])]
    for order in itertools.permutations(files):
        (merged,) = merge_names(order)
        assert merged.dimensions == {17: [BEN, newer], 4: [BEN]}
    same_time = Entry("pine", "", "", "Ann", ANNE.time)
    (merged,) = merge_names([annotate(d1=[ANNE, same_time, ANNE])])
    assert merged.dimensions[1] == [ANNE, same_time]
    with pytest.raises(InputError, match="256 and 12"):
        merge_names([annotate(), Annotations("abcd", "NCL", 12)])


def test_columns_are_distinct_and_the_most_frequent_name_wins() -> None:
    carl = Entry("wald", "", "", "Carl", "2026-01-01T10:00:00Z")
    names = annotate(d0=[ANNE, BEN, carl], d1=[ANNE], d2=[ANNE], d4=[Entry(name="z3")])
    expected = ["Wald", "autumn forest (z1)", "autumn forest (z2)", "z3 (z3)", "z3 (z4)"]
    assert names.columns(5) == expected


def test_texts_are_cut_and_made_printable(tmp_path: Path) -> None:
    entry = {"name": "x" * 10_000, "note": "a\nb\x1b[31m", "mark": "<script>", "author": "A"}
    codes = [{"fingerprint": "a", "dims": 3, "dimensions": {"1": [entry]}}]
    text = json.dumps({"format": "bayesncl-names-1", "codes": codes})
    (tmp_path / "names.json").write_text(text)
    (names,) = read_names(tmp_path / "names.json")
    assert names.dimensions[1] == [Entry("x" * 120, "a\nb [31m", "", "A", "")]


def blobs(n: int, classes: int = 4) -> np.ndarray:
    """Rows around far-apart centers, the same for any n."""
    rng = np.random.default_rng(1)
    centers = rng.normal(0, 1, (classes, 24))
    return (centers[np.arange(n) % classes] + 0.2 * rng.normal(0, 1, (n, 24))).astype(np.float32)


def test_doubtful_names_are_listed_and_not_moved() -> None:
    named = {0: [ANN], 1: [Entry("red")], 2: [Entry("blue")], 3: [Entry("low")], 4: [Entry("pale")]}
    named[5] = [Entry("ant", author="bayesncl:labels")]
    named[6] = [Entry("red", mark="readable", author="Ben")]
    named[7] = [Entry(mark="noise", author="Eve")]
    old = Annotations("old", "", 8, named)
    new = Annotations("new", "", 4, {3: [Entry("rot", author="Ben")]})
    matches = [Match(3, 0.9, 1), Match(3, 0.8, 1), Match(3, 0.85, 1), Match(1, 0.6, 1)]
    matches += [Match(2, 0.9, 0.5), Match(0, 0.2, 1), Match(3, 0.75, 1), Match(3, 0.72, 1)]
    names, result = transfer_names(old, new, matches)
    # both entries of "red" move, and the mark without a name
    assert {(e.name, e.mark) for e in names.dimensions[3]} >= {
        ("red", ""), ("red", "readable"), ("", "noise")
    }
    assert set(names.dimensions) == {3} and "4 of 8 moved to 1 matching dim" in result[0]
    assert "1 suggestion" in result.pop()
    reasons = {"'blue' (best match z3": "another name", "'low'": "0.60", "'pale'": "50 %"}
    for line, (name, reason) in zip(result[1:], reasons.items(), strict=True):
        assert name in line and reason in line
    assert new.dimensions == {3: [Entry("rot", author="Ben")]}  # unchanged


def test_a_mark_does_not_replace_a_name_that_moves_to_the_same_dimension() -> None:
    mark = Entry(mark="noise", author="Ann", time="2026-02-01")
    old = Annotations("old", "", 2, {0: [mark], 1: [ANN]})
    matches = [Match(3, 0.9, 1), Match(3, 0.8, 1)]
    names, _ = transfer_names(old, Annotations("new", "", 4), matches)
    assert names.name(3) == "red"


def test_matches_against_a_loop() -> None:
    a, b = RNG.random((40, 5)), RNG.random((40, 6))
    b[:, 4], b[:, 0] = a[:, 2], 0
    a, b = unit_length(a), unit_length(b)
    found = match_dimensions(a, b)
    squares = [unit_length(z**2) for z in (a, b)]
    for k, match in enumerate(found):
        cosines = [
            squares[0][:, k] @ q / max(np.linalg.norm(squares[0][:, k]) * np.linalg.norm(q), 1e-9)
            for q in squares[1].T
        ]
        assert match.dimension == np.argmax(cosines)
        assert match.cosine == pytest.approx(max(cosines), abs=1e-5)
        top = sorted(range(40), key=lambda i: -a[i, k])[:10]
        z = b[:, match.dimension]
        assert match.strength == pytest.approx(z[top].mean() / np.sort(z)[-10:].mean(), abs=1e-5)
    assert found[2].dimension == 4 and found[2].certain


def strongest_class(codes: ReadableCodes, x: np.ndarray) -> np.ndarray:
    """The blob of the strongest image of each dimension."""
    found: np.ndarray = codes.transform(x).argmax(0) % 4
    return found


def test_a_refit_with_more_rows_keeps_the_names(run, tmp_path: Path) -> None:
    fit = ("fit", "x.npy", "-o", "codes", "--components", "8", "--quiet")
    x, more = blobs(300), blobs(360)[:, ::-1]  # other embeddings of the same images, and new ones
    np.save("x.npy", x)
    assert run(*fit).status == 0
    folder = CodesFolder("codes")
    before = folder.names()
    of_blob = enumerate(strongest_class(folder.codes(), x))
    before.dimensions = {k: [Entry(f"blob {c}", author="Ann")] for k, c in of_blob}
    write_names(folder.names_file, [before])
    np.save("x.npy", more)
    assert run(*fit).status == 0
    after, codes = folder.names(), folder.codes()
    assert after.fingerprint != before.fingerprint
    assert after.run == before.run == "codes"
    assert len(after.dimensions) >= 6
    for k, c in enumerate(strongest_class(codes, more)):
        assert after.name(k) in ("", f"blob {c}")
    assert before in folder.all_names()  # the old ones are still in the file
    assert codes.get_feature_names_out().tolist() == after.columns(8)
    assert run("embed", "codes", "x.npy", "-o", "e.csv", "--quiet").status == 0
    assert Path("e.csv").read_text().split("\n")[0] == ",".join(["name", "novelty", *after.columns(8)])
    assert run(*fit).status == 0 and folder.names() == after  # the same fit changes nothing


def give_names(folder: CodesFolder, *dims: int) -> Annotations:
    own = folder.names()
    own.dimensions = {k: [Entry(f"thing {k}", author="Ann")] for k in dims}
    folder.save_names(own)
    return own


def test_a_refit_continues_codes_with_names(run, tmp_path: Path) -> None:
    fit = ("fit", "x.npy", "-o", "codes", "--components", "16")
    np.save("x.npy", blobs(300, 12))
    assert run(*fit, "--quiet").status == 0
    folder = CodesFolder("codes")
    old, own = folder.codes(), give_names(folder, *range(16))
    kept = {k: f"thing {k}" for k in range(16)}
    again = run(*fit)
    assert "continuing the codes" in again.err and folder.names() == own  # nothing is new
    np.save("x.npy", blobs(330, 12))
    assert run(*fit).status == 0
    new = folder.codes()
    assert not new.warm_start and folder.fingerprint() != own.fingerprint
    assert {k: folder.names().name(k) for k in range(16)} == kept  # none changed its place
    z = [codes.transform(blobs(330, 12)) for codes in (old, new)]
    assert stability(*z)["mean_cosine"] > 0.97
    x, key = blobs(330, 12), folder.fingerprint()
    x[:33] = x[33:66]  # a few images changed, and kept their names
    np.save("x.npy", x)
    assert "continuing" in run(*fit).err and folder.fingerprint() != key
    np.savez("x.npz", z=x, test=np.arange(330) % 10 == 0)  # rows that were fitted are to judge
    assert "continuing" not in run(*fit[:1], "x.npz", *fit[2:]).err
    np.save("x.npy", np.roll(x, 1, axis=0))
    assert "continuing" not in run(*fit).err
    for other in (("--fresh",), ("--components", "12"), ("--method", "ncl")):
        assert "continuing" not in run(*fit, *other).err
        folder.save_names(folder.names())


def test_named_codes_fitted_on_all_rows_continue_on_all_rows(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MIN_ROWS", 320)
    np.save("x.npy", blobs(300, 12))
    fit, folder = ("fit", "x.npy", "-o", "codes", "--components", "16"), CodesFolder("codes")
    assert run(*fit).status == 0
    give_names(folder, 3)
    np.save("x.npy", blobs(330, 12))  # enough rows to hold some out
    again = run(*fit)
    assert "continuing" in again.err and "330 fitted rows" in again.out
    assert folder.names().name(3) == "thing 3" and folder.rows().held == 0
    assert "held-out" in run(*fit, "--fresh").out and folder.rows().held > 0


def test_names_of_continued_codes_stay_by_number(run, tmp_path: Path) -> None:
    fit, folder = ("fit", "x.npy", "-o", "codes", "--components", "4"), CodesFolder("codes")
    np.save("x.npy", blobs(15))  # too few rows to match dimensions by
    assert run(*fit).status == 0
    own = give_names(folder, 0, 1, 3)
    np.save("x.npy", blobs(17))
    assert "continuing" in run(*fit).err
    after = folder.names()
    assert after.fingerprint != own.fingerprint and after.dimensions == own.dimensions


def test_rows_no_longer_held_out_are_fitted(run, tmp_path: Path) -> None:
    x, more = blobs(300, 12), ("-o", "codes", "--components", "16")
    np.savez("x.npz", z=x, test=np.arange(300) >= 270)
    assert "30 held-out" in run("fit", "x.npz", *more).out
    folder = CodesFolder("codes")
    own = give_names(folder, 3)
    np.save("x.npy", x)  # the same embeddings in the same order
    assert "continuing" in run("fit", "x.npy", *more).err
    assert folder.fingerprint() != own.fingerprint and folder.names().name(3) == "thing 3"


def test_a_kill_before_continued_codes_are_published_keeps_the_names_by_number(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit, folder = ("fit", "x.npy", "-o", "codes", "--components", "4"), CodesFolder("codes")
    np.save("x.npy", blobs(15))  # too few rows to match dimensions by
    assert run(*fit).status == 0
    own = give_names(folder, 0, 1, 3)
    np.save("x.npy", blobs(17))
    real = CodesFolder.write_codes

    def killed(*given: object) -> None:
        real(*given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CodesFolder, "write_codes", killed)
        assert run(*fit).status != 0
    assert run(*fit).status == 0 and len(folder.rows()) == 17
    assert folder.names().dimensions == own.dimensions


def test_codes_with_too_few_dimensions_are_fitted_anew(run, tmp_path: Path) -> None:
    np.save("x.npy", blobs(300, 12))
    fit, folder = ("fit", "x.npy", "-o", "codes"), CodesFolder("codes")
    assert run(*fit).status == 0
    width = folder.codes().n_components_
    give_names(folder, 0)
    again = run(*fit, "--active", str(width + 1))
    assert again.status == 0 and "continuing" not in again.err
    assert folder.codes().n_components_ > width


def test_a_damaged_names_file_is_refused_before_the_work(run, tmp_path: Path) -> None:
    np.save("x.npy", blobs(60))
    fit = ("fit", "x.npy", "-o", "codes", "--components", "3", "--quiet")
    assert run(*fit).status == 0
    Path("codes/names.json").write_text("{")
    assert run(*fit).status == 2
    assert Path("codes/names.json").read_text() == "{"
