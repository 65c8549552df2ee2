"""Fuzz the recording reader: any bytes must give samples or a ValueError, within the file's own size.

    python tests/radio/fuzz_sigmf.py -max_total_time=180 CORPUS_FOLDER

Needs atheris. Not collected by pytest. The first byte says what the others are: metadata beside fixed data,
data beside fixed metadata, or a raw file.
"""

import json
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["cdknet.radio", "sigmf"]):
    from cdknet.radio.recordings import RAW_SUFFIXES, open_recording

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-sigmf-"))
META = {
    "global": {"core:datatype": "cf32_le", "core:sample_rate": 1e6, "core:version": "1.0.0"},
    "captures": [{"core:sample_start": 0}],
    "annotations": [{"core:sample_start": 0, "core:sample_count": 40, "core:label": "a"}],
}


def one_input(data: bytes) -> None:
    if not data:
        return
    kind, body = data[0] % 5, data[1:]
    meta, samples = FOLDER / "r.sigmf-meta", FOLDER / "r.sigmf-data"
    if kind < 2:
        path = meta
        meta.write_bytes(body if kind == 0 else json.dumps(META).encode())
        samples.write_bytes(bytes(range(256)) * 2 if kind == 0 else body)
        size = samples.stat().st_size
    else:
        path = FOLDER / f"r{list(RAW_SUFFIXES)[kind - 2]}"
        path.write_bytes(body)
        size = len(body)
    fault, used = "r.", 0
    try:
        X = open_recording(path, sample_rate=1e6 if kind > 1 else None, slice_length=8, energy_gate=30.0).X
        used = X.nbytes
    except ValueError as error:
        fault = str(error)
    assert "r." in fault, fault
    assert used <= 4 * 4 * size, (used, size)  # float32 from bytes, and four times covered


if __name__ == "__main__":
    seeds = [json.dumps(META).encode(), b"\0" * 64]
    if len(sys.argv) > 1 and Path(sys.argv[-1]).is_dir():
        for i, seed in enumerate(seeds):
            (Path(sys.argv[-1]) / f"seed-{i}").write_bytes(bytes([i]) + seed)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
