"""File of a spool, which stays the same file whatever the program does with its descriptors.

A daemon closes all descriptors of its process, and opens files of its own under the same numbers.
The file is identified before each use, and opened again if its descriptor is another file's.
"""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

from commtrace.permissions import opener


def identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class SpoolFile(io.RawIOBase):
    """An unbuffered file to write to and read back from.

    Args:
        path: the file.
        flags: flags of `os.open`, beside `O_RDWR | O_CREAT`.

    Raises:
        OSError: it cannot be opened, or, later on, was removed and its descriptor closed.
    """

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        self._descriptor = opener(path, os.O_RDWR | os.O_CREAT | flags)
        self._identity = identity(self._descriptor)
        self._place = self._size = 0

    def fileno(self) -> int:
        """Return the descriptor, of a file that is open again if the program has closed it."""
        if self.closed:
            raise ValueError("the spool is closed")
        if identity(self._descriptor) != self._identity:
            again = opener(self._path, os.O_RDWR)
            # A file that took its place may have the same inode, but not the contents.
            if (identity(again), os.fstat(again).st_size) != (self._identity, self._size):
                os.close(again)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
            self._descriptor = again
        return self._descriptor

    def write(self, data: Any) -> int:
        """Write a part of the data at the current place, and return its size in bytes."""
        num = os.pwrite(self.fileno(), data, self._place)
        self._place += num
        self._size = max(self._size, self._place)
        return num

    def readinto(self, buffer: Any) -> int:
        """Read from the current place, and return the number of bytes."""
        data = os.pread(self.fileno(), len(buffer), self._place)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the current place."""
        base = (0, self._place, self._size)[whence]
        self._place = base + offset
        return self._place

    def truncate(self, size: int | None = None) -> int:
        """Cut the file off at the current place, or at a size."""
        size = self._place if size is None else size
        os.ftruncate(self.fileno(), size)
        self._size = size
        return size

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Close the file, but no other file that has its descriptor by now."""
        if not self.closed and identity(self._descriptor) == self._identity:
            os.close(self._descriptor)
        super().close()
