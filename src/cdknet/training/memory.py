"""Memory of the whole process: for programs, never for a library call."""

from __future__ import annotations

import ctypes
import sys


def keep_freed_memory() -> None:
    """Ask glibc to keep freed tensors instead of handing each back to the kernel between steps.

    It holds for the whole process, so a fit does not do it: the command line does, and so may you. It only
    costs idle memory; training is 1.1 to 1.3 times as fast. Elsewhere than on glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, mmap_threshold = -1, -3  # mallopt's names for them
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, 1 << 30)
    except (OSError, AttributeError):
        return
