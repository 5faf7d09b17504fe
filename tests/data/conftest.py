from pathlib import Path

import pytest
from PIL import Image

from bayesncl.recipes import Data


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pixel cache of its own for every test."""
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def of(name: str, root: Path, size: int = 8, **more: float | bool) -> Data:
    """A dataset at `root`, of which nothing is held out."""
    return Data(name=name, root=str(root), size=size, **{"holdout": 0.0, **more})  # type: ignore[arg-type]


def save(path: Path, value: int, size: tuple[int, int] = (8, 8)) -> None:
    """Write an image of one gray value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)
