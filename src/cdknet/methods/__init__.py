"""The methods, one file each: how new classes are found.

Each file has a `METHOD` (`base.Method`): the options it reads, its stages and its discover function. Stages 1
and 3 are the same for all methods, so that comparisons only show the difference in stage 2. To add a method,
add such a file and a line in `cdknet.options.METHODS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cdknet.options import METHODS, check_choice

if TYPE_CHECKING:
    from cdknet.methods.base import Method


def method_of(name: str) -> Method[Any]:
    """The method of that name."""
    check_choice("method", name, METHODS)
    method: Method[Any] = import_module(METHODS[name].module).METHOD
    return method
