"""`rf-50-sim`: 50 simulated WiFi transmitters, 141 + 35 transmissions each, equalised by a receiver.

It replaces RF-50, the paper's data set of 8,800 transmissions of 50 WiFi devices, which is not public.
A *device* depends on (seed, device) alone, a *transmission* on (seed, device, number) alone: how many others
are made, or in which order, does not change it.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cdknet.radio.impairments import (
    Device,
    Real,
    carrier_offset,
    multipath_taps,
    propagate,
    thermal_noise,
    transmit,
)
from cdknet.radio.ofdm import RATES, SAMPLE_RATE, Complex, data_symbols, signal_symbol, waveform
from cdknet.radio.receiver import equalised_samples, receive

VERSION = 2  # of the recipe: increase it with any change to the output

_LEAD, _TRAIL = 40, 40  # silent samples around a frame at 20 MS/s
_TAPS = 8  # 350 ns, well within the 800 ns guard
_DEVICE, _TRANSMISSION = 0, 1  # the two families of random streams


@dataclass(frozen=True)
class Simulation:
    """The recipe. Values are drawn uniformly from the ranges, which docs/radio.md explains."""

    seed: int = 50
    n_devices: int = 50
    n_train: int = 141  # transmissions per device
    n_test: int = 35
    slices: int = 2  # per transmission
    slice_length: int = 198
    # per device
    crystal_ppm: tuple[float, float] = (-15.0, 15.0)
    iq_gain_db: tuple[float, float] = (-0.4, 0.4)
    iq_phase_deg: tuple[float, float] = (-2.0, 2.0)
    dc_level_db: tuple[float, float] = (-35.0, -20.0)
    pa_backoff_db: tuple[float, float] = (8.0, 12.0)
    pa_smoothness: tuple[float, float] = (2.0, 3.0)
    phase_noise_deg: tuple[float, float] = (0.4, 1.0)
    ripple: tuple[float, float] = (0.0, 0.1)
    ripple_mismatch: tuple[float, float] = (-0.02, 0.02)
    ripple_delay_ns: tuple[float, float] = (50.0, 150.0)
    # per transmission
    mbps: tuple[int, ...] = (6, 12, 24, 54)
    snr_db: tuple[float, float] = (15.0, 25.0)
    rayleigh_share: float = 0.5  # share of Rayleigh transmissions; the others are Rician
    rician_k_db: tuple[float, float] = (3.0, 10.0)
    delay_spread_ns: tuple[float, float] = (20.0, 80.0)
    jitter: float = 16.0  # samples at 20 MS/s
    drift_ppm: float = 0.3  # standard deviation of the carrier around that of the device
    keep_carrier_offset: bool = True
    carrier_hz: float = 2.437e9  # channel 6
    oversampling: int = 2  # while the signal is generated and amplified

    @property
    def n_data(self) -> int:
        """Data symbols per frame: with 128 samples of short training and with SIGNAL they fill the slices."""
        return max(1, -(-self.slices * self.slice_length // 64) - 3)

    @property
    def digest(self) -> str:
        """A hash of this recipe and version."""
        text = json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Transmissions(NamedTuple):
    """The antenna signal at 20 MS/s, one row per transmission, before any processing."""

    iq: Complex  # (n, samples)
    mbps: NDArray[np.int64]  # (n,)
    length: NDArray[np.int64]  # (n,) of the payload, in bytes
    snr_db: Real  # (n,)


def draw_device(recipe: Simulation, device: int) -> Device:
    """The fingerprint of one device, from its own random stream."""
    rng = _stream(recipe.seed, _DEVICE, device)
    return Device(
        crystal_ppm=rng.uniform(*recipe.crystal_ppm),
        iq_gain_db=rng.uniform(*recipe.iq_gain_db),
        iq_phase_deg=rng.uniform(*recipe.iq_phase_deg),
        dc_level_db=rng.uniform(*recipe.dc_level_db),
        dc_angle_deg=rng.uniform(0, 360),
        pa_backoff_db=rng.uniform(*recipe.pa_backoff_db),
        pa_smoothness=rng.uniform(*recipe.pa_smoothness),
        phase_noise_deg=rng.uniform(*recipe.phase_noise_deg),
        ripple=rng.uniform(*recipe.ripple),
        ripple_mismatch=rng.uniform(*recipe.ripple_mismatch),
        ripple_delay=rng.uniform(*recipe.ripple_delay_ns) * 1e-9,
    )


def make_transmissions(recipe: Simulation, device: int, numbers: NDArray[np.int64]) -> Transmissions:
    """Transmissions `numbers` of one device as received, each from its own random stream."""
    n, m, os_ = len(numbers), recipe.n_data, recipe.oversampling
    samples = _LEAD + 320 + 80 * (1 + m) + _TRAIL
    mbps, length, scrambler = (np.empty(n, np.int64) for _ in range(3))
    payload = np.empty((n, m * 216), np.uint8)
    snr_db, k_factor, spread, delay, drift = (np.empty(n) for _ in range(5))
    fading, wander, noise = np.empty((n, _TAPS, 2)), np.empty((n, samples * os_)), np.empty((n, samples, 2))
    for i, number in enumerate(numbers):
        rng = _stream(recipe.seed, _TRANSMISSION, device, int(number))
        mbps[i] = recipe.mbps[rng.integers(len(recipe.mbps))]
        length[i] = rng.integers(-(-m * 216 // 8), 1500)  # long enough for m symbols at any rate
        scrambler[i] = rng.integers(1, 128)
        payload[i] = rng.integers(0, 2, payload.shape[1], np.uint8)
        snr_db[i] = rng.uniform(*recipe.snr_db)
        sight = rng.uniform() >= recipe.rayleigh_share
        k_db = rng.uniform(*recipe.rician_k_db)
        k_factor[i] = 10 ** (k_db / 10) if sight else 0.0
        spread[i] = rng.uniform(*recipe.delay_spread_ns) * 1e-9
        delay[i] = rng.uniform(0, recipe.jitter)
        drift[i] = rng.normal(0, recipe.drift_ppm)
        rng.standard_normal(out=fading[i])
        rng.standard_normal(out=wander[i])
        rng.standard_normal(out=noise[i])

    symbols = np.empty((n, 1 + m, 64), np.complex128)
    for rate in map(RATES.__getitem__, np.unique(mbps).tolist()):
        rows = mbps == rate.mbps
        symbols[rows, 0] = signal_symbol(rate, length[rows])
        symbols[rows, 1:] = data_symbols(rate, payload[rows], scrambler[rows], m)
    x = waveform(symbols, oversampling=os_, lead=_LEAD, trail=_TRAIL)
    x = transmit(
        x, draw_device(recipe, device), rate=os_ * SAMPLE_RATE, carrier=recipe.carrier_hz, normals=wander
    )
    x = carrier_offset(x, drift * 1e-6 * recipe.carrier_hz, os_ * SAMPLE_RATE)
    x = propagate(x, multipath_taps(fading, k_factor, spread), delay, os_)
    return Transmissions(thermal_noise(x, snr_db, noise), mbps, length, snr_db)


def equalised_slices(recipe: Simulation, iq: Complex) -> NDArray[np.float32]:
    """Received transmissions (n, samples) -> network input (n, slices, 2, slice_length)."""
    search = int(np.ceil(recipe.jitter)) + _TAPS
    received = receive(iq, 1 + recipe.n_data, search=search, lead=_LEAD)
    samples = equalised_samples(received, keep_carrier_offset=recipe.keep_carrier_offset)
    slices = samples[:, : recipe.slices * recipe.slice_length]
    slices = slices.reshape(len(iq), recipe.slices, recipe.slice_length)
    return np.stack([slices.real, slices.imag], axis=2).astype(np.float32)


def simulate(recipe: Simulation | None = None) -> dict[str, Any]:
    """The whole data set in memory; see `load_rf50_sim` for the keys of the dictionary."""
    recipe = recipe or Simulation()
    numbers = np.arange(recipe.n_train + recipe.n_test)
    X = np.stack(
        [
            equalised_slices(recipe, make_transmissions(recipe, device, numbers).iq)
            for device in range(recipe.n_devices)
        ]
    )  # (devices, transmissions, slices, 2, length)
    names = tuple(f"device-{d:02d}" for d in range(recipe.n_devices))
    out: dict[str, Any] = {"class_names": names, "provenance": provenance(recipe)}
    for part, chosen in (("train", numbers[: recipe.n_train]), ("test", numbers[recipe.n_train :])):
        out[f"X_{part}"] = X[:, chosen].reshape(-1, 2, recipe.slice_length)
        out[f"y_{part}"] = np.repeat(np.arange(recipe.n_devices), len(chosen) * recipe.slices)
        groups = [f"{name}/{t:03d}" for name in names for t in chosen]
        out[f"groups_{part}"] = np.repeat(np.array(groups, dtype=np.str_), recipe.slices)
    return out


def load_rf50_sim(cache_dir: Path | None = None, recipe: Simulation | None = None) -> dict[str, Any]:
    """The `rf-50-sim` data set, generated in a few seconds or loaded from the cache.

    Returns
    -------
    dict
        `X_train`, `X_test` (n, 2, 198) float32; `y_train`, `y_test` (n,) int; `groups_train`, `groups_test`
        (n,) str, the transmission of each slice; `class_names`; `provenance`.

    With `cache_dir` the arrays are saved there as .npy, in a folder named after the version and a hash of all
    parameters, and memory-mapped from then on.
    """
    recipe = recipe or Simulation()
    if cache_dir is None:
        return simulate(recipe)
    folder = Path(cache_dir) / f"rf-50-sim-v{VERSION}-{recipe.digest}"
    if not folder.is_dir():
        made = simulate(recipe)
        try:
            _write_cache(folder, made)
        except OSError:  # without a writable cache it is slower, but works
            return made
    names = [f"{what}_{part}" for part in ("train", "test") for what in ("X", "y", "groups")]
    try:
        out: dict[str, Any] = {
            n: np.load(folder / f"{n}.npy", mmap_mode="r", allow_pickle=False) for n in names
        }
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"{folder}: the cached arrays must be readable. Got {error}. Remove the folder to remake them."
        ) from error
    out["class_names"] = tuple(f"device-{d:02d}" for d in range(recipe.n_devices))
    out["provenance"] = provenance(recipe)
    return out


def provenance(recipe: Simulation) -> dict[str, str]:
    """Where the data set comes from, and what not to conclude from it."""
    return {
        "source": f"simulated by cdknet.radio.simulate, recipe version {VERSION}, {recipe.digest}",
        "authors": "the cdknet authors; signal tables from IEEE Std 802.11-2020, clause 17",
        "licence": "MIT, as cdknet",
        "caveats": (
            "A simulation, not RF-50, which is not public. One perfect receiver; a new random channel for "
            "each transmission; devices neither age nor warm up; no MAC addresses in the payload. Use it to "
            "compare methods with each other, not with the numbers in the paper."
        ),
        "parameters": json.dumps(asdict(recipe), sort_keys=True),
    }


def _stream(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def _write_cache(folder: Path, data: dict[str, Any]) -> None:
    """Write next to `folder`, then rename: no reader sees an incomplete folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".rf-50-sim-") as scratch:
        made = Path(scratch) / "set"
        made.mkdir()
        for name, value in data.items():
            if isinstance(value, np.ndarray):
                np.save(made / f"{name}.npy", value, allow_pickle=False)
        try:
            made.replace(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster, with the same content
                raise
