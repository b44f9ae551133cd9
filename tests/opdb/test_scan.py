"""The scan finds what is wrong, and a few operators of each family are right in every variant."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from dtensor_core.dispatch import dispatcher
from dtensor_core.rules import table
from dtensor_core.rules.families import pointwise
from tests.opdb.runs import RUNS
from tests.opdb.scan import DESYNC, PASS, WRONG, scan

INFOS = {f"{info.name} {info.variant_test_name}".strip(): info for info in op_db}
CHECKED = ["add", "matmul", "sum", "cumsum", "index_add", "scatter_add", "gather", "tril"]
CHECKED += ["nn.functional.conv2d", "nn.functional.max_pool2d", "nn.functional.mse_loss", "fft.fft"]


@pytest.mark.parametrize("run", ["uneven", "partial", "backward", "inplace", "out"])
@pytest.mark.parametrize("name", CHECKED)
def test_an_operator_is_right_in_every_variant(name: str, run: str) -> None:
    tally = scan(INFOS[name], RUNS[run], samples=1, combinations=3)
    assert tally.verdict in ("all", "untried"), tally.failures[:1]


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.TABLE, "cumsum", pointwise.OPAQUE)
    dispatcher.forget(torch.ops.aten.cumsum.default)
    tally = scan(INFOS["cumsum"], RUNS["uneven"], samples=6, combinations=4)
    dispatcher.forget(torch.ops.aten.cumsum.default)
    assert tally.outcomes[WRONG]
    assert not tally.outcomes[DESYNC]
    assert tally.outcomes[PASS]
