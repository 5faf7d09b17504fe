"""`make audit` finds unsafe calls, and the package has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit import ROOT, scan


def test_the_package_has_no_unsafe_call() -> None:
    assert scan(ROOT / "bayesncl") == []


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')", "import torch\ntorch.load('x')", "from torch import load as l\nl('x')",
        "import pickle as p\np.loads(b'')", "import numpy as np\nnp.load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import subprocess\nsubprocess.run('x', shell=True)",
        "import tarfile\ntarfile.open('x').extractall()", "import yaml\nyaml.load('x')",
        "import os\nos.system('x')",
    ],
)  # fmt: skip
def test_unsafe_calls_are_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "x.py").write_text(line)
    assert len(scan(tmp_path)) == 1


def test_safe_calls_are_not(tmp_path: Path) -> None:
    lines = "import numpy as np, subprocess, re\nnp.load('x', allow_pickle=False)\n"
    lines += "subprocess.run(['x'])\nre.compile('x')"
    (tmp_path / "x.py").write_text(lines)
    assert scan(tmp_path) == []
