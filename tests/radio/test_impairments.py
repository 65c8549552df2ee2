"""Each impairment does exactly what its formula says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from cdknet.radio import impairments as im
from cdknet.radio import ofdm
from cdknet.radio.receiver import equalised_samples, receive

RATE, CARRIER = ofdm.SAMPLE_RATE, 2.437e9


def symbols(n: int = 20, m: int = 6, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    payload = rng.integers(0, 2, (n, m * 216), np.uint8)
    data = ofdm.data_symbols(ofdm.RATES[54], payload, rng.integers(1, 128, n), m)
    return np.concatenate(
        [ofdm.signal_symbol(ofdm.RATES[54], rng.integers(200, 900, n))[:, None], data], axis=1
    )


def through(device: im.Device, sent: np.ndarray, seed: int = 1, **receiver: int):
    """`sent` by `device` over a perfect channel without noise, as received."""
    x = ofdm.waveform(sent, lead=40, trail=40)
    normals = np.random.default_rng(seed).standard_normal(x.shape)
    x = im.transmit(x, device, rate=RATE, carrier=CARRIER, normals=normals)
    return receive(x, sent.shape[1], search=8, lead=40)


def evm_db(got: np.ndarray, sent: np.ndarray) -> float:
    error = np.abs((got - sent)[..., ofdm.USED]) ** 2
    return float(10 * np.log10(error.mean() / np.mean(np.abs(sent[..., ofdm.USED]) ** 2)))


def phase_tracked(got: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """Every symbol rotated back by the mean phase of its pilots, as the standard measures EVM (17.3.9.8)."""
    common = np.sum(got[..., ofdm.PILOTS] * sent[..., ofdm.PILOTS].conj(), axis=-1, keepdims=True)
    return got * np.exp(-1j * np.angle(common))


def test_a_perfect_device_changes_nothing_and_the_receiver_returns_what_was_sent():
    sent = symbols()
    x = ofdm.waveform(sent)
    np.testing.assert_array_equal(im.transmit(x, im.Device(), rate=RATE, carrier=CARRIER), x)
    got = through(im.Device(), sent)
    assert evm_db(got.symbols, sent) < -100
    assert np.abs(got.carrier_hz).max() < 1e-3


@given(st.floats(-3, 3), st.floats(-10, 10))
def test_the_image_of_a_tone_is_as_far_down_as_mu_over_nu(gain_db, phase_deg):
    mu, nu = im.iq_coefficients(gain_db, phase_deg)
    tone = np.exp(2j * np.pi * 5 * np.arange(64) / 64)[None]
    lines = np.fft.fft(im.iq_imbalance(tone, gain_db, phase_deg))[0] / 64
    np.testing.assert_allclose([lines[5], lines[-5]], [mu, nu], atol=1e-12)
    by_branches = tone.real + 1j * 10 ** (gain_db / 20) * np.exp(1j * np.deg2rad(phase_deg)) * tone.imag
    np.testing.assert_allclose(im.iq_imbalance(tone, gain_db, phase_deg), by_branches, atol=1e-12)


@pytest.mark.parametrize(("gain_db", "phase_deg"), [(0.5, 0.0), (0.0, 3.0), (-0.3, 2.0)])
def test_iq_imbalance_leaves_the_evm_of_its_image_before_the_equaliser(gain_db, phase_deg):
    mu, nu = im.iq_coefficients(gain_db, phase_deg)
    sent = symbols(n=60)
    bodies = im.iq_imbalance(ofdm.to_time(sent), gain_db, phase_deg)
    assert evm_db(ofdm.to_spectrum(bodies) / mu, sent) == pytest.approx(20 * np.log10(abs(nu / mu)), abs=0.2)


def test_iq_imbalance_survives_the_equaliser_as_its_formula_says():
    """Y[k] / H[k] = (μ S[k] + ν S*[-k]) / (μ + ν L[-k] L[k]), whatever the channel."""
    device, sent = im.Device(iq_gain_db=0.5, iq_phase_deg=3.0), symbols()
    mu, nu = im.iq_coefficients(0.5, 3.0)
    mirror = -np.arange(64) % 64
    expected = (mu * sent + nu * sent.conj()[..., mirror]) / (mu + nu * ofdm.LTF[mirror] * ofdm.LTF)
    got = through(device, sent)
    np.testing.assert_allclose(got.symbols[..., ofdm.USED], expected[..., ofdm.USED], atol=1e-6)


@given(st.floats(-40, -15), st.floats(0, 360))
def test_the_carrier_leak_shows_on_subcarrier_zero_at_its_level(level_db, angle):
    device = im.Device(dc_level_db=level_db, dc_angle_deg=angle)
    got = through(device, symbols(n=2, m=2))
    leak = ofdm.to_time(got.symbols).mean(axis=-1)
    np.testing.assert_allclose(leak, 10 ** (level_db / 20) * np.exp(1j * np.deg2rad(angle)), rtol=0.02)


def test_the_carrier_does_not_leak_while_the_transmitter_is_off():
    x = ofdm.waveform(symbols(n=1, m=1), lead=40, trail=40)
    device = im.Device(dc_level_db=-15.0, ripple=0.1, ripple_delay=77e-9)
    y = im.transmit(x, device, rate=RATE, carrier=CARRIER)
    assert np.abs(y[0, :30]).max() < 0.02
    assert abs(y[0, 200:400].mean()) == pytest.approx(10 ** (-15 / 20), rel=0.5)


@pytest.mark.parametrize("ppm", [-20.0, -3.0, 0.4, 20.0])
def test_the_receiver_measures_the_carrier_offset_of_the_crystal(ppm):
    got = through(im.Device(crystal_ppm=ppm), symbols())
    np.testing.assert_allclose(got.carrier_hz, ppm * 1e-6 * CARRIER, atol=5)


@pytest.mark.parametrize("ppm", [-20.0, 20.0])
def test_clock_skew_rotates_subcarrier_k_by_2_pi_k_80_ppm_per_symbol(ppm):
    """The carrier is corrected, so the rest grows with the subcarrier and with the time since the LTF."""
    sent = symbols()
    got = through(im.Device(crystal_ppm=ppm), sent).symbols / sent.__add__(sent == 0)
    data = np.sort(ofdm.USED)
    slopes = [np.polyfit(data, np.angle(got[:, i, data].mean(axis=0)), 1)[0] for i in range(sent.shape[1])]
    per_symbol = np.polyfit(np.arange(len(slopes)), slopes, 1)[0]
    assert per_symbol == pytest.approx(2 * np.pi * ppm * 1e-6 * 80 / 64, rel=0.02)


def test_clock_skew_is_resampling():
    """Against the exact sum over subcarriers at the stretched times."""
    spectrum = np.zeros(64, complex)
    spectrum[[3, -7, 25]] = [1, 1j, -0.5]
    t, ppm = np.arange(1920), 40.0
    k = np.fft.fftfreq(64, 1 / 64)[:, None]
    exact = (spectrum[:, None] * np.exp(2j * np.pi * k * t * (1 + ppm * 1e-6) / 64)).sum(axis=0)
    plain = (spectrum[:, None] * np.exp(2j * np.pi * k * t / 64)).sum(axis=0)
    np.testing.assert_allclose(im.clock_skew(plain[None], ppm)[0], exact, atol=1e-3)
    with pytest.raises(ValueError, match="shorter frames"):
        im.clock_skew(np.zeros((1, 100_000), complex), 20)


@given(st.floats(1.0, 4.0), st.floats(0, 20))
def test_the_amplifier_is_linear_below_and_flat_above_saturation(p, backoff):
    top = 10 ** (backoff / 20)
    amplitudes = np.array([[1e-3, 0.5, 1, 2, 1e4]]) * top * np.exp(0.7j)
    out = im.rapp(amplitudes, backoff, p)
    assert abs(out[0, 0]) == pytest.approx(1e-3 * top, rel=1e-3)
    assert abs(out[0, -1]) == pytest.approx(top, rel=1e-3)
    assert np.all(np.diff(np.abs(out[0])) > 0)
    np.testing.assert_allclose(np.angle(out), 0.7)
    assert abs(out[0, 2]) == pytest.approx(top * 2 ** (-0.5 / p))  # at saturation, by the formula


@pytest.mark.parametrize("backoff", [6.0, 8.0, 10.0])
def test_compression_makes_the_distortion_that_a_gaussian_signal_predicts(backoff):
    """y = α x + d, d uncorrelated with x (Bussgang): |d|² / |α x|² by integrals over a Rayleigh envelope."""
    p = 2.0

    def moment(power: int, of: int) -> float:
        def y(r: float) -> float:
            return r * (1 + (r / 10 ** (backoff / 20)) ** (2 * p)) ** (-0.5 / p)

        return quad(lambda r: r**power * y(r) ** of * 2 * r * np.exp(-(r**2)), 0, 8)[0]

    alpha = moment(1, 1)
    predicted = 10 * np.log10(moment(0, 2) / alpha**2 - 1)
    x = ofdm.waveform(symbols(n=100, m=8), oversampling=4)[:, 1600:-100]
    x /= np.sqrt(np.mean(np.abs(x) ** 2))
    y = im.rapp(x, backoff, p)
    a = np.vdot(x, y) / np.vdot(x, x)
    measured = 10 * np.log10(np.mean(np.abs(y - a * x) ** 2) / np.mean(np.abs(a * x) ** 2))
    assert measured == pytest.approx(predicted, abs=0.6)


def test_phase_noise_has_its_rms_its_bandwidth_and_the_evm_of_its_rms():
    x = np.ones((400, 1200), complex)
    normals = np.random.default_rng(0).standard_normal(x.shape)
    phi = np.angle(im.phase_noise(x, 2.0, 100e3, RATE, normals))
    assert np.rad2deg(phi.std()) == pytest.approx(2.0, rel=0.05)
    assert np.rad2deg(phi[:, 0].std()) == pytest.approx(2.0, rel=0.1)  # stationary from the start
    lag = 64
    correlation = np.mean(phi[:, lag:] * phi[:, :-lag]) / phi.var()
    assert correlation == pytest.approx(np.exp(-2 * np.pi * 100e3 * lag / RATE), abs=0.05)
    error = np.abs(im.phase_noise(x, 2.0, 100e3, RATE, normals) - x) ** 2
    assert np.sqrt(error.mean()) == pytest.approx(np.deg2rad(2.0), rel=0.05)


def test_ripple_is_20_log_one_plus_a_and_the_equaliser_removes_it():
    sent = symbols()
    f = np.fft.fftfreq(4000, 1 / RATE)
    impulse = np.zeros((1, 4000), complex)
    impulse[0, 0] = 1
    response = np.abs(np.fft.fft(im.filter_ripple(impulse, 0.1, 0.0, 100e-9, RATE)))[0]
    np.testing.assert_allclose(response, np.abs(1 + 0.1 * np.exp(-2j * np.pi * f * 100e-9)), atol=1e-9)
    assert 20 * np.log10([response.max(), response.min()]) == pytest.approx([0.828, -0.915], abs=1e-3)
    assert evm_db(through(im.Device(ripple=0.1), sent).symbols, sent) < -60


def test_mismatched_filters_leave_an_image_half_the_mismatch_high():
    sent = symbols(n=60)
    x = im.filter_ripple(ofdm.to_time(sent).reshape(-1, 64), 0.0, 0.04, 100e-9, ofdm.SAMPLE_RATE)
    assert evm_db(ofdm.to_spectrum(x).reshape(sent.shape), sent) == pytest.approx(
        20 * np.log10(0.02), abs=0.3
    )


def test_noise_has_the_requested_snr_in_every_row():
    x = ofdm.waveform(symbols(n=50)) * np.geomspace(0.1, 10, 50)[:, None]
    snr = np.linspace(5, 30, 50)
    noise = im.thermal_noise(x, snr, np.random.default_rng(0).standard_normal((*x.shape, 2))) - x
    measured = 10 * np.log10(np.mean(np.abs(x) ** 2, axis=1) / np.mean(np.abs(noise) ** 2, axis=1))
    np.testing.assert_allclose(measured, snr, atol=0.8)


def test_multipath_has_mean_power_one_and_rician_rows_fade_less():
    normals = np.random.default_rng(0).standard_normal((20_000, 8, 2))
    spread = np.full(20_000, 50e-9)
    spreads = {}
    for k in (0.0, 10.0):
        taps = im.multipath_taps(normals, np.full(20_000, k), spread)
        assert np.mean((np.abs(taps) ** 2).sum(axis=1)) == pytest.approx(1, abs=0.02)
        spreads[k] = np.abs(taps[:, 0]).std() / np.abs(taps[:, 0]).mean()
    assert spreads[0.0] == pytest.approx(np.sqrt(4 / np.pi - 1), rel=0.02)  # Rayleigh
    assert spreads[10.0] < 0.6 * spreads[0.0]


@given(st.integers(0, 999), st.integers(0, 8))
def test_the_equaliser_undoes_any_channel_shorter_than_the_guard(seed, delay):
    sent = symbols(n=1, m=2)
    x = ofdm.waveform(sent, lead=40, trail=40)
    rng = np.random.default_rng(seed)
    taps = im.multipath_taps(rng.standard_normal((1, 8, 2)), np.array([3.0]), np.array([50e-9]))
    x = im.propagate(x, taps, np.array([delay]), 1)
    got = receive(x, 3, search=16, lead=40)
    assert evm_db(got.symbols, sent) < -80


def test_keeping_the_carrier_offset_only_rotates_the_samples():
    got = through(im.Device(crystal_ppm=10.0), symbols())
    plain = equalised_samples(got)
    rotated = equalised_samples(got, keep_carrier_offset=True)
    np.testing.assert_allclose(np.abs(rotated), np.abs(plain))
    turn = np.angle(rotated[:, 1:64] * plain[:, :63] / rotated[:, :63] / plain[:, 1:64])
    np.testing.assert_allclose(turn, 2 * np.pi * 10e-6 * CARRIER / ofdm.SAMPLE_RATE, rtol=1e-3)


def noisy(n: int, snr_db: float):
    """A perfect device over a perfect channel with noise, received; its start is known to 100 samples."""
    x = ofdm.waveform(symbols(n=n, m=1), lead=40, trail=140)
    normals = np.random.default_rng(5).standard_normal((*x.shape, 2))
    return receive(im.thermal_noise(x, np.full(n, snr_db), normals), 2, search=100, lead=40)


def test_the_carrier_is_measured_as_well_as_the_long_training_field_allows():
    """A phase over a lag of 64 from 64 pairs of samples: σ = rate / (2π 64) sqrt(1 / (64 SNR))."""
    snr = 100.0
    bound = ofdm.SAMPLE_RATE / (2 * np.pi * 64) * np.sqrt(1 / (64 * snr))
    assert noisy(400, 20.0).carrier_hz.std() == pytest.approx(bound, rel=0.15)


def test_the_channel_estimate_averages_both_bodies_of_the_long_training_field():
    """Its error has half the noise of one body: 52 / 64 of the power falls on the used subcarriers."""
    channel = noisy(400, 20.0).channel[:, ofdm.USED]
    channel = channel / np.exp(1j * np.angle(channel.mean(axis=0)))  # the early start
    channel = channel / np.exp(1j * np.angle(channel.mean(axis=1, keepdims=True)))  # residual offset
    error = np.mean(np.abs(channel - 1) ** 2)
    assert error == pytest.approx(0.01 * 52 / 64 / 2, rel=0.15)


def test_a_signal_too_short_for_its_symbols_is_refused():
    with pytest.raises(ValueError, match="must have 568 samples"):
        receive(np.zeros((1, 100), complex), 3, search=8)
