"""Steps of the site's build that mkdocs has no plugin for.

Pages of the repository's root join the site; the tutorial notebook becomes a page; the page of
commands is generated from their help; links into the source tree become plain text; formulas
become MathML; and a page that would load anything from another host stops the build.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import typer
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import bayesncl  # noqa: E402

JOINED = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
NOTEBOOK = "tutorial.ipynb"
CODE = re.compile(r"(^```.*?^```$|^ {4}[^\n]*$|`[^`\n]+`)", re.M | re.S)  # these hold no formulas
LOADS = r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//"
OUTSIDE = re.compile(LOADS, re.I)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/ as they are shown."""
    pages = {name: (ROOT / name).read_text().replace("](docs/", "](") for name in JOINED}
    pages["tutorial.md"] = notebook_page(json.loads((ROOT / "docs" / NOTEBOOK).read_text()))
    pages["cli.md"] = commands_page()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as markdown: its text, its code and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            printed = output.get("text") or output["data"]["text/plain"]
            parts.append(f"```text\n{''.join(printed).rstrip()}\n```")
    return "\n\n".join(parts)


def commands_page() -> str:
    """Return the reference of all commands, from their own help."""
    from bayesncl.cli.app import app

    group: Any = typer.main.get_command(app)
    parts = ["# Commands", group.help or "", "Every command also has `--help`."]
    for name, command in group.commands.items():
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(["bayesncl", name, *command.collect_usage_pieces(context)])
        rows = [help_row(parameter, context) for parameter in command.params]
        rows = [row for row in rows if row]
        parts += [f"## {name}", (command.help or "").replace("\b", ""), f"    {usage}"]
        if rows:
            parts.append("\n".join(["| argument or option | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def help_row(parameter: Any, context: Any) -> str:
    """Return one argument or option as a row of a table."""
    if getattr(parameter, "hidden", False):
        return ""
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    name, text = (re.sub(r"\s+", " ", part).replace("|", "\\|") for part in record)
    return f"| `{name.strip()}` | {text.strip()} |"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Adapt the links and formulas of a page; the search lists lab notes last."""
    if page.file.src_uri.startswith("log/"):
        page.meta["search"] = {"boost": 0.2}
    if page.file.src_uri == "api.md":
        return re.sub(r"^::: bayesncl\.(\w+)$", public_path, markdown, flags=re.M)
    joined = "|".join(map(re.escape, JOINED))
    markdown = re.sub(rf"\]\(\.\./({joined})\)", r"](\1)", markdown)
    markdown = markdown.replace(f"]({NOTEBOOK})", "](tutorial.md)")
    block = re.compile(r"^```math\n(.*?)^```$|\$\$(.*?)\$\$", re.M | re.S)
    markdown = block.sub(lambda m: convert((m[1] or m[2]).strip(), display="block"), markdown)
    source = r"(?:\.\./)+(?:results|bayesncl|benchmarks|examples|tests)\b[^)]*"
    source += "|LICENSE|CITATION[^)]*"
    markdown = re.sub(rf"(?<!!)\[([^\[\]]+)\]\((?:{source})\)", r"\1", markdown)
    parts = CODE.split(markdown)
    for i in range(0, len(parts), 2):
        # in a span: markdown takes <math> at the start of a line for a block
        inline = r"(?<![\\$])\$([^$\n]+)\$"
        parts[i] = re.sub(inline, lambda m: f"<span>{convert(m[1])}</span>", parts[i])
    return "".join(parts).replace("<details>", '<details markdown="1">')


def public_path(found: re.Match[str]) -> str:
    """Return the directive for a public name in the module that defines it."""
    return f"::: {getattr(bayesncl, found[1]).__module__}.{found[1]}"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that loads something from elsewhere."""
    if found := OUTSIDE.search(output):
        text = output[found.start() : found.end() + 60]
        raise PluginError(f"{page.file.src_uri} would load {text!r}")
    return output
