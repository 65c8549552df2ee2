"""What a real transmitter and the channel do to a frame: one function per effect, with its formula.

Signals are complex baseband, (n, samples), one row per transmission, with mean power about 1 where it matters
(DC offset, amplifier). A parameter is one number, or one number per row. The order in a transmitter is

    baseband filters -> I/Q imbalance -> DC offset (carrier leakage) -> amplifier -> phase noise,
    clock skew and carrier offset of its one crystal
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdknet.radio.ofdm import SAMPLE_RATE, Complex

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Device:
    """The fingerprint: the fixed properties of one transmitter. The defaults are a perfect transmitter."""

    crystal_ppm: float = 0.0  # carrier offset and clock skew: the standard derives both from one oscillator
    iq_gain_db: float = 0.0  # gain of the Q branch over the I branch
    iq_phase_deg: float = 0.0  # its deviation from quadrature
    dc_level_db: float = -np.inf  # carrier leakage over the mean signal power
    dc_angle_deg: float = 0.0
    pa_backoff_db: float = np.inf  # saturation power over mean input power
    pa_smoothness: float = 2.0  # Rapp's p
    phase_noise_deg: float = 0.0  # rms
    phase_noise_hz: float = 100e3  # loop bandwidth of the synthesiser
    ripple: float = 0.0  # relative amplitude of the echo in the baseband filters
    ripple_mismatch: float = 0.0  # the I branch's echo minus the Q branch's
    ripple_delay: float = 100e-9  # s


def filter_ripple(x: Complex, echo: float, mismatch: float, delay: float, rate: float) -> Complex:
    """x + a x(t - τ) + (δ / 2) x*(t - τ): baseband filters with an echo that differs slightly in I and Q.

    The echo ripples the response by 20 log10(1 ± a) dB with period 1 / τ. The mismatch δ makes an image whose
    phase turns with frequency, -20 log10(δ / 2) dB down, which no channel equaliser removes.
    """
    if not echo and not mismatch:
        return x
    f = np.fft.fftfreq(x.shape[1], 1 / rate)
    late = np.fft.ifft(np.fft.fft(x) * np.exp(-2j * np.pi * f * delay))
    return x + echo * late + mismatch / 2 * np.conj(late)


def iq_coefficients(gain_db: ArrayLike, phase_deg: ArrayLike) -> tuple[Complex, Complex]:
    """μ = (1 + g e^{jφ}) / 2 and ν = (1 - g e^{jφ}) / 2; the image is 20 log10 |μ / ν| dB down."""
    q = 10 ** (np.asarray(gain_db) / 20) * np.exp(1j * np.deg2rad(phase_deg))
    return np.asarray((1 + q) / 2), np.asarray((1 - q) / 2)


def iq_imbalance(x: Complex, gain_db: float, phase_deg: float) -> Complex:
    """μ x + ν x*, that is Re x + j g e^{jφ} Im x: the Q branch has gain g and is φ off quadrature."""
    mu, nu = iq_coefficients(gain_db, phase_deg)
    return np.asarray(mu * x + nu * np.conj(x))


def dc_offset(x: Complex, level_db: float, angle_deg: float, on: NDArray[np.bool_]) -> Complex:
    """x + 10^(level / 20) e^{jθ} where `on`: the carrier leaks only while the device transmits."""
    leak = 10 ** (level_db / 20) * np.exp(1j * np.deg2rad(angle_deg))
    return np.asarray(x + on * leak)


def rapp(x: Complex, backoff_db: float, smoothness: float) -> Complex:
    """x / (1 + (|x| / A)^{2p})^{1 / 2p}, A² = 10^(backoff / 10): a solid-state amplifier (Rapp, 1991)."""
    if np.isinf(backoff_db):
        return x
    over = np.abs(x) / 10 ** (backoff_db / 20)
    return x * (1 + over ** (2 * smoothness)) ** (-0.5 / smoothness)


def phase_noise(x: Complex, rms_deg: float, bandwidth: float, rate: float, normals: Real) -> Complex:
    """x e^{jφ}, φ a stationary first-order process: flat within the loop bandwidth, -20 dB per decade beyond.

    φ_t = ρ φ_{t-1} + sqrt(1 - ρ²) σ w_t, ρ = exp(-2π B / rate). `normals` are the w, with the shape of x.
    """
    if not rms_deg:
        return x
    from scipy.signal import lfilter  # imported late: it takes a second, and recordings do not need it

    rho = np.exp(-2 * np.pi * bandwidth / rate)
    drive = normals * np.sqrt(1 - rho**2)
    drive[:, 0] = normals[:, 0]  # stationary from the first sample
    phi = np.deg2rad(rms_deg) * lfilter([1.0], [1.0, -rho], drive, axis=1)
    return np.asarray(x * np.exp(1j * phi))


def carrier_offset(x: Complex, hertz: ArrayLike, rate: float) -> Complex:
    """x e^{j 2π f t}."""
    t = np.arange(x.shape[1]) / rate
    return x * np.exp(2j * np.pi * np.asarray(hertz, float)[..., None] * t)


def clock_skew(x: Complex, ppm: float) -> Complex:
    """x(t (1 + ε)), as the Taylor series x + εt x' + (εt)² x'' / 2 with derivatives by FFT.

    Within a short frame εt stays below some hundredths of a sample; the neglected term is (π εt)³ / 6.
    """
    shift = ppm * 1e-6 * np.arange(x.shape[1])
    if np.abs(shift).max() > 0.2:
        raise ValueError(
            f"A clock skew must shift the last sample by at most 0.2 samples. Got {np.abs(shift).max():.2f} "
            f"from {ppm} ppm over {x.shape[1]} samples. Use shorter frames."
        )
    if not ppm:
        return x
    w = 2j * np.pi * np.fft.fftfreq(x.shape[1])
    spectrum = np.fft.fft(x)
    return x + shift * np.fft.ifft(w * spectrum) + shift**2 / 2 * np.fft.ifft(w**2 * spectrum)


def transmit(
    x: Complex, device: Device, *, rate: float, carrier: float, normals: Real | None = None
) -> Complex:
    """A frame sent by `device`, as seen by a receiver with a perfect crystal tuned to `carrier`."""
    on = x != 0
    x = filter_ripple(x, device.ripple, device.ripple_mismatch, device.ripple_delay, rate)
    x = iq_imbalance(x, device.iq_gain_db, device.iq_phase_deg)
    x = dc_offset(x, device.dc_level_db, device.dc_angle_deg, on)
    x = rapp(x, device.pa_backoff_db, device.pa_smoothness)
    if device.phase_noise_deg:
        if normals is None:
            raise ValueError("Phase noise needs `normals` with the shape of the signal. Got None.")
        x = phase_noise(x, device.phase_noise_deg, device.phase_noise_hz, rate, normals)
    x = clock_skew(x, device.crystal_ppm)
    return carrier_offset(x, device.crystal_ppm * 1e-6 * carrier, rate)


def multipath_taps(normals: Real, k_factor: Real, delay_spread: Real) -> Complex:
    """Gains of taps 50 ns apart, (n, L), total mean power 1, with power decaying as exp(-t / delay spread).

    `normals` is (n, L, 2). The first tap is Rician: a share K / (K + 1) of its power is line of sight (its
    phase is the reference for all others); K = 0 is Rayleigh.
    """
    t = np.arange(normals.shape[1]) / SAMPLE_RATE
    power = np.exp(-t / delay_spread[:, None])
    power /= power.sum(axis=1, keepdims=True)
    taps = (normals[..., 0] + 1j * normals[..., 1]) * np.sqrt(power / 2)
    sight = np.sqrt(power[:, 0] * k_factor / (k_factor + 1))
    taps[:, 0] = sight + taps[:, 0] / np.sqrt(k_factor + 1)
    return taps


def propagate(x: Complex, taps: Complex, delay: Real, oversampling: int) -> Complex:
    """Σ_l h_l x(t - l / 20 MHz - delay), then decimated to 20 MS/s by an ideal filter.

    `delay` is in samples at 20 MS/s and may be fractional.
    """
    n = x.shape[1] // oversampling
    spectrum = np.fft.fft(x)
    f = np.fft.fftfreq(n)  # cycles per sample, in the band that is left
    near = np.r_[0 : (n + 1) // 2, x.shape[1] - n // 2 : x.shape[1]]
    response = taps @ np.exp(-2j * np.pi * np.arange(taps.shape[1])[:, None] * f)
    response *= np.exp(-2j * np.pi * delay[:, None] * f)
    return np.fft.ifft(spectrum[:, near] * response) / oversampling


def thermal_noise(x: Complex, snr_db: Real, normals: Real) -> Complex:
    """x + n with white noise n at 10^(-snr / 10) times each row's mean power over its active samples."""
    power = np.abs(x) ** 2
    active = power > 0.01 * power.max(axis=1, keepdims=True)
    mean = (power * active).sum(axis=1) / active.sum(axis=1)
    scale = np.sqrt(mean * 10 ** (-snr_db / 10) / 2)
    return np.asarray(x + scale[:, None] * (normals[..., 0] + 1j * normals[..., 1]))
