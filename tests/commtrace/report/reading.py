"""Reads a page as a program does: its elements, and what it carries packed."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Every element of a page with its attributes."""
    parser = _Elements()
    parser.feed(page)
    return parser.found


def text(page: str) -> str:
    """All text of a page."""
    parser = _Elements()
    parser.feed(page)
    return " ".join(" ".join(parser.texts).split())


def packed(page: str, name: str) -> str:
    """What a page carries under the id `packed-<name>`."""
    found = re.search(rf'id="packed-{name}">([^<]*)<', page)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


def data(page: str) -> dict[str, Any]:
    """The tables and figures that a page carries."""
    return json.loads(packed(page, "data"))


def policy(page: str) -> str:
    """The content policy of a page."""
    (content,) = [
        attributes["content"] or ""
        for tag, attributes in elements(page)
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    return content
