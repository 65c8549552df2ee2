"""`wifi-csi-30`: channel-state fingerprints of 30 real WiFi devices.

Each frame of the file is the channel that one receiver measured on 3 antennas and 30 subcarriers. The timing
and carrier error of a frame, which say nothing about the device, add a phase that is linear over the
subcarriers, so a straight line is subtracted. The amplitude scales with the receiver's gain, so it is
normalised. Consecutive frames of a device are averaged into bursts, which makes the features more stable and
the data set smaller.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_DEVICES = 30
SUBCARRIERS = np.r_[-28:-1:2, -1, 1:28:2, 28]  # of a 20 MHz channel, as the receiver reports them
BURST = 10  # frames
TRAIN_SHARE = 0.7  # of the frames of each device: the first ones


def load_wifi_csi_30(path: str | Path, *, burst: int = BURST) -> dict[str, Any]:
    """Load bursts of channel-state features, split by time.

    The first 70 % of each device's frames are for training, the rest for testing.

    Returns
    -------
    dict
        `X_train`, `X_test` (n, 180) float32: amplitudes of 3 antennas x 30 subcarriers, then phases,
        standardised with the training part; `y_train`, `y_test` (n,) 0..29; `groups_train`, `groups_test` the
        burst of each row; `class_names`; `provenance`.

    The receiver's own columns (time stamp, signal strength, gain: `meta` in the file) are never read.
    """
    if burst < 1:
        raise ValueError(f"burst must be a positive number of frames. Got {burst}.")
    csi, device = _read(Path(path))
    parts: dict[str, dict[str, list[Any]]] = {p: {"X": [], "y": [], "groups": []} for p in ("train", "test")}
    names = tuple(f"device-{d + 1:02d}" for d in range(N_DEVICES))
    for d, name in enumerate(names):
        frames = features(csi[device == d + 1])
        n_train = int(TRAIN_SHARE * len(frames))
        if min(n_train, len(frames) - n_train) < burst:
            raise ValueError(
                f"{path}: each device must have at least {burst} frames, one burst, in both parts. Got "
                f"{len(frames)} frames of {name}."
            )
        for part, first, some in (("train", 0, frames[:n_train]), ("test", n_train, frames[n_train:])):
            n = len(some) // burst
            parts[part]["X"].append(some[: n * burst].reshape(n, burst, -1).mean(axis=1))
            parts[part]["y"].append(np.full(n, d))
            parts[part]["groups"] += [f"{name}/{first + i * burst:05d}" for i in range(n)]
    out: dict[str, Any] = {"class_names": names, "provenance": _provenance(burst)}
    X_train = np.concatenate(parts["train"]["X"])
    centre, scale = X_train.mean(axis=0), np.maximum(X_train.std(axis=0), 1e-6)
    for part, of in parts.items():
        out[f"X_{part}"] = ((np.concatenate(of["X"]) - centre) / scale).astype(np.float32)
        out[f"y_{part}"] = np.concatenate(of["y"])
        out[f"groups_{part}"] = np.array(of["groups"], dtype=np.str_)
    return out


def features(csi: NDArray[np.int8]) -> NDArray[np.float64]:
    """(n, [I, Q], antenna, subcarrier) -> (n, 2 · antennas · subcarriers): amplitudes, then phases.

    Amplitudes have mean square 1 over a frame. Phases are unwrapped along the subcarriers of each antenna,
    and their least-squares line is subtracted: adding a delay or a phase to a frame changes nothing.
    """
    h = csi[:, 0] + 1j * csi[:, 1].astype(np.float64)
    amplitude = np.abs(h)
    rms = np.sqrt(np.mean(amplitude**2, axis=(1, 2), keepdims=True))
    amplitude = amplitude / np.where(rms > 0, rms, 1.0)
    phase = without_line(np.unwrap(np.angle(h), axis=2), SUBCARRIERS)
    return np.concatenate([amplitude.reshape(len(h), -1), phase.reshape(len(h), -1)], axis=1)


def without_line(values: NDArray[np.float64], at: NDArray[Any]) -> NDArray[np.float64]:
    """values - (a + b · at), with a and b by least squares along the last axis."""
    line = np.stack([np.ones(len(at)), at], axis=1)
    return np.asarray(values - values @ np.linalg.pinv(line).T @ line.T)


def _read(path: Path) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Read and check `csi` and `device`; no pickles, and no more memory than the zip entries declare."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            csi, device = _member(archive, "csi.npy", 2**28), _member(archive, "device.npy", 2**24)
    except FileNotFoundError:
        raise
    except Exception as error:  # a corrupted archive can raise almost anything
        raise ValueError(
            f"{path}: must be the wifi-csi-30 archive (.npz with `csi` and `device`, no pickles). Got "
            f"{type(error).__name__}: {error}. Get the file again."
        ) from error
    if csi.dtype != np.int8 or csi.ndim != 4 or csi.shape[1:] != (2, 3, len(SUBCARRIERS)):
        raise ValueError(f"{path}: csi must be int8 of shape (n, 2, 3, 30). Got {csi.dtype} {csi.shape}.")
    if device.dtype.kind not in "iu" or device.shape != csi.shape[:1]:
        raise ValueError(f"{path}: device must be {len(csi)} integers. Got {device.dtype} {device.shape}.")
    if set(np.unique(device).tolist()) != set(range(1, N_DEVICES + 1)):
        raise ValueError(
            f"{path}: device must contain each of 1..{N_DEVICES}. Got {np.unique(device)[:40].tolist()}."
        )
    return csi, device.astype(np.int64)


def _member(archive: zipfile.ZipFile, name: str, most: int) -> NDArray[Any]:
    """One .npy of the archive, no longer than its zip entry declares; a header that needs more fails."""
    size = archive.getinfo(name).file_size
    if size > most:
        raise ValueError(f"{name} has {size} bytes; at most {most} are allowed")
    with archive.open(name) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{name} has an unknown .npy version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject or fortran:
            raise ValueError(f"{name} has type {dtype}, or is in Fortran order")
        return np.frombuffer(file.read(), dtype).reshape(shape)


def _provenance(burst: int) -> dict[str, str]:
    return {
        "source": 'the public set of "Real-Time Identification of Rogue WiFi Connections in the Wild"',
        "authors": "the authors of that paper",
        "licence": "as stated by its authors; not redistributed with cdknet",
        "caveats": (
            "One recording per device, so part of what separates the devices is the channel of that "
            "recording, not the device. Several devices are of the same model. Split by time: the first "
            f"{TRAIN_SHARE:.0%} of each device's frames are for training, later frames for testing. Bursts "
            f"of {burst} consecutive frames are averaged. The receiver's own columns (signal strength, gain, "
            "time) are not used."
        ),
    }
