"""Numbers of a federation that runs of one program may differ in."""

import pytest

from fedjax_pfl.federation.swept_numbers import number_paths
from fedjax_pfl.testing.toys import toy_federation

RATES = {"learning_rate", "learning_rate_decay"}
DP = {"dp_clip": 1.0, "dtype": "float32"}


@pytest.mark.parametrize("unit", ["client", "sample"])
@pytest.mark.parametrize("noise", [{"dp_noise": 0.1}, {"dp_epsilon": 8.0}])
def test_numbers_of_privacy(unit, noise):
    """The noise is one before it is computed from an epsilon; that no clip adapts is none."""
    numbers = number_paths(toy_federation(dp=unit, **DP, **noise))
    assert set(numbers) == RATES | {"dp_clip", "dp_noise"}


def test_whole_numbers_of_rules_are_checked_once_and_not_swept():
    numbers = number_paths(toy_federation(aggregator="trimmed_mean", dtype="float32"))
    assert set(numbers) == RATES
    numbers = number_paths(toy_federation(aggregator="cclip", dtype="float32"))
    assert set(numbers) == RATES | {"aggregator_radius"}


@pytest.mark.parametrize(("then", "name"), [("median", None), ("cclip", "radius")])
def test_numbers_that_a_rule_does_not_use_are_not_swept(then, name):
    options = {"aggregator_options": {"then": then, "f": 0}, "dtype": "float32"}
    numbers = number_paths(toy_federation(aggregator="nnm", **options))
    assert set(numbers) == RATES | ({f"aggregator_{name}"} if name else set())
