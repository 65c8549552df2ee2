import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers share the cores
# Some virtual machines list AMX and do not have it: without AMX, bfloat16 works on all.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS.parent)]  # `strategies`, `contracts` and others, and the experiments

settings.register_profile("cdknet", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("cdknet")


@pytest.fixture
def no_pictures(monkeypatch):
    """Runs without a map and figures, for tests of what else a run says."""
    for place in ("cdknet.runs.figures", "cdknet.fit.refine"):
        monkeypatch.setattr(f"{place}.illustrated", lambda run, X: run)
