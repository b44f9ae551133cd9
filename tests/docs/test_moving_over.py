"""docs/moving-over.md names counterparts of torch's names that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "moving-over.md"
ROW = re.compile(r"^\| (?P<torchs>`.+) \| (?P<ours>`.+`) \| (?P<remark>.*?) ?\|$", re.M)
SEARCHED = {
    *("OpSchema", "OpStrategy", "OpSpec", "PlacementStrategy", "StrategyType", "OutputSharding"),
    *("ShardingPropagator", "OpDispatcher", "OpInfo", "DTensorSpec", "TensorMeta"),
    *("redistribute_cost", "_TransformInfo", "register_op_strategy", "register_sharding"),
    *("local_map", "implicit_replication", "_StridedShard", "_NormPartial", "_MaskPartial"),
    *("compute_local_shape_and_global_offset", "redistribute_local_tensor", "CommDebugMode"),
}


def section() -> str:
    return PAGE.read_text().partition("## Names of torch and their counterparts\n")[2]


def names(column: str) -> list[str]:
    return [
        name for row in ROW.finditer(section()) for name in re.findall(r"`([\w.]+)`", row[column])
    ]


def found(name: str) -> Any:
    """The module of dtensor_core of this name, or what a module of it defines."""
    parts = name.split(".")
    for number in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(["dtensor_core", *parts[:number]]))
        except ModuleNotFoundError:
            continue
        for part in parts[number:]:
            value = getattr(value, part)
        return value
    raise AttributeError(name)


@pytest.mark.parametrize("name", sorted(set(names("ours"))))
def test_a_counterpart_exists(name: str) -> None:
    # Not by what a module imports from another: people search for the definition.
    value = found(name)
    if callable(value):
        assert f"dtensor_core.{name}".startswith(value.__module__)


def test_every_row_of_the_table_is_read() -> None:
    table = [line for line in section().splitlines() if line.startswith("| `")]
    assert len(table) == len(ROW.findall(section())) > 40


def test_names_that_people_search_for_are_in_the_table() -> None:
    assert set(names("torchs")) >= SEARCHED


@pytest.mark.parametrize("name", ["propagate.deciding", "nothing.decide", "spec.Spec.nothing"])
def test_a_name_that_does_not_exist_is_noticed(name: str) -> None:
    with pytest.raises(AttributeError):
        found(name)
