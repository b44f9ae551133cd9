"""Calls of a run in blocks: all members' calls of some collectives, and both ends of transfers.

The dataset has a file for each rank. `write` writes each part by rank again, ordered by blocks,
a record batch for each block. `read` gathers a block from the batches of all parts when it is first
asked for, and keeps it in a file of its own, whose columns are read lazily. A collective belongs to
the block that its number in its group leads to, so that no rank has to know of the others:

    group      tp                      dp
    number     0 1 2 3 4 5 6 7         0 1 2
    block      0 0 0 1 1 1 2 2         2 2 3
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.cached_per_run import of_each_part
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import group_numbers, is_transfer, numbers
from commtrace.analyze.stored.kept_files import (
    new_arrow_file,
    open_arrow_file,
    read_columns,
    reading_kept,
    sealed,
)
from commtrace.analyze.stored.lazy_table import LazyTable
from commtrace.tracefile.reading import DamageError

COLUMNS = (
    *(
        "rank",
        "id",
        "op",
        "kind",
        "native_op",
        "group",
        "seq",
        "reduce_op",
        "root",
        "peer",
        "dtype",
    ),
    *("input_shapes", "output_shapes", "payload_bytes", "wire_bytes"),
    *("input_splits", "output_splits", "expert_rows", "source_spec"),
    *("issue_ns", "call_ns", "blocked_ns", "complete_ns", "step", "phase", "module", "thread"),
    *("source_file", "source_line", "device", "stream", "algorithm", "protocol", "device_ns"),
    *("used_shard", "run_delay_ns", "tag"),
)
"""Columns of table `comm` that calls in blocks have."""

_ROW = "row"
_BLOCKS = b"blocks"
_COMPLETE = "complete.json"


@of_each_part
def group_sizes(part: Frames) -> pd.DataFrame:
    """Return the calls of each group that a part has.

    The rows are the groups of table `groups`, followed by a row for calls of no group. The columns
    are the number of calls, `num_calls`, and the `last` number, -1 if there are none.
    """
    group, number = group_numbers(part).to_numpy(), numbers(part).to_numpy()
    num_groups = len(part.groups) + 1
    # The numbers of a group are dense, but for those that are lost.
    last = np.full(num_groups, -1)
    np.maximum.at(last, group, number)
    num_calls = np.bincount(group % num_groups, minlength=num_groups)
    return pd.DataFrame({"num_calls": num_calls, "last": last})


class CollectiveBlocks:
    """Blocks of calls.

    Args:
        folder: Folder of the files.
        sizes: `group_sizes` of all parts by rank.
        rows_of_block: Approximate number of calls of a block.
    """

    def __init__(self, folder: Path, sizes: Iterable[pd.DataFrame], rows_of_block: int) -> None:
        of_parts = list(sizes)
        num_calls = np.sum([each["num_calls"].to_numpy() for each in of_parts], axis=0)
        last = np.max([each["last"].to_numpy() for each in of_parts], axis=0)
        self._folder = folder
        self._num_parts = len(of_parts)
        self._density = num_calls / np.maximum(last + 1, 1) / rows_of_block
        self._begin = (np.cumsum(num_calls) - num_calls) / rows_of_block
        self.num_blocks = int(num_calls.sum() // rows_of_block) + 1

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_files"}

    @property
    def are_complete(self) -> bool:
        """True if the calls of all parts are written."""
        return (self._folder / _COMPLETE).is_file()

    def complete(self) -> None:
        """State that the calls of all parts are written.

        Raises:
            NotKeptError: That cannot be written.
        """
        with sealed(self._folder / _COMPLETE) as file:
            file.write(json.dumps({"parts": self._num_parts}).encode("ascii"))

    def move_to(self, folder: Path) -> None:
        """State that the files are in another folder."""
        self.__dict__.pop("_files", None)
        self._folder = folder

    def discard_parts(self) -> None:
        """Remove the files of parts if all blocks are gathered."""
        if all(self._path_of_block(block).is_file() for block in range(self.num_blocks)):
            self.__dict__.pop("_files", None)
            for number in range(self._num_parts):
                self._path(number).unlink(missing_ok=True)

    def write(self, part: Frames, number: int) -> None:
        """Write the calls of part `number` by rank.

        Raises:
            NotKeptError: They cannot be written.
        """
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        block = self._block_of(part)
        # Of numbers of 16 bits, a stable sort takes a few passes.
        small = block.astype("int16") if self.num_blocks < 1 << 15 else block
        order = np.argsort(small, kind="stable")
        calls = part.comm[[*COLUMNS]].iloc[order].assign(**{_ROW: part.comm.index[order]})
        blocks, firsts = np.unique(block[order], return_index=True)
        table = pa.table({str(name): _stored(calls[name]) for name in calls})
        schema = table.schema.with_metadata({_BLOCKS: json.dumps(blocks.tolist())})
        with new_arrow_file(self._path(number), schema) as writer:
            for first, end in pairwise([*firsts, len(order)]):
                (batch,) = table.slice(first, end - first).to_batches()
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))

    def _block_of(self, part: Frames) -> np.ndarray:
        number, group = numbers(part).to_numpy(), group_numbers(part).to_numpy()
        place = self._begin[group] + number * self._density[group]
        # Transfers between two ranks on a group are together, wherever that is.
        is_alone = np.flatnonzero(is_transfer(part).to_numpy() | (number < 0))
        if len(is_alone):
            ends = part.comm[["rank", "peer"]].to_numpy()[is_alone]
            pair = group[is_alone] + ends.min(axis=1) * 1_000_003 + ends.max(axis=1) * 10_007
            place[is_alone] = pair % self.num_blocks
        return np.clip(place.astype("int64"), 0, self.num_blocks - 1)

    def _path(self, number: int) -> Path:
        return self._folder / f"part-{number:05d}.arrow"

    def _path_of_block(self, block: int) -> Path:
        return self._folder / f"block-{block:05d}.arrow"

    def read(self, block: int) -> LazyTable:
        """Return the calls of a block, by their rows in table `comm`.

        Raises:
            TraceError: A file is damaged.
            NotKeptError: The gathered block cannot be written.
        """
        path = self._path_of_block(block)
        with reading_kept(self._folder):
            try:
                if not path.is_file():
                    self._gather(block, path)
            except FileNotFoundError:
                # Another process may have gathered all blocks meanwhile, and removed the parts.
                if not path.is_file():
                    raise
            row = _column(path, _ROW)
        return LazyTable(COLUMNS, pd.Index(row, name=_ROW), partial(_column, path))

    def _gather(self, block: int, path: Path) -> None:
        """Write the calls of a block that all parts have; their rows ascend from part to part."""
        import pyarrow as pa  # pyright: ignore[reportMissingImports]

        batches = [file.get_batch(blocks[block]) for file, blocks in self._files if block in blocks]
        tables = [pa.Table.from_batches([batch]) for batch in batches]
        joined: Any = pa.concat_tables(tables or [self._files[0][0].schema.empty_table()])
        joined = joined.unify_dictionaries().combine_chunks().replace_schema_metadata(None)
        with new_arrow_file(path, joined.schema) as writer:
            writer.write_table(joined)

    @cached_property
    def _files(self) -> list[tuple[Any, dict[int, int]]]:
        """The files, each with its record batch of each block."""
        found = []
        for number in range(self._num_parts):
            file = open_arrow_file(self._path(number))
            blocks = json.loads(file.schema.metadata[_BLOCKS])
            found.append((file, {block: place for place, block in enumerate(blocks)}))
        return found


def _stored(values: pd.Series) -> Any:
    """Return an Arrow array; codes of texts have room for the texts of all parts."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    if not isinstance(values.dtype, pd.CategoricalDtype):
        return pa.array(values.to_numpy())
    codes = values.cat.codes.to_numpy("int32")
    texts = pa.array(values.cat.categories.astype(object), type=pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), texts)


def _column(path: Path, name: str) -> Any:
    """Return the values of a column of a gathered block.

    Raises:
        TraceError: The file is damaged.
    """
    place = len(COLUMNS) if name == _ROW else COLUMNS.index(name)
    columns = read_columns(path, [place])
    if name not in columns:
        with reading_kept(path.parent):
            raise DamageError(f"columns {[*columns]}, not {name}", str(path))
    return columns[name]
