"""The README's picture of speed shows the measured ratios."""

import pytest

import fedjax_pfl as pfl
from tests.docs.pages import ROOT
from tools import speed_picture

PAGE = ROOT / "docs/performance.md"


def test_the_bars_are_the_ratios_that_the_readme_states(tmp_path):
    rows = speed_picture.ratios(PAGE.read_text(encoding="utf-8"))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    shown = [f"{ratio:.2g}" for ratio in rows.values()]
    assert shown == ["1.8", "3.2", "5.9", "11"]
    assert f"{shown[0]} to {shown[-1]} times" in readme
    texts = (f"{name} {ratio}" for name, ratio in zip(rows, shown, strict=True))
    assert all(text.removeprefix("CNN ") in readme for text in texts)
    chart = speed_picture.draw(rows)
    widths = [bar.get_width() for bar in chart.axes[0].patches]
    assert widths == list(rows.values())
    assert speed_picture.main(["", str(tmp_path / "speed.png"), str(PAGE)]) == 0
    with pytest.raises(pfl.InputError, match="no rows"):
        speed_picture.ratios("# Speed\n")
