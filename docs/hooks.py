"""What mkdocs does not do by itself.

Pages of the repository's root join the site; links into the source tree, which is not on the site, become plain text;
formulas become MathML, which browsers show without a script; and a page that would load anything from another host
stops the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
JOINED = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
CODE = re.compile(r"(^```.*?^```$|^ {4}[^\n]*$|`[^`\n]+`)", re.M | re.S)  # blocks and spans, which hold no formulas
OUTSIDE = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//", re.I)


def on_files(files: Files, config: Any) -> Files:
    """Let pages of the root join."""
    for name in JOINED:
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text())
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links and formulas of a page."""
    if page.file.src_uri == "api.md":
        return markdown
    markdown = re.sub(r"\]\(\.\./(" + "|".join(map(re.escape, JOINED)) + r")\)", r"](\1)", markdown)
    block = re.compile(r"^```math\n(.*?)^```$|\$\$(.*?)\$\$", re.M | re.S)
    markdown = block.sub(lambda m: convert((m[1] or m[2]).strip(), display="block"), markdown)
    markdown = re.sub(r"(?<!!)\[([^\[\]]+)\]\((?:\.\./|LICENSE|CITATION)[^)]*\)", r"\1", markdown)
    parts = CODE.split(markdown)
    parts[::2] = [re.sub(r"(?<![\\$])\$([^$\n]+)\$", lambda m: convert(m[1]), text) for text in parts[::2]]
    return "".join(parts).replace("<details>", '<details markdown="1">')


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Refuse a page that loads something from elsewhere."""
    if found := OUTSIDE.search(output):
        raise PluginError(f"{page.file.src_uri} would load {output[found.start() : found.end() + 60]!r}")
    return output
