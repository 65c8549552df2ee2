"""Old names go on working for one release, with a warning; the public ones are found by completion."""

import importlib
import subprocess
import sys

import pytest

import cdknet
from cdknet._moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_a_module_under_its_old_name_warns_and_has_the_names_of_the_new_ones(old):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is now {MOVED[old][0]}"):
        module = importlib.import_module(old)
    for place in MOVED[old]:
        new = importlib.import_module(place)
        own = [name for name, part in vars(new).items() if getattr(part, "__module__", "") == place]
        assert all(getattr(module, name) is getattr(new, name) for name in own)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_a_module_that_became_a_package_still_has_its_names():
    with pytest.warns(DeprecationWarning, match="cdknet.runs.read_run is now cdknet.runs.format.read_run"):
        from cdknet.runs import read_run
    from cdknet.runs import format

    assert read_run is format.read_run
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from cdknet.runs import nothing  # noqa: F401


def test_the_public_names_are_listed_and_import_no_torch_until_they_are_used():
    assert {"ClassDiscovery", "CDKNet", "DEC", "SSCD"} <= set(dir(cdknet))
    assert all(getattr(cdknet, name) is not None for name in cdknet.__all__)
    code = "import sys, cdknet; dir(cdknet); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
