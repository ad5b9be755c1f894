"""Records by round: what is drawn is what was recorded."""

import numpy as np
import pytest

from experiments.figures import accuracy
from experiments.outputs.run_files import metric_rows
from fedjax_pfl import InputError, Result

from .conftest import rows_of


def test_self_weights_by_round_are_those_of_metrics_csv(found):
    runs = [found["main", name] for name in ("local", "feddwa", "cwfedavg", "weight_erosion")]
    drawn = accuracy.of_record(runs)
    (axes,) = drawn.figure.axes
    assert [line.get_label() for line in axes.get_lines()] == ["feddwa", "cwfedavg"]
    for run, line in zip(runs[1:3], axes.get_lines(), strict=True):
        rows = metric_rows(Result.load(run.folder))
        wanted = {(s, t): value for s, t, name, value in rows if name == "self_weight"}
        assert len(wanted) == 6 and all(0 < value <= 1 for value in wanted.values())
        mean = [np.mean([wanted[s, t] for s in (0, 1)]) for t in (1, 2, 3)]
        np.testing.assert_allclose(line.get_ydata(), mean, 1e-6)
        found_here = {row[3:5]: row[5] for row in rows_of(drawn) if row[1] == run.algorithm}
        assert found_here == pytest.approx(wanted)


def test_another_record(found):
    drawn = accuracy.of_record([found["main", "local"]], record="train_loss")
    assert drawn.figure.axes[0].get_ylabel() == "train_loss" and len(drawn.numbers) == 6
    with pytest.raises(InputError, match="None of the runs has the record 'self_weight'"):
        accuracy.of_record([found["main", "local"]])
