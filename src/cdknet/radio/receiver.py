"""The receiver: find the frame, correct the carrier offset, equalise with the long training field.

The carrier offset is estimated as in every 802.11 receiver, first from the short and then from the long
training field, and corrected before the frame is demodulated. Equalisation divides by the channel estimated
from the long training field, and so by every linear filter of the transmitter. What is left of a device: its
image (I/Q imbalance and mismatched filters), carrier leakage, amplifier compression, phase noise and clock
skew. The carrier offset is a property of the device too, so `equalised_samples` can rotate the equalised
signal back by the estimate: that undoes the receiver's correction, not the equalisation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdknet.radio.impairments import carrier_offset
from cdknet.radio.ofdm import (
    FFT,
    GUARD,
    LTF,
    LTF_SIZE,
    SAMPLE_RATE,
    STF_SIZE,
    SYMBOL_SIZE,
    USED,
    Complex,
    to_spectrum,
    to_time,
)

BACKOFF = GUARD // 2  # samples: bodies start this early, in case a late path is the strongest


class Received(NamedTuple):
    """Received frames; spectra are equalised, on 64 bins."""

    start: NDArray[np.intp]  # (n,) sample at which the long training field begins
    carrier_hz: NDArray[np.float64]  # (n,) estimated offset
    channel: Complex  # (n, 64) estimate, zero on unused bins
    short_training: Complex  # (n, 2, 64): the last 128 samples of that field
    symbols: Complex  # (n, m, 64): SIGNAL, then data


def receive(x: Complex, n_symbols: int, *, search: int, lead: int = 0) -> Received:
    """Demodulate frames (n, samples) whose first sample is between `lead` and `lead + search`."""
    needed = lead + search + STF_SIZE + LTF_SIZE + n_symbols * SYMBOL_SIZE
    if x.shape[1] < needed:
        raise ValueError(f"The signal must have {needed} samples for {n_symbols} symbols. Got {x.shape[1]}.")
    coarse = _offset_by_lag(x, np.full(len(x), lead + search), STF_SIZE - search - 16, 16)
    x = carrier_offset(x, -coarse, SAMPLE_RATE)
    start = _find_long_training(x, lead + STF_SIZE, search)
    first = start + 2 * GUARD - BACKOFF
    fine = _offset_by_lag(x, first, FFT, FFT)
    x = carrier_offset(x, -fine, SAMPLE_RATE)

    halves = np.stack([_bodies(x, first), _bodies(x, first + FFT)])  # (2, n, 64)
    channel = halves.mean(axis=0) * LTF  # LTF is ±1, so multiplying is dividing
    noise = np.mean(np.abs(halves[0] - halves[1])[:, USED] ** 2, axis=1) / 4  # variance of the mean of two
    turn = np.exp(2j * np.pi * BACKOFF / FFT)  # an early start rotates subcarrier k by turn^-k
    channel[:, 0] = (
        channel[:, 1] * turn + channel[:, -1] / turn
    ) / 2  # unused: interpolated from its neighbours

    # One tap per subcarrier: Y H* / (|H|² + σ²), which is Y / H without noise.
    bins = np.r_[0, USED]
    equaliser = np.zeros_like(channel)
    equaliser[:, bins] = np.conj(channel[:, bins]) / (np.abs(channel[:, bins]) ** 2 + noise[:, None])
    after = start + LTF_SIZE + GUARD - BACKOFF
    symbols = np.stack([_bodies(x, after + i * SYMBOL_SIZE) for i in range(n_symbols)], axis=1)
    short = np.stack([_bodies(x, start - i * FFT - BACKOFF) for i in (2, 1)], axis=1)
    equaliser = equaliser[:, None]
    return Received(start, coarse + fine, channel, short * equaliser, symbols * equaliser)


def equalised_samples(received: Received, *, keep_carrier_offset: bool = False) -> Complex:
    """The samples a network sees, (n, 64 (2 + m)): short training, SIGNAL and data bodies, in time.

    The long training field is left out: after equalisation it is the same for every device. With
    `keep_carrier_offset` the samples are rotated back by e^{j 2π f t}, where f is the receiver's estimate and
    t the true time of each sample, counted from the middle of the long training field.
    """
    spectra = np.concatenate([received.short_training, received.symbols], axis=1)
    x = to_time(spectra)
    if keep_carrier_offset:
        middle = 2 * GUARD + FFT
        first = [-2 * FFT, -FFT, *(LTF_SIZE + GUARD + SYMBOL_SIZE * np.arange(received.symbols.shape[1]))]
        t = (np.array(first)[:, None] + np.arange(FFT) - middle) / SAMPLE_RATE
        x = x * np.exp(2j * np.pi * received.carrier_hz[:, None, None] * t)
    return np.asarray(x.reshape(len(x), -1))


def _offset_by_lag(x: Complex, start: NDArray[np.intp], size: int, lag: int) -> NDArray[np.float64]:
    """arg(Σ x*(t) x(t + lag)) / (2π lag) · rate: the offset of a signal that repeats after `lag`."""
    at = start[:, None] + np.arange(size + lag)
    part = np.take_along_axis(x, at, axis=1)
    turn = np.angle(np.sum(np.conj(part[:, :size]) * part[:, lag:], axis=1))
    return np.asarray(turn / (2 * np.pi * lag) * SAMPLE_RATE)


def _find_long_training(x: Complex, earliest: int, search: int) -> NDArray[np.intp]:
    """The start at which both copies of the long training body correlate best with the table."""
    body = to_time(LTF)
    at = earliest + 2 * GUARD + np.arange(search + 2 * FFT + 1)
    windows = np.lib.stride_tricks.sliding_window_view(x[:, at[0] : at[-1] + FFT], FFT, axis=1)
    match = np.abs(windows @ np.conj(body)) ** 2
    both = match[:, : search + 1] + match[:, FFT : FFT + search + 1]
    return np.asarray(np.argmax(both, axis=1) + earliest)


def _bodies(x: Complex, start: NDArray[np.intp]) -> Complex:
    return to_spectrum(np.take_along_axis(x, start[:, None] + np.arange(FFT), axis=1))
