"""What tells a user's own encoder, views or clusterer from another, so that no checkpoint mixes them up."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from cdknet.runs import fingerprint

DEEPEST = 8  # how far into a part is looked, so that one that holds itself has an end
PLAIN = bool | int | float | complex | str | bytes | np.generic


def identity_of(part: Any) -> list[Any] | None:
    """A module's layers, weights and what learns of them; or a name, and a sum of all that decides."""
    if part is None:
        return None
    if isinstance(part, nn.Module):
        weights = [weight.detach().cpu().float().numpy() for weight in part.state_dict().values()]
        return [repr(part), fingerprint(*weights), [weight.requires_grad for weight in part.parameters()]]
    told = hashlib.sha256(json.dumps(_told(part, 0)).encode()).hexdigest()
    return [getattr(part, "__qualname__", type(part).__qualname__), told]


def _told(value: Any, depth: int) -> Any:
    """A value for JSON: of functions their code and what it holds on to, of objects what they hold."""
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
        return [_told(part, depth + 1) for part in parts]

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
        return [where, *walk([value.__code__, value.__defaults__, value.__kwdefaults__, closure])]
    if isinstance(value, type | ModuleType | BuiltinFunctionType):
        return [getattr(value, "__module__", ""), value.__name__]
    held = value.get_params() if hasattr(value, "get_params") else getattr(value, "__dict__", {})
    return [type(value).__module__, type(value).__qualname__, *walk([held])]
