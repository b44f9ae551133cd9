"""Names of a dataset's files, and its manifest.

    {"format": "commtrace-dataset", "version": 2, "trace_version": 5,
     "parts": [["rank-00000.spool", 48230, 1700000000000000000], ...],     name, bytes, mtime in ns
     "run": {facts}, "rows": {"comm": [[0, 62500], ...], "steps": [...], "groups": 3, ...},
     "files": {"comm/rank-00000.parquet": "5d41402abc4b2a76", ...},        digests of the footers
     "digest": "7d793037a0760186"}                                         of all of the above

The manifest is written last, so that a folder without it is a preparation that was interrupted.
The parts are the files in the folder of the run, by names relative to it. A footer states the
origin of a file and the place and size of every column, and pages have checksums; so a file with
other contents is noticed, even an intact file of another rank or run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

from commtrace.atomic_write import atomic_write
from commtrace.errors import NewerTraceError, TraceError
from commtrace.schema import EVENT_TABLES, FORMAT_VERSION, MAX_RANKS, TABLES
from commtrace.tracefile.reading import (
    Allowance,
    DamageError,
    is_int,
    parse_json,
    read_file,
    reading,
    text_in,
)
from commtrace.tracefile.run_folder import DATASET
from commtrace.tracefile.spool import RANK_TABLES

MANIFEST = "manifest.json"
FORMAT = "commtrace-dataset"
VERSION = 2

SHARED_TABLES = tuple([name for name in TABLES if name not in RANK_TABLES])
"""Tables whose rows belong to no rank, or that have one row per rank."""

Part = tuple[str, int, int]
"""Name of a part relative to the folder of the run, its size, and its time of change in ns."""


def dataset_folder(folder: Path) -> Path:
    """Return the folder of the dataset of a run."""
    return folder / DATASET


def table_path(folder: Path, table: str, rank: int | None = None) -> Path:
    """Return the file of a table, or of a rank's rows, in the folder of a dataset."""
    if rank is None:
        return folder / f"{table}.parquet"
    return folder / table / f"rank-{rank:05d}.parquet"


def digest_of(data: bytes) -> str:
    """Return a short digest of some bytes."""
    return blake2b(data, digest_size=8).hexdigest()


def parts_of(folder: Path, files: Sequence[Path]) -> tuple[Part, ...]:
    """Return the identity of parts in the folder of a run, except parts that are gone."""
    found = []
    for path in sorted(files):
        try:
            facts = path.stat()
        except OSError:  # it was removed
            continue
        found.append((path.relative_to(folder).as_posix(), facts.st_size, facts.st_mtime_ns))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a dataset.

    Attributes:
        parts: the parts of the run that it was made of.
        run: facts of the run.
        rows: number of rows of each rank, by table of `RANK_TABLES` that this version has.
        totals: number of rows of the other tables.
        files: digest of the footer of each file, by its name in the folder of the dataset.
        trace_version: version of the trace format.
    """

    parts: tuple[Part, ...]
    run: Mapping[str, Any]
    rows: Mapping[str, Mapping[int, int]]
    totals: Mapping[str, int]
    files: Mapping[str, str]
    trace_version: int = FORMAT_VERSION


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest into the folder of a dataset.

    Raises:
        OutputError: it cannot be written.
    """
    rows = {name: sorted(of_rank.items()) for name, of_rank in manifest.rows.items()}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "trace_version": manifest.trace_version,
        "parts": manifest.parts,
        "run": dict(manifest.run),
        "rows": {**rows, **manifest.totals},
        "files": dict(manifest.files),
    }
    document["digest"] = digest_of_document(document)
    with atomic_write(folder / MANIFEST) as unfinished:
        # ASCII, since JSON can escape all other characters, lone surrogates included.
        unfinished.write_text(f"{json.dumps(document)}\n", encoding="ascii")


def digest_of_document(document: Mapping[str, Any]) -> str:
    """Return the digest of a manifest, without the digest that it states."""
    others = {name: value for name, value in document.items() if name != "digest"}
    return digest_of(json.dumps(others).encode("ascii"))


def read_manifest(folder: Path, summary: str) -> Manifest:
    """Read the manifest in the folder of a dataset.

    Raises:
        NewerTraceError: a later commtrace has written the dataset.
        TraceError: the manifest cannot be read, is damaged, or is of a former version.
    """
    path = folder / MANIFEST
    data = read_file(path, summary)
    with reading(summary):
        try:
            document = parse_json(text_in(data), Allowance(summary, len(data)))
        except ValueError as error:
            raise DamageError(str(error)[:200], str(path)) from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise DamageError(f"JSON of another format than {FORMAT}", str(path))
        _require_versions(document, path, summary)
        manifest = Manifest(
            parts=_parts(document, path),
            run=_of_type(document, "run", dict, path),
            rows={
                name: _rows_by_rank(document, name, path)
                for name in RANK_TABLES
                if TABLES[name][0].since <= document["trace_version"]
            },
            totals={name: _count(document, name, path) for name in SHARED_TABLES},
            files=_of_type(document, "files", dict, path),
            trace_version=document["trace_version"],
        )
        _require_consistent(manifest, path)
        if document.get("digest") != (digest := digest_of_document(document)):
            found = f"contents with digest {digest}, not {document.get('digest')!r}"
            raise DamageError(found[:100], str(path))
        return manifest


def _require_consistent(manifest: Manifest, path: Path) -> None:
    """Refuse a manifest that would make a rank seem to have made no calls."""
    ranks = manifest.rows["comm"].keys()
    for table, of_rank in manifest.rows.items():
        for rank in sorted(of_rank.keys() ^ ranks):
            place = "comm" if rank in of_rank else table
            raise DamageError(f"rows of {place}: no rank {rank}", str(path))
    if manifest.totals["ranks"] != len(ranks):
        found = f"rows of comm: {len(ranks):,} ranks, of {manifest.totals['ranks']:,}"
        raise DamageError(found, str(path))
    expected = set(file_names(manifest.rows, ranks))
    for name in sorted(expected ^ manifest.files.keys()):
        found = "no file" if name in expected else "another file"
        raise DamageError(f"files: {found} {name}"[:100], str(path))


def file_names(tables: Collection[str], ranks: Collection[int]) -> Iterator[str]:
    """Yield the names of the files of a dataset.

    Args:
        tables: the tables of `RANK_TABLES` that it has.
        ranks: its ranks.
    """
    for table in (*tables, *SHARED_TABLES):
        for rank in sorted(ranks) if table in EVENT_TABLES else (None,):
            yield table_path(Path(), table, rank).as_posix()


def _require_versions(document: Mapping[str, Any], path: Path, summary: str) -> None:
    for name, supported in (("version", VERSION), ("trace_version", FORMAT_VERSION)):
        version = document.get(name)
        if not is_int(version) or version < 1:
            raise DamageError(f"{name} {version!r}"[:60], str(path))
        if version > supported:
            raise NewerTraceError(
                summary,
                place=str(path),
                found=f"{name} {version}",
                why=f"this commtrace supports versions up to {supported}",
                attempt="install the commtrace that prepared it, or a newer version",
            )
    if document["version"] < VERSION:
        raise TraceError(
            summary,
            place=str(path),
            found=f"version {document['version']}",
            why="datasets of that version do not state the contents of their files",
            attempt=f"`commtrace merge {path.parent.parent}` prepares it again",
        )


def _of_type(document: Mapping[str, Any], name: str, of_type: type, path: Path) -> Any:
    value = document.get(name)
    if not isinstance(value, of_type):
        raise DamageError(f"{name}: {value!r}"[:60], str(path))
    return value


def _parts(document: Mapping[str, Any], path: Path) -> tuple[Part, ...]:
    parts = _of_type(document, "parts", list, path)
    for part in parts:
        is_part = isinstance(part, list) and len(part) == 3 and isinstance(part[0], str)
        if not is_part or not (is_int(part[1]) and is_int(part[2])):
            raise DamageError(f"a part {part!r}"[:60], str(path))
    names = [PurePosixPath(part[0]) for part in parts]
    for name in names:
        if name.is_absolute() or ".." in name.parts:
            raise DamageError(f"a part outside of the folder, {str(name)!r}"[:100], str(path))
    if len(set(names)) < len(names):
        raise DamageError("a part twice", str(path))
    return tuple([tuple(part) for part in parts])


def _rows_by_rank(document: Mapping[str, Any], table: str, path: Path) -> dict[int, int]:
    pairs = _of_type(_of_type(document, "rows", dict, path), table, list, path)
    for pair in pairs:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(map(is_int, pair))
        if not is_pair or not (0 <= pair[0] < MAX_RANKS and pair[1] >= 0):
            raise DamageError(f"rows of {table}: {pair!r}"[:60], str(path))
    found = {rank: rows for rank, rows in pairs}
    if len(found) != len(pairs):
        raise DamageError(f"rows of {table}: a rank twice", str(path))
    return found


def _count(document: Mapping[str, Any], table: str, path: Path) -> int:
    rows = _of_type(document, "rows", dict, path).get(table)
    if not is_int(rows) or rows < 0:
        raise DamageError(f"rows of {table}: {rows!r}"[:60], str(path))
    return rows
