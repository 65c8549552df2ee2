"""rf-50-sim: what is random, what is fixed, and that nothing leaks."""

from dataclasses import replace

import numpy as np
import pytest
from test_impairments import evm_db, phase_tracked, symbols, through
from test_ofdm import mask_excess, random_frame, read_signal

from cdknet.radio import impairments as im
from cdknet.radio import ofdm
from cdknet.radio.receiver import receive
from cdknet.radio.simulate import (
    VERSION,
    Simulation,
    draw_device,
    equalised_slices,
    load_rf50_sim,
    make_transmissions,
    simulate,
)

SMALL = Simulation(n_devices=4, n_train=6, n_test=3)
DEVICES = [draw_device(Simulation(), d) for d in range(50)]


@pytest.fixture(scope="module")
def small():
    return simulate(SMALL)


def test_the_default_recipe_has_8800_transmissions_as_in_the_paper():
    recipe = Simulation()
    assert recipe.n_devices * (recipe.n_train + recipe.n_test) == 8800
    assert (recipe.n_devices, recipe.n_train, recipe.slice_length) == (50, 141, 198)


def test_shapes_types_and_groups(small):
    for part, n in (("train", 6), ("test", 3)):
        X, y, groups = (small[f"{what}_{part}"] for what in ("X", "y", "groups"))
        assert X.shape == (4 * n * 2, 2, 198)
        assert X.dtype == np.float32
        assert np.isfinite(X).all()
        assert np.bincount(y).tolist() == [2 * n] * 4
        assert len(np.unique(groups)) == 4 * n
        assert all(g.startswith(small["class_names"][c] + "/") for g, c in zip(groups, y, strict=True))
    assert set(small["provenance"]) >= {"source", "authors", "licence", "caveats"}


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(small):
    again = simulate(SMALL)
    assert all(small[k].tobytes() == again[k].tobytes() for k in small if isinstance(small[k], np.ndarray))
    assert not np.array_equal(small["X_train"], simulate(replace(SMALL, seed=51))["X_train"])


def test_a_transmission_does_not_depend_on_the_others():
    together = make_transmissions(SMALL, 2, np.arange(6)).iq
    alone = make_transmissions(SMALL, 2, np.array([4])).iq
    np.testing.assert_allclose(alone[0], together[4], atol=1e-12)
    longer = make_transmissions(replace(SMALL, n_devices=50, n_train=100), 2, np.array([4])).iq
    assert longer.tobytes() == alone.tobytes()


def test_no_transmission_is_in_both_parts_or_twice(small):
    assert not set(small["groups_train"]) & set(small["groups_test"])
    rows = np.concatenate([small["X_train"], small["X_test"]])
    assert len(np.unique(rows.reshape(len(rows), -1), axis=0)) == len(rows)


def test_no_two_transmissions_share_a_stream():
    """Nor do transmissions of two devices with the same number: payloads, lengths and SNRs would agree."""
    made = [make_transmissions(SMALL, d, np.arange(8)) for d in (0, 1)]
    assert len(np.unique(np.concatenate([m.snr_db for m in made]))) == 16
    assert len(np.unique(np.concatenate([m.length for m in made]))) > 12
    x = np.concatenate([m.iq[:, 480:760] for m in made])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    alike = np.abs(x @ x.conj().T) - np.eye(len(x))
    assert alike.max() < 0.5


def test_devices_differ_in_every_parameter():
    for name in vars(im.Device()):
        values = {getattr(d, name) for d in DEVICES}
        assert len(values) == (1 if name == "phase_noise_hz" else 50), name


def test_signal_decodes_after_the_channel_to_what_was_sent():
    recipe = replace(SMALL, snr_db=(20.0, 25.0), rayleigh_share=0.0)
    sent = make_transmissions(recipe, 1, np.arange(40))
    got = receive(sent.iq, 1 + recipe.n_data, search=24, lead=40)
    read = [read_signal(s) for s in got.symbols[:, 0]]
    assert read == list(zip(sent.mbps.tolist(), sent.length.tolist(), strict=True))


def test_every_device_is_within_the_limits_of_the_standard():
    """17.3.9: centre frequency, leakage, flatness, mask, and the EVM of 54 Mb/s."""
    wide = ofdm.waveform(random_frame(ofdm.RATES[54], n=8), oversampling=4)
    normals = np.random.default_rng(0).standard_normal(wide.shape)
    sent = symbols(n=8)
    for d in DEVICES:
        assert abs(d.crystal_ppm) <= 20
        assert d.dc_level_db <= -15
        assert -20 * np.log10(1 - d.ripple) <= 2
        assert mask_excess(im.transmit(wide, d, rate=80e6, carrier=2.437e9, normals=normals), 80e6) < 0
        assert evm_db(phase_tracked(through(d, sent).symbols, sent), sent) < -25, d


def test_the_cache_gives_the_same_bits_memory_mapped(tmp_path, small, monkeypatch):
    first = load_rf50_sim(tmp_path, SMALL)
    monkeypatch.setattr("cdknet.radio.simulate.simulate", lambda recipe: pytest.fail("made again"))
    second = load_rf50_sim(tmp_path, SMALL)
    for key, value in small.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(first[key], value)
            assert isinstance(second[key], np.memmap)
        else:
            assert second[key] == value
    assert [p.name for p in tmp_path.iterdir()] == [f"rf-50-sim-v{VERSION}-{SMALL.digest}"]  # nothing else


def test_the_cache_depends_on_every_parameter(tmp_path):
    load_rf50_sim(tmp_path, SMALL)
    other = replace(SMALL, snr_db=(10.0, 11.0))
    assert not np.array_equal(
        load_rf50_sim(tmp_path, other)["X_test"], load_rf50_sim(tmp_path, SMALL)["X_test"]
    )
    assert len(list(tmp_path.iterdir())) == 2


def test_a_broken_cache_says_what_to_do(tmp_path):
    load_rf50_sim(tmp_path, SMALL)
    victim = next(tmp_path.rglob("X_train.npy"))
    victim.write_bytes(victim.read_bytes()[:500])
    with pytest.raises(ValueError, match="Remove the folder"):
        load_rf50_sim(tmp_path, SMALL)


def test_slices_are_consecutive_parts_of_the_equalised_samples():
    iq = make_transmissions(SMALL, 0, np.arange(3)).iq
    two = equalised_slices(SMALL, iq)
    whole = equalised_slices(replace(SMALL, slices=1, slice_length=396), iq)
    np.testing.assert_array_equal(np.concatenate([two[:, 0], two[:, 1]], axis=2), whole[:, 0])


def test_the_figures_of_the_docs_can_be_drawn(tmp_path):
    from cdknet.radio.pictures import main

    main(str(tmp_path))
    pictures = sorted(p.name for p in tmp_path.iterdir())
    assert pictures == [f"radio-{n}.png" for n in ("constellations", "devices", "frame", "spectrum")]
