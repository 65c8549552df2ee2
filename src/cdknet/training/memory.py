"""Memory settings of the whole process: for programs, not for library calls."""

from __future__ import annotations

import ctypes
import sys


def keep_freed_memory() -> None:
    """Ask glibc to reuse the memory of freed tensors instead of returning it to the kernel at every step.

    It affects the whole process, so a fit does not do it. The command line does, and your own program may. It
    only costs idle memory, and `benchmarks/engine.py` measures the gain. Without glibc it does nothing.
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
