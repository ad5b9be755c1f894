"""Corruptions of images against plain loops, and what all kinds have in common."""

import numpy as np
import pytest

from fedjax_pfl.data.corruptions import KINDS, STREAM, corrupt

RNG = np.random.default_rng(3)
X = RNG.random((4, 9, 9, 3)) * 0.8 + 0.1
AT = np.array([7, 2, 11, 4])


def rng(i):
    return np.random.default_rng((STREAM, int(AT[i])))


@pytest.mark.parametrize("kind", KINDS)
def test_stronger_corruptions_change_more_and_depend_on_the_index_only(kind):
    images = RNG.random((20, 12, 12, 1))
    images = (images + np.roll(images, 1, 1) + np.roll(images, 1, 2)) / 3  # some structure
    at = np.arange(20)
    made = [corrupt(images, kind, strength, at) for strength in range(1, 6)]
    for one in made:
        assert one.shape == images.shape and one.min() >= 0 and one.max() <= 1
    first, last = (np.abs(one - images).mean() for one in (made[0], made[-1]))
    assert 0 < first < last
    order = np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(corrupt(images[order], kind, 3, at[order]), made[2][order])
    assert corrupt(images[:0], kind, 3, at[:0]).shape == (0, 12, 12, 1)
    assert corrupt(X, kind, 5, AT).shape == X.shape


def test_noises():
    expected = [x + 0.08 * rng(i).standard_normal(x.shape) for i, x in enumerate(X)]
    np.testing.assert_allclose(corrupt(X, "gaussian_noise", 3, AT), np.clip(expected, 0, 1))
    expected = [rng(i).poisson(x * 500) / 500 for i, x in enumerate(X)]
    np.testing.assert_allclose(corrupt(X, "shot_noise", 1, AT), np.clip(expected, 0, 1))
    changed = corrupt(np.full((9, 64, 64, 1), 0.5), "impulse_noise", 5, np.arange(9))
    dark, bright = (changed == 0).mean(), (changed == 1).mean()
    assert (dark + bright, dark) == pytest.approx((0.07, 0.035), abs=0.005)


def test_contrast_and_brightness():
    for x, y, z in zip(
        X, corrupt(X, "contrast", 5, AT), corrupt(X, "brightness", 2, AT), strict=True
    ):
        for c in range(3):
            mean = x[:, :, c].mean()
            np.testing.assert_allclose(y[:, :, c], (x[:, :, c] - mean) * 0.15 + mean)
        np.testing.assert_allclose(z, np.minimum(x + 0.1, 1))


def test_motion_is_a_line_of_pixels():
    made = corrupt(X, "motion_blur", 2, AT)
    for i, x in enumerate(X):
        angle, total, mass = np.deg2rad(rng(i).uniform(-45, 45)), np.zeros_like(x), 0.0
        for step in range(7):
            weight = np.exp(-(step**2) / (2 * 1.5**2))
            down, right = round(step * np.sin(angle)), round(step * np.cos(angle))
            for r in range(9):
                for c in range(9):
                    at = min(max(r + down, 0), 8), min(max(c + right, 0), 8)
                    total[r, c] += weight * x[at]
            mass += weight
        np.testing.assert_allclose(made[i], total / mass)


def test_defocus_spreads_a_point_over_a_disk():
    point = np.zeros((1, 9, 9, 1))
    point[0, 4, 4] = 1
    made = corrupt(point, "defocus_blur", 4, np.array([0]))[0, :, :, 0]
    assert made.sum() == pytest.approx(1)
    assert made[4, 4] == pytest.approx(0.2, rel=1e-3)  # the disk of radius 1 has five pixels
    assert made[3, 4] == pytest.approx(made[4, 5]) == pytest.approx(0.2, rel=1e-3)


def test_fog_is_smooth_and_keeps_the_brightest_value():
    made = corrupt(np.full((3, 32, 32, 1), 0.5), "fog", 5, np.arange(3))
    assert made.max() == pytest.approx(0.5) and made.min() == pytest.approx(0.5 * 0.5 / 2)
    steps = np.abs(np.diff(made[..., 0], axis=2)).mean()
    assert steps < made.std() / 2
