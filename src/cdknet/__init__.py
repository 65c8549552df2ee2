"""Open-world class discovery: learn the classes you know, find the ones you do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["ClassDiscovery", "__version__"]

if TYPE_CHECKING:
    from cdknet.estimators import ClassDiscovery


def __getattr__(name: str) -> Any:  # torch and scikit-learn take seconds to import: only when they are used
    if name == "ClassDiscovery":
        from cdknet.estimators import ClassDiscovery

        return ClassDiscovery
    raise AttributeError(f"module 'cdknet' has no attribute {name!r}")
