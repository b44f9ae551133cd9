"""Atomic writing of output files, and the errors of writing.

Every file that commtrace writes for a user (a run, a page, a picture, an export, a baseline) is
written through `atomic_write`. `permissions` decides who may read it. Errors of the operating
system become an `OutputError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import get_native_id

from commtrace.errors import OutputError
from commtrace.permissions import allowed_in, keep_permissions, opener

_UNFINISHED = re.compile(r"\.\d+\..")  # by the id of the thread in the system, hidden

_UNCHANGED = "files are written atomically: an existing file is unchanged"

_REFUSALS: dict[int, tuple[str, str, str]] = {
    errno.ENOENT: ("no folder {folder}", "", "`mkdir -p {quoted}`, or another path"),
    errno.ENOTDIR: ("a file instead of the folder {folder}", "", "another path"),
    errno.EEXIST: ("an existing file", "", "another path"),
    errno.EISDIR: ("an existing folder", "", "a file in it: {path}/FILE"),
    errno.EACCES: ("no permission to write to {folder}", "", "a folder of your own"),
    errno.EPERM: ("no permission to write to {folder}", "", "a folder of your own"),
    errno.EROFS: ("a read-only file system", "", "another path"),
    errno.ENOSPC: (
        "no space left on the device",
        _UNCHANGED,
        "free some space, or use another path",
    ),
    errno.EDQUOT: ("your quota is used up", _UNCHANGED, "free some space, or use another path"),
    errno.EFBIG: ("a limit on file sizes", _UNCHANGED, "`ulimit -f unlimited`"),
    errno.ENAMETOOLONG: ("a name that is too long for the file system", "", "a shorter name"),
}
"""By errno: `found`, `why` and `attempt` of the error."""

_DEVICE = (
    "something that is neither a file nor a folder",
    "the output is written to a temporary file and then renamed",
    "the path of a file",
)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; atomically rename it to `path` on success, else leave nothing.

    The temporary file is in the same folder, has the same suffix, and already exists with the final
    permissions. A symbolic link is followed.

    Raises:
        OutputError: the operating system refused an operation.
    """
    check_writable(path)
    place = Path(os.path.realpath(path))
    # In the same folder, since a rename is atomic within one file system only.
    unfinished = place.with_name(f".{get_native_id()}.{place.name}")
    try:
        unfinished.unlink(missing_ok=True)  # left by a killed thread with the same id
        # O_EXCL, so that a link that somebody else has put there is not followed.
        os.close(opener(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        try:
            yield unfinished
            keep_permissions(place, unfinished)
            unfinished.replace(place)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        # An OutputError is an OSError as well, and has its four parts already.
        if isinstance(error, OutputError):
            raise
        raise output_error(path, error) from error


def finished(folder: Path, pattern: str) -> list[Path]:
    """Return the files in a folder that match `pattern`, but for those still being written."""
    return [path for path in sorted(folder.glob(pattern)) if not is_unfinished(path)]


def is_unfinished(path: Path) -> bool:
    """Return whether `atomic_write` writes this file, or a killed process left it unfinished."""
    return _UNFINISHED.match(path.name) is not None


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written: a folder, a device, or a missing folder.

    Raises:
        OutputError: the path cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "")
        if path.exists() and not path.is_file():
            raise _refused(path, *_DEVICE)
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir():
            is_file = any(above.is_file() for above in (folder, *folder.parents))
            raise OSError(errno.ENOTDIR if is_file else errno.ENOENT, "")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "")
    except OutputError:
        raise
    except OSError as error:
        raise output_error(path, error) from None


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Create a folder for the files that are written in the body; it goes again if that fails.

    A folder that was there before keeps what it has.

    Raises:
        OutputError: the folder cannot be created.
    """
    is_new = not folder.exists()
    make_folder(folder)
    try:
        yield
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def make_folder(folder: Path) -> None:
    """Create a folder for output, with its parents; leave existing folders unchanged.

    Raises:
        OutputError: the folder cannot be created.
    """
    missing = [each for each in (folder, *folder.parents) if not each.is_dir()]
    try:
        for each in reversed(missing):
            try:
                each.mkdir(mode=allowed_in(each.parent))
            except FileExistsError:  # created by another process, or it is a file
                if not each.is_dir():
                    raise
    except OSError as error:
        raise output_error(folder, error) from error


def output_error(path: Path | str, error: OSError) -> OutputError:
    """Return the four-part error for an OSError on an output file."""
    # A reason of the system is no template; braces in it are doubled.
    reason = (error.strerror or str(error)).lower().replace("{", "{{").replace("}", "}}")
    parts = _REFUSALS.get(error.errno or 0, (reason, "", "another path"))
    if error.errno == errno.ENOENT and Path(path).parent.is_dir():
        parts = ("a file system that accepts no new files", "", "another path")
    return _refused(path, *parts)


def _refused(path: Path | str, found: str, why: str, attempt: str) -> OutputError:
    folder = str(Path(path).parent)
    named = {"path": path, "folder": folder, "quoted": shlex.quote(folder)}
    return OutputError(
        f"cannot write {path}",
        found=found.format(**named),
        why=why,
        attempt=attempt.format(**named),
    )
