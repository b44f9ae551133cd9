"""A model's parts are what `torch_internals.modules` says."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from commtrace.torch_internals.modules import (
    buffers_of,
    modules_of,
    own_parameters,
    parameters_of,
)


def model() -> nn.Module:
    shared = nn.BatchNorm1d(4)
    inner = nn.Sequential(nn.Linear(4, 4, bias=False), shared)
    tied = nn.ParameterList([inner[0].weight])
    found = nn.ModuleDict({"inner": inner, "again": shared, "tied": tied})
    found.register_buffer("none", None)
    found.register_module("nothing", None)
    found.register_parameter("own", nn.Parameter(torch.ones(1)))
    return found


def ids(named: Iterable[tuple[str, object]]) -> list[tuple[str, int]]:
    return [(path, id(each)) for path, each in named]


def test_they_are_those_of_torch_under_the_same_paths() -> None:
    root = model()
    for several in (False, True):
        expected = root.named_modules(remove_duplicate=not several)
        assert ids(modules_of(root, each_path=several)) == ids(expected)
    assert ids(parameters_of(root)) == ids(root.named_parameters())
    assert ids(buffers_of(root)) == ids(root.named_buffers())
    assert [id(each) for each in own_parameters(root)] == [id(root.own)]


def test_a_module_inside_of_itself_is_yielded_once() -> None:
    root = nn.Sequential(nn.Linear(2, 2))
    root[0].register_module("owner", root)
    for several in (False, True):
        assert [path for path, _ in modules_of(root, each_path=several)] == ["", "0"]
