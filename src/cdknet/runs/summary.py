"""What a run says of itself, in figures and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cdknet.runs.files import shown
from cdknet.runs.format import Run

if TYPE_CHECKING:
    pass


def used_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run as its fit used them: with what `tune` chose in the place of what was given."""
    return {**config.get("options", {}), **((config.get("tuning") or {}).get("options") or {})}


def summary(run: Run) -> dict[str, Any]:
    """What a person would ask of a run first. Plain JSON values."""
    config, options = run.config, used_options(run.config)
    n_old = config["blueprint"]["n_old_classes"]
    classes = []
    by_class: dict[str, list[dict[str, str]]] = {}
    for row in run.labels:
        by_class.setdefault(row["label"], []).append(row)
    for index, name in enumerate(config["classes"]):
        members = by_class.get(str(name), [])
        confidence = [float(row["confidence"]) for row in members]
        classes.append(
            {
                "name": str(name),
                "kind": "old" if index < n_old else "new",
                "samples": len(members),
                "given": sum(row["given"] == "1" for row in members),
                "confidence": float(np.mean(confidence)) if confidence else 0.0,
            }
        )
    stages = list(dict.fromkeys(row["stage"] for row in run.history))
    epochs = {stage: sum(row["stage"] == stage for row in run.history) for stage in stages}
    return {
        "samples": len(run.labels),
        "source": shown(config.get("source", "arrays")),
        "classes": classes,
        "network": config.get("chosen", {}).get("network", config["blueprint"]["architecture"]),
        "method": options["method"],
        "chosen": config.get("chosen", {"network": config["blueprint"]["architecture"]}),
        "expansion": options["expansion"],
        "label_weight": options["label_weight"],
        "seed": config["seed"],
        "confidence": config.get("confidence"),
        "given_accuracy": config.get("given_accuracy"),
        "tuning": config.get("tuning"),
        "time_budget": options.get("time_budget"),
        "spent": config.get("spent", {}),
        "epochs": epochs,
        "notes": config.get("notes", []),
        "pictures": sorted(run.pictures),
    }


UNLIKE = 0.1  # folds that differ by more are told each, so that nobody takes their mean for sure


WORSE = 0.05  # than k-means, in rehearsals that are short: from there on it is told what to do


CHANCE = 1.5  # times guessing: below that it is told what guessing comes to


LOW = 0.5  # share of given labels below which the samples themselves are to be doubted


def given_sentence(accuracy: float, *, timed: bool = False) -> str:
    """How well a run knows what it was told, in words. A `timed` one may have learned too little."""
    share = "more than 99" if 0.995 <= accuracy < 1 else f"{100 * accuracy:.0f}"
    told = f"predict answers with them for {share} of 100 labelled samples"
    if accuracy >= LOW:
        return told
    if timed:
        return told + ": few. It has hardly learned: give it more time (--time-budget), or none to keep to"
    return told + ": few. Look for placeholders such as 9999, odd units or wrong labels in the data"


def confidence_sentence(confidence: dict[str, Any], n_new: int | None = None) -> str:
    """How far to trust a run, in words; of `n_new` classes, what guessing comes to where that is near."""
    calibration = confidence["calibration"]
    if not calibration["calibrated"]:
        reason = calibration.get("reason", "an older version made it")
        return f"not calibrated, so its figures only rank samples: {reason}"
    found, expected = calibration["accuracy"], 100 * confidence["overall"]
    many = "more than 99" if expected > 99 else f"about {expected:.0f}"
    sentence = f"{many} of 100 unlabelled samples are expected to be right"
    if n_new and expected < CHANCE * 100 / n_new:
        sentence += f" (guessing among {n_new} classes: {100 / n_new:.0f})"
    if "among_old" in calibration:
        share = f"{100 * calibration['among_old']:.0f} of 100"
        sentence += f" if all are of new classes, but {share} look like labelled ones"
    sentence += "; in its own rehearsals on hidden old classes this setting "
    if found > 0.999:
        return sentence + "made no mistake to learn from, so look at the least sure ones all the same"
    each = calibration.get("accuracies", [found])
    far = max(each) - min(each) > UNLIKE
    sentence += f"found {_share(min(each))} to {_share(max(each))}" if far else f"found {_share(found)}"
    plain = calibration.get("plain")
    if plain is None:
        return sentence
    sentence += f", k-means on the columns {_share(plain)}"
    return sentence + (": other options may do better, see cdknet tune" if plain > found + WORSE else "")


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")
