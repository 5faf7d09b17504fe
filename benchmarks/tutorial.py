"""Run the tutorial notebook and store what its cells print.

    python benchmarks/tutorial.py                    # rewrites docs/tutorial.ipynb
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.test_tutorial import NOTEBOOK, run_cell, run_shell

PROGRESS = re.compile(r"^[\w ]+: +[\d,]+/[\d,]+.*\n|^(?:looking at|writing) .*\n", re.M)


def main() -> None:
    """Run the cells in a temporary folder; progress and its path are left out of the outputs."""
    argparse.ArgumentParser(description="Run the notebook and store its outputs.").parse_args()
    notebook = json.loads(NOTEBOOK.read_text())
    names: dict[str, Any] = {"run_shell": run_shell}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        for cell in notebook["cells"]:
            if cell["cell_type"] != "code":
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                run_cell("".join(cell["source"]), names)
            text = PROGRESS.sub("", printed.getvalue()).replace(f"{folder}/", "")
            stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(True)}
            cell["outputs"] = [stream] if text else []
            print(text, end="")
        os.chdir("/")
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
