"""Frames follow the standard: tables, training fields, SIGNAL, spectrum mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import welch

from cdknet.radio import ofdm

ALL_RATES = list(ofdm.RATES.values())


def bits_of(text: str) -> np.ndarray:
    return np.array([[int(c) for c in text.replace(" ", "")]], np.uint8)


def random_frame(rate: ofdm.Rate, n: int = 4, n_symbols: int = 6, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    length = rng.integers(200, 1500, n)
    payload = rng.integers(0, 2, (n, n_symbols * rate.data_bits), np.uint8)
    data = ofdm.data_symbols(rate, payload, rng.integers(1, 128, n), n_symbols)
    return np.concatenate([ofdm.signal_symbol(rate, length)[:, None], data], axis=1)


def viterbi(coded: np.ndarray) -> np.ndarray:
    """The most likely input of the rate-1/2 code, from state 0 to state 0, by dynamic programming."""
    cost, paths = {0: 0}, {0: []}
    for a, b in coded.reshape(-1, 2):
        new_cost, new_paths = {}, {}
        for state, so_far in cost.items():  # a state is the last six bits, the newest the lowest
            for bit in (0, 1):
                past = [bit, *((state >> i) & 1 for i in range(6))]
                out_a = past[0] ^ past[2] ^ past[3] ^ past[5] ^ past[6]
                out_b = past[0] ^ past[1] ^ past[2] ^ past[3] ^ past[6]
                total = so_far + (out_a != a) + (out_b != b)
                target = ((state << 1) | bit) & 63
                if total < new_cost.get(target, 1 << 30):
                    new_cost[target], new_paths[target] = total, [*paths[state], bit]
        cost, paths = new_cost, new_paths
    return np.array(paths[0], np.uint8)


def read_signal(spectrum: np.ndarray) -> tuple[int, int]:
    """RATE in Mb/s and LENGTH of an equalised SIGNAL symbol (64,); fails if the parity is wrong."""
    hard = (spectrum[ofdm.DATA].real > 0).astype(np.uint8)
    bits = viterbi(hard[ofdm.interleaver(1)])
    assert bits[:18].sum() % 2 == 0, "parity"
    mbps = next(r.mbps for r in ALL_RATES if r.signal == tuple(bits[:4]))
    return mbps, int(bits[5:17] @ (1 << np.arange(12)))


def test_the_short_training_field_has_the_samples_printed_in_the_standard():
    printed = [0.046 + 0.046j, -0.132 + 0.002j, -0.013 - 0.079j, 0.143 - 0.013j, 0.092, 0.143 - 0.013j]
    np.testing.assert_allclose(np.fft.ifft(ofdm.STF)[:6], printed, atol=1e-3)


def test_the_long_training_field_has_the_samples_printed_in_the_standard():
    printed = [0.156, -0.005 - 0.120j, 0.040 - 0.111j, 0.097 + 0.083j, 0.021 + 0.028j, 0.060 - 0.088j]
    np.testing.assert_allclose(np.fft.ifft(ofdm.LTF)[:6], printed, atol=1e-3)


def test_the_scrambler_started_with_ones_gives_the_printed_sequence():
    printed = bits_of("00001110 11110010 11001001 00000010 00100110 00101110 10110110 00001100")
    np.testing.assert_array_equal(ofdm.scrambling_sequence(127)[:64], printed[0])


def test_scrambling_sequences_are_the_127_shifts_of_one_cycle():
    assert len({ofdm.scrambling_sequence(s).tobytes() for s in range(1, 128)}) == 127
    assert ofdm.scrambling_sequence(1).sum() == 64
    with pytest.raises(ValueError, match=r"1\.\.127"):
        ofdm.scrambling_sequence(0)


def test_signal_of_36_mbps_and_100_bytes_is_the_standards_example():
    bits = ofdm.signal_bits(ofdm.RATES[36], np.array([100]))
    np.testing.assert_array_equal(bits, bits_of("1011 0 001001100000 0 000000"))
    coded = bits_of("110100011010000100000010001111100111000000000000")
    np.testing.assert_array_equal(ofdm.convolutional_code(bits), coded)
    sent = np.empty_like(coded)
    sent[:, ofdm.interleaver(1)] = coded
    np.testing.assert_array_equal(sent, bits_of("100101001101000000010100100000110010010010010100"))


def test_the_training_fields_repeat_themselves():
    x = ofdm.waveform(random_frame(ofdm.RATES[6]))
    stf, ltf = x[:, 2:158], x[:, 162:318]
    np.testing.assert_allclose(stf[:, 16:], stf[:, :-16], atol=1e-12)
    np.testing.assert_allclose(ltf[:, 64:], ltf[:, :-64], atol=1e-12)


def test_the_long_training_field_correlates_with_the_table_at_its_two_places_only():
    x = ofdm.waveform(random_frame(ofdm.RATES[54]))
    body = ofdm.to_time(ofdm.LTF)
    match = np.abs(np.lib.stride_tricks.sliding_window_view(x, 64, axis=1) @ body.conj()) / 64
    places = [160 + 32, 160 + 32 + 64]
    np.testing.assert_allclose(match[:, places], 1, atol=1e-9)
    rest = np.delete(match, [p + d for p in places for d in (-1, 0, 1)], axis=1)
    assert rest.max() < 0.6


@pytest.mark.parametrize("rate", ALL_RATES, ids=lambda r: f"{r.mbps}")
def test_signal_decodes_to_its_rate_and_length(rate):
    for length in (1, 100, 1234, 4095):
        spectrum = ofdm.signal_symbol(rate, np.array([length]))[0]
        assert read_signal(spectrum) == (rate.mbps, length)


@pytest.mark.parametrize("rate", ALL_RATES, ids=lambda r: f"{r.mbps}")
def test_a_rate_carries_the_bits_in_its_row(rate):
    sent = sum(rate.keep) / len(rate.keep)  # of two coded bits per data bit
    assert rate.data_bits * 2 * sent == rate.coded_bits
    assert rate.data_bits == rate.mbps * 4  # a symbol lasts 4 µs


@pytest.mark.parametrize("m", [1, 2, 4, 6])
def test_the_interleaver_is_a_permutation_that_separates_neighbours(m):
    p = ofdm.interleaver(m)
    assert sorted(p) == list(range(48 * m))
    assert np.abs(np.diff(p // m)).min() >= 2  # neighbouring bits are never in adjacent subcarriers


@pytest.mark.parametrize("m", [1, 2, 4, 6])
def test_constellations_have_power_one_and_nearest_points_differ_in_one_bit(m):
    points = ofdm.constellation(m)
    assert np.mean(np.abs(points) ** 2) == pytest.approx(1)
    distance = np.abs(points[:, None] - points)
    np.fill_diagonal(distance, np.inf)
    a, b = np.nonzero(np.isclose(distance, distance.min()))
    assert all(bin(i ^ j).count("1") == 1 for i, j in zip(a.tolist(), b.tolist(), strict=True))


@given(st.sampled_from(ALL_RATES), st.integers(0, 99), st.sampled_from([1, 2, 4]))
def test_bodies_hold_the_spectra_that_were_sent(rate, seed, oversampling):
    symbols = random_frame(rate, n=2, n_symbols=2, seed=seed)
    x = ofdm.waveform(symbols, oversampling=oversampling)[:, ::oversampling]
    for i in range(3):
        body = x[:, 320 + 80 * i + 16 - 4 :][:, :64]
        rotated = symbols[:, i] * np.exp(-2j * np.pi * np.fft.fftfreq(64) * 4)  # starts four samples early
        np.testing.assert_allclose(ofdm.to_spectrum(body), rotated, atol=1e-9)


def test_tail_bits_end_the_payload_with_zeros_and_the_rest_is_padding():
    rate, payload = ofdm.RATES[12], np.ones((1, 40), np.uint8)
    state = np.array([93])
    short = ofdm.data_symbols(rate, payload, state, 2)
    as_written = np.r_[np.zeros(16), np.ones(40), np.zeros(40)].astype(np.uint8)
    as_written ^= ofdm.scrambling_sequence(93)[:96]
    as_written[56:62] = 0
    hard = np.stack([short[0][:, ofdm.DATA].real > 0, short[0][:, ofdm.DATA].imag > 0], axis=2)
    received = hard.reshape(2, 96).astype(np.uint8)[:, ofdm.interleaver(2)].reshape(1, -1)
    np.testing.assert_array_equal(received, ofdm.convolutional_code(as_written[None]))


def test_a_frame_has_mean_power_one():
    x = ofdm.waveform(random_frame(ofdm.RATES[54], n=50), oversampling=2)
    assert np.mean(np.abs(x) ** 2) == pytest.approx(1, rel=0.02)


def mask_excess(x: np.ndarray, rate: float) -> float:
    """By how many dB, at most, the spectrum of x exceeds the 20 MHz mask of the standard."""
    f, psd = welch(x, rate, nperseg=256, return_onesided=False, axis=-1)
    psd = psd.reshape(-1, len(f)).mean(axis=0)
    mask = np.interp(np.abs(f) / 1e6, [9, 11, 20, 30], [0, -20, -28, -40])
    level = 10 * np.log10(psd / psd[(np.abs(f) < 9e6) & (f != 0)].mean())
    return float((level - mask)[np.abs(f) > 9e6].max())


def test_the_spectrum_stays_within_the_mask_of_the_standard():
    x = ofdm.waveform(random_frame(ofdm.RATES[54], n=60), oversampling=4)
    assert mask_excess(x, 80e6) < 0
