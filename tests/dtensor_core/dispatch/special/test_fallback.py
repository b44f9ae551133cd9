"""The policy for operators without a rule: warn, stay silent, or refuse before communicating."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dtensor_core
from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh, observe
from dtensor_core.debug import explain
from dtensor_core.dispatch.special import fallback
from dtensor_core.dispatch.special.fallback import MissingRuleWarning, missing_rule
from dtensor_core.errors import MissingRuleError, RuleError
from dtensor_core.testing import fake_world, kept_mesh, on_threads, run_threads

library = torch.library.Library("unruled", "DEF")
library.define("mix(Tensor self, Tensor other) -> Tensor")
library.define("mix_into(Tensor(a!) self) -> ()")


def _mix(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return self.flip(0) + other


library.impl("mix", _mix, "CPU")
library.impl("mix", lambda self, other: torch.empty_like(self), "Meta")
library.impl("mix_into", lambda self: self.copy_(self.flip(0)), "CPU")
library.impl("mix_into", lambda self: None, "Meta")
mix: Any = torch.ops.unruled.mix.default
mix_into: Any = torch.ops.unruled.mix_into.default


@pytest.fixture(autouse=True)
def reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Yield the set of reported operators, initially empty; the policy is restored afterwards."""
    monkeypatch.setattr(fallback, "_warned", set())
    with missing_rule("warn"):
        yield fallback._warned


@pytest.fixture
def mesh() -> Iterator[Any]:
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


def _sharded(mesh: Any) -> DTensor:
    return distribute_tensor(torch.arange(8.0), mesh, [Shard(0)], src_data_rank=None)


def test_the_warning_names_the_gathered_bytes_and_a_remedy_at_the_callers_line(mesh) -> None:
    x = _sharded(mesh)
    with pytest.warns(MissingRuleWarning) as caught:
        mix(x, x * 2)
    assert str(caught[0].message) == (
        "unruled.mix.default has no sharding rule: 64 bytes of its arguments are gathered "
        "(self f32[8] tp:S(0), other f32[8] tp:S(0)), and it runs on full tensors. "
        "dtensor_core.experimental.register_sharding gives it a rule; "
        "dtensor_core.missing_rule('replicate') hides this, missing_rule('error') refuses it. "
        "Not repeated for this operator."
    )
    assert caught[0].filename == __file__


def test_it_warns_once_an_operator_whatever_its_arguments(mesh) -> None:
    x = _sharded(mesh)
    with pytest.warns(MissingRuleWarning):
        mix(x, x)
    mix(x, x.redistribute(placements=[Replicate()]))  # a second warning would be an error


def test_it_warns_once_for_all_ranks_of_a_process() -> None:
    def body() -> torch.Tensor:
        x = _sharded(kept_mesh((4,)))
        return mix(x, x).full_tensor()

    with pytest.warns(MissingRuleWarning) as caught:
        results = run_threads(body, 4)
    assert len(caught) == 1
    assert all(result.tolist() == [7.0] * 8 for result in results)


def test_a_warning_made_an_error_is_one_on_every_rank() -> None:
    def body() -> bool:
        x = _sharded(kept_mesh((4,)))
        with pytest.raises(MissingRuleWarning):
            mix(x, x)
        return True

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(run_threads(body, 4))


def test_replicate_does_not_warn(mesh) -> None:
    with missing_rule("replicate"):
        assert mix(_sharded(mesh), _sharded(mesh)).placements == (Replicate(),)


def test_replicated_arguments_need_no_rule(mesh) -> None:
    x = _sharded(mesh).redistribute(placements=[Replicate()])
    with missing_rule("error"):
        assert mix(x, x).placements == (Replicate(),)


def test_the_error_has_four_parts_and_nothing_was_sent(mesh) -> None:
    x, heard = _sharded(mesh), []
    full = x.redistribute(placements=[Replicate()])
    with (
        missing_rule("error"),
        observe.listening(heard.append),
        pytest.raises(MissingRuleError) as caught,
    ):
        mix(x, full)
    assert str(caught.value) == (
        "unruled.mix.default, under missing_rule('error')\n"
        "  Found: self f32[8] tp:S(0)\n"
        "  Why: it has no sharding rule: it would run on full tensors, for which 32 bytes would "
        "be gathered\n"
        "  Try: register a rule by dtensor_core.experimental.register_sharding, redistribute these "
        "arguments to Replicate() yourself, or missing_rule('warn')"
    )
    assert isinstance(caught.value, (RuleError, NotImplementedError))
    assert not heard


@on_threads(4)
def test_every_rank_is_refused_and_goes_on() -> None:
    x = _sharded(kept_mesh((4,)))
    with missing_rule("error"), pytest.raises(MissingRuleError):
        mix_into(x)
    assert x.full_tensor().tolist() == list(range(8))
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 4


def test_the_choice_holds_for_calls_that_were_decided_before_it(mesh) -> None:
    x = _sharded(mesh)
    with missing_rule("replicate"):
        mix(x, x)
    with missing_rule("error"), pytest.raises(MissingRuleError):
        mix(x, x)


def test_the_reason_of_a_gather_is_the_missing_rule(mesh) -> None:
    x, heard = _sharded(mesh), []
    with missing_rule("replicate"), observe.listening(heard.append):
        mix(x, x + 1)
    assert [(reason.argument, reason.payload_bytes) for reason in heard] == [
        ("self", 32),
        ("other", 32),
    ]
    assert heard[0].sentence == (
        "unruled.mix.default needs self f32[8] tp:S(0) -> f32[8] tp:R: all_gather on tp (no rule)"
    )


def test_an_explanation_has_the_missing_rule_too(mesh) -> None:
    x = _sharded(mesh)
    with missing_rule("replicate"):
        lines = str(explain(lambda: mix(x, x))).splitlines()
    assert sum(line.endswith(" (no rule)") for line in lines) == 1


def test_a_call_sets_it_for_good_and_a_body_for_its_time(mesh) -> None:
    x = _sharded(mesh)
    missing_rule("error")
    with missing_rule("replicate"):
        mix(x, x)
        missing_rule("warn")
    with pytest.raises(MissingRuleError):
        mix(x, x)


def test_the_main_threads_choice_holds_for_threads_that_have_none() -> None:
    seen = []
    with missing_rule("error"):
        thread = threading.Thread(target=lambda: seen.append(fallback._choice()))
        thread.start()
        thread.join()
    assert seen == ["error"]


@on_threads(2)
def test_a_rank_that_is_a_thread_chooses_for_itself() -> None:
    if dist.get_rank() == 0:
        with missing_rule("error"):
            dist.barrier()
            assert fallback._choice() == "error"
            dist.barrier()
    else:
        dist.barrier()
        assert fallback._choice() == "warn"
        dist.barrier()
    assert fallback._choice() == "warn"


def test_another_choice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"missing_rule\('ignore'\)\n  Found: no such choice\n"):
        missing_rule("ignore")


def test_it_is_a_public_name() -> None:
    assert dtensor_core.missing_rule is missing_rule
    assert issubclass(dtensor_core.MissingRuleWarning, UserWarning)
