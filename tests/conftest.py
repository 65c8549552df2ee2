import os
import sys
from pathlib import Path

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers share the cores

sys.path.insert(0, str(Path(__file__).parent))  # `strategies`, `contracts` and others, shared by the tests

settings.register_profile("cdknet", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("cdknet")
