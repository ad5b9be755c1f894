"""Titles of figures."""

from types import SimpleNamespace

from experiments.figures.drawing import over_seeds


def test_titles_say_how_many_seeds():
    runs = [SimpleNamespace(seeds=list(range(count))) for count in (3, 2, 3)]
    assert over_seeds(runs) == "; mean of 2 to 3 seeds, band from lowest to highest"
    assert over_seeds(runs[:1], "whiskers").startswith("; mean of 3 seeds, whiskers from")
    assert over_seeds([SimpleNamespace(seeds=[0])]) == ""
