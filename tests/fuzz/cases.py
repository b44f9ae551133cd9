"""Inputs of the fuzzer: corrupted files in a folder, and the commands that read them.

A case is determined by its seed and number: `Case(seed, 17).write(folder)` always writes the same
files. Kinds rotate by weight, and so do the commands that read a kind, so that each command gets
its share of each.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commtrace.analyze import CATALOG
from commtrace.analyze.stored.kept_files import SEAL, sealed
from commtrace.tracefile import write_trace
from commtrace.tracefile.dataset.layout import MANIFEST, dataset_folder, digest_of_document
from commtrace.tracefile.dataset.table_files import footer_digest
from commtrace.tracefile.reading import DamageError
from commtrace.tracefile.run_folder import PREPARED
from tests.fuzz.mutations import (
    bomb,
    spoil_bytes,
    spoil_columns,
    spoil_json,
    spoil_pickle,
    spoil_spool,
    spoil_table,
    spoil_text,
    text_of,
)
from tests.fuzz.seeds import seeds
from tests.fuzz.unusual import unusual_run, unusual_spools

OUT = "out"
OUT_FOLDER = "tables"
BASELINE = "baseline"

WEIGHTS = {
    "run": 5, "dataset": 2, "spools": 5, "profile": 4, "dump": 3, "pickle": 3, "log": 2,
    "snapshot": 1, "baseline": 2, "special": 1,
}  # fmt: skip
"""Kinds of input, and the number of each among 28 cases."""

_TURN = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
_STRIDE = 11

TABLES = tuple(CATALOG)
ROWS = ("comm", "ops", "groups", "ranks", "steps")
FORMATS: tuple[tuple[str, ...], ...] = ((), ("--json",), ("--csv",), ())
_TO_FILE = ("-o", OUT, "--force")
_TO_PAGE = ("-o", f"{OUT}.html", "--force")
PARTS: tuple[tuple[str, ...], ...] = (
    (), (), ("--window", "1ms:"), ("--window", "0.5ms:2ms"), ("--steps", "1"), ("--steps", "0:1"),
)  # fmt: skip
"""Parts of a run that a page can show; the whole run twice, because it has most to fail at."""

LOOKING: dict[str, tuple[Sequence[tuple[str, ...]], ...]] = {
    "summary TRACE": ([(), ("--json",), ("--csv", "--by", "kind"), ("--csv", "--by", "module")],),
    "watch TRACE": ([("--once",)], [(), ("--json",), ("--on-mismatch",), ("--on-hang", "1s")]),
    "table TRACE": ([(name,) for name in TABLES], FORMATS),
    "check TRACE": (FORMATS,),
    "findings TRACE": (FORMATS, [(), ("--fail-on", "any")]),
    "explain TRACE": ([("longest",), ("biggest",), ("0:3",)],),
    "diff": (
        [("TRACE", "sound.json"), ("sound.json", "TRACE"), ("sound.json", "TRACE", "sound.json")],
        [*FORMATS, _TO_PAGE],
    ),
    "merge TRACE": ([(), ("sound.json",), ("sound.json",)], [_TO_FILE]),
    "dump TRACE": ([(name,) for name in ROWS], FORMATS),
    "info TRACE": ([(), ("--json",), ()],),
    "export TRACE": (
        [("--to", "perfetto", *_TO_FILE), ("--to", "speedscope", *_TO_FILE),
         ("--to", "csv", "-o", OUT_FOLDER), ("--to", "chakra", "-o", OUT_FOLDER)],
    ),
    "report TRACE": ([_TO_FILE], PARTS),
    "flame TRACE": ([(), _TO_PAGE],),
    "timeline TRACE": ([(), _TO_PAGE], PARTS),
}  # fmt: skip
"""Commands that read a trace, and choices of options, each drawn from a list by chance."""

NUM_LOOKS = 4
UNUSUAL = 0.5
"""Share of the run files and spools that are well-formed but have unusual content."""


@dataclass(frozen=True, slots=True)
class Case:
    """One input by its number, which determines the kind."""

    seed: int
    number: int

    @property
    def kind(self) -> str:
        """The kind of input to mutate."""
        return _TURN[self.number * _STRIDE % len(_TURN)]

    @property
    def is_in_parts(self) -> bool:
        """True if commands read the run as if it were larger than memory."""
        return self.kind == "dataset" and self.number % 4 > 0

    def write(self, folder: Path) -> list[tuple[str, ...]]:
        """Write the files, and return the commands to run in that folder."""
        chance = random.Random(f"{self.seed} {self.number}")
        (folder / "sound.json").write_bytes(seeds().run)
        return _KINDS[self.kind](chance, folder, self.number)


def looks(trace: str, number: int, most: int = NUM_LOOKS) -> list[tuple[str, ...]]:
    """Return some of the commands that read a trace; consecutive numbers give different sets."""
    first, chance, commands = number * most, random.Random(number), list(LOOKING)
    chosen = [commands[(first + place) % len(commands)] for place in range(most)]
    return [_command(chance, command, trace) for command in chosen]


def _command(chance: random.Random, command: str, trace: str) -> tuple[str, ...]:
    options = [word for choices in LOOKING[command] for word in chance.choice(choices)]
    return tuple(trace if word == "TRACE" else word for word in (*command.split(), *options))


def _write_run(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    if chance.random() < UNUSUAL:
        write_trace(unusual_run(chance), folder / "run.json")
        return looks("run.json", number)
    document = json.loads(seeds().run)
    way = chance.random()
    if way < 0.05:
        data = spoil_bytes(chance, seeds().run)
    else:
        del document["crc32"]  # which would refuse all of them
    if 0.05 <= way < 0.2:
        data = spoil_bytes(chance, json.dumps(document).encode())
    elif way >= 0.2:
        document = (spoil_json if way < 0.5 else spoil_columns)(chance, document)
        data = text_of(chance, document)
    (folder / "run.json").write_bytes(data)
    return looks("run.json", number)


def _write_spools(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    spools = folder / "run.json.spools"
    spools.mkdir()
    is_unusual = chance.random() < UNUSUAL
    sound = unusual_spools(chance) if is_unusual else seeds().spools
    spoiled = chance.choice(sorted(name for name in sound if name.endswith(".spool")))
    for name, data in sound.items():
        if name == spoiled and not is_unusual:
            data = (spoil_bytes if chance.random() < 0.2 else spoil_spool)(chance, data)
            if chance.random() < 0.03:
                name = chance.choice(("rank-99999.spool", "x" * 200 + ".spool", "-.spool"))
        (spools / name).write_bytes(data)
    commands = looks("run.json.spools", number, NUM_LOOKS - 1)
    return [("merge", "run.json.spools", "-o", OUT, "--force"), *commands]


_DATASET_FILES = (".parquet", ".parquet", ".parquet", ".json", ".arrow", ".npy")


def _write_dataset(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    """Write a dataset and what analyses have prepared of it, with a spoiled file."""
    sound = seeds().dataset
    suffix = chance.choice(_DATASET_FILES)
    spoiled = chance.choice(sorted(name for name in sound if name.endswith(suffix)))
    for name, data in sound.items():
        path = folder / "RUN.comm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    _spoil(chance, folder / "RUN.comm", folder / "RUN.comm" / spoiled)
    # Numbers of this kind are some of 28 each, which would always lead to the same commands.
    return looks("RUN.comm", chance.randrange(10**6))


def _spoil(chance: random.Random, run: Path, path: Path) -> None:
    """Spoil a file of a dataset; mostly, checksums match the spoiled contents."""
    is_kept, data = PREPARED in path.parts, path.read_bytes()
    content = data[: -SEAL.size] if is_kept else data
    if path.suffix == ".json" and chance.random() < 0.8:
        document = spoil_json(chance, json.loads(content))
        if path.name == MANIFEST and isinstance(document, dict) and chance.random() < 0.9:
            with contextlib.suppress(RecursionError):
                document["digest"] = digest_of_document(document)
        content = text_of(chance, document)
    elif path.suffix == ".parquet" and chance.random() < 0.7:
        content = spoil_table(chance, content)
    else:
        content = spoil_bytes(chance, content)
    path.write_bytes(content)
    if is_kept and chance.random() < 0.8:
        with sealed(path) as file:
            file.write(content)
    if path.suffix == ".parquet" and chance.random() < 0.9:
        _accept(run, path)


def _accept(run: Path, path: Path) -> None:
    """State in the manifest that a file is as it was written."""
    manifest = dataset_folder(run) / MANIFEST
    document = json.loads(manifest.read_bytes())
    with contextlib.suppress(DamageError):  # without a footer there is no digest
        document["files"][path.relative_to(manifest.parent).as_posix()] = footer_digest(path)
    document["digest"] = digest_of_document(document)
    manifest.write_text(json.dumps(document))


def _write_profile(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    return _imported(chance, folder, number, seeds().profiles, spoil_bytes)


def _write_dump(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    return _imported(chance, folder, number, seeds().dumps_as_json, spoil_bytes)


def _write_pickle(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    return _imported(chance, folder, number, seeds().dumps, spoil_pickle)


def _write_log(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    """Write logs of NCCL Inspector, text of ranks that hang, ExecutionTraces, and exports."""
    sound, spoil = _LOGS[(number + number // len(_TURN)) % len(_LOGS)]
    commands = _imported(chance, folder, number, sound(), spoil)
    if sound is not _inspector_logs:
        return [*commands, ("check", "imported.json")]
    joined = ("import", "files", "--recording", "sound.json", "-o", "imported.json", "--force")
    return [*commands, joined, ("summary", "imported.json")]


def _spoil_lines(chance: random.Random, data: bytes) -> bytes:
    """Spoil the values of some lines, or the bytes of the file."""
    if chance.random() < 0.2:
        return spoil_bytes(chance, data)
    lines = data.splitlines()
    for _ in range(chance.choice((1, 1, 3))):
        place = chance.randrange(len(lines))
        try:
            value = json.loads(lines[place])
        except ValueError:  # a line that was spoiled before
            continue
        lines[place] = text_of(chance, spoil_json(chance, value)).replace(b"\n", b" ")
    return b"\n".join(lines)


def _inspector_logs() -> dict[str, bytes]:
    return seeds().logs


def _texts() -> dict[str, bytes]:
    return seeds().texts


def _executions() -> dict[str, bytes]:
    return seeds().executions


def _chakra() -> dict[str, bytes]:
    return seeds().chakra


def _exports() -> dict[str, bytes]:
    return seeds().exports


_LOGS = (
    (_inspector_logs, _spoil_lines), (_texts, spoil_text), (_executions, spoil_bytes),
    (_exports, spoil_bytes), (_chakra, spoil_bytes),
)  # fmt: skip


def _write_snapshot(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    commands = _imported(chance, folder, number, seeds().snapshots, spoil_bytes)
    return [*commands, ("check", "imported.json")]


def _imported(
    chance: random.Random,
    folder: Path,
    number: int,
    sound: dict[str, bytes],
    spoil: Callable[[random.Random, bytes], bytes],
) -> list[tuple[str, ...]]:
    (folder / "files").mkdir()
    chosen = chance.choice(sorted(sound))
    for name, data in sound.items():
        if name == chosen:
            is_text = data[:1] in (b"{", b"[") and not name.endswith(".log")
            if is_text and chance.random() < 0.8:
                data = text_of(chance, spoil_json(chance, json.loads(data)))
            else:
                data = spoil(chance, data)
            if chance.random() < 0.1:
                data = gzip.compress(data)
            if chance.random() < 0.1:
                name = chance.choice(NAMES)
        elif chance.random() < 0.15:
            continue
        (folder / "files" / name).write_bytes(data)
    command = ("import", "files", "-o", "imported.json", "--force")
    return [command, *looks("imported.json", number, 2)]


NAMES = (
    "trace_20261122.json", "host_4711.1732262400000000000.pt.trace.json", "rank_999999999.json",
    "rank_99999999999999999999", "trace.json", "rank-3", "rank3_rank4", "local_rank_0.json", "1e9",
    "rank\n1", "\udcff_rank_1",
)  # fmt: skip


def _write_baseline(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    data = seeds().baseline
    if chance.random() < 0.2:
        data = spoil_bytes(chance, data)
    else:
        data = text_of(chance, spoil_json(chance, json.loads(data)))
    (folder / "test_x.comms.json").write_bytes(data)
    return [(BASELINE, "test_x.comms.json")]


def _write_special(chance: random.Random, folder: Path, number: int) -> list[tuple[str, ...]]:
    """Write special files, alone and inside of folders, and compression bombs."""
    way = number // len(_TURN) % 8
    inside = folder / ("spools" if chance.random() < 0.5 else "files")
    inside.mkdir()
    for name, data in seeds().spools.items():
        (inside / name).write_bytes(data)
    path = inside / "rank-00007.spool"
    if way == 0:
        os.mkfifo(path)
    elif way == 1:
        path.symlink_to("/dev/zero")
    elif way == 2:
        path.symlink_to(path)
    elif way == 3:
        path.mkdir()
    elif way == 4:
        path.symlink_to("nowhere")
    elif way == 5:
        path.write_bytes(b"\0" * 16)
        os.truncate(path, 1 << 40)
    else:
        path.write_bytes(bomb(chance))
    own = f"{inside.name}/{path.name}"
    return [
        ("merge", inside.name, "-o", OUT, "--force"),
        ("import", own, "-o", OUT, "--force"),
        ("import", inside.name, "-o", OUT, "--force"),
        *looks(own, number, 2),
        *looks(inside.name, number + 1, 1),
    ]


_KINDS: dict[str, Callable[[random.Random, Path, int], list[tuple[str, ...]]]] = {
    "run": _write_run,
    "dataset": _write_dataset,
    "spools": _write_spools,
    "profile": _write_profile,
    "dump": _write_dump,
    "pickle": _write_pickle,
    "log": _write_log,
    "snapshot": _write_snapshot,
    "baseline": _write_baseline,
    "special": _write_special,
}
