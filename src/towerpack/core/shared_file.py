"""Memory that processes share by passing a descriptor: a file without a name.

`memfd_create` where there is one: it knows no `/dev/shm` limit and leaves nothing behind after a
crash. Elsewhere an unlinked temporary file does the same, slower.
"""

from __future__ import annotations

import errno
import os
import tempfile


def anonymous_file(size: int) -> int:
    """A descriptor of a new, empty file of `size` bytes, closed on exec.

    The file is sparse: a page takes memory once it is written. It is gone when the last descriptor
    and the last mapping are.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("towerpack", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EFBIG:
            error.add_note(
                f"shared memory of up to {size} bytes is more than the largest file that this "
                "process may have, though it takes none yet: raise that limit (ulimit -f unlimited)"
            )
        raise
    return descriptor


def write_at(descriptor: int, data: object, position: int) -> int:
    """Writes all of a buffer at `position`; returns the position after it."""
    view = memoryview(data).cast("B")  # type: ignore[arg-type]
    while view:
        written = os.pwrite(descriptor, view, position)  # the kernel takes at most 2 GB at once
        view, position = view[written:], position + written
    return position
