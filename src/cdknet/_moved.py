"""Modules under their names of version 0.1. They warn, and go in version 0.3."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "cdknet.estimator": ("cdknet.estimators",),
    "cdknet.metrics": ("cdknet.core.metrics",),
    "cdknet.hsic": ("cdknet.core.hsic",),
    "cdknet.spectral": ("cdknet.core.spectral", "cdknet.core.neighbors"),
    "cdknet.readout": ("cdknet.core.classifiers",),
    "cdknet.networks": ("cdknet.nets.network", "cdknet.nets.architectures", "cdknet.nets.growth"),
    "cdknet.layers": ("cdknet.nets.layers",),
    "cdknet.views": ("cdknet.nets.augment",),
    "cdknet.history": ("cdknet.training.history",),
    "cdknet.evaluate": ("cdknet.runs.evaluate",),
    "cdknet.pictures": ("cdknet.runs.figures",),
    "cdknet.data.openworld": ("cdknet.core.openworld",),
    "cdknet.explorer.refine": ("cdknet.fit.refine",),
}


class OldNames(MetaPathFinder, Loader):
    """Finds a module by its old name: its names are those of the modules it has become."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = " and ".join(MOVED[old])
        warnings.warn(f"{old} is now {new}. The old name goes in 0.3.", DeprecationWarning, stacklevel=6)

        module.__getattr__ = lambda name: _found(old, name, MOVED[old])[0]  # type: ignore[method-assign]


def moved_name(package: str, name: str, modules: Sequence[str]) -> Any:
    """A name that a module had before it became a package: from the module of it that has it now."""
    part, place = _found(package, name, [f"{package}.{module}" for module in modules])
    warnings.warn(
        f"{package}.{name} is now {place}.{name}. The old name goes in 0.3.", DeprecationWarning, stacklevel=3
    )
    return part


def _found(old: str, name: str, places: Sequence[str]) -> tuple[Any, str]:
    for place in places:
        if not name.startswith("__") and name in vars(found := import_module(place)):
            return getattr(found, name), place
    raise AttributeError(f"module {old!r} has no attribute {name!r}")


def install() -> None:
    if not any(isinstance(finder, OldNames) for finder in sys.meta_path):
        sys.meta_path.append(OldNames())
