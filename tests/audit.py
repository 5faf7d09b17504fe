"""`make audit`: calls that can run code from files, and packages with known vulnerabilities.

    python -m tests.audit            # scan the source
    python -m tests.audit --packages # also pip-audit over constraints.txt, which needs the network
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
NEVER = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle.load", "pickle.loads",
    "marshal.loads", "marshal.load", "shelve.open", "dill.load", "dill.loads", "joblib.load",
    "torch.load", "torch.hub.load", "yaml.load", "yaml.unsafe_load", "tempfile.mktemp",
    "shutil.unpack_archive", "pandas.read_pickle",
}  # fmt: skip
METHODS = {"extractall", "extract", "unpack_archive"}  # of any object


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the dotted name of its function, resolved by the imports."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            yield node, names.get(first, first) + dot + rest


def unsafe(node: ast.Call, name: str) -> str | None:
    """Why a call is unsafe, or None."""
    options = {word.arg: ast.unparse(word.value) for word in node.keywords}
    if name == "torch.load" and options.get("weights_only") == "True":
        return None
    if name in NEVER:
        return "can run code from a file"
    if name.startswith("subprocess.") and options.get("shell", "False") != "False":
        return "uses a shell"
    if options.get("allow_pickle", "False") != "False":
        return "unpickles"
    if name == "numpy.load" and "allow_pickle" not in options:
        return "does not set allow_pickle"
    if name.rpartition(".")[2] in METHODS and "." in name and not name.startswith("bayesncl"):
        return "unpacks an archive to disk"
    return None


def scan(folder: Path) -> list[str]:
    """One line per unsafe call below a folder."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        name_of_file = path.relative_to(folder.parent)
        for node, name in calls(ast.parse(path.read_text())):
            why = unsafe(node, name)
            if why:
                found.append(f"{name_of_file}:{node.lineno}: {name} {why}")
    return found


def audit_packages() -> int:
    """Run pip-audit on the pinned versions; 0 only if all were looked up and none is vulnerable."""
    beside = str(Path(sys.executable).parent)
    program = shutil.which("pip-audit", path=beside) or shutil.which("pip-audit")
    if program is None:
        print("packages not audited: pip install pip-audit, then make audit again")
        return 1
    # Without --strict, packages that no database knows would pass.
    options = ["--strict", "--no-deps", "--disable-pip"]
    command = [program, *options, "--requirement", str(ROOT / "constraints.txt")]
    return subprocess.run(command).returncode


def main() -> int:
    found = scan(ROOT / "bayesncl")
    print("\n".join(found) or "no unsafe call in bayesncl/")
    status = audit_packages() if "--packages" in sys.argv else 0
    return 1 if found else status


if __name__ == "__main__":
    sys.exit(main())
