"""Output files hold the old content or the new, and safetensors files are reproducible."""

import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from bayesncl import io
from bayesncl.errors import InputError
from bayesncl.io import check_not_input, check_output_file, check_output_folder, write_atomic


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    path.chmod(0o640)
    write_atomic(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link", tmp_path / "elsewhere/target.json"
    link.symlink_to("elsewhere/target.json")
    for text in ("created", "replaced"):
        assert check_output_file(link) == link
        write_atomic(link, text)
        assert target.read_text() == text and link.is_symlink()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere/x")
    with pytest.raises(InputError):
        check_output_file(tmp_path / "dangling")


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr(os, step, Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space") as caught:
        write_atomic(tmp_path / "a", "new")
    assert caught.value.filename == str(tmp_path / "a")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_read_only_disk_is_named_by_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **options: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    for name in ("touch", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    with pytest.raises(OSError, match="Read-only") as caught:
        write_atomic(tmp_path / "x", "new")
    assert caught.value.filename == str(tmp_path / "x")


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    folder = io.temporary_beside(tmp_path / "y", folder=True)
    with io.temporary_beside(tmp_path / "below/x") as one, folder as other:
        assert one.is_file() and other.is_dir()
        (tmp_path / ".other.partial").touch()
        io.remove_leftovers(tmp_path)
        assert sorted(p.name for p in tmp_path.rglob("*")) == [".other.partial", "below"]


@pytest.mark.parametrize("name", ["", "gone/x", "file/x", "x" * 5000])
def test_impossible_outputs_get_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    for check in (check_output_file, check_output_folder):
        if check is check_output_folder and name in ("", "gone/x"):
            assert check(tmp_path / name) == tmp_path / name
            continue
        with pytest.raises(InputError) as caught:
            check(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_an_input_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").symlink_to("a")
    check_not_input(tmp_path / "c", tmp_path / "a", None)
    with pytest.raises(InputError, match="overwrite"):
        check_not_input(tmp_path / "b", tmp_path / "a")


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(3), "a": torch.eye(2).bfloat16().T}
    metadata = {f"key{i}": str(i) for i in range(20)}
    data = io.tensor_bytes(tensors, metadata)
    turned = dict(reversed(list(metadata.items())))
    assert data == io.tensor_bytes(dict(reversed(list(tensors.items()))), turned)
    write_atomic(tmp_path / "x", data)
    found, about = io.read_tensors(tmp_path / "x")
    assert about == metadata and all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert io.digest(found, "t") == io.digest(tensors, "t") != io.digest(tensors, "u")
    assert io.digest({**tensors, "b": torch.arange(3) + 1}, "t") != io.digest(tensors, "t")
    (tmp_path / "x").write_bytes(data[:40])
    for name in ("x", "none"):
        with pytest.raises(InputError):
            io.read_tensors(tmp_path / name)
