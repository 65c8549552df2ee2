"""Augmented views: the same shape, a slightly changed sample, determined by the generator alone."""

import pytest
import torch

from cdknet.inputs.kind import kind_of
from cdknet.nets.augment import VIEWS, check_views, grey_views, radio_views, view_function

SHAPES = {"grey": (12, 12), "colour": (3, 12, 12), "radio": (2, 64), "vectors": (9,)}


def batch(kind, n=20):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, *SHAPES[kind], generator=generator)


def seen(kind, x, seed):
    return VIEWS[kind](x, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_has_the_samples_shape_and_is_finite(kind):
    x = batch(kind)
    view = seen(kind, x, 1)
    assert view.shape == x.shape
    assert view.dtype == x.dtype
    assert view.isfinite().all()
    assert seen(kind, x[:1], 1).shape == x[:1].shape


@pytest.mark.parametrize("kind", VIEWS)
def test_the_generator_decides_and_the_sample_is_left_alone(kind):
    x = batch(kind)
    kept = x.clone()
    assert torch.equal(seen(kind, x, 1), seen(kind, x, 1))
    assert not torch.equal(seen(kind, x, 1), seen(kind, x, 2))
    assert torch.equal(x, kept)


@pytest.mark.parametrize("kind", ["grey", "vectors"])
def test_a_view_is_nearer_to_its_own_sample_than_to_others(kind):
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(20, 1, 3, 3, generator=generator)
    pictures = torch.nn.functional.interpolate(coarse, (12, 12), mode="bilinear").squeeze(1)
    x = pictures if kind == "grey" else torch.randn(20, 40, generator=generator)
    distances = torch.cdist(seen(kind, x, 1).flatten(1), x.flatten(1))
    assert (distances.argmin(dim=1) == torch.arange(20)).float().mean() > 0.5


def test_what_enters_an_image_from_outside_is_background():
    white_on_black = torch.zeros(50, 10, 10)
    white_on_black[:, 4:6, 4:6] = 1
    view = grey_views(white_on_black, torch.Generator().manual_seed(0))
    assert view[:, 0].abs().max() < 0.5
    assert view.min() >= -1e-6


@pytest.mark.parametrize("kind", ["grey", "colour"])
def test_one_dark_picture_does_not_change_the_views_of_others(kind):
    x = batch(kind)
    dark = x.clone()
    dark[0, ..., 0, 0] = -1000
    torch.testing.assert_close(seen(kind, dark, 1)[1:], seen(kind, x, 1)[1:])


def test_grey_views_do_not_depend_on_the_unit_of_a_picture():
    x = batch("grey")
    torch.testing.assert_close(seen("grey", 1e-9 * x, 1), 1e-9 * seen("grey", x, 1), rtol=1e-3, atol=1e-13)


def test_a_users_views_may_work_in_place_and_must_keep_the_shape():
    x = batch("vectors")
    kept = x.clone()
    view = view_function("vectors", lambda x, generator: x.add_(1))
    assert torch.equal(view(x, torch.Generator()), kept + 1)
    assert torch.equal(x, kept)
    doubled = view_function("vectors", lambda x, generator: x.double())
    assert doubled(x, torch.Generator()).dtype == torch.float32
    for bad, got in ((lambda x, g: x[:3], r"shape \(3, 9\)"), (lambda x, g: x.numpy(), "ndarray")):
        with pytest.raises(ValueError, match=rf"views must return a tensor .* \(20, 9\)\. Got {got}"):
            view_function("vectors", bad)(x, torch.Generator())


def test_a_turn_in_phase_keeps_the_power():
    x = batch("radio", 200) - 0.5
    power = x.square().sum(dim=(1, 2))
    ratio = radio_views(x, torch.Generator().manual_seed(0)).square().sum(dim=(1, 2)) / power
    assert ratio.min() > 0.7
    assert ratio.max() < 1.4


def test_radio_views_keep_most_of_the_phase():
    """The phase distinguishes transmitters: a view rotated by any angle would lose that."""
    x = batch("radio", 200) - 0.5
    signal, view = (torch.complex(v[:, 0], v[:, 1]) for v in (x, radio_views(x, torch.Generator())))
    turned = torch.angle((view * signal.conj()).sum(dim=1))
    assert turned.abs().max() < 0.35
    assert turned.std() > 0.05


def test_views_that_do_not_suit_are_refused():
    check_views("grey", (3, 8, 8))
    for kind, shape in (("colour", (8, 8)), ("radio", (8, 8)), ("radio", (2, 20)), ("grey", (9,))):
        with pytest.raises(ValueError, match=f"views='{kind}' must suit"):
            check_views(kind, shape)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((28, 28), "grey"),
        ((1, 28, 28), "grey"),
        ((3, 32, 32), "colour"),
        ((2, 198), "radio"),
        ((64,), "vectors"),
        ((4, 4), "vectors"),
        ((3, 5, 8), "vectors"),
        ((2, 31), "vectors"),
    ],
)
def test_auto_picks_by_shape(shape, kind):
    assert kind_of(shape).value == kind
