"""`report.html`: the explorer's page with its data embedded, to be opened from disk, read-only."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cdknet.explorer.session import Session

STATIC = Path(__file__).parent / "static"
LARGEST = 4_700_000  # bytes of the whole page
MOST_THUMBNAILS = 20_000
GREYS = 16  # levels of a grey thumbnail: enough to recognise a sample, at half the size


def report_html(session: Session, *, largest: int = LARGEST) -> bytes:
    """One read-only page with as many samples as `largest` bytes allow: of the cards, then of the map.

    Samples are thumbnails, or texts.
    """
    data = report_data(session)
    page = STATIC / "index.html"
    if not page.is_file():
        raise FileNotFoundError(
            "index.html must be part of the installation. It is not: install cdknet again."
        )
    without = _page(page.read_text(encoding="utf-8"), data)
    data["thumbs"] = _thumbs(session, data["classes"], largest - len(without))
    data["texts"] = _texts(session, data["classes"], largest - len(without))
    return _page(page.read_text(encoding="utf-8"), data)


def report_data(session: Session) -> dict[str, Any]:
    """Everything but the thumbnails, in the form of the API's answers; arrays as base64 of the same bytes."""
    state = session.state()
    return {
        "run": {**session.about(), "read_only": True},
        "state": {**state, "undo": None, "redo": None},
        "classes": {str(c["id"]): session.class_card(c["id"]) for c in state["classes"]},
        "journal": session.past(0, 1000),
        "ids": session.run.ids,
        "map": _base64(session.map_bytes()),
        "assignment": _base64(session.assignment_bytes()[0]),
        "confidence": _base64(session.confidence_bytes()),
        "novelty": _base64(session.novelty_bytes()) if session.has_mixture else None,
        "given": _base64(session.given_bytes()),
        "truth": None if session.truth is None else _base64(session.truth_bytes()),
        "thumbs": None,
        "texts": None,
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _thumbs(session: Session, classes: dict[str, Any], space: int) -> dict[str, Any] | None:
    """A sprite of as many samples as fit into `space` bytes of base64."""
    if session.drawer is None:
        return None
    rows = _thumbnail_order(session.run.places, classes)[:MOST_THUMBNAILS]
    shape = session.run.sample_shape
    size = min(32, max(16, *shape[-2:])) if session.drawer.kind == "image" else 32
    count = len(rows)
    while count > 0:
        shown = sorted(rows[:count])
        columns = max(1, int(np.ceil(np.sqrt(count))))
        png = _small_png(session.drawer.sheet(shown, size, columns))
        if len(png) * 4 / 3 + 8 * count <= space:
            return {"size": size, "columns": columns, "png": _base64(png), "samples": shown}
        fits = space / (len(png) * 4 / 3 + 8 * count)
        count = int(count * min(0.95 * fits, 0.9)) if fits > 0 else 0
    return None


def _texts(session: Session, classes: dict[str, Any], space: int) -> dict[str, Any] | None:
    """The beginnings of as many texts as fit into `space` bytes."""
    if not session.has_texts:
        return None
    samples, shown, used = [], [], 0
    for row in _thumbnail_order(session.run.places, classes):
        (text,) = session.texts([row])
        used += len(_embedded(text).encode()) + 10  # the number and the commas
        if used > space:
            break
        samples.append(row)
        shown.append(text)
    return {"samples": samples, "texts": shown}


def _thumbnail_order(places: NDArray[np.float32], classes: dict[str, Any]) -> list[int]:
    """Samples on cards first, then evenly over the map, so that hovering finds pictures everywhere."""
    first = [i for card in classes.values() for i in (*card["central"], *card["unsure"], *card["outliers"])]
    cell = np.clip((places + 1) * 48, 0, 95).astype(np.int64) @ np.array([96, 1])
    order = np.argsort(cell, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(cell[order]) > 0])
    turn = np.arange(len(order)) - np.repeat(
        starts, np.diff(np.r_[starts, len(order)])
    )  # nth sample of its cell
    over_map = order[np.argsort(turn, kind="stable")].tolist()
    return list(dict.fromkeys([*first, *over_map]))


def _small_png(sheet: Image.Image) -> bytes:
    """A small PNG: few grey levels or colours, best compression."""
    if sheet.mode == "L":
        levels = np.round(np.asarray(sheet) / (255 / (GREYS - 1))).astype(np.uint8)
        small = Image.fromarray(levels).convert("P")
        small.putpalette([round(i * 255 / (GREYS - 1)) for i in range(GREYS) for _ in range(3)])
        content = io.BytesIO()
        small.save(content, "PNG", optimize=True, bits=4)
        return content.getvalue()
    content = io.BytesIO()
    sheet.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        content, "PNG", optimize=True
    )
    return content.getvalue()


# The page


def _embedded(data: Any) -> str:
    """JSON that may stand inside a script element."""
    body = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return body.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


_STYLE = re.compile(r'<link\b[^>]*\bhref="/?(?:static/)?([\w./-]+\.css)"[^>]*>')
_SCRIPT = re.compile(r'<script\b([^>]*)\bsrc="/?(?:static/)?([\w./-]+\.js)"([^>]*)></script>')
_OTHER_LINK = re.compile(r"<link\b[^>]*>")


def _page(text: str, data: dict[str, Any]) -> bytes:
    """The bundle's index.html with styles, scripts and data inlined; its policy lets nothing else run."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}

    def inlined(kind: str, name: str) -> str:
        content = (STATIC / name).read_text(encoding="utf-8")
        # In a string or a comment of the bundle these would close the element, or hide its end.
        content = re.sub(r"<(?=/script|/style|!--)", r"\\x3c", content, flags=re.IGNORECASE)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
        return content

    scripts: list[str] = []

    def script(match: re.Match[str]) -> str:
        kind = ' type="module"' if "module" in match[1] + match[3] else ""
        scripts.append(f"<script{kind}>{inlined('script', match[2])}</script>")
        return ""

    text = _SCRIPT.sub(script, text)
    text = _STYLE.sub(lambda m: f"<style>{inlined('style', m[1])}</style>", text)
    text = _OTHER_LINK.sub("", text)
    allowed = "; ".join(f"{kind}-src {' '.join(known)}" for kind, known in hashes.items() if known)
    policy = f"default-src 'none'; {allowed}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
    first = re.search(r"<meta charset[^>]*>", text) or re.search(r"<head[^>]*>", text)
    at = first.end() if first else 0
    text = text[:at] + meta + text[at:]
    embedded = f'<script type="application/json" id="cdknet-report">{_embedded(data)}</script>'
    marks = [text.rfind(mark) for mark in ("<!--report-->", "</body>") if mark in text]
    at = marks[0] if marks else len(text)
    return (text[:at] + embedded + "".join(scripts) + text[at:]).encode()
