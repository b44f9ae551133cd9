"""Read a page as a program: its elements, and its packed data."""

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
    """Text that a page contains under the id `packed-<name>`."""
    return packed_bytes(page, name).decode()


def packed_bytes(page: str, name: str) -> bytes:
    """Binary content that a page contains under the id `packed-<name>`."""
    found = re.search(rf'id="packed-{name}">([^<]*)<', page)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1]))


def calls(page: str) -> dict[str, list[int]]:
    """The columns of a page's calls, decoded as its script does."""
    table = next(each for each in data(page)["tables"] if each["name"] == "calls")
    return decoded(table["store"], packed_bytes(page, "calls"))


def decoded(head: dict[str, Any], body: bytes) -> dict[str, list[int]]:
    """The columns of a `CallStore`, from its decompressed body."""
    columns: dict[str, list[int]] = {}
    num_rows, offset = head["num_rows"], 0
    for column in head["columns"]:
        num_bytes = column["num_bytes"]
        planes = [
            body[offset + place * num_rows : offset + (place + 1) * num_rows]
            for place in range(num_bytes)
        ]
        offset += num_rows * num_bytes
        values: list[int] = []
        for row in range(num_rows):
            folded = sum(plane[row] << (8 * place) for place, plane in enumerate(planes))
            value = -(folded + 1) // 2 if folded % 2 else folded // 2
            value += sum(sign * columns[other][row] for other, sign in column["terms"])
            is_next = (
                column["in_series"] and row and columns["rank"][row] == columns["rank"][row - 1]
            )
            values.append(value + values[-1] if is_next else value)
        columns[column["name"]] = values
    seen = head.get("overview")
    # Behind the columns are the shares of each rank, of two bytes.
    of_rank = 4 * seen["num_columns"] * len(seen["kinds"]) if seen else 0
    assert offset == len(body) if not of_rank else (len(body) - offset) % of_rank == 0
    scale = head["resolution_ns"]
    timed = {column["name"] for column in head["columns"] if column["is_time"]}
    return {
        name: [value * scale if name in timed and value >= 0 else value for value in values]
        for name, values in columns.items()
    }


def data(page: str) -> dict[str, Any]:
    """The tables and figures of a page."""
    return json.loads(packed(page, "data"))


def policy(page: str) -> str:
    """The content security policy of a page."""
    (content,) = [
        attributes["content"] or ""
        for tag, attributes in elements(page)
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    return content
