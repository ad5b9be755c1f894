"""The README's picture shows the runs that it was given."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.figures import loading
from tests.experiments.small_runs import SMALL, run_in
from tools import demo_picture

WORDS = (*SMALL, "--algorithms=local,feddwa", "--partition=grouped", "--groups=2",
         "--train_samples=20", "--set=feddwa.top_k=2")  # fmt: skip


@pytest.mark.costly
def test_the_curves_and_the_weights(tmp_path):
    assert run_in(tmp_path / "demo", *WORDS) == 0
    result = loading.find([f"{tmp_path}/demo"])
    chart = demo_picture.draw(result)
    curves, weights = chart.axes[:2]
    ends = {line.get_color(): line.get_ydata()[-1] for line in curves.lines}
    means = [100 * one.values()[:, -1].mean() for one in result]
    np.testing.assert_allclose(sorted(ends.values()), sorted(means))
    texts = [text.get_text() for text in curves.get_legend().get_texts()]
    last = {one.algorithm: mean for one, mean in zip(result, means, strict=True)}
    assert texts == [f"{name}  {last[name]:.1f}" for name in sorted(last, key=lambda n: -last[n])]
    (mixed,) = [one for one in result if one.algorithm == "feddwa"]
    drawn = np.asarray(weights.collections[0].get_array()).reshape(4, 4)
    np.testing.assert_allclose(drawn, mixed.matrix("mixing")[0, 0].mean(axis=0))
    picture = tmp_path / "demo.png"
    assert demo_picture.main(["", str(picture), f"{tmp_path}/demo"]) == 0
    assert picture.stat().st_size > 1000
    with pytest.raises(pfl.InputError, match="lack feddwa"):
        demo_picture.draw([one for one in result if one.algorithm == "local"])
