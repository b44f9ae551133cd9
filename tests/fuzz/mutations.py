"""Corruptions of a file: bytes, JSON values, columns, batches of a spool, opcodes of a pickle.

Each takes a random generator and the input, and returns the corrupted input. None of them depends
on how readers treat it.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickletools
import random
import re
import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from commtrace.schema import TABLES
from commtrace.tracefile.encoding import encode_ints
from commtrace.tracefile.spool_reading import batches

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -2, 7, 255, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 64,
    10**25, 999_999_999, 1_000_000_000, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "0",
    "-1", "0,0", "0,1,2,3", "[0, 1]", "\ud800", "\u202e", "\x1b]0;x\x07", "a" * 5000, "0#2",
    "{w}", "{0}", "%s", [], [[]], [0], [None], {}, {"x": 1}, {"": {}},
)  # fmt: skip


def spoil_bytes(chance: random.Random, data: bytes) -> bytes:
    """Flip, cut, splice, repeat or insert bytes, once or a few times."""
    spoiled = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(spoiled) + 1)
        length = min(chance.choice((1, 2, 4, 16, 200)), max(len(spoiled) - at, 0))
        way = chance.randrange(6)
        if way == 0 and at < len(spoiled):
            spoiled[at] ^= 1 << chance.randrange(8)
        elif way == 1:
            del spoiled[at:]
        elif way == 2:
            del spoiled[at : at + length]
        elif way == 3:
            spoiled[at:at] = spoiled[at : at + length] * chance.choice((1, 2, 50))
        elif way == 4:
            spoiled[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
        else:
            other = chance.randrange(len(spoiled) + 1)
            spoiled[at:at] = spoiled[other : other + 300]
    return bytes(spoiled)


def spoil_text(chance: random.Random, data: bytes) -> bytes:
    """Replace some numbers of a text by others, or spoil its bytes."""
    if chance.random() < 0.3:
        return spoil_bytes(chance, data)
    numbers = [*re.finditer(rb"\d+", data)]
    chosen = sorted(chance.sample(range(len(numbers)), min(len(numbers), 4)), reverse=True)
    for found in [numbers[place] for place in chosen]:
        odd = chance.choice((b"0", b"-1", b"1e9", b"9" * 18, b"9" * 40, b"", b"262144", b"18"))
        data = data[: found.start()] + odd + data[found.end() :]
    return data


def odd_value(chance: random.Random) -> Any:
    """Return a value that is unlikely to be valid anywhere."""
    if chance.random() < 0.03:
        nested: Any = 0
        for _ in range(chance.choice((50, 200, 900))):
            nested = [nested] if chance.random() < 0.5 else {"x": nested}
        return nested
    return deepcopy(chance.choice(ODD_VALUES))  # a list may be spoiled further where it is put


def spoil_json(chance: random.Random, value: Any) -> Any:
    """Replace, delete, duplicate or move a few values anywhere in a document."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        holder, key = _somewhere(chance, value)
        if holder is None:
            return odd_value(chance)
        way = chance.randrange(6)
        if way == 0:
            del holder[key]
        elif way == 1:
            other, place = _somewhere(chance, value)
            if other is not None:
                holder[key] = _copy(other[place])
        elif way == 2 and isinstance(holder, list):
            holder.insert(key, _copy(holder[key]))
        elif way == 3 and type(holder[key]) in (int, float):
            holder[key] = _nearby(chance, holder[key])
        else:
            holder[key] = odd_value(chance)
    return value


def _copy(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except RecursionError:  # two deep values, one in the other
        return None


def _nearby(chance: random.Random, number: float) -> Any:
    moves: tuple[Callable[[Any], Any], ...] = (
        lambda n: -n, lambda n: n + 1, lambda n: n - 1, lambda n: n * 2, lambda n: n * 10**9,
        float, str, lambda n: [n],
    )  # fmt: skip
    return chance.choice(moves)(number)


def _somewhere(chance: random.Random, value: Any) -> tuple[Any, Any]:
    """Choose a container of the document and a key in it; deep containers are as likely."""
    holder, key = None, None
    while isinstance(value, (dict, list)) and value:
        holder = value
        key = (
            chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        )
        value = holder[key]
        if chance.random() < 0.15:
            break
    return holder, key


def text_of(chance: random.Random, value: Any) -> bytes:
    """Encode a document as JSON, rarely with a duplicate key, a BOM or another encoding."""
    try:
        text = json.dumps(value)
    except RecursionError:  # two deep values, one in the other
        return b"[" * 2000 + b"]" * 2000
    way = chance.random()
    if way < 0.02 and text.startswith("{"):
        name = next(iter(value), "x") if isinstance(value, dict) else "x"
        text = f"{text[:-1]}, {json.dumps(name)}: 1}}"
    elif way < 0.03:
        return b"\xef\xbb\xbf" + text.encode()
    elif way < 0.04:
        return text.encode("utf-16")
    elif way < 0.05:
        return text.replace("1", "1" * 5000, 1).encode()
    return text.encode("ascii", "replace")


def spoil_columns(chance: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """Give columns of a run file other values, other lengths or other descriptions."""
    num_rows = {name: document["tables"][name]["rows"] for name in TABLES}
    for _ in range(chance.choice((1, 1, 3))):
        table = chance.choice([name for name, num in num_rows.items() if num])
        _spoil_column(chance, document["tables"][table], table, num_rows[table])
    return document


def _spoil_column(chance: random.Random, stored: dict[str, Any], table: str, rows: int) -> None:
    column = chance.choice(TABLES[table]).name
    stored["columns"][column] = _column(chance, rows, stored["columns"])
    if chance.random() < 0.1:
        stored["rows"] = chance.choice((0, rows - 1, rows + 1, 250_000_000, 1 << 62, -1, None))


def _column(chance: random.Random, rows: int, others: dict[str, Any]) -> Any:
    way = chance.randrange(14)
    if way == 0:
        return odd_value(chance)
    if way == 1:
        return {"const": odd_value(chance)}
    if way == 2:
        return {"width": odd_value(chance), "data": odd_value(chance)}
    if way == 3:
        return _copy(chance.choice(list(others.values())))
    if way == 4:
        return packed({"width": "float"}, struct.pack(f"<{rows}d", *[0.5] * rows))
    if way == 5:
        return packed({"width": 8}, b"\0" * (8 << 20))
    if way == 6:
        planes = [chance.choice((-1, 0, 255, 256, -2)) for _ in range(8)]
        return packed({"planes": planes}, chance.randbytes(rows * 8))
    some = chance.sample(_INTEGERS if way < 9 else _PLAUSIBLE, 3)
    return packed(*encode_ints([chance.choice(some) for _ in range(rows)]))


_INTEGERS = (-5, -1, 0, 1, 3, 1 << 40, 1 << 61, (1 << 63) - 1, -(1 << 63))
_PLAUSIBLE = (-1, 0, 1, 2, 3, 5, 40, 1000, 1 << 20, 1 << 40)


def packed(description: dict[str, Any], data: bytes) -> dict[str, Any]:
    """Encode a column as in run.json."""
    return {**description, "data": base64.b64encode(zlib.compress(data)).decode()}


def spoil_spool(chance: random.Random, data: bytes) -> bytes:
    """Corrupt a batch of a spool, and recompute its length and checksum."""
    first = data.index(b"\n") + 1
    payloads = [zlib.decompress(payload) for _, payload in batches(data)]
    number = chance.randrange(len(payloads))
    way = chance.randrange(8)
    if way == 0:
        payloads.insert(number, payloads[chance.randrange(len(payloads))])
    elif way == 1:
        del payloads[number]
    elif way == 2:
        chance.shuffle(payloads)
    elif way == 3:
        payloads[number] = spoil_bytes(chance, payloads[number])
    elif way == 4:
        payloads.append(b"\0" * chance.choice((1 << 20, 100 << 20)))
    else:
        (length,) = struct.unpack_from("<I", payloads[number])
        head = json.loads(payloads[number][4 : 4 + length])
        text = text_of(chance, _spoiled_head(chance, head))
        payloads[number] = struct.pack("<I", len(text)) + text + payloads[number][4 + length :]
    return data[:first] + b"".join(map(_batch, payloads))


def _spoiled_head(chance: random.Random, head: dict[str, Any]) -> Any:
    if head["facts"] and chance.random() < 0.4:
        head["facts"] = spoil_json(chance, head["facts"])
        return head
    tables = [table for table in head["tables"].values() if table["columns"]]
    if tables and chance.random() < 0.5:
        table = chance.choice(tables)
        name = chance.choice(list(table["columns"]))
        table["columns"][name] = {"const": odd_value(chance)}
        return head
    return spoil_json(chance, head)


def _batch(payload: bytes) -> bytes:
    packed_payload = zlib.compress(payload, 1)
    return struct.pack("<II", len(packed_payload), zlib.crc32(packed_payload)) + packed_payload


def spoil_pickle(chance: random.Random, data: bytes) -> bytes:
    """Insert, delete or replace opcodes, or the numbers that follow them."""
    places = [place for _, _, place in pickletools.genops(data) if place is not None]
    places.append(len(data))
    for _ in range(chance.choice((1, 1, 2, 5))):
        number = chance.randrange(len(places) - 1)
        begin, end = places[number], places[number + 1]
        way = chance.randrange(4)
        if way == 0:
            return data[:begin] + data[end:]
        if way == 1:
            return data[:begin] + chance.choice(OPCODES) + data[begin:]
        if way == 2:
            return data[:begin] + chance.choice(OPCODES) + data[end:]
        data = data[: begin + 1] + chance.randbytes(end - begin - 1) + data[end:]
    return data


OPCODES = (
    b"0", b"1", b"2", b"(", b")", b"]", b"}", b"N", b"a", b"e", b"s", b"u", b"t", b"l", b"d", b".",
    b"h\x00", b"q\x00", b"r\xff\xff\xff\x7f", b"p99999999999\n", b"j\x00\x00\x00\x01", b"\x94",
    b"\x8e" + b"\xff" * 7 + b"\x00", b"T\xff\xff\xff\x7f", b"X\xff\xff\xff\xff",
    b"\x8a\x08" + b"\x7f" * 8,
    b"\x8b\xff\xff\xff\x7f", b"I" + b"9" * 5000 + b"\n", b"cos\nsystem\n", b"R", b"\x81", b"b",
    b"\x95" + b"\xff" * 8, b"P1\n", b"Q", b"\x85", b"\x86", b"\x87", b"(lp0\nh\x00a",
)  # fmt: skip


def spoil_table(chance: random.Random, data: bytes) -> bytes:
    """Give columns of a Parquet file other values, types, names or lengths."""
    table = pq.read_table(pa.BufferReader(data))
    for _ in range(chance.choice((1, 1, 3))):
        if not table.num_columns:
            break
        place = chance.randrange(table.num_columns)
        name, column = table.column_names[place], table.column(place)
        way = chance.randrange(7)
        if way == 0:
            table = table.remove_column(place)
        elif way == 1:
            table = table.rename_columns(
                [chance.choice((each, "x", name)) for each in table.column_names]
            )
        elif way == 2:
            table = table.slice(chance.randrange(len(table) + 1))
        elif way == 3:
            table = pa.concat_tables([table, table])
        else:
            values = _odd_array(chance, column, way)
            table = table.set_column(place, name, values)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _odd_array(chance: random.Random, column: Any, way: int) -> Any:
    num = len(column)
    if way == 4:
        return pa.array(
            [chance.choice(("", "x", "a" * 500, "0,1", "\x1b[31m")) for _ in range(num)]
        )
    if way == 5:
        return pa.array([chance.choice((None, 0.5, float("nan"), 1e300)) for _ in range(num)])
    return pa.array([chance.choice(_INTEGERS) for _ in range(num)], type=pa.int64())


def bomb(chance: random.Random) -> bytes:
    """Create concatenated gzip streams that inflate to a thousand times their size."""
    unit = chance.choice((b" ", b"[", b'{"ph":"X"},', b"[],", b"\0"))
    opening = chance.choice((b"", b'{"traceEvents": [', b'{"entries": ['))
    size = chance.choice((1 << 20, 30 << 20, 200 << 20))
    sink = io.BytesIO()
    with gzip.GzipFile(fileobj=sink, mode="wb", compresslevel=6) as file:
        file.write(opening)
        # In pieces, since the worker's memory is limited.
        for begin in range(0, size, _PIECE):
            file.write(unit * (min(_PIECE, size - begin) // len(unit)))
    return sink.getvalue() * chance.choice((1, 1, 3))


_PIECE = 1 << 20
