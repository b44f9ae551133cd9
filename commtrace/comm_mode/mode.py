"""`CommDebugMode`: counts the communication of a block, with the names and methods of torch's.

It stands on the recorder, and so sees whatever communicates: functional collectives, DTensors of
any kind, `torch.distributed`, DistributedDataParallel, other threads, with a group of any backend
or none. Entering it begins anew; what was counted can be read until then, and also inside.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

from commtrace.atomic_write import whole
from commtrace.comm_mode.counts import Counts
from commtrace.comm_mode.tally import MAX_OPERATORS, Operator, Tally
from commtrace.comm_mode.text import NOISE_LEVELS, as_dict, as_json, table
from commtrace.comm_mode.tree import GLOBAL, Called, Tree
from commtrace.errors import UsageError
from commtrace.escaping import visible
from commtrace.recorder import RECORDER, Listening, listen
from commtrace.recorder.facts import process_rank
from commtrace.recorder.modules import Place


class CommDebugMode:
    """Counts communication calls in its `with` block, by operator, module and pass.

    Calls of optimizers and of code outside all modules belong to the module "Global", which also
    has everything that its parts have. A call in a recomputed forward belongs to the pass
    "recompute".
    """

    def __init__(self) -> None:
        self._tally = Tally(None, Counts())
        self._before: dict[Place, int] = {}
        self._tree = Tree([], {})
        self._depth = 0
        self._listening: Listening

    def __enter__(self) -> CommDebugMode:
        """Begin anew; inside of itself go on."""
        self._depth += 1
        if self._depth == 1:
            rank = process_rank()
            self._tally = Tally(rank, self._tally.total)
            self._listening = listen(self._tally)
            self._before = {place: place.num_calls for place in RECORDER.locator.modules.places()}
            self._listening.see_operators(rank or 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop counting."""
        if self._depth == 1:
            self._tree = self._current_tree()
            self._listening.stop()
        self._depth -= 1

    def __repr__(self) -> str:
        return f"CommDebugMode(get_total_counts()={self.get_total_counts()})"

    def get_total_counts(self) -> int:
        """How many calls there were."""
        return sum(self._tally.total.values())

    def get_comm_counts(self) -> Counts:
        """How many calls there were of each operator: `{torch.ops.c10d_functional.all_reduce: 1}`.

        Operators of `torch.ops._c10d_functional` may be asked for too; one that was not called
        has 0.
        """
        return self._tally.total

    def get_parameter_info(self) -> dict[str, dict[str, Any]]:
        """The parameters of each module that was called and has some: `{module: {name: data}}`."""
        return {
            name: module.parameters for name, module in self._modules().items() if module.parameters
        }

    def get_sharding_info(self) -> dict[str, Any]:
        """The placements of those parameters that are DTensors, by `module.name`."""
        return {
            f"{name}.{key}": placements
            for name, module in self._modules().items()
            for key, placements in module.placements().items()
        }

    @property
    def comm_counts(self) -> Counts:
        """What `get_comm_counts` returns."""
        return self._tally.total

    @property
    def comm_module_counts(self) -> dict[str, dict[str, Counts]]:
        """Counts by module and pass: `["MLP.net1"]["forward"][torch.ops...]`.

        A module's counts contain those of its parts; a module without communication has none.
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
        """The operators of each module: `["MLP.net1"]["operations_list"]`."""
        return {
            name: {"operations_list": [as_dict(operator) for operator in operators]}
            for name, operators in self._operators().items()
        }

    @property
    def advanced_module_tracker(self) -> _ModuleView:
        """The modules that were called, as torch's mode shows them."""
        return _ModuleView(self._modules())

    def generate_comm_debug_tracing_table(self, noise_level: int = 3) -> str:
        """Modules with their collectives and operators, as text without control characters.

        Level 0 has the counts of each module; 1 also their classes and parameters, and operators
        on DTensors; 2 also operators on plain tensors; 3 also trivial operators.
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
        """Write the table to a file; the default is `comm_mode_log.txt`, of each rank its own."""
        path = Path(file_name or _own_name("comm_mode_log", "txt"))
        text = self.generate_comm_debug_tracing_table(noise_level)
        with whole(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")

    def generate_json_dump(self, file_name: str | Path | None = None, noise_level: int = 3) -> None:
        """Write the tree of modules as JSON; the default is `comm_mode_log.json`, a file a rank."""
        path = Path(file_name or _own_name("comm_mode_log", "json"))
        level = _noise(noise_level)
        tree = as_json(self._modules(), self.comm_module_counts, self._operators(), level)
        with whole(path) as unfinished:
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
    """What programs read of the module tracker of torch's mode."""

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
        """What is around each module, and the module itself."""
        return {
            name: {*module.ancestors, name} if module.depth else set()
            for name, module in self._modules.items()
        }

    def print_paramater_info(self) -> None:
        """Print the parameters (torch's spelling)."""
        held = {name: each.parameters for name, each in self._modules.items() if each.parameters}
        print(visible(str(held), keep="\n"))

    def print_sharding_info(self) -> None:
        """Print the placements of sharded parameters."""
        for name, module in self._modules.items():
            for key, placements in module.placements().items():
                print(visible(f"{name}.{key}: {placements}"))


def _noise(level: int) -> int:
    if level not in NOISE_LEVELS:
        raise UsageError(
            f"a table of noise level {level!r}",
            why=f"a noise level is one of {', '.join(map(str, NOISE_LEVELS))}",
        )
    return level


def _own_name(stem: str, suffix: str) -> str:
    """The default file name: of each rank its own where there are several."""
    rank = process_rank()
    return f"{stem}.{suffix}" if rank is None else f"{stem}.rank{rank}.{suffix}"
