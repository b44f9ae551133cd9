"""Styles that only lay out a module's inputs or outputs.

Each argument has a given and a wanted layout, `None` if it is to be left alone. A plain tensor is
treated as the local part in the given layout, and a DTensor is used with its own. Both are
redistributed if they differ from the wanted layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dtensor_core.errors import four_parts
from dtensor_core.mesh import DeviceMesh
from dtensor_core.parallel.base import (
    ParallelStyle,
    StyleError,
    StyleInputError,
    as_dtensor,
    brought_to,
    local_if,
)
from dtensor_core.placement import Placement

OneOrMore = Placement | tuple[Placement | None, ...]


class PrepareModuleInput(ParallelStyle):
    """Lays out a module's inputs.

    Args:
        input_layouts: The given placement, or one per positional argument.
        desired_input_layouts: The wanted placement, or one per positional argument.
        input_kwarg_layouts: The given placements of keyword arguments, by name.
        desired_input_kwarg_layouts: The wanted placements of keyword arguments, by name.
        use_local_output: Pass local tensors to the module.

    Raises:
        StyleError: The numbers of given and wanted layouts differ (an AssertionError).
    """

    def __init__(
        self,
        *,
        input_layouts: OneOrMore | None = None,
        desired_input_layouts: OneOrMore | None = None,
        input_kwarg_layouts: Mapping[str, Placement] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts = _as_tuple(input_layouts)
        self.desired_input_layouts = _as_tuple(desired_input_layouts)
        self.with_kwargs = input_kwarg_layouts is not None
        self.input_kwarg_layouts = dict(input_kwarg_layouts or {})
        self.desired_input_kwarg_layouts = dict(desired_input_kwarg_layouts or {})
        self.use_local_output = use_local_output
        if self.input_layouts is not None:
            if self.desired_input_layouts is None:
                raise StyleError("desired module inputs should not be None!")
            _same_length(
                "input_layouts", self.input_layouts, "desired_input_layouts",
                self.desired_input_layouts,
            )  # fmt: skip
        if self.with_kwargs:
            _same_length(
                "input_kwarg_layouts", self.input_kwarg_layouts, "desired_input_kwarg_layouts",
                self.desired_input_kwarg_layouts,
            )  # fmt: skip

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def prepare(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return self._prepare_args(inputs, device_mesh)

        def prepare_all(
            _: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return self._prepare_args(inputs, device_mesh), self._prepare_kwargs(
                kwargs, device_mesh
            )

        if self.with_kwargs:
            module.register_forward_pre_hook(prepare_all, with_kwargs=True)
        else:
            module.register_forward_pre_hook(prepare)
        return module

    def _prepare_args(self, inputs: Any, mesh: DeviceMesh) -> tuple[Any, ...]:
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        if self.input_layouts is None or self.desired_input_layouts is None:
            return given
        _expect_as_many("inputs", given, "input_layouts", self.input_layouts)
        return tuple(
            _laid_out(value, come, want, mesh, self.use_local_output)
            for value, come, want in zip(
                given, self.input_layouts, self.desired_input_layouts, strict=True
            )
        )

    def _prepare_kwargs(self, kwargs: Mapping[str, Any], mesh: DeviceMesh) -> dict[str, Any]:
        come, want = self.input_kwarg_layouts, self.desired_input_kwarg_layouts
        return {
            name: _laid_out(value, come.get(name), want.get(name), mesh, self.use_local_output)
            for name, value in kwargs.items()
        }

    def __repr__(self) -> str:
        return (
            f"PrepareModuleInput(input_layouts={self.input_layouts}, "
            f"desired_input_layouts={self.desired_input_layouts}, "
            f"input_kwarg_layouts={self.input_kwarg_layouts}, "
            f"desired_input_kwarg_layouts={self.desired_input_kwarg_layouts}, "
            f"use_local_output={self.use_local_output})"
        )


class PrepareModuleOutput(ParallelStyle):
    """Lays out a module's outputs; `use_local_output` returns local tensors.

    Raises:
        StyleError: The numbers of given and wanted layouts differ (an AssertionError).
    """

    def __init__(
        self,
        *,
        output_layouts: OneOrMore,
        desired_output_layouts: OneOrMore,
        use_local_output: bool = True,
    ) -> None:
        self.output_layouts = _as_tuple(output_layouts) or ()
        self.desired_output_layouts = _as_tuple(desired_output_layouts) or ()
        self.use_local_output = use_local_output
        _same_length(
            "output_layouts", self.output_layouts, "desired_output_layouts",
            self.desired_output_layouts,
        )  # fmt: skip

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def finish(_: nn.Module, inputs: Any, outputs: Any) -> Any:
            return self._prepare_outputs(outputs, device_mesh)

        module.register_forward_hook(finish)
        return module

    def _prepare_outputs(self, outputs: Any, mesh: DeviceMesh) -> Any:
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        _expect_as_many("outputs", given, "output_layouts", self.output_layouts)
        prepared = tuple(
            _laid_out(value, come, want, mesh, self.use_local_output)
            for value, come, want in zip(
                given, self.output_layouts, self.desired_output_layouts, strict=True
            )
        )
        return prepared[0] if len(prepared) == 1 else prepared

    def __repr__(self) -> str:
        return (
            f"PrepareModuleOutput(output_layouts={self.output_layouts}, "
            f"desired_output_layouts={self.desired_output_layouts}, "
            f"use_local_output={self.use_local_output})"
        )


class PrepareModuleInputOutput(ParallelStyle):
    """Combines `PrepareModuleInput` and `PrepareModuleOutput`."""

    def __init__(
        self,
        *,
        input_layouts: OneOrMore | None = None,
        desired_input_layouts: OneOrMore | None = None,
        input_kwarg_layouts: Mapping[str, Placement] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Placement] | None = None,
        use_local_input: bool = False,
        output_layouts: OneOrMore,
        desired_output_layouts: OneOrMore,
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)

    def __repr__(self) -> str:
        return (
            f"PrepareModuleInputOutput({self.prepare_module_input}, {self.prepare_module_output})"
        )


def _laid_out(
    value: Any, come: Placement | None, want: Placement | None, mesh: DeviceMesh, use_local: bool
) -> Any:
    """Lay out an argument as wanted; left alone if `come` is None."""
    if come is None:
        return value
    if not isinstance(value, torch.Tensor):
        raise StyleError(
            four_parts(
                summary=f"an argument laid out as {come}",
                found=f"a {type(value).__name__}; expecting input to be a torch.Tensor!",
                hint="pass None as its layout",
            )
        )
    tensor = as_dtensor(value, mesh, (come,))
    if want is not None:
        tensor = brought_to(tensor, (want,))
    return local_if(tensor, use_local)


def _as_tuple(layouts: OneOrMore | None) -> tuple[Placement | None, ...] | None:
    return (layouts,) if isinstance(layouts, Placement) else layouts


def _same_length(name: str, come: Any, wanted_name: str, want: Any) -> None:
    if len(come) != len(want):
        raise StyleError(
            four_parts(
                summary=f"{name}={come} and {wanted_name}={want}",
                found=f"{len(come)} and {len(want)} layouts; "
                f"{name} and {wanted_name} should have same length!",
                hint="pass None for each tensor to leave unchanged",
            )
        )


def _expect_as_many(what: str, given: Any, name: str, layouts: Any) -> None:
    if len(given) != len(layouts):
        raise StyleInputError(
            four_parts(
                summary=f"{name}={layouts}",
                found=f"{len(given)} {what}; module {what} and {name} should have same length!",
                hint="pass a layout for each, None for each tensor to leave unchanged",
            )
        )
