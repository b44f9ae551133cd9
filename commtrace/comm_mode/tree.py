"""Modules called while a CommDebugMode is on, with names, classes and parameters.

A name is the outermost module's class followed by the path below it: `MLP.layers.0.wq`. A second
outermost module of the same class is `MLP#2`. "Global" stands for everything outside of, and
around, all modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from commtrace.recorder.module_place import Place

GLOBAL = "Global"


@dataclass(slots=True)
class Called:
    """One module that was called; the outermost modules have depth 1."""

    name: str
    depth: int
    ancestors: tuple[str, ...]
    module_type: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def placements(self) -> dict[str, Any]:
        """Return the placements of the parameters that are DTensors."""
        return {
            name: value.placements
            for name, value in self.parameters.items()
            if hasattr(value, "placements")
        }


class Tree:
    """Modules called since `before` was taken, in the order of their first call."""

    def __init__(self, places: list[Place], before: Mapping[Place, int]) -> None:
        self._names: dict[Place, str] = {}
        self._taken: set[str] = set()
        called = [place for place in places if place.num_calls > before.get(place, 0)]
        known = set(called)
        self.modules: dict[str, Called] = {}
        for place in called:
            above = [part for part in _above(place) if part in known]
            ancestors = (GLOBAL, *(self.name_of(part) for part in above))
            module = place.module()
            name = self.name_of(place)
            self.modules[name] = Called(name, len(ancestors), ancestors)
            if module is not None:
                self.modules[name].module_type = _type_name(type(module))
                self.modules[name].parameters = {
                    key: value.data for key, value in module.named_parameters(recurse=False)
                }

    def name_of(self, place: Place | None) -> str:
        """Return the name of a place, the same each time."""
        if place is None:
            return GLOBAL
        known = self._names.get(place)
        if known is None:
            root = place.root
            if place is root:
                known = self._free(root.class_name)
            elif place.path == root.path:  # compiled from the root
                known = self.name_of(root)
            else:
                below = place.path.removeprefix(root.path).lstrip(".")
                known = f"{self.name_of(root)}.{below}"
            self._names[place] = known
        return known

    def _free(self, class_name: str) -> str:
        name, number = class_name, 1
        while name in self._taken:
            number += 1
            name = f"{class_name}#{number}"
        self._taken.add(name)
        return name

    def ancestors_of(self, place: Place | None) -> tuple[str, ...]:
        """Return the names of the modules around a place, "Global" first."""
        if place is None:
            return ()
        above = [self.name_of(part) for part in _above(place)]
        return (GLOBAL, *(name for name in above if name in self.modules))


def _above(place: Place) -> list[Place]:
    """Return the enclosing places of a place, outermost first."""
    root = place.root
    if place is root:
        return []
    tokens = place.path.split(".")
    paths = [".".join(tokens[:length]) for length in range(1, len(tokens))]
    found = [root.parts[path] for path in paths if path in root.parts]
    return [root, *(part for part in found if part is not root)]


def _type_name(cls: type) -> str:
    return f"class '{cls.__module__}.{cls.__qualname__}'"
