"""Measurements of a run that is cut off after five of six rounds, scored every two."""

import numpy as np

from fedjax_pfl.engine.metrics_buffer import MetricsBuffer

NAN = np.nan


def test_rounds_are_counted_from_one():
    buffer = MetricsBuffer(2, 6, (4, 5))
    nothing = {"clients": {}, "scalars": {}, "up": np.zeros((1, 3)), "down": np.zeros((1, 3))}
    for length, scores in ((3, [[NAN, NAN], [1, 2], [NAN, NAN]]), (2, [[3, NAN], [NAN, NAN]])):
        buffer = buffer.add(length, nothing | {"scores": {"mse": np.array([scores])}}, {}, 1.0)
    rounds, means = buffer.curve("mse")
    assert rounds.tolist() == [2, 4] and means.tolist() == [[1.5, 3]]
    fields = buffer.collect((1, 1))
    assert fields["eval_rounds"].tolist() == [2, 4] and fields["matrix_rounds"].tolist() == [4, 5]
    np.testing.assert_array_equal(fields["scores"]["mse"], [[[[1, 2], [3, NAN]]]])
