"""IEEE 802.11a/g (OFDM, 20 MHz) frames, built from the tables of IEEE Std 802.11-2020, clause 17.

A frame at 20 MS/s is

    short training field (160) | long training field (160) | SIGNAL (80) | data symbols (80 each)

A symbol has 52 subcarriers k = -26..26 without 0, spaced 312.5 kHz: 48 for data and 4 pilots. Its body has
64 samples; its guard interval repeats the last 16 of them. All functions work on many frames at once; the
first axis is always the frame.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Complex = NDArray[np.complex128]
Bits = NDArray[np.uint8]

SAMPLE_RATE = 20e6  # Hz
FFT = 64  # samples of a symbol's body
GUARD = 16  # samples of its guard interval
TRANSITION = 100e-9  # s, T_TR in the standard: how long neighbouring symbols overlap

USED = np.r_[-26:0, 1:27]  # occupied subcarriers
PILOTS = np.array([-21, -7, 7, 21])
DATA = np.setdiff1d(USED, PILOTS)
PILOT_SIGNS = np.array([1.0, 1.0, 1.0, -1.0])

STF_SIZE, LTF_SIZE, SYMBOL_SIZE = 160, 160, FFT + GUARD


class Rate(NamedTuple):
    """One row of Table 17-4: modulation and coding of one data rate."""

    mbps: int
    signal: tuple[int, int, int, int]  # R1..R4 of the SIGNAL field
    bits_per_subcarrier: int  # 1 BPSK, 2 QPSK, 4 16-QAM, 6 64-QAM
    keep: tuple[int, ...]  # puncturing pattern over the encoder's output A1 B1 A2 B2 ...
    data_bits: int  # N_DBPS

    @property
    def coded_bits(self) -> int:
        """N_CBPS = 48 N_BPSC."""
        return 48 * self.bits_per_subcarrier


_HALF, _TWO_THIRDS, _THREE_QUARTERS = (1, 1), (1, 1, 1, 0), (1, 1, 1, 0, 0, 1)
RATES = {
    r.mbps: r
    for r in (
        Rate(6, (1, 1, 0, 1), 1, _HALF, 24),
        Rate(9, (1, 1, 1, 1), 1, _THREE_QUARTERS, 36),
        Rate(12, (0, 1, 0, 1), 2, _HALF, 48),
        Rate(18, (0, 1, 1, 1), 2, _THREE_QUARTERS, 72),
        Rate(24, (1, 0, 0, 1), 4, _HALF, 96),
        Rate(36, (1, 0, 1, 1), 4, _THREE_QUARTERS, 144),
        Rate(48, (0, 0, 0, 1), 6, _TWO_THIRDS, 192),
        Rate(54, (0, 0, 1, 1), 6, _THREE_QUARTERS, 216),
    )
}

# The signs of the twelve short-training subcarriers, times sqrt(13/6) (1 + j).
_STF_SIGNS = {-24: 1, -20: -1, -16: 1, -12: -1, -8: -1, -4: 1, 4: -1, 8: -1, 12: 1, 16: 1, 20: 1, 24: 1}
# The signs of the long-training subcarriers -26..-1 and 1..26.
_LTF_SIGNS = "++--++-+-++++++--++-+-++++", "+--++-+-+-----++--+-+-++++"


def _spectrum(subcarriers: ArrayLike, values: ArrayLike) -> Complex:
    out = np.zeros((*np.shape(values)[:-1], FFT), np.complex128)
    out[..., np.asarray(subcarriers)] = values  # subcarrier -k is bin 64 - k
    return out


STF = _spectrum(list(_STF_SIGNS), np.sqrt(13 / 6) * (1 + 1j) * np.array(list(_STF_SIGNS.values())))
LTF = _spectrum(USED, [1.0 if sign == "+" else -1.0 for sign in "".join(_LTF_SIGNS)])


def scrambling_sequence(state: int) -> Bits:
    """127 bits of x^7 + x^4 + 1 from the nonzero 7-bit initial `state` (x1 is the lowest bit)."""
    if not 1 <= state <= 127:
        raise ValueError(f"The scrambler state must be 1..127. Got {state}.")
    register = [(state >> i) & 1 for i in range(7)]  # x1 .. x7
    out = np.empty(127, np.uint8)
    for i in range(127):
        out[i] = register[6] ^ register[3]
        register = [int(out[i]), *register[:6]]
    return out


_SCRAMBLERS = np.stack([np.zeros(127, np.uint8), *(scrambling_sequence(s) for s in range(1, 128))])
PILOT_POLARITY = 1.0 - 2.0 * scrambling_sequence(127)  # p_0 .. p_126; p_0 belongs to SIGNAL


def convolutional_code(bits: Bits) -> Bits:
    """The rate-1/2 code of constraint length 7, generators 133 and 171 octal: A1 B1 A2 B2 ..."""
    padded = np.pad(bits, [(0, 0), (6, 0)])
    past = [padded[:, 6 - k : padded.shape[1] - k] for k in range(7)]
    a = past[0] ^ past[2] ^ past[3] ^ past[5] ^ past[6]
    b = past[0] ^ past[1] ^ past[2] ^ past[3] ^ past[6]
    return np.stack([a, b], axis=2).reshape(len(bits), -1)


def interleaver(bits_per_subcarrier: int) -> NDArray[np.intp]:
    """The position of coded bit k in a symbol: the two permutations of 17.3.5.7, composed."""
    n, s = 48 * bits_per_subcarrier, max(bits_per_subcarrier // 2, 1)
    k = np.arange(n)
    i = (n // 16) * (k % 16) + k // 16
    return np.asarray(s * (i // s) + (i + n - 16 * i // n) % s)


def constellation(bits_per_subcarrier: int) -> Complex:
    """The Gray-coded points, indexed by the value of their bits (first bit highest), with mean power 1."""
    if bits_per_subcarrier == 1:
        return np.array([-1.0, 1.0], np.complex128)
    m = bits_per_subcarrier // 2
    gray = np.arange(2**m) ^ (np.arange(2**m) >> 1)
    levels = np.empty(2**m)
    levels[gray] = np.arange(1 - 2**m, 2**m, 2)
    points = levels[:, None] + 1j * levels[None, :]  # the first half of the bits gives I
    return np.asarray(points.ravel() / np.sqrt(np.mean(np.abs(points) ** 2)))


def _map(coded: Bits, bits_per_subcarrier: int) -> Complex:
    """(n, m, N_CBPS) coded bits -> (n, m, 48) points, interleaved symbol by symbol."""
    sent = np.empty_like(coded)
    sent[..., interleaver(bits_per_subcarrier)] = coded
    weights = 1 << np.arange(bits_per_subcarrier)[::-1]
    values = sent.reshape(*coded.shape[:2], 48, bits_per_subcarrier) @ weights
    return constellation(bits_per_subcarrier)[values]


def signal_bits(rate: Rate, length: NDArray[np.int64]) -> Bits:
    """The 24 bits of SIGNAL: RATE, a reserved 0, LENGTH in bytes (lowest bit first), parity, six zeros."""
    if np.any((length < 1) | (length > 4095)):
        raise ValueError(f"LENGTH must be 1..4095 bytes. Got {int(length.min())}..{int(length.max())}.")
    bits = np.zeros((len(length), 24), np.uint8)
    bits[:, :4] = rate.signal
    bits[:, 5:17] = (length[:, None] >> np.arange(12)) & 1
    bits[:, 17] = bits[:, :17].sum(axis=1) % 2
    return bits


def signal_symbol(rate: Rate, length: NDArray[np.int64]) -> Complex:
    """The spectrum of SIGNAL, (n, 64): BPSK, rate 1/2, not scrambled, pilots with polarity p_0."""
    points = _map(convolutional_code(signal_bits(rate, length))[:, None], 1)
    return _with_pilots(points, first=0)[:, 0]


def data_symbols(rate: Rate, payload: Bits, scrambler: NDArray[np.int64], n_symbols: int) -> Complex:
    """Spectra of the first `n_symbols` data symbols, (n, n_symbols, 64).

    The bits are SERVICE (16 zeros) and the payload, scrambled from the 7-bit state, encoded and punctured. A
    payload that ends within these symbols is followed by six zero tail bits and padding, as the standard
    says. A longer payload belongs to a longer frame, of which only these symbols are made.
    """
    n, wanted = len(payload), n_symbols * rate.data_bits
    tail = 16 + payload.shape[1]
    bits = np.zeros((n, max(wanted, tail)), np.uint8)
    bits[:, 16:tail] = payload
    bits = bits[:, :wanted]
    bits ^= _SCRAMBLERS[scrambler][:, np.arange(wanted) % 127]
    bits[:, tail : tail + 6] = 0
    coded = convolutional_code(bits)
    sent = np.resize(np.array(rate.keep, bool), coded.shape[1])
    points = _map(coded[:, sent].reshape(n, n_symbols, rate.coded_bits), rate.bits_per_subcarrier)
    return _with_pilots(points, first=1)


def _with_pilots(points: Complex, first: int) -> Complex:
    out = _spectrum(DATA, points)
    polarity = PILOT_POLARITY[(first + np.arange(points.shape[1])) % 127]
    out[..., PILOTS] = polarity[:, None] * PILOT_SIGNS
    return out


def waveform(symbols: Complex, *, oversampling: int = 1, lead: int = 0, trail: int = 0) -> Complex:
    """Frames in time, with mean power 1: both training fields, then `symbols` (n, m, 64) with their guards.

    `lead` and `trail` are silent samples (at 20 MS/s) before and after. Neighbouring parts overlap for T_TR
    with the window sin²(π/2 (1/2 + t / T_TR)), which keeps the spectrum within the mask.
    """
    n, m = symbols.shape[:2]
    body = to_time(np.concatenate([np.broadcast_to([STF, LTF], (n, 2, FFT)), symbols], axis=1), oversampling)
    sizes = [STF_SIZE, LTF_SIZE, *[SYMBOL_SIZE] * m]
    guards = [0, 2 * GUARD, *[GUARD] * m]
    out = np.zeros((n, (lead + sum(sizes) + trail) * oversampling), np.complex128)
    half = round(TRANSITION / 2 * SAMPLE_RATE * oversampling)
    ramp = np.sin(np.pi / 4 * (1 + np.arange(-half, half) / half)) ** 2
    start = lead * oversampling
    for part, (size, guard) in enumerate(zip(sizes, guards, strict=True)):
        t = np.arange(-half, size * oversampling + half)
        window = np.ones(len(t))
        window[: 2 * half], window[-2 * half :] = ramp, 1 - ramp
        piece = body[:, part, (t - guard * oversampling) % (FFT * oversampling)] * window
        inside = (t + start >= 0) & (t + start < out.shape[1])
        out[:, t[inside] + start] += piece[:, inside]
        start += size * oversampling
    return out


def to_time(spectra: Complex, oversampling: int = 1) -> Complex:
    """Symbol bodies, (..., 64) -> (..., 64 oversampling): 52 subcarriers of power 1 give mean power 1."""
    wide = np.zeros((*spectra.shape[:-1], FFT * oversampling), np.complex128)
    wide[..., USED] = spectra[..., USED]
    wide[..., 0] = spectra[..., 0]
    return np.asarray(np.fft.ifft(wide) * (FFT * oversampling / np.sqrt(len(USED))))


def to_spectrum(bodies: Complex) -> Complex:
    """The inverse of `to_time` at 20 MS/s, on all 64 bins."""
    return np.asarray(np.fft.fft(bodies) * (np.sqrt(len(USED)) / FFT))
