"""Digests of a user's own encoder, views or clusterer, and of our code, to tell different ones apart."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from cdknet.runs.fingerprints import fingerprint
from cdknet.training.context import FitContext

LEARNING = ("core", "inputs", "nets", "training", "methods", "fit")  # packages that determine what is learned
LIBRARIES = ("builtins", "abc", "typing", "torch", "sklearn", "numpy", "scipy", "cdknet")
DEEPEST = 8  # levels of nesting that are looked at, since an object may contain itself
PLAIN = bool | int | float | complex | str | bytes | np.generic


def identity_of(part: Any) -> list[Any] | None:
    """A module's layers, weights and which of them are trained; else a name and a digest."""
    if part is None:
        return None
    if isinstance(part, nn.Module):
        weights = [weight.detach().cpu().float().numpy() for weight in part.state_dict().values()]
        learns = [weight.requires_grad for weight in part.parameters()]
        does = _functions(type(layer) for layer in part.modules())
        return [repr(part), fingerprint(*weights), learns, _digest([_described(f, 0) for f in does])]
    return [getattr(part, "__qualname__", type(part).__qualname__), _digest(_described(part, 0))]


def own_parts(context: FitContext) -> list[Any]:
    """The identity of the user's own parts, so that a checkpoint is not resumed with different ones."""
    return [identity_of(part) for part in (context.encoder, context.clusterer, context.views)]


@functools.cache
def learning_code() -> str:
    """A digest of the sources that determine what a stage learns: other versions do not share its results."""
    root = Path(__file__).parents[1]
    files = [root / "options.py", *(path for name in LEARNING for path in sorted((root / name).glob("*.py")))]
    return _digest([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])


def _digest(described: Any) -> str:
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _functions(kinds: Iterable[type]) -> list[Any]:
    """What objects of these classes do: the functions of each class and of its bases, by name.

    Library classes are left out: they do not change between two runs of the user's code.
    """
    classes = {one for kind in kinds for one in kind.__mro__ if one.__module__.split(".")[0] not in LIBRARIES}
    out = []
    for one in sorted(classes, key=lambda one: (one.__module__, one.__qualname__)):
        held = [
            getattr(part, "__func__", getattr(part, "fget", part)) for _, part in sorted(vars(one).items())
        ]
        out += [part for part in held if isinstance(part, FunctionType)]
    return out


def _described(value: Any, depth: int) -> Any:
    """A value for JSON: for a function its code and closure, for an object its attributes."""
    if depth > DEEPEST:
        return ""
    if value is None or isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        value = value.detach().cpu().float().numpy()
    if isinstance(value, np.ndarray):
        return fingerprint(value)
    if isinstance(value, nn.Module):
        return identity_of(value)

    def walk(parts: Iterable[Any]) -> list[Any]:
        return [_described(part, depth + 1) for part in parts]

    if isinstance(value, list | tuple):
        return walk(value)
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, dict):
        return walk(sorted(value.items(), key=lambda item: str(item[0])))
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), walk(value.co_consts)]
    if isinstance(value, functools.partial):
        return walk([value.func, value.args, value.keywords])
    if isinstance(value, MethodType):
        return walk([value.__func__, value.__self__])
    if isinstance(value, FunctionType):
        closure = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        where = [value.__module__, value.__qualname__]
        named = [value.__globals__.get(name) for name in value.__code__.co_names]
        known = [held for held in named if isinstance(held, PLAIN | Tensor | np.ndarray)]
        return [where, *walk([value.__code__, value.__defaults__, value.__kwdefaults__, closure, known])]
    if isinstance(value, type | ModuleType | BuiltinFunctionType):
        return [getattr(value, "__module__", ""), value.__name__]
    held = value.get_params() if hasattr(value, "get_params") else getattr(value, "__dict__", {})
    return [type(value).__module__, type(value).__qualname__, *walk([held, _functions([type(value)])])]
