"""torch's names of collectives, element types and places, mapped to commtrace's."""

from __future__ import annotations

import pytest

from commtrace.collective_table import KINDS
from commtrace.recorder.interception.signatures import SIGNATURES
from commtrace.torch_names import dtype_of, is_library, kind_of, payload_of, wire_of


@pytest.mark.parametrize(
    "operator", [op for op in SIGNATURES if op.startswith("c10d::")], ids=lambda op: op[6:]
)
def test_every_operator_of_c10d_has_the_kind_that_the_recorder_gives_it(operator: str) -> None:
    assert kind_of(operator.removeprefix("c10d::")) == SIGNATURES[operator].kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ALLGATHER_coalesced", "all_gather"),
        ("REDUCE_SCATTER_coalesced", "reduce_scatter"),
        ("_reduce_oop", "reduce"),
        ("all_reduce_barrier", "barrier"),
        ("recvAnySource", "recv"),
        ("all_to_all_v_single", "all_to_all"),
        ("something_new", "something_new"),
    ],
)
def test_other_names_have_a_kind_or_stay_what_they_are(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_the_flight_recorders_names_are_known() -> None:
    from torch.distributed.flight_recorder.components.types import COLLECTIVES, P2P

    silent = {"split", "new_window"}
    assert {kind_of(name) for name in (COLLECTIVES | P2P) - silent} <= set(KINDS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Float", ("float32", 4)),
        ("c10::BFloat16", ("bfloat16", 2)),
        ("Float8_e4m3fn", ("float8_e4m3fn", 1)),
        ("TensorList", ("tensorlist", -1)),
    ],
)
def test_element_types_have_their_name_and_size(name: str, expected: tuple[str, int]) -> None:
    assert dtype_of(name) == expected


def test_element_types_are_all_of_torchs() -> None:
    import torch

    for name, size in map(dtype_of, ("Half", "Double", "Long", "Bool", "ComplexFloat", "UInt16")):
        assert getattr(torch, name).itemsize == size


@pytest.mark.parametrize(
    ("kind", "sent", "received", "payload"),
    [
        ("all_reduce", 8, 8, 32),
        ("all_gather", 8, 32, 128),
        ("all_gather", 8, -1, 128),
        ("reduce_scatter", -1, 8, 128),
        ("gather", 8, -1, 128),
        ("scatter", -1, 8, 128),
        ("recv", -1, 8, 32),
        ("send", 8, -1, 32),
        ("broadcast", -1, -1, -1),
        ("barrier", -1, -1, 0),
    ],
)
def test_payload_is_what_docs_bytes_says(kind: str, sent: int, received: int, payload: int) -> None:
    assert payload_of(kind, sent, received, 4, 4) == payload


def test_wire_bytes_are_not_guessed() -> None:
    assert wire_of("all_reduce", 100, (0, 1), 0, -1) == 100
    assert wire_of("all_reduce", 100, (), 0, -1) == -1  # ranks not known
    assert wire_of("broadcast", 100, (0, 1), 0, -1) == -1  # root not known
    assert wire_of("broadcast", 100, (0, 1), 0, 0) == 100
    assert wire_of("broadcast", 100, (0, 1), 1, 0) == 0  # the last in the ring
    assert wire_of("send", 100, (), 0, -1) == 100
    assert wire_of("something_new", 100, (0, 1), 0, -1) == -1


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/home/user/train.py", False),
        ("train.py", False),
        ("/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", True),
        ("/v/lib/python3.11/site-packages/mylib/layers.py", False),
        ("/usr/lib/python3.11/threading.py", True),
        ("torch/nn/functional.py", True),
        ("threading.py", True),
        ("<frozen runpy>", True),
        ("<string>", True),
        ("/home/user/torchtitan/train.py", False),
        ("", True),
    ],
)
def test_a_library_is_reported_from_the_users_files(file: str, expected: bool) -> None:
    assert is_library(file) == expected
