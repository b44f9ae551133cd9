"""Hashes of calls, by which ranks can be compared over calls that were not kept.

The hash of several calls is the sum of theirs, so it does not depend on the order in which they
completed. That of a call depends on its number in its group and on where it was made.
"""

from __future__ import annotations

from hashlib import blake2b

PLACE = ("kind", "phase", "module", "source_file", "source_line", "source_function")
"""Columns of table `comm` that state where a collective was made."""
_MASK = (1 << 62) - 1
_ODD = 0x1E37_79B9_7F4A_7C15
_SPREAD = 0x3F58_476D_1CE4_E5B9


def hash_of_place(values: tuple[object, ...]) -> int:
    """Return the hash of the values of `PLACE`."""
    text = "\x1f".join(map(str, values)).encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") & _MASK


def hash_of_call(of_place: int, number: int) -> int:
    """Return the hash of the call of a number that was made at a place."""
    mixed = ((of_place ^ (number * _ODD)) * _SPREAD) & _MASK
    return ((mixed ^ (mixed >> 31)) * _SPREAD) & _MASK


def added(one: int, other: int) -> int:
    """Return the hash of two sets of calls together, given the hash of each."""
    return (one + other) & _MASK
