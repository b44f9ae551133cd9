"""Calls of a run in blocks: all members' calls of some collectives, and both ends of transfers.

The dataset has a file for each rank. `write` goes through it once and writes each part by rank
again, in the order of blocks, a row group for each block; `read` then reads one row group of every
part. A collective belongs to the block that its number in its group leads to, so that no rank has
to know of the others:

    group      tp                      dp
    number     0 1 2 3 4 5 6 7         0 1 2
    block      0 0 0 1 1 1 2 2         2 2 3
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import group_numbers, is_transfer, numbers
from commtrace.tracefile.dataset.table_files import pyarrow

COLUMNS = (
    *("rank", "id", "kind", "group", "seq", "reduce_op", "root", "peer", "dtype"),
    *("input_shapes", "output_shapes", "payload_bytes", "wire_bytes"),
    *("issue_ns", "call_ns", "blocked_ns", "complete_ns", "step", "phase", "module", "thread"),
    *("source_file", "source_line", "device", "stream", "algorithm", "protocol"),
)
"""Columns of table `comm` that calls in blocks have."""

_ROW = "row"
_BLOCKS = b"blocks"


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """Calls of each group, by its row in table `groups`, and behind them those of no group.

    Attributes:
        num_calls: Number of its calls.
        last: Its last number, -1 without any.
    """

    num_calls: np.ndarray
    last: np.ndarray


def group_sizes(part: Frames) -> GroupSizes:
    """Return the calls of each group that a part has."""
    group, number = group_numbers(part).to_numpy(), numbers(part).to_numpy()
    num_groups = len(part.groups) + 1
    last = np.full(num_groups, -1)
    np.maximum.at(last, group, number)
    return GroupSizes(np.bincount(group % num_groups, minlength=num_groups), last)


class CollectiveBlocks:
    """Blocks of calls.

    Args:
        folder: Folder of the files.
        sizes: Calls of each group, of all parts.
        rows_of_block: Number of calls of a block, about.
    """

    def __init__(self, folder: Path, sizes: Iterable[GroupSizes], rows_of_block: int) -> None:
        of_parts = list(sizes)
        num_calls = np.sum([each.num_calls for each in of_parts], axis=0)
        last = np.max([each.last for each in of_parts], axis=0)
        self._folder = folder
        self._begin = np.cumsum(num_calls) - num_calls
        self._density = num_calls / np.maximum(last + 1, 1) / rows_of_block
        self._begin = self._begin / rows_of_block
        self.num_blocks = int(num_calls.sum() // rows_of_block) + 1

    def write(self, part: Frames, number: int) -> None:
        """Write the calls of part `number` by rank.

        Raises:
            OSError: They cannot be written.
        """
        pq = pyarrow("cannot bring the calls of collectives together")
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        self._folder.mkdir(parents=True, exist_ok=True)
        block = self._block_of(part)
        order = np.argsort(block, kind="stable")
        calls = part.comm[[*COLUMNS]].iloc[order].assign(**{_ROW: part.comm.index[order]})
        blocks, firsts = np.unique(block[order], return_index=True)
        table = pa.Table.from_pandas(calls, preserve_index=False)
        schema = table.schema.with_metadata({_BLOCKS: json.dumps(blocks.tolist())})
        with pq.ParquetWriter(self._path(number), schema, compression="lz4") as writer:
            for first, end in zip(firsts, [*firsts[1:], len(order)], strict=True):
                writer.write_table(table.slice(first, end - first), row_group_size=len(order))

    def _block_of(self, part: Frames) -> np.ndarray:
        comm, number = part.comm, numbers(part).to_numpy()
        group = group_numbers(part).to_numpy()
        place = self._begin[group] + number * self._density[group]
        ends = comm[["rank", "peer"]].to_numpy()
        # Transfers between two ranks on a group are together, wherever that is.
        pair = group + ends.min(axis=1) * 1_000_003 + ends.max(axis=1) * 10_007
        is_alone = is_transfer(part).to_numpy() | (number < 0)
        block = np.where(is_alone, pair % self.num_blocks, place.astype("int64"))
        return np.clip(block, 0, self.num_blocks - 1)

    def _path(self, number: int) -> Path:
        return self._folder / f"part-{number:05d}.parquet"

    def read(self, block: int) -> pd.DataFrame:
        """Return the calls of a block, by their rows in table `comm`."""
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        tables = [
            file.read_row_group(blocks[block]) for file, blocks in self._files if block in blocks
        ]
        if not tables:
            tables = [self._files[0][0].schema_arrow.empty_table()]
        joined: Any = pa.concat_tables(tables).unify_dictionaries()
        return joined.to_pandas().set_index(_ROW).sort_index()

    @cached_property
    def _files(self) -> list[tuple[Any, dict[int, int]]]:
        """The files, each with its row group of each block."""
        pq = pyarrow("cannot bring the calls of collectives together")
        found = []
        for path in sorted(self._folder.glob("part-*.parquet")):
            file = pq.ParquetFile(path, memory_map=False)
            blocks = json.loads(file.schema_arrow.metadata[_BLOCKS])
            found.append((file, {block: place for place, block in enumerate(blocks)}))
        return found
