"""names.json: what travels, what is joined, and what a stranger's file may not do."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from bayesncl.errors import InputError
from bayesncl.names import (
    Codes,
    Entry,
    find_names,
    join_entries,
    merge_names,
    parse_names,
    read_names,
    write_names,
)

ANN = Entry("autumn forest", "leaves, mostly", "readable", "Ann", "2026-05-01T10:00:00Z")
BEN = Entry("Wald", "", "mixed", "Ben", "2026-05-02T10:00:00Z")


def made(**entries: list[Entry]) -> Codes:
    return Codes("abcd", "NCL", 256, {int(k[1:]): e for k, e in entries.items()})


def test_a_file_travels_unchanged(tmp_path: Path) -> None:
    codes = [made(d17=[ANN, BEN], d3=[ANN]), Codes("efgh", "CL", 8)]
    write_names(tmp_path / "names.json", codes)
    assert read_names(tmp_path / "names.json") == codes


def test_nothing_two_people_said_is_lost_in_any_order() -> None:
    newer = Entry("birch", "", "", "Ann", "2026-06-01T10:00:00Z")
    files = [made(d17=[ANN]), made(d17=[BEN], d4=[BEN]), made(d17=[newer])]
    for order in itertools.permutations(files):
        (joined,) = merge_names(order)
        assert joined.dimensions[17] == [BEN, newer]  # one entry an author, the newest
        assert joined.dimensions[4] == [BEN]
    twice = Entry("pine", "", "", "Ann", ANN.time)
    assert join_entries([ANN, twice, ANN]) == [ANN, twice]  # said at the same time: both stay
    with pytest.raises(InputError, match="256 and of 12 dimensions"):
        merge_names([made(), Codes("abcd", "NCL", 12)])


def test_columns_are_distinct_and_named_by_the_most() -> None:
    carl = Entry("wald", "", "", "Carl", "2026-01-01T10:00:00Z")
    codes = made(d0=[ANN, BEN, carl], d1=[ANN], d2=[ANN], d4=[Entry(name="z3")])
    assert codes.columns(5) == ["Wald", "autumn forest (z1)", "autumn forest (z2)", "z3 (z3)", "z3 (z4)"]


def test_names_of_other_codes_are_refused() -> None:
    assert find_names([made()], "abcd", 256).run == "NCL"
    with pytest.raises(InputError, match=r"of other codes: they name NCL \(abcd\), these are ffff"):
        find_names([made()], "ffff", 256)
    with pytest.raises(InputError, match="of 256 dimensions, the codes have 12"):
        find_names([made()], "abcd", 12)


def test_long_and_strange_texts_are_cut_and_printable() -> None:
    entry = {"name": "x" * 10_000, "note": "a\nb\x1b[31m", "mark": "<script>", "author": "A", "time": "t"}
    file = {"format": "bayesncl-names-1", "codes": [{"fingerprint": "a", "dims": 3, "dimensions": {"1": [entry]}}]}
    ((found,),) = [codes.dimensions[1] for codes in parse_names(file, "f")]
    assert len(found.name) == 120
    assert found.note == "a\nb [31m"
    assert found.mark == ""


def test_texts_do_not_change_when_read_and_written_again(tmp_path: Path) -> None:
    entry = {"name": "C:\\x", "note": "two\nlines \\n", "author": "A\x1b", "time": "t"}
    file = {"format": "bayesncl-names-1", "codes": [{"fingerprint": "a", "dims": 3, "dimensions": {"1": [entry]}}]}
    once = parse_names(file, "f")
    assert once[0].dimensions[1][0].name == "C:\\x"
    write_names(tmp_path / "n.json", once)
    assert read_names(tmp_path / "n.json") == once


@pytest.mark.parametrize(
    "codes",
    [
        None, [], [None], [{}], [{"dims": 3}], [{"dims": True, "dimensions": {}}], [{"dims": 1e9, "dimensions": {}}],
        [{"dims": 10**9, "dimensions": {}}], [{"dims": 3, "dimensions": {"3": []}}],
        [{"dims": 3, "dimensions": {"__proto__": []}}], [{"dims": 3, "dimensions": {"-1": []}}],
        [{"dims": 3, "dimensions": {"²": []}}], [{"dims": 3, "dimensions": {"1": {"name": "x"}}}],
        [{"dims": 3, "dimensions": {"1": ["x"]}}], [{"dims": 3, "dimensions": {"1": [{"name": 5}]}}],
        [{"dims": 3, "dimensions": {"1": [{"name": ["x"]}]}}], [{"dims": 3, "fingerprint": 5, "dimensions": {}}],
    ],
)  # fmt: skip
def test_wrong_types_are_one_line(codes: object, tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_text(json.dumps({"format": "bayesncl-names-1", "codes": codes}))
    if codes == []:
        assert read_names(path) == []
        return
    with pytest.raises(InputError, match=r"names\.json"):
        read_names(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"format": 1}', "\udcff"])
def test_what_is_no_names_file_is_said(text: str, tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=r"names\.json"):
        read_names(path)
    with pytest.raises(InputError, match=r"missing\.json: No such file"):
        read_names(tmp_path / "missing.json")
