"""names.json: round trip, merging, and texts of other people."""

import itertools
import json
from pathlib import Path

import pytest

from bayesncl.codes.names import Annotations, Entry, merge_names, read_names, write_names
from bayesncl.errors import InputError

ANN = Entry("autumn forest", "leaves, mostly", "readable", "Ann", "2026-05-01T10:00:00Z")
BEN = Entry("Wald", "", "mixed", "Ben", "2026-05-02T10:00:00Z")


def annotate(**entries: list[Entry]) -> Annotations:
    return Annotations("abcd", "NCL", 256, {int(k[1:]): e for k, e in entries.items()})


def test_round_trip(tmp_path: Path) -> None:
    odd = Entry("C:\\x", "two\nlines \\n", "", "Ann", "t")
    names = [annotate(d17=[ANN, BEN], d3=[odd]), Annotations("efgh", "CL", 8)]
    write_names(tmp_path / "names.json", names)
    assert read_names(tmp_path / "names.json") == names


def test_merging_keeps_the_newest_entry_of_every_author_in_any_order() -> None:
    newer = Entry("birch", "", "", "Ann", "2026-06-01T10:00:00Z")
    files = [annotate(d17=[ANN]), annotate(d17=[BEN], d4=[BEN]), annotate(d17=[newer])]
    for order in itertools.permutations(files):
        (merged,) = merge_names(order)
        assert merged.dimensions == {17: [BEN, newer], 4: [BEN]}
    same_time = Entry("pine", "", "", "Ann", ANN.time)
    (merged,) = merge_names([annotate(d1=[ANN, same_time, ANN])])
    assert merged.dimensions[1] == [ANN, same_time]
    with pytest.raises(InputError, match="256 and 12"):
        merge_names([annotate(), Annotations("abcd", "NCL", 12)])


def test_columns_are_distinct_and_the_most_frequent_name_wins() -> None:
    carl = Entry("wald", "", "", "Carl", "2026-01-01T10:00:00Z")
    names = annotate(d0=[ANN, BEN, carl], d1=[ANN], d2=[ANN], d4=[Entry(name="z3")])
    expected = ["Wald", "autumn forest (z1)", "autumn forest (z2)", "z3 (z3)", "z3 (z4)"]
    assert names.columns(5) == expected


def test_texts_are_cut_and_made_printable(tmp_path: Path) -> None:
    entry = {"name": "x" * 10_000, "note": "a\nb\x1b[31m", "mark": "<script>", "author": "A"}
    codes = [{"fingerprint": "a", "dims": 3, "dimensions": {"1": [entry]}}]
    text = json.dumps({"format": "bayesncl-names-1", "codes": codes})
    (tmp_path / "names.json").write_text(text)
    (names,) = read_names(tmp_path / "names.json")
    assert names.dimensions[1] == [Entry("x" * 120, "a\nb [31m", "", "A", "")]
