"""Colours: distinguishable for everyone, and each with a single meaning."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from commtrace.analyze.measures.wait_state import STATES
from commtrace.collective_table import KINDS
from commtrace.figures.gpu_time import PATTERNS, WORDS
from commtrace.figures.steps import PARTS
from commtrace.figures.theme import (
    DARK,
    LIGHT,
    MAIN_KINDS,
    THEMES,
    Theme,
    readable_anywhere,
    readable_on,
    recolouring,
    theme_of,
)
from commtrace.figures.waits import TRANSFER, UNKNOWN

BOTH = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])

# Linear RGB as seen without one kind of cone (Machado, Oliveira and Fernandes, 2009).
SIGHT = {
    "all cones": np.eye(3),
    "no red": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no green": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no blue": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Convert to Oklab, where distance is perceived difference (Ottosson, 2020)."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    axes = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return axes @ np.cbrt(cones @ np.clip(rgb, 0, 1))


def difference(one: str, other: str, sight: np.ndarray) -> float:
    return float(np.linalg.norm(oklab(sight @ linear(one)) - oklab(sight @ linear(other))))


def contrast(one: str, other: str) -> float:
    dark, light = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] + 0.05 for c in (one, other))
    return light / dark


def test_the_measure_distinguishes_red_and_green_only_with_all_cones() -> None:
    red, green = "#b3574d", "#6f7f3c"
    assert difference(red, green, SIGHT["all cones"]) > 0.12
    assert difference(red, green, SIGHT["no green"]) < 0.12


@BOTH
@pytest.mark.parametrize("sight", SIGHT)
def test_the_main_kinds_stay_apart_for_everyone(theme: Theme, sight: str) -> None:
    for one, other in itertools.combinations(MAIN_KINDS, 2):
        apart = difference(theme.kinds[one], theme.kinds[other], SIGHT[sight])
        assert apart > 0.12, (one, other)


@BOTH
def test_every_kind_stands_out_from_the_surface(theme: Theme) -> None:
    for kind, colour in theme.kinds.items():
        assert contrast(colour, theme.surface) >= 3, kind


@BOTH
def test_what_time_is_spent_on_stands_out_unless_nothing_is_to_be_seen(theme: Theme) -> None:
    for use, colour in theme.uses.items():
        if use not in ("working", "not known"):
            assert contrast(colour, theme.surface) >= 3, use
    assert set(theme.uses) == {*STATES.values(), *PARTS, TRANSFER, UNKNOWN}
    assert theme.use("made up") == theme.uses["not known"]


@BOTH
def test_the_time_of_a_device_stands_out_unless_it_is_unknown(theme: Theme) -> None:
    assert set(theme.device) == set(WORDS)
    for part, colour in theme.device.items():
        assert contrast(colour, theme.surface) >= 3 or part == "idle_unknown", part


@BOTH
@pytest.mark.parametrize("sight", SIGHT)
def test_solid_parts_of_a_device_s_time_stay_apart_for_everyone(theme: Theme, sight: str) -> None:
    for one, other in itertools.combinations(set(WORDS) - set(PATTERNS), 2):
        assert difference(theme.device[one], theme.device[other], SIGHT[sight]) > 0.12, (one, other)


@BOTH
@pytest.mark.parametrize("sight", SIGHT)
def test_the_parts_of_a_step_stay_apart_for_everyone(theme: Theme, sight: str) -> None:
    solid = [part for part in PARTS if part != UNKNOWN]  # which is hatched
    for one, other in itertools.combinations(solid, 2):
        assert difference(theme.uses[one], theme.uses[other], SIGHT[sight]) > 0.12, (one, other)


@BOTH
def test_more_is_further_from_the_surface(theme: Theme) -> None:
    for colours in (theme.scale, theme.excess):
        from_surface = [contrast(colour, theme.surface) for colour in colours]
        assert from_surface == sorted(from_surface)
        assert from_surface[-1] >= 7


@BOTH
@pytest.mark.parametrize("sight", SIGHT)
def test_more_than_is_allowed_is_not_mistaken_for_less(theme: Theme, sight: str) -> None:
    for less, more in itertools.product(theme.scale[:3], theme.excess):
        assert difference(less, more, SIGHT[sight]) > 0.12, (less, more)


@BOTH
def test_text_is_readable_on_what_it_stands_on(theme: Theme) -> None:
    assert contrast(theme.ink, theme.surface) >= 7
    assert contrast(theme.muted, theme.surface) >= 4.5
    assert contrast(theme.muted, theme.modules[0]) >= 4.5
    for colour in (*theme.kinds.values(), *theme.phases.values(), *theme.modules, theme.operator):
        assert contrast(readable_on(colour), colour) >= 4.5


@BOTH
def test_every_kind_of_communication_has_a_colour(theme: Theme) -> None:
    assert set(theme.kinds) == {*KINDS, "other"}
    assert theme.kind("made_up") == theme.kinds["other"]
    assert theme.phase("made_up") == theme.phases["other"]


def test_no_colour_has_two_meanings_so_that_a_picture_can_be_recoloured() -> None:
    colours = recolouring(LIGHT, DARK)
    parts = (
        LIGHT.modules, LIGHT.kinds, LIGHT.phases, LIGHT.uses, LIGHT.actions, LIGHT.device,
        LIGHT.scale, LIGHT.excess,
    )  # fmt: skip
    num_meanings = 5 + sum(map(len, parts))
    assert len(colours) == num_meanings
    assert colours[LIGHT.kinds["all_reduce"]] == DARK.kinds["all_reduce"]
    assert colours[LIGHT.phases["forward"]] == DARK.phases["forward"]
    assert colours[LIGHT.modules[1]] == DARK.modules[1]
    assert colours[LIGHT.surface] == DARK.surface


def test_a_theme_goes_by_its_name() -> None:
    assert theme_of("light") is LIGHT
    assert theme_of(DARK) is DARK
    assert list(THEMES) == ["light", "dark"]


def test_what_is_readable_on_black_and_white_alike_lies_in_between() -> None:
    assert readable_anywhere(["#111111", "#767676", "#eeeeee"]) == "#767676"
    assert readable_on("#767676") == "#000000"
    assert readable_on("#747474") == "#ffffff"
