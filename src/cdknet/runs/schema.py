"""What config.json and history.jsonl must hold: one schema, of the present version of the format.

`checked_config` is the door: an older config is migrated step by step, then everything in it is checked. Code
behind the door looks at nothing twice: every key of `CONFIG` is there, with a value of its kind.

A kind is a function that raises `Misfit` unless a value is of it. Kinds are made of kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

FORMAT, VERSION = "cdknet-run", 2
LARGEST_INT = 2**63 - 1
MOST_CLASSES = 60_000  # class ids are 16-bit numbers and never reused

Config = dict[str, Any]
Kind = Callable[[Any, str], None]  # the value, and where it is


class Misfit(ValueError):
    """A value that is not of the kind that its place must have."""

    def __init__(self, where: str, what: str, got: Any) -> None:
        text = type(got).__name__ if isinstance(got, (dict, list)) else repr(got)
        super().__init__(f"{where} must be {what}. Got {text[:60]}")


# Kinds


def text(value: Any, where: str) -> None:
    if not isinstance(value, str) or (not value.isascii() and not _is_unicode(value)):
        raise Misfit(where, "text", value)


def path(value: Any, where: str) -> None:
    """The name of a file, which need not be UTF-8: readers show it by `files.shown`."""
    if not isinstance(value, str):
        raise Misfit(where, "text", value)


def boolean(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise Misfit(where, "true or false", value)


def number(least: float = -math.inf, most: float = math.inf) -> Kind:
    def check(value: Any, where: str) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (-1e300 < value < 1e300 and least <= value <= most):  # NaN fails, too
            raise Misfit(where, f"a number{_within(least, most)}", value)

    return check


def whole(least: int = -LARGEST_INT, most: int = LARGEST_INT) -> Kind:
    def check(value: Any, where: str) -> None:
        if type(value) is not int or not least <= value <= most:
            raise Misfit(where, f"a whole number{_within(least, most)}", value)

    return check


def scalar(value: Any, where: str) -> None:
    """Text, a number, true, false or nothing: the value of an option."""
    if isinstance(value, str):
        text(value, where)
    elif value is not None and not isinstance(value, bool):
        (whole() if isinstance(value, int) else number())(value, where)


def maybe(kind: Kind) -> Kind:
    def check(value: Any, where: str) -> None:
        if value is not None:
            kind(value, where)

    return check


def many(kind: Kind, least: int = 0, most: int = LARGEST_INT) -> Kind:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise Misfit(where, f"a list of {least} items or more" if least else "a list", value)
        for index, item in enumerate(value):
            kind(item, f"{where}[{index}]")

    return check


def table(kind: Kind) -> Kind:
    """An object with any keys, and values of one kind."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Misfit(where, "an object", value)
        for name, item in value.items():
            text(name, f"a name in {where}")
            kind(item, f"{where}.{name[:40]}")

    return check


def record(
    needed: Mapping[str, Kind], known: Mapping[str, Kind] | None = None, *, open: bool = False
) -> Kind:
    """An object with the needed keys, and perhaps the known ones; others only if it is `open`."""
    kinds = {**needed, **(known or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Misfit(where, "an object", value)
        for name in needed:
            if name not in value:
                raise ValueError(f"{where} must be complete. Got nothing on {name}")
        for name, item in value.items():
            text(name, f"a name in {where}")
            if name in kinds:
                kinds[name](item, f"{where}.{name}")
            elif not open:
                raise ValueError(f"{where} must be complete, with known values only. Got {name[:40]!r}")

    return check


def classes(value: Any, where: str) -> None:
    """Names of classes: all of them whole numbers, or all texts."""
    many(whole() if isinstance(value, list) and value and type(value[0]) is int else text)(value, where)


def _within(least: float, most: float) -> str:
    if (math.isinf(least) and math.isinf(most)) or least == -LARGEST_INT:
        return ""
    return f" from {least} to {most}" if not math.isinf(most) and most != LARGEST_INT else f" from {least} on"


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# The schema

share, count = number(-1e-6, 1 + 1e-6), whole(0)  # a mean of float32 shares may be a little above 1
texts, scalars = many(text), table(scalar)

BLUEPRINT = record(
    {"sample_shape": many(whole(1), 1, 3), "n_old_classes": count, "n_new_classes": count},
    {
        "architecture": text,
        "statistics_size": count,
        "feature_size": maybe(count),
        "expansion": text,
        "extra_units": number(0),
        "pixels": maybe(boolean),
        "own_encoder": boolean,
    },
)
CALIBRATION = record(
    {"calibrated": boolean},
    {
        "reason": text,
        "folds": count,
        "hidden": many(texts),
        "samples": count,
        "accuracy": share,
        "accuracies": many(share, 1),
        "plain": maybe(share),
        "among_old": share,
        "mixtures": many(record({"share": share, "found": share})),
        "error_before": maybe(number()),
        "error_after": maybe(number()),
        "slope": number(),
        "offset": number(),
        "quantiles": many(number()),
        "seconds": number(0),
    },
    open=True,
)


def calibration(value: Any, where: str) -> None:
    CALIBRATION(value, where)
    if value["calibrated"] and "accuracy" not in value:
        raise ValueError(f"{where} must be complete. Got nothing on accuracy")


TRIED = {"candidate": text, "options": scalars, "accuracies": many(share)}
TUNING = record(
    {
        "tried": many(record({**TRIED, "mean": number(), "gain": number(), "score": number()}, open=True)),
        "chosen": text,
        "options": scalars,
        "why": text,
        "hidden": many(texts),
    },
    open=True,
)
MIXTURE = record(
    {
        "share": share,
        "interval": many(share, 2, 2),
        "spies": count,
        "old": count,
        "new": count,
        "noise": count,
    },
    open=True,
)
N_CLASSES = record(
    {
        "found": count,
        "interval": many(count, 2, 2),
        "uncertain": boolean,
        "reason": text,
        "level": number(0),
        "levels_used": many(number(0), 2, 2),
        "by_fold": many(count, 1),
        "hidden": many(texts, 1),
        "levels": many(number(0), 1),
        "agreement": many(many(number(-1, 1), 1), 1),
        "counts": many(many(count, 1), 1),
    },
    open=True,
)
NEEDED: dict[str, Kind] = {
    "format": text,
    "version": count,
    "files": table(record({"bytes": count, "sha256": text})),
    "options": scalars,
    "blueprint": BLUEPRINT,
    "classes": classes,
    "seed": whole(0, 2**64),
}
# Keys that are filled in where they are missing, with the value that stands for "nothing is known".
DEFAULTS: dict[str, tuple[Kind, Any]] = {
    "class_ids": (maybe(many(whole(0, MOST_CLASSES - 1))), None),  # None: 0, 1, 2, ...
    "next_class_id": (maybe(whole(0, MOST_CLASSES)), None),
    "chosen": (scalars, {}),
    "columns": (maybe(texts), None),
    "confidence": (
        maybe(record({"overall": share, "calibration": calibration}, {"classes": many(share)})),
        None,
    ),
    "feature_names": (maybe(texts), None),
    "given_accuracy": (maybe(share), None),
    "mixture": (maybe(MIXTURE), None),
    "n_classes": (maybe(N_CLASSES), None),
    "notes": (texts, []),
    "samples_digest": (maybe(text), None),
    "source": (path, "arrays"),
    "spent": (table(number(0)), {}),
    "tuning": (maybe(TUNING), None),
    "validation_accuracy": (maybe(share), None),
    "versions": (table(text), {}),
}
KNOWN: dict[str, Kind] = {
    "plan": scalars,
    "scale": number(0),
    "on_sphere": boolean,
    "n_features_in": count,
    "categories": maybe(texts),
    "dropped": maybe(texts),
    "fills": maybe(table(number())),
    "label_column": maybe(text),
    "id_column": maybe(text),
    "refined": record({"from": text, "revision": count}),
}
# Open: a caller of `to_run(**config)` may add keys of their own, which nothing here reads.
CONFIG = record({**NEEDED, **{name: kind for name, (kind, _) in DEFAULTS.items()}}, KNOWN, open=True)
ROW = record({"stage": text}, {"epoch": count, "seconds": number(0)}, open=True)


def checked_config(config: Config, file: object) -> Config:
    """The config in the present version, or one ValueError that names the file."""
    if config.get("format") != FORMAT:
        raise ValueError(f"{file} must be of format {FORMAT!r}. Got {str(config.get('format'))[:60]!r}.")
    version = config.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ValueError(
            f"{file} must be of version 1 to {VERSION}. Got {str(version)[:20]}. "
            "Read it with the version of cdknet that wrote it."
        )
    if missing := {"options", "blueprint", "classes", "seed", "files"} - config.keys():
        raise ValueError(f"{file} must be complete. Got nothing on {min(missing)}: the run is damaged.")
    try:
        table(scalar)(config["options"], "options")  # the steps read them
        for old in range(version, VERSION):
            config = {**STEPS[old](config), "version": old + 1}
        config = {**{name: value for name, (_, value) in DEFAULTS.items()}, **config}
        CONFIG(config, "config.json")
    except ValueError as error:
        raise ValueError(f"{file}: {error}. The run is damaged.") from None
    return config


def checked_row(row: Any, line: int) -> dict[str, Any]:
    """A row of history.jsonl: the stage, and numbers. A loss may be infinite."""
    where = f"history.jsonl, line {line},"
    ROW(row, where)
    for name, value in row.items():
        if not isinstance(value, float):
            scalar(value, f"{where} {name[:40]}")
    found: dict[str, Any] = row
    return found


def filled(config: Mapping[str, Any]) -> Config:
    """A config for writing: with every key that readers rely on, and null for numbers that JSON has not."""
    head = {"format": FORMAT, "version": VERSION}
    return {**head, **{name: value for name, (_, value) in DEFAULTS.items()}, **_finite(config), **head}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Migration: what turns a config of a version into one of the next


def _from_1(config: Config) -> Config:
    """0.1.0: all unlabelled samples were taken to be new, unless `novelty` was on."""
    options = dict(config["options"])
    if "unlabelled" not in options:
        mixed = options.pop("novelty", False)
        options |= {"unlabelled": "mixed", "detector": "softmax"} if mixed else {"unlabelled": "new"}
    return {**config, "options": options}


STEPS: dict[int, Callable[[Config], Config]] = {1: _from_1}
