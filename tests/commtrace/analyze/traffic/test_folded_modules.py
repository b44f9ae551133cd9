"""Equal layers of the table by module share a row; a layer that differs keeps its own."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.traffic.folded_modules import folded_modules
from tests.commtrace.analyze.rows import call, run_of

BY_MODULE = CATALOG["by_module"].function


def layers(num: int, **odd: dict[int, Any]) -> Frames:
    """A model whose layers each make two calls of 10 µs in two modules; `odd` by column."""
    calls = []
    for layer in range(num):
        for place, name in enumerate(("attention", "mlp.down")):
            number = 2 * layer + place
            columns = {"payload_bytes": 64, "blocked_ns": 10_000}
            columns |= {column: of[layer] for column, of in odd.items() if layer in of}
            calls.append(
                call(id=number, seq=number, at=50_000 * number, until=50_000 * number + 10_000,
                     module=f"model.layers.{layer}.{name}", **columns)
            )  # fmt: skip
    return run_of(calls, num_ranks=1)


def names(frames: Frames) -> list[str]:
    return folded_modules(BY_MODULE(frames))["module"].tolist()


def test_equal_layers_share_the_rows_of_a_layer() -> None:
    table = folded_modules(BY_MODULE(layers(24)))
    assert table["module"].tolist() == [
        "",
        "model",
        "model.layers",
        "model.layers.0-23",
        "model.layers.0-23.attention",
        "model.layers.0-23.mlp",
        "model.layers.0-23.mlp.down",
    ]
    layer = table.set_index("module").loc["model.layers.0-23"]
    assert (layer["name"], layer["num_calls"], layer["blocked_ns"]) == ("0-23, each", 2, 20_000)
    assert table["name"].tolist()[4:] == ["attention", "mlp", "down"]
    assert table["depth"].tolist() == [0, 1, 2, 3, 4, 4, 5]


@pytest.mark.parametrize(
    ("odd", "others"),
    [
        ({"payload_bytes": {3: 128}}, "0-2, 4, 5"),
        ({"blocked_ns": {3: 40_000}}, "0-2, 4, 5"),
        ({"blocked_ns": {3: 11_000}}, "0-5"),
        ({"module_class": {0: "Dense"}}, "1-5"),
    ],
)
def test_an_odd_layer_keeps_its_own_row(odd: dict[str, Any], others: str) -> None:
    found = [name for name in names(layers(6, **odd)) if name.count(".") == 2]
    own = [f"model.layers.{layer}" for of in odd.values() for layer in of if others != "0-5"]
    assert sorted(found) == sorted([f"model.layers.{others}", *own])


def test_layers_within_equal_layers_are_folded_too_and_names_that_differ_are_not() -> None:
    calls = [
        call(id=n, seq=n, at=9 * n, blocked_ns=1, module=f"{part}.{outer}.experts.{inner}")
        for n, (part, outer, inner) in enumerate(
            (part, outer, inner) for part in ("a", "b") for outer in range(2) for inner in range(3)
        )
    ]
    found = names(run_of(calls, num_ranks=1))
    assert [name for name in found if name.count(".") == 3] == [
        "a.0, 1.experts.0-2",
        "b.0, 1.experts.0-2",
    ]


def test_a_table_without_layers_stays_as_it_is() -> None:
    for frames in (run_of(), layers(1)):
        table = BY_MODULE(frames)
        assert folded_modules(table).equals(table)
