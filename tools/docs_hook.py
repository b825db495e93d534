"""A hook of mkdocs: what the site has of files that lie outside of docs/.

Links in docs/ lead to files of the repository, so that they work where the repository is shown.
CONTRIBUTING.md and CHANGELOG.md are pages of the site, too; of a link to anything else outside of
docs/ only the text is shown.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)#]+)(#[^)]+)?\)")


def rewritten(markdown: str, folder: str) -> str:
    """Return a page with its links as the site has them.

    Args:
        markdown: the page.
        folder: where in the repository it lies: "" or "docs".
    """

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/"):
            return f"[{text}]({path.removeprefix('docs/')}{anchor})"
        if path in PAGES:
            return f"[{text}]({PAGES[path]}{anchor})"
        return text

    return LINK.sub(link, markdown)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie at the root of the repository."""
    for name, page in PAGES.items():
        content = rewritten((ROOT / name).read_text(encoding="utf-8"), "")
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page of docs/."""
    return markdown if page.file.src_uri in PAGES.values() else rewritten(markdown, "docs")
