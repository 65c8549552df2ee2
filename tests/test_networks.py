"""Networks: the paper's shapes, and growth that keeps what was learned."""

import numpy as np
import pytest
import torch
from torch import nn

from cdknet.core.columns import one_hot
from cdknet.core.seeds import seeded
from cdknet.fit.plan import resolve
from cdknet.inputs.arrays import Inputs, check_X, input_statistics
from cdknet.nets.architectures import build_network, choose_architecture
from cdknet.nets.growth import grow
from cdknet.nets.layers import Dropout, OverTime, Quarters
from cdknet.nets.network import PORTION, bfloat16_works, embed, has_bfloat16
from cdknet.training.context import FitContext

SHAPES = {
    "paper-mnist": (28, 28),
    "paper-cifar": (3, 32, 32),
    "paper-rf": (2, 198),
    "mlp": (17,),
}


def network(name, n_classes=3, seed=0):
    torch.manual_seed(seed)
    return build_network(SHAPES[name], n_classes, architecture=name).double().eval()


def sample(name, n=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, *SHAPES[name], generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # Counted by hand from the description of the networks: kernels, biases, dense layers, softmax of 10.
        ("paper-mnist", 320 + 18_496 + 9216 * 128 + 128 + 1290),
        ("paper-cifar", 896 + 9248 + 18_496 + 36_928 + 2304 * 512 + 512 + 5130),
        (
            "paper-rf",
            (2 * 7 + 1) * 128 + 4 * (128 * 7 + 1) * 128 + 5 * (128 * 5 + 1) * 128
            + 768 * 256 + 256 + 256 * 128 + 128 + 1290,
        ),
    ],
)  # fmt: skip
def test_the_papers_networks_have_the_papers_size(name, weights):
    assert sum(p.numel() for p in network(name, 10).parameters()) == weights


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((28, 28), "paper-mnist"),
        ((1, 28, 28), "paper-mnist"),
        ((3, 32, 32), "paper-cifar"),
        ((2, 198), "paper-rf"),
        ((512,), "mlp"),
        ((3, 4), "mlp"),
    ],
)
def test_auto_picks_by_shape(shape, name):
    assert choose_architecture(shape) == name
    net = build_network(shape, 4)
    assert net(torch.zeros(2, *shape)).shape == (2, 4)


@pytest.mark.parametrize("strategy", ["last", "last-two", "all"])
@pytest.mark.parametrize("name", SHAPES)
def test_growth_keeps_old_logits_old_weights_and_the_old_network(name, strategy):
    old, x = network(name), sample(name)
    before, kept = old(x), {k: v.clone() for k, v in old.state_dict().items()}
    wide = grow(old, strategy, 4).network.eval()
    torch.testing.assert_close(wide(x)[:, :3], before, rtol=1e-12, atol=1e-12)
    assert wide(x).shape == (5, 7)
    assert all(torch.equal(old.state_dict()[k], v) for k, v in kept.items())
    for key, value in kept.items():
        inside = wide.state_dict()[key][tuple(slice(size) for size in value.shape)]
        assert torch.equal(inside, value), key


@pytest.mark.parametrize(
    ("strategy", "features", "filters"), [("last", 128, 32), ("last-two", 160, 32), ("all", 160, 64)]
)
def test_growth_grows_what_it_says(strategy, features, filters):
    wide = grow(network("paper-mnist"), strategy, 4).network
    assert wide.features(sample("paper-mnist")).shape[1] == features
    assert wide.trunk[0].out_channels == filters


def test_grown_layers_learn_fast_and_the_others_slowly():
    growth = grow(network("paper-mnist"), "last-two", 4)
    fast = {id(p) for p in [*growth.network.penultimate.parameters(), *growth.network.head.parameters()]}
    assert {id(p) for p in growth.grown} == fast
    assert {id(p) for p in growth.kept} == {id(p) for p in growth.network.trunk.parameters()}
    assert not grow(network("paper-mnist"), "all", 4).kept


def test_new_outputs_can_learn_from_old_and_new_units():
    """Zero weights from new units to old outputs must be able to learn: their gradient is not 0."""
    growth = grow(network("mlp"), "all", 2)
    growth.network(sample("mlp")).logsumexp(1).sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in growth.grown)


def test_a_users_encoder_is_copied_and_frozen_parts_stay():
    encoder = nn.Sequential(nn.Linear(17, 8), nn.BatchNorm1d(8), nn.Tanh()).requires_grad_(False)
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    net = build_network((17,), 3, encoder=encoder)
    net.train()
    loss = net(torch.randn(6, 17)).sum()
    loss.backward()
    assert not net.trunk.training, "a frozen trunk keeps its running statistics"
    assert all(p.grad is None for p in net.trunk.parameters())
    assert all(torch.equal(v, encoder.state_dict()[k]) for k, v in before.items())
    assert grow(net, "last-two", 2).network(torch.randn(6, 17)).shape == (6, 5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: build_network((4, 4), 2, architecture="paper-mnist"), "at least 6 x 6"),
        (lambda: build_network((9,), 2, architecture="paper-cifar"), "at least 10 x 10"),
        (lambda: build_network((2, 16), 2, architecture="paper-rf"), "length >= 32"),
        (lambda: build_network((5,), 2, encoder=nn.Linear(4, 2)), "must take float32 batches"),
        (lambda: build_network((5,), 2, encoder=nn.Flatten(0)), "one row per sample"),
        (lambda: build_network((300, 300), 2), "Make the samples smaller"),
        (lambda: grow(build_network((5,), 2, encoder=nn.Tanh()), "all", 2), "or expansion='last-two'"),
    ],
)
def test_what_does_not_fit_is_said(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_large_batch_goes_in_portions_where_that_changes_nothing(monkeypatch):
    x = torch.rand(PORTION + 5, 8, 8)
    seen = []
    with seeded(0):
        apart = build_network((8, 8), 3, architecture="paper-mnist")
        meeting = build_network((8, 8), 3, architecture="small")
    for network in (apart, meeting):
        network.trunk.register_forward_pre_hook(lambda trunk, given: seen.append(len(given[0])))
    both = []
    for portion in (PORTION, len(x)):
        monkeypatch.setattr("cdknet.nets.network.PORTION", portion)
        apart.zero_grad()
        z = apart.eval().features(x)  # without dropout, the gradients are those of the whole batch
        z.square().sum().backward()
        both.append([z.detach(), *[weight.grad.clone() for weight in apart.trunk.parameters()]])
    monkeypatch.undo()
    for mine, theirs in zip(*both, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    seen.clear()
    apart.train().features(x)
    meeting.eval().features(x)
    assert seen == [PORTION, 5] * 2
    seen.clear()
    meeting.train().features(x)  # batch norm: the batch is not divided
    assert seen == [PORTION + 5]


def test_embedding_is_the_same_in_any_batches_and_leaves_the_mode_alone():
    net = build_network((17,), 3).train()
    inputs = Inputs(sample("mlp", 30).numpy())
    whole = embed(net, inputs, normalize=True)
    parts = embed(net, inputs, normalize=True, batch_size=7)
    torch.testing.assert_close(whole.features, parts.features)
    assert net.training
    torch.testing.assert_close(whole.features.norm(dim=1), torch.ones(30))
    rows = torch.tensor([3, 1])
    torch.testing.assert_close(embed(net, inputs, rows, normalize=True).logits, whole.logits[rows])


@pytest.mark.parametrize("shape", [(9,), (6, 7), (3, 6, 7), (2, 40)])
def test_statistics_standardise_each_feature_or_channel(shape):
    generator = np.random.default_rng(0)
    X = generator.normal(3, 5, (200, *shape)) * (1 + np.arange(np.prod(shape)).reshape(shape))
    X = X.astype(np.float32)
    mean, scale = input_statistics(Inputs(X))
    out = build_network(shape, 2, architecture="mlp", statistics=(mean, scale)).intake(torch.from_numpy(X))
    axes = {(9,): (0,), (6, 7): (0, 1, 2), (3, 6, 7): (0, 2, 3), (2, 40): (0, 2)}[shape]
    np.testing.assert_allclose(out.numpy().mean(axis=axes), 0, atol=1e-4)
    np.testing.assert_allclose(out.numpy().std(axis=axes), 1, rtol=1e-3)


def test_constant_features_and_far_offsets_do_no_harm():
    X = np.ones((50, 3), dtype=np.float64)
    X[:, 1] = 1e6 + np.arange(50)
    _, scale = input_statistics(Inputs(X))
    assert scale[0] == 1
    assert scale[1] == pytest.approx(np.arange(50).std(), rel=1e-3)


def test_columns_with_very_different_units_are_standardised_separately():
    """Hertz beside volts: whether a column is constant depends on its own scale, not on the largest one's."""
    X = np.random.default_rng(0).normal(0, 1, (400, 4)) * [1e9, 50, 0.1, 0] + [0, 5, 0, 7]
    _, scale = input_statistics(Inputs(X))
    assert scale.tolist() == pytest.approx([1e9, 50, 0.1, 1], rel=0.15)


@pytest.mark.parametrize("dtype", [">f4", ">i2", np.longdouble, np.float16])
def test_numbers_of_any_width_and_byte_order_go_in(dtype):
    X = np.arange(6).reshape(3, 2).astype(dtype)
    np.testing.assert_array_equal(
        Inputs(check_X(X)).take(torch.arange(3)).numpy(), np.arange(6.0).reshape(3, 2)
    )


def test_pixels_come_out_between_0_and_1():
    X = np.array([[0, 51, 255]], dtype=np.uint8)
    assert Inputs(X).take(torch.tensor([0])).tolist() == [[0.0, pytest.approx(0.2), 1.0]]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((2, 3), dtype=complex), "Complex data"),
        (np.array([["a", "b"]]), "must hold numbers"),
        (np.array([[object()]]), "must hold numbers|real number"),
        (np.zeros(3), "2D array"),
        (np.zeros((0, 3)), "must not be empty"),
        (np.zeros((3, 0)), "must not be empty"),
        (np.zeros((2, 2, 2, 2, 2)), "2 to 4 dimensions"),
        (np.zeros((2, 32, 32, 3)), "channels last"),
        (np.array([[1.0, np.nan]]), "NaN in row 0"),
        (np.array([[1.0], [np.inf]]), "in row 1"),
        (np.array([[1e300]]), "too large for float32"),
        ([[1, 2], [3]], "one shape"),
    ],
)
def test_bad_samples_get_one_clear_error(X, message):
    with pytest.raises((ValueError, TypeError), match=message):
        check_X(X)


def test_bfloat16_is_for_training_alone_and_near():
    torch.manual_seed(0)
    net = build_network((1, 28, 28), 3, architecture="small")
    x = torch.rand(32, 1, 28, 28)
    exact = net.train().features(x)
    net.in_bfloat16 = True
    short = net.train().features(x)
    assert short.dtype == torch.float32
    assert not torch.equal(short, exact)
    assert torch.nn.functional.cosine_similarity(short, exact).min() > 0.99
    short.sum().backward()
    assert all(w.grad.dtype == torch.float32 for w in net.trunk.parameters())
    net = build_network((1, 28, 28), 3, architecture="small").eval()
    plain = net.features(x)
    net.in_bfloat16 = True
    assert torch.equal(net.features(x), plain)


@pytest.mark.parametrize(("code", "works"), [(0, True), (1, False), (-4, False)])
def test_bfloat16_is_tried_where_a_processor_lists_amx(code, works, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    end = "import os, signal; " + ("os.kill(os.getpid(), signal.SIGILL)" if code < 0 else f"os._exit({code})")
    monkeypatch.setattr("cdknet.nets.network.TRY_BFLOAT16", end)
    bfloat16_works.cache_clear()
    try:
        assert has_bfloat16(torch.device("cpu")) == works
        options = {"method": "cd-knet+", "n_new_classes": 2, "precision": "bfloat16"}
        if works:
            assert resolve(options, (6,), 3, FitContext()).options.precision == "bfloat16"
        else:
            with pytest.raises(ValueError, match="Got one that lists AMX"):
                resolve(options, (6,), 3, FitContext())
    finally:
        bfloat16_works.cache_clear()


def test_colour_pictures_are_learned_from_parts_and_known_by_their_middle():
    net = build_network((3, 32, 32), 3, architecture="small")
    x = torch.zeros(2, 3, 32, 32)
    x[:, :, 0, 0] = 1.0  # a corner: in 1 of 81 parts
    net.train()
    with seeded(0):
        parts = [net.trunk[0](x) for _ in range(400)]
    assert {tuple(part.shape) for part in parts} == {(2, 3, 24, 24)}
    assert 0 < sum(float(part.amax()) for part in parts) < 20
    net.eval()
    x[:, :, 4, 27] = 2.0
    assert torch.equal(net.trunk[0](x), x[:, :, 4:28, 4:28])


def test_growth_goes_on_in_the_same_arithmetic():
    net = build_network((17,), 3, architecture="mlp")
    net.in_bfloat16 = True
    assert grow(net, "last-two", 2).network.in_bfloat16


def test_training_without_dropout_gives_a_sample_the_same_features_every_time():
    net = build_network((28, 28), 3, architecture="paper-mnist")
    x = torch.rand(4, 28, 28)
    net.train_without_dropout()
    assert net.training
    torch.testing.assert_close(net(x), net(x), rtol=0, atol=0)
    assert not torch.equal(net.train()(x), net.train()(x))


@pytest.mark.parametrize(("stride", "padding"), [(1, 2), (2, 3), (3, 0)])
def test_a_convolution_over_time_is_torchs(stride, padding):
    torch.manual_seed(0)
    plain = nn.Conv1d(2, 6, 5, stride, padding).double()
    ours, next_one = OverTime(2, 6, 5, stride, padding).double(), OverTime(6, 4, 3, padding=1).double()
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(3, 2, 40, dtype=torch.float64)
    torch.testing.assert_close(ours(x).squeeze(2), plain(x))
    twice = nn.functional.conv1d(plain(x), next_one.weight, next_one.bias, padding=1)
    torch.testing.assert_close(next_one(ours(x)).squeeze(2), twice)


@pytest.mark.parametrize("sides", [(2, 2), (4, 4), (2, 4), (3, 3), (6, 6), (1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quarters_are_torchs_to_the_bit(sides, dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 16, *sides, generator=generator).to(dtype).to(memory_format=torch.channels_last)
    slope = torch.randn(9, 64, generator=generator).to(dtype)
    found = []
    for layer in (Quarters(), nn.AdaptiveAvgPool2d(2)):
        own = x.clone().requires_grad_()
        out = layer(own).flatten(1)
        out.backward(slope)
        found.append((out, own.grad))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("p", [0.25, 0.5, 0.3, 1 / 256])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_dropout_keeps_its_share_at_the_right_scale(p, layout):
    torch.manual_seed(0)
    x = torch.ones(16, 30, 11, 13).to(memory_format=layout)  # values do not fill the last word
    layer = Dropout(p)
    out = layer(x)
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    n = x.numel()
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5  # five deviations
    for share in kept.double().mean(dim=(0, 2, 3)):  # the same in every channel
        assert abs(float(share) - (1 - p)) < 5 * (p * (1 - p) * 30 / n) ** 0.5
    assert not torch.equal(layer(x), out)
    assert torch.equal(layer.eval()(x), x)


def test_dropout_passes_the_gradient_of_the_values_it_kept():
    x = torch.randn(7, 9).T.requires_grad_()  # not contiguous
    out = Dropout(0.5)(x)
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(slope, (out != 0).to(x.dtype) * 2)


def test_what_stands_for_yes_and_no_does_not_matter():
    rng = np.random.default_rng(0)
    yes = rng.random((300, 4)) < [0.5, 0.3, 0.02, 0.9]
    coded = [inputs_as_taken_in(np.where(yes, high, low)) for low, high in [(0, 1), (1, 2), (-5.0, 7.5)]]
    for other in coded[1:]:
        np.testing.assert_allclose(coded[0], other, atol=1e-5)
    words = inputs_as_taken_in(np.stack([yes, ~yes], axis=2).reshape(300, 8))  # each a category of two
    distances = [np.square(x[:100, None] - x[None, :100]).sum(axis=2) for x in (coded[0], words)]
    np.testing.assert_allclose(*distances, atol=1e-4)
    assert 0.9 < coded[0][:, 0].var() < 1.1, "as much as a number"
    assert coded[0][:, 2].var() < 0.2, "a rare value not more than a frequent one"
    hair = np.float32(1e6) + np.where(yes[:, :1], np.float32(0.0625), 0)  # next to 1e6 in float32
    assert input_statistics(Inputs(hair.astype(np.float32)))[1].tolist() == [1], "rounding is no second value"


def inputs_as_taken_in(X):
    mean, scale = input_statistics(Inputs(X.astype(np.float32)))
    return (X - mean.numpy()) / scale.numpy()


def test_columns_of_a_category_are_known_by_the_one_in_each_row():
    rng = np.random.default_rng(0)
    colour, size = np.eye(5)[rng.integers(0, 5, 200)], np.eye(2)[rng.integers(0, 2, 200)]
    flag = rng.integers(0, 2, (200, 1))
    x = torch.from_numpy(np.hstack([flag, colour, size, flag]) == 1)
    assert one_hot(x).tolist() == [0, *[5] * 5, 2, 2, 0]
    assert one_hot(x[:, :0]).tolist() == []
    x[0, 1:6] = False  # a gap
    assert one_hot(x).tolist() == [0, *[6] * 5, 2, 2, 0]
    assert one_hot(x[:, 2:6]).tolist() == [5] * 4  # as drop_first leaves it
