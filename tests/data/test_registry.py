"""The registry of datasets: light to import, one entry for a new one."""

from __future__ import annotations

import subprocess
import sys

from bayesncl import recipes


def test_names_do_not_import_readers() -> None:
    script = (
        "import sys; from bayesncl.recipes import recipe_names; print(len(recipe_names()));"
        "print(sorted({'numpy', 'torch', 'PIL'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(recipes.recipe_names())), "[]"]
