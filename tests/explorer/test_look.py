"""The sources and the look of the explorer's page: no browser needed."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
STATIC = ROOT / "src/cdknet/explorer/static"
WEB = ROOT / "web/src"


def test_the_bundle_is_built_from_the_sources_beside_it() -> None:
    """The hash that `npm run build` writes into app.js is that of web/src as it is now."""
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    digest = hashlib.sha256()
    for path in sorted(p for p in WEB.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(WEB.parent).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    first = (STATIC / "app.js").read_text(encoding="utf-8").splitlines()[0]
    assert digest.hexdigest() in first, "web/src has changed: run `npm ci && npm run build` in web/."


def test_the_page_asks_nothing_of_the_network() -> None:
    text = "".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("app.js", "app.css", "index.html")
    )
    addresses = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\"'`) ]*", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_no_text_can_become_markup() -> None:
    """The sources hold none of the ways by which a string turns into elements or code."""
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    for path in WEB.rglob("*.ts"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser",
            path.read_text(encoding="utf-8"),
        )
        assert not found, f"{path.name} uses {found}"


# Machado, Oliveira, Fernandes 2009, severity 1
VISION = {
    "full": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def _linear(hex_colour: str) -> np.ndarray:
    c = np.array([int(hex_colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def _oklab(linear: np.ndarray) -> np.ndarray:
    lms = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return lab @ np.cbrt(lms @ np.clip(linear, 0, 1))


@pytest.mark.parametrize("theme", ["LIGHT", "DARK"])
def test_class_colours_stay_apart_for_every_kind_of_colour_vision(theme: str) -> None:
    """0.1 in OKLab is five times the difference that is just seen (0.02); full colour vision gets eight."""
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    block = re.search(rf"{theme} = \[(.*?)\]", (WEB / "palette.ts").read_text(encoding="utf-8"), re.S)
    assert block
    colours = re.findall(r"#[0-9a-f]{6}", block[1])
    assert len(colours) == 10
    for vision, matrix in VISION.items():
        seen = [_oklab(matrix @ _linear(c)) for c in colours]
        gaps = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
        assert min(gaps) > (0.16 if vision == "full" else 0.1)
    css = (WEB / "style/base.css").read_text(encoding="utf-8")
    column = 0 if theme == "LIGHT" else 1
    assert [m[column] for m in re.findall(r"--c\d: light-dark\((\S+), (\S+)\)", css)] == colours


@pytest.mark.parametrize(("theme", "ground", "way"), [("light", "#fbfaf7", -1), ("dark", "#14171a", 1)])
def test_the_scale_of_being_new_is_in_order_for_every_kind_of_colour_vision(
    theme: str, ground: str, way: int
) -> None:
    """Each colour is farther from the ground in lightness than the one before, and all can be seen on it."""
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    block = re.search(
        rf"NOVEL = .*?{theme}: \[(.*?)\]", (WEB / "palette.ts").read_text(encoding="utf-8"), re.S
    )
    assert block
    colours = re.findall(r"#[0-9a-f]{6}", block[1])
    assert len(colours) == 4
    for matrix in VISION.values():
        light = [_oklab(matrix @ _linear(c))[0] for c in (ground, *colours)]
        steps = way * np.diff(light)
        assert steps[0] > 0.2
        assert (steps > 0.05).all()


def test_a_class_has_about_the_same_hue_by_day_and_by_night() -> None:
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    css = (WEB / "style/base.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--c\d: light-dark\((\S+), (\S+)\)", css)
    assert len(pairs) == 10
    for pair in pairs:
        (_, a, b), (_, c, d) = (_oklab(_linear(colour)) for colour in pair)
        turn = np.degrees(np.arctan2(b, a) - np.arctan2(d, c))
        assert abs((turn + 180) % 360 - 180) < 36, pair


def _contrast(a: str, b: str) -> float:
    y = sorted(float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (y[1] + 0.05) / (y[0] + 0.05)


def test_text_meets_wcag_aa_in_both_themes() -> None:
    if not WEB.is_dir():
        pytest.skip("the sources of the page are not here (an installed package)")
    css = (WEB / "style/base.css").read_text(encoding="utf-8")
    tokens = {m[0]: m[1:] for m in re.findall(r"--([a-z-]+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    pairs = [(ink, ground) for ink in ("ink", "quiet") for ground in ("paper", "surface", "raised", "sunk")]
    pairs += [("on-accent", "accent"), ("warm", "warm-soft"), ("accent", "surface"), ("ink", "accent-soft")]
    for theme in (0, 1):
        for ink, ground in pairs:
            assert _contrast(tokens[ink][theme], tokens[ground][theme]) >= 4.5, (ink, ground, theme)
