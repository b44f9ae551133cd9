"""`CommDebugMode`: counts the communication of a block, with the interface of torch's mode.

Based on the recorder, it sees all communication: functional collectives, any DTensor,
`torch.distributed`, DistributedDataParallel, and other threads, with groups of any backend or none.
Entering it resets the counts, which can be read inside the block and until it is entered again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from commtrace.atomic_write import atomic_write
from commtrace.comm_mode.counts import Counts
from commtrace.comm_mode.tally import MAX_OPERATORS, Operator, Tally
from commtrace.comm_mode.text import NOISE_LEVELS, as_dict, as_json, table
from commtrace.comm_mode.tree import GLOBAL, Called, Tree
from commtrace.errors import UsageError
from commtrace.escaping import visible
from commtrace.recorder import RECORDER, Listening, listen
from commtrace.recorder.events.facts import process_rank
from commtrace.recorder.module_place import Place


class CommDebugMode:
    """Counts communication calls in its `with` block, by operator, module and pass.

    Calls of optimizers and of code outside all modules are attributed to the module "Global", which
    also includes all its submodules' calls. A call in a recomputed forward belongs to the pass
    "recompute".
    """

    def __init__(self) -> None:
        self._tally = Tally(None, Counts())
        self._before: dict[Place, int] = {}
        self._tree = Tree([], {})
        self._depth = 0
        self._listening: Listening

    def __enter__(self) -> CommDebugMode:
        """Reset the counts and start; a nested entry continues."""
        self._depth += 1
        if self._depth == 1:
            rank = process_rank()
            self._tally = Tally(rank, self._tally.total)
            self._listening = listen(self._tally)
            # After `listen`, which forgets the modules of an earlier recording.
            self._before = {place: place.num_calls for place in RECORDER.locator.modules.places()}
            self._listening.record_operators(rank or 0)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop counting."""
        if self._depth == 1:
            self._tree = self._current_tree()
            self._listening.stop()
        self._depth -= 1

    def __repr__(self) -> str:
        return f"CommDebugMode(get_total_counts()={self.get_total_counts()})"

    def get_total_counts(self) -> int:
        """Return the total number of calls."""
        return sum(self._tally.total.values())

    def get_comm_counts(self) -> Counts:
        """Return the number of calls of each operator: `{torch.ops.c10d_functional.all_reduce: 1}`.

        Operators of `torch.ops._c10d_functional` are accepted too; operators without calls have 0.
        """
        return self._tally.total

    def get_parameter_info(self) -> dict[str, dict[str, Any]]:
        """Return the parameters of each called module that has any: `{module: {name: data}}`."""
        return {
            name: module.parameters for name, module in self._modules().items() if module.parameters
        }

    def get_sharding_info(self) -> dict[str, Any]:
        """Return the placements of DTensor parameters, by `module.name`."""
        return {
            f"{name}.{key}": placements
            for name, module in self._modules().items()
            for key, placements in module.placements().items()
        }

    @property
    def comm_counts(self) -> Counts:
        """Same as `get_comm_counts`."""
        return self._tally.total

    @property
    def comm_module_counts(self) -> dict[str, dict[str, Counts]]:
        """Counts by module and pass: `["MLP.net1"]["forward"][torch.ops...]`.

        A module's counts include its submodules; modules without communication have no
        entry.
        """
        tree = self._current_tree()
        counts: dict[str, dict[str, Counts]] = {GLOBAL: {"forward": Counts(), "backward": Counts()}}
        for (place, in_pass), found in list(self._tally.at.items()):
            for name in (*tree.ancestors_of(place), tree.name_of(place)):
                passes = counts.setdefault(name, {"forward": Counts(), "backward": Counts()})
                total = passes.setdefault(in_pass, Counts())
                for packet, count in found.items():
                    total[packet] = total[packet] + count
        return counts

    @property
    def comm_module_operation_counts(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Operators of each module: `["MLP.net1"]["operations_list"]`."""
        return {
            name: {"operations_list": [as_dict(operator) for operator in operators]}
            for name, operators in self._operators().items()
        }

    @property
    def advanced_module_tracker(self) -> _ModuleView:
        """The modules that were called, with the interface of torch's module tracker."""
        return _ModuleView(self._modules())

    def generate_comm_debug_tracing_table(self, noise_level: int = 3) -> str:
        """Return modules with their collectives and operators, as text without control characters.

        Args:
            noise_level: 0 shows the counts of each module; 1 adds classes, parameters and operators
                on DTensors; 2 adds operators on plain tensors; 3 adds trivial operators.
        """
        level = _noise(noise_level)
        text = table(self._modules(), self.comm_module_counts, self._operators(), level)
        missing = self._tally.num_not_listed
        if level and missing:
            text += f"{missing} more operators ran; the first {MAX_OPERATORS} are listed\n"
        return text

    def log_comm_debug_tracing_table_to_file(
        self, file_name: str | Path | None = None, noise_level: int = 3
    ) -> None:
        """Write the table to a file, by default `comm_mode_log.txt`, with one file per rank."""
        path = Path(file_name or _own_name("comm_mode_log", "txt"))
        text = self.generate_comm_debug_tracing_table(noise_level)
        with atomic_write(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")

    def generate_json_dump(self, file_name: str | Path | None = None, noise_level: int = 3) -> None:
        """Write the module tree as JSON, by default `comm_mode_log.json`; one file per rank."""
        path = Path(file_name or _own_name("comm_mode_log", "json"))
        level = _noise(noise_level)
        tree = as_json(self._modules(), self.comm_module_counts, self._operators(), level)
        with atomic_write(path) as unfinished:
            unfinished.write_text(json.dumps(tree, indent=4), encoding="utf-8")

    def _current_tree(self) -> Tree:
        if not self._depth:
            return self._tree
        return Tree(RECORDER.locator.modules.places(), self._before)

    def _modules(self) -> dict[str, Called]:
        return {GLOBAL: Called(GLOBAL, 0, ()), **self._current_tree().modules}

    def _operators(self) -> dict[str, list[Operator]]:
        tree = self._current_tree()
        found: dict[str, list[Operator]] = defaultdict(list)
        for operator in sorted(self._tally.operators, key=lambda each: each.order):
            found[tree.name_of(operator.place)].append(operator)
        return dict(found)


class _ModuleView:
    """Part of the interface of torch's module tracker that programs read."""

    def __init__(self, modules: dict[str, Called]) -> None:
        self._modules = modules

    @property
    def module_helper_dict(self) -> dict[str, dict[str, Any]]:
        """Depth, class and sharded parameters of each module."""
        return {
            name: {
                "depth": module.depth,
                "module_type": module.module_type,
                "parameters": {key: str(value) for key, value in module.placements().items()},
            }
            for name, module in self._modules.items()
        }

    @property
    def module_parents_dict(self) -> dict[str, set[str]]:
        """Names of the modules around each module, and its own."""
        return {
            name: {*module.ancestors, name} if module.depth else set()
            for name, module in self._modules.items()
        }

    def print_paramater_info(self) -> None:
        """Print the parameters (torch's spelling)."""
        found = {name: each.parameters for name, each in self._modules.items() if each.parameters}
        print(visible(str(found), keep="\n"))

    def print_sharding_info(self) -> None:
        """Print the placements of sharded parameters."""
        for name, module in self._modules.items():
            for key, placements in module.placements().items():
                print(visible(f"{name}.{key}: {placements}"))


def _noise(level: int) -> int:
    if level not in NOISE_LEVELS:
        raise UsageError(
            f"cannot print a table of noise level {level!r}",
            why=f"a noise level is one of {', '.join(map(str, NOISE_LEVELS))}",
        )
    return level


def _own_name(stem: str, suffix: str) -> str:
    """Return the default file name, with the rank if there is a process group."""
    rank = process_rank()
    return f"{stem}.{suffix}" if rank is None else f"{stem}.rank{rank}.{suffix}"
