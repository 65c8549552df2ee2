"""Draw the figures of docs/radio.md:  python -m cdknet.radio.pictures docs/pictures"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.signal import welch

from cdknet.radio import ofdm
from cdknet.radio.impairments import Device, transmit
from cdknet.radio.receiver import receive
from cdknet.radio.simulate import Simulation, draw_device, make_transmissions

INK, FAINT = "#222222", "#bbbbbb"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # safe for colour-blind readers


def spectrum() -> Figure:
    """Power spectrum of a perfect device and of the most compressed one, with the mask of the standard."""
    rng = np.random.default_rng(0)
    n, m, rate = 60, 8, ofdm.RATES[54]
    data = ofdm.data_symbols(rate, rng.integers(0, 2, (n, m * 216), np.uint8), rng.integers(1, 128, n), m)
    x = ofdm.waveform(data, oversampling=4)
    normals = rng.standard_normal(x.shape)
    worst = min((draw_device(Simulation(), d) for d in range(50)), key=lambda d: d.pa_backoff_db)
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for device, label, colour in ((Device(), "perfect", COLOURS[0]), (worst, "most compressed", COLOURS[1])):
        y = transmit(x, device, rate=80e6, carrier=2.437e9, normals=normals)
        f, psd = welch(y[:, 4 * 320 :], 80e6, nperseg=512, return_onesided=False, axis=-1)
        order, level = np.argsort(f), 10 * np.log10(psd.mean(axis=0))
        inside = (np.abs(f) < 8e6) & (np.abs(f) > 1e6)
        axes.plot(f[order] / 1e6, (level - level[inside].mean())[order], color=colour, lw=1, label=label)
    mask_f = np.array([9, 11, 20, 30, 40])
    mask = np.array([0, -20, -28, -40, -40])
    axes.plot(np.r_[-mask_f[::-1], mask_f], np.r_[mask[::-1], mask], color=INK, ls="--", lw=1, label="mask")
    axes.set(xlabel="frequency from the carrier (MHz)", ylabel="power (dB)", ylim=(-80, 5), xlim=(-40, 40))
    _finish(axes)
    return figure


def frame() -> Figure:
    """The first 60 µs of one transmission, as received."""
    iq = make_transmissions(replace(Simulation(), snr_db=(25.0, 25.0)), 3, np.array([1])).iq[0]
    t = np.arange(len(iq)) / ofdm.SAMPLE_RATE * 1e6
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(t, iq.real, color=COLOURS[0], lw=0.7, label="I")
    axes.plot(t, iq.imag, color=COLOURS[1], lw=0.7, label="Q")
    top = 1.25 * np.abs(iq).max()
    start = receive(iq[None], 1, search=24, lead=40).start[0] - ofdm.STF_SIZE
    marks = [("short training", 160), ("long training", 160), ("SIGNAL", 80)] + [("data", 80)] * 4
    for name, size in marks:
        axes.axvline(start / 20, color=FAINT, lw=0.8)
        axes.text((start + size / 2) / 20, top, name, ha="center", va="top", fontsize=8, color=INK)
        start += size
    axes.axvline(start / 20, color=FAINT, lw=0.8)
    axes.set(xlabel="time (µs)", ylabel="amplitude", ylim=(-1.2 * top, 1.1 * top), xlim=(0, t[-1]))
    _finish(axes)
    return figure


def constellations() -> Figure:
    """16-QAM data of one device over many channels, before and after equalisation."""
    recipe = replace(Simulation(), mbps=(24,), snr_db=(25.0, 25.0), rayleigh_share=0.0)
    iq = make_transmissions(recipe, 7, np.arange(12)).iq
    got = receive(iq, 1 + recipe.n_data, search=24, lead=40)
    after = got.symbols[:, 1:]
    channel = got.channel[:, None, ofdm.DATA]
    before = after[..., ofdm.DATA] * channel
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _dots(left, before / np.sqrt(np.mean(np.abs(before) ** 2)), "as received")
    _dots(right, after[..., ofdm.DATA], "equalised")
    ideal = ofdm.constellation(4)
    right.plot(ideal.real, ideal.imag, "+", color=COLOURS[1], ms=7, label="ideal")
    right.legend(frameon=False, loc="upper right", fontsize=8)
    return figure


def devices() -> Figure:
    """Six devices, 40 transmissions each: carrier offset, leakage and image as the receiver measures them."""
    recipe = Simulation()
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    mirror = -np.arange(64) % 64
    used = np.flatnonzero(ofdm.STF)
    for i in range(6):
        iq = make_transmissions(recipe, i, np.arange(40)).iq
        got = receive(iq, 1 + recipe.n_data, search=24, lead=40)
        leak = got.symbols[..., 0].mean(axis=1) / np.sqrt(52)
        # (S + ν S*[-k]) / (1 + ν L L[-k]): regress the error of the short training field on the effect of ν
        pattern = ofdm.STF.conj()[mirror] - ofdm.STF * ofdm.LTF * ofdm.LTF[mirror]
        error = got.short_training.mean(axis=1) - ofdm.STF
        image = (error[:, used] @ pattern.conj()[used]) / np.vdot(pattern[used], pattern[used])
        panels[0].plot(
            got.carrier_hz / 1e3, np.full(40, i) + np.linspace(-0.3, 0.3, 40), ".", color=COLOURS[i], ms=3
        )
        panels[1].plot(leak.real, leak.imag, ".", color=COLOURS[i], ms=3)
        panels[2].plot(image.real, image.imag, ".", color=COLOURS[i], ms=3)
    panels[0].set(xlabel="carrier offset (kHz)", ylabel="device", yticks=range(6))
    panels[1].set(xlabel="carrier leakage, I", ylabel="Q", aspect="equal")
    panels[2].set(xlabel="image, real part", ylabel="imaginary part", aspect="equal")
    return figure


def _dots(axes: Axes, points: ofdm.Complex, title: str) -> None:
    axes.plot(points.real.ravel(), points.imag.ravel(), ".", ms=2, color=COLOURS[0])
    axes.set(title=title, xlabel="I", ylabel="Q", xlim=(-1.8, 1.8), ylim=(-1.8, 1.8), aspect="equal")


def _finish(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower center", fontsize=8, ncols=3)


def main(folder: str) -> None:
    """Write the four figures to `folder`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for draw in (spectrum, frame, constellations, devices):
        draw().savefig(Path(folder) / f"radio-{draw.__name__}.png", dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
