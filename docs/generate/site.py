"""Hooks of `make docs-site`: pages that live elsewhere in the repository, and links that fit.

The front page is README.md, the tutorials are the notebooks. Their links, and those of docs/, lead
to files of the repository: a link to a page of the site stays within it, one to any other file
leads to the repository. A link to a file that does not exist is a warning, an error with --strict.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LOG = logging.getLogger("mkdocs.hooks.site")
ELSEWHERE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    **{(name := f"notebooks/{path.name}"): name for path in ROOT.glob("notebooks/*.ipynb")},
}
SEARCH = {"changelog": {"exclude": True}, "howto": {"boost": 4}}
"""By the first part of a page's path, its settings of the search: how-tos come first."""

_PAGES = {source: page for page, source in ELSEWHERE.items()}
_LINK = re.compile(
    r"(?<!`)(\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)"
)


@event_priority(100)  # before the plugin that converts notebooks
def on_files(files: Files, config: Any) -> Files:
    """Add the pages that live outside of docs/."""
    for page, source in ELSEWHERE.items():
        if page == source:  # a notebook, which its plugin reads itself
            files.append(File(page, str(ROOT), config.site_dir, use_directory_urls=False))
        else:
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links to files of the repository into links to pages, or into the repository."""
    here = page.file.src_uri
    if (searched := SEARCH.get(re.split(r"[./]", here)[0])) is not None:
        page.meta["search"] = searched
    source = ELSEWHERE.get(here, f"docs/{here}")

    def led(found: re.Match[str]) -> str:
        start, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = _PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(inside) is not None:
            to = posixpath.relpath(inside, posixpath.dirname(here) or ".")
        else:
            if not (ROOT / path).exists():
                LOG.warning("%s links to %s, which does not exist", source, path)
            to = f"{config.extra['repository']}/blob/main/{path}"
        return f"{start}{to}{anchor})"

    return _LINK.sub(led, markdown)
