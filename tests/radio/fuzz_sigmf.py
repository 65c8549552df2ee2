"""Fuzz the recording reader: any bytes must give samples or a ValueError, with bounded memory.

    python tests/radio/fuzz_sigmf.py -max_total_time=180 CORPUS_FOLDER

Needs atheris. Not collected by pytest. The first byte says what the others are: metadata with fixed data,
data with fixed metadata, a raw file, or fields to change in valid metadata.
"""

import copy
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
SHAPE = {"global": dict, "captures": list, "annotations": list}
FIELDS = [
    *SHAPE,
    *(
        "core:" + f
        for f in ("datatype", "sample_rate", "version", "num_channels", "dataset", "sha512", "label")
    ),
    *("core:" + f for f in ("sample_start", "sample_count", "header_bytes", "trailing_bytes", "extensions")),
]


def changed(body: bytes) -> bytes:
    """META with up to four fields set to odd values."""
    data, meta = atheris.FuzzedDataProvider(body), copy.deepcopy(META)
    for _ in range(data.ConsumeIntInRange(1, 4)):
        place = data.PickValueInList([meta, meta["global"], meta["captures"][0], meta["annotations"][0]])
        value = data.PickValueInList(
            [
                data.ConsumeInt(9),
                data.ConsumeRegularFloat(),
                data.ConsumeUnicodeNoSurrogates(8),
                data.ConsumeBool(),
                None,
                [],
                {"core:sample_start": data.ConsumeIntInRange(0, 80)},
                "cu8",
                "../r.sigmf-data",
            ]
        )
        place[data.PickValueInList(FIELDS)] = value
        if not all(isinstance(meta.get(k), t) and meta[k] for k, t in SHAPE.items()):
            break
    return json.dumps(meta).encode()


def one_input(data: bytes) -> None:
    if not data:
        return
    kind, body = data[0] % 6, data[1:]
    meta, samples = FOLDER / "r.sigmf-meta", FOLDER / "r.sigmf-data"
    if kind in (0, 1, 5):
        path = meta
        meta.write_bytes({0: body, 1: json.dumps(META).encode(), 5: b""}[kind] or changed(body))
        samples.write_bytes(body if kind == 1 else bytes(range(256)) * 2)
        size = samples.stat().st_size
    else:
        path = FOLDER / f"r{list(RAW_SUFFIXES)[kind - 2]}"
        path.write_bytes(body)
        size = len(body)
    fault, used = "r.", 0
    try:
        X = open_recording(
            path, sample_rate=1e6 if 1 < kind < 5 else None, slice_length=8, energy_gate=30.0
        ).X
        used = X.nbytes
    except ValueError as error:
        fault = str(error)
    assert "r." in fault, fault
    assert used <= 4 * 4 * size, (used, size)  # float32 from bytes, and four times annotated


if __name__ == "__main__":
    seeds = [json.dumps(META).encode(), *[bytes(range(64))] * 5]
    if len(sys.argv) > 1 and Path(sys.argv[-1]).is_dir():
        for i, seed in enumerate(seeds):
            (Path(sys.argv[-1]) / f"seed-{i}").write_bytes(bytes([i]) + seed)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
