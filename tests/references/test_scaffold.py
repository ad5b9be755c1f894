"""SCAFFOLD's reference: two forms of the control update, limits, one round by hand."""

import numpy as np
import pytest

from tests.references import scaffold
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    assert_same,
    flat,
    stack,
)


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_scaffold_mean_gradient_is_option_two(setting, cohorts):
    common = {**setting, "cohorts": cohorts, "server_rate": 0.7}
    mean = scaffold.run(**common)
    second = scaffold.run(**common, control_update="option_two")
    for a, b in zip(mean, second, strict=True):
        assert_same(a["global"], b["global"], rtol=1e-10)
        assert_same(a["control"], b["control"], rtol=1e-10, atol=1e-12)
        for own, other in zip(a["controls"], b["controls"], strict=True):
            assert_same(own, other, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="Unknown control update"):
        scaffold.run(**setting, control_update="option_one")


@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_scaffold_control_is_the_mean_of_the_controls(setting, cohorts):
    before = np.zeros((COUNT, len(flat(setting["initial"]))))
    for t, models in enumerate(scaffold.run(**{**setting, "cohorts": cohorts})):
        controls = stack(models["controls"])
        np.testing.assert_allclose(
            flat(models["control"]), controls.mean(axis=0), rtol=1e-9, atol=1e-13
        )
        changed = set(np.flatnonzero((controls != before).any(axis=1)))
        assert changed == set(cohorts[t])
        before = controls
