from __future__ import annotations

from commtrace.analyze.findings.layouts import layout


def test_a_text_has_type_shape_and_placements() -> None:
    parsed = layout("bf16[4,64,256] dp:S(0) tp:P(sum)")
    assert parsed is not None
    assert (parsed.dtype, parsed.shape, parsed.num_bytes) == (
        "bf16",
        (4, 64, 256),
        4 * 64 * 256 * 2,
    )
    assert (parsed.on("dp"), parsed.on("tp"), parsed.on("pp")) == ("S(0)", "P(sum)", "")
    assert parsed.sharded == {"dp": 0}
    assert not parsed.is_replicated


def test_a_strided_shard_is_a_shard() -> None:
    parsed = layout("f32[8,16] dp:R tp:_S(1, 2)")
    assert parsed is not None
    assert (parsed.on("tp"), parsed.sharded, parsed.is_replicated) == ("_S(1, 2)", {"tp": 1}, False)


def test_a_scalar_has_no_dims_and_other_text_is_no_layout() -> None:
    scalar = layout("f32[] tp:R")
    assert scalar is not None
    assert (scalar.shape, scalar.num_bytes, scalar.is_replicated) == ((), 4, True)
    assert layout("") is None
    assert layout("whatever") is None
