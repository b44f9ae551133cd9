"""Text table and JSON of a CommDebugMode.

The noise level selects the contents: 0 the counts of each module; 1 also the modules' classes and
parameters, and non-trivial operators on DTensors; 2 also operators on plain tensors; 3 also
trivial operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from commtrace.comm_mode.counts import Counts
from commtrace.comm_mode.tally import PASSES, Operator
from commtrace.comm_mode.tree import GLOBAL, Called
from commtrace.escaping import visible

NOISE_LEVELS = (0, 1, 2, 3)

_TRIVIAL_OPERATORS = (
    "detach.default t.default view.default _to_copy.default as_strided.default transpose.int"
)
_TRIVIAL = frozenset(f"aten.{name}" for name in _TRIVIAL_OPERATORS.split())
_TITLES = dict(
    zip(PASSES, ("FORWARD PASS", "BACKWARD PASS", "ACTIVATION CHECKPOINTING"), strict=True)
)
_SUFFIXES = dict(zip(PASSES, ("forward", "backward", "checkpointing"), strict=True))

Counted = Mapping[str, Mapping[str, Counts]]
Listed = Mapping[str, Sequence[Operator]]


def table(modules: Mapping[str, Called], counts: Counted, operators: Listed, noise: int) -> str:
    """Format one paragraph per module, indented by its depth."""
    lines: list[str] = []
    for module in modules.values():
        indent = "    " * module.depth
        lines.append(f"{indent}{module.name}")
        if noise:
            lines += [f"{indent}{line}" for line in _described(module)]
        for in_pass in PASSES:
            entries = [
                *(
                    f"*{packet}: {count}"
                    for packet, count in counts.get(module.name, {}).get(in_pass, {}).items()
                ),
                *_listed(operators.get(module.name, ()), in_pass, noise),
            ]
            if entries:
                lines.append(f"{indent}  {_TITLES[in_pass]}")
                lines += [f"{indent}    {line}" for line in entries]
    return "".join(f"{visible(line)}\n" for line in lines)


def _described(module: Called) -> Iterator[str]:
    if module.module_type:
        yield f"*module type: {module.module_type}"
    placements = module.placements()
    if placements:
        yield "*Parameter List"
        yield from (f" *{name}: {value}" for name, value in placements.items())


def _listed(operators: Sequence[Operator], in_pass: str, noise: int) -> Iterator[str]:
    for operator in operators:
        if operator.in_pass != in_pass or not _is_listed(operator, noise):
            continue
        yield f"**{operator.name}"
        if operator.layouts:
            entry = as_dict(operator)
            yield f"  shape: {entry['input_shape']}"
            yield f"  sharding: {entry['input_sharding']}"
            yield f"  device mesh: {entry['device_mesh']}"


def _is_listed(operator: Operator, noise: int) -> bool:
    if noise < 3 and operator.name in _TRIVIAL:
        return False
    return noise >= 2 or (noise == 1 and bool(operator.layouts))


def as_dict(operator: Operator) -> dict[str, Any]:
    """Return an operator under the keys of torch's mode."""
    return {
        "name": operator.overload,
        "input_shape": [layout[0] for layout in operator.layouts],
        "input_sharding": [layout[1] for layout in operator.layouts],
        "device_mesh": str(operator.layouts[-1][2]) if operator.layouts else "",
        "is_bw": operator.in_pass != "forward",
        "is_activation_checkpointing": operator.in_pass == "recompute",
    }


def as_json(
    modules: Mapping[str, Called], counts: Counted, operators: Listed, noise: int
) -> dict[str, Any]:
    """Return the tree of modules, rooted at "Global", with their collectives and operators."""
    nodes: dict[str, dict[str, Any]] = {}
    for module in modules.values():
        node = _node(module, counts.get(module.name, {}), operators.get(module.name, ()), noise)
        nodes[module.name] = node
        if module.ancestors:
            nodes[module.ancestors[-1]]["children"].append(node)
    return nodes[GLOBAL]


def _node(
    module: Called, counts: Mapping[str, Counts], operators: Sequence[Operator], noise: int
) -> dict[str, Any]:
    placements = module.placements() if noise else {}
    node: dict[str, Any] = {
        "fqn": module.name,
        "module_type": module.module_type if noise else "",
        "parameters": [[name, str(value)] for name, value in placements.items()],
        "children": [],
    }
    for in_pass in PASSES:
        found = counts.get(in_pass, {})
        node[f"collectives_{_SUFFIXES[in_pass]}"] = [
            [str(packet), count] for packet, count in found.items()
        ]
    for in_pass in PASSES:
        node[f"operations_{_SUFFIXES[in_pass]}"] = [
            _as_text(as_dict(operator))
            for operator in operators
            if operator.in_pass == in_pass and _is_listed(operator, noise)
        ]
    return node


def _as_text(operator: dict[str, Any]) -> dict[str, Any]:
    operator["name"] = str(operator["name"])
    for name in ("input_shape", "input_sharding"):
        operator[name] = [str(value) for value in operator[name]]
    return operator
