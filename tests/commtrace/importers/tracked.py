"""Values of a document that remember which of their fields were read."""

from __future__ import annotations

from typing import Any


class Tracked(dict[str, Any]):
    """An object of a document; a field that is looked up, even in vain, was read."""

    def __init__(self, fields: dict[str, Any], read: set[str]) -> None:
        super().__init__({name: tracked(value, read) for name, value in fields.items()})
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self._read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return super().get(name, default)


def tracked(value: Any, read: set[str]) -> Any:
    """Return a value whose objects add the names of the fields that are read to `read`."""
    if isinstance(value, dict):
        return Tracked(value, read)
    if isinstance(value, (list, tuple)):
        return type(value)(tracked(each, read) for each in value)
    return value


def fields_of(value: Any) -> set[str]:
    """Return the names of all fields of a document."""
    if isinstance(value, dict):
        return set(value) | fields_of(list(value.values()))
    if isinstance(value, (list, tuple)):
        return {name for each in value for name in fields_of(each)}
    return set()
