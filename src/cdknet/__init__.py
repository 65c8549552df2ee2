"""Open-world class discovery: learn the classes you know, find the ones you do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdknet import _moved

__version__ = "0.2.0"
__all__ = [
    "DAC",
    "DEC",
    "SSCD",
    "CDKNet",
    "CDKNetPlus",
    "ClassDiscovery",
    "Pairwise",
    "SSCDDynamic",
    "Spectral",
    "__version__",
]

if TYPE_CHECKING:
    from cdknet.estimators import (
        DAC,
        DEC,
        SSCD,
        CDKNet,
        CDKNetPlus,
        ClassDiscovery,
        Pairwise,
        Spectral,
        SSCDDynamic,
    )


def __getattr__(name: str) -> Any:  # torch and scikit-learn take seconds to import: only when they are used
    if name in __all__:
        from cdknet import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'cdknet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_moved.install()
