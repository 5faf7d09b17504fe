from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pixel cache of its own for every test."""
    monkeypatch.setenv("BAYESNCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
