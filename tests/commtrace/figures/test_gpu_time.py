from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import CATALOG, load
from commtrace.analyze.devices.gpu_time import PARTS
from commtrace.figures import gpu_time
from commtrace.figures.gpu_time import MAX_BARS, MAX_DEVICES, PATTERNS, WORDS, device_bars
from commtrace.figures.theme import DARK, LIGHT
from tests.commtrace.analyze.devices.devices import device_trace
from tests.commtrace.analyze.rows import kernel, run_of


def table_of(*sizes: int) -> pd.DataFrame:
    return CATALOG["gpu_time"].function(load(device_trace(*sizes)))


def test_a_bar_is_a_step_of_a_device_and_its_parts_add_up_to_it() -> None:
    table = table_of()
    figure = gpu_time(table)
    labels = ["rank 0, step 0", "rank 0, step 1", "rank 1, step 0", "rank 1, step 1"]
    assert list(figure.layout.yaxis.ticktext) == labels
    ends = [sum(trace.x[row] for trace in figure.data) for row in range(4)]
    assert ends == pytest.approx([0.001] * 4)
    whole = table[table["stream"] == -1]
    for trace in figure.data:
        assert list(trace.x) == (whole[f"{trace.meta['part']}_ns"] / 1e9).tolist()
    assert {trace.meta["part"] for trace in figure.data} == {
        name for name in WORDS if whole[f"{name}_ns"].any()
    }
    assert set(WORDS) == set(PARTS) - {"overlapped"}


def test_parts_that_are_not_solid_are_hatched_each_in_its_own_way() -> None:
    assert len(set(PATTERNS.values())) == len(PATTERNS)
    for theme in (LIGHT, DARK):
        for trace in gpu_time(table_of(), theme=theme).data:
            part = trace.meta["part"]
            assert trace.marker.color == theme.device[part]
            assert trace.marker.pattern.shape == PATTERNS.get(part)


def test_a_bar_s_text_has_every_part_with_its_share() -> None:
    text = gpu_time(table_of()).data[0].hovertext[0]
    for words in (
        "<b>rank 0, step 0 (cuda:0)</b>",
        "computing 200 µs (20.0%)",
        "exposed: waiting for a peer 40 µs (4.0%)",
        "overlapped communication, while computing: 20 µs (2.0%)",
    ):
        assert words in text


def test_many_steps_are_drawn_as_their_mean() -> None:
    bars = device_bars(table_of(MAX_BARS))
    assert bars["label"].tolist() == ["rank 0", "rank 1"]
    assert bars["num_steps"].tolist() == [MAX_BARS] * 2
    figure = gpu_time(table_of(MAX_BARS))
    assert figure.layout.xaxis.title.text == f"time per step, mean of {MAX_BARS} steps"
    assert "mean of 48 steps" in figure.data[0].hovertext[0]
    assert sum(trace.x[0] for trace in figure.data) == pytest.approx(0.001)


def test_of_many_devices_those_that_compute_the_smallest_part_are_drawn() -> None:
    kernels = [
        kernel(rank=rank, at=at, until=at + (100 if at else 1 + rank), device=f"cuda:{rank}")
        for rank in range(MAX_DEVICES + 5)
        for at in (0, 1000)
    ]
    frames = run_of(kernels=kernels, num_ranks=MAX_DEVICES + 5)
    figure: Any = gpu_time(CATALOG["gpu_time"].function(frames))
    assert len(figure.data[0].x) == MAX_DEVICES
    assert "128 of 133 devices" in figure.layout.xaxis.title.text
    assert figure.data[0].hovertext[0].startswith("<b>rank 0 ")


def test_a_rank_with_several_devices_names_them() -> None:
    kernels = [kernel(at=0, until=9, device=f"cuda:{number}") for number in range(2)]
    bars = device_bars(CATALOG["gpu_time"].function(run_of(kernels=kernels, num_ranks=1)))
    assert bars["label"].tolist() == ["rank 0 cuda:0", "rank 0 cuda:1"]


def test_a_run_without_kernels_says_so() -> None:
    figure = gpu_time(CATALOG["gpu_time"].function(run_of()), because="there is no device.")
    assert "No kernel is in this trace" in figure.layout.annotations[0].text.replace("<br>", " ")
