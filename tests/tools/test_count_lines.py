"""Counted lines and words, on a tree made for it."""

from tools import count_lines

CODE = '''"""A module.

Two paragraphs.
"""

# why
NAMES = """text, no docstring
"""


def f():
    """One line."""
    return 1  # counted as code
'''
ASIDE = "| a | b |\n\n::: a.b\n\n```\nnot these\n```\n<!-- nor this -->\n$$\nnor this\n$$\n"
PAGE = f"# Two words\n\n{ASIDE}three $nor this$ more words\n"


def test_lines_and_words(tmp_path):
    for name in ("fedjax_pfl/core", "docs/reproduced"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "fedjax_pfl/core/a.py").write_text(CODE)
    (tmp_path / "fedjax_pfl/b.py").write_text("x = 1\n")
    (tmp_path / "docs/page.md").write_text(PAGE)
    (tmp_path / "docs/reproduced/page.md").write_text(PAGE)
    found = count_lines.by_package(tmp_path)
    assert found["fedjax_pfl/core"] == {"code": 4, "docstring": 5, "comment": 1, "blank": 3}
    assert found["fedjax_pfl"]["code"] == 5
    assert count_lines.words(tmp_path) == 6


def test_over_budget_names_rooms_above_it_and_without_one(tmp_path):
    (tmp_path / "fedjax_pfl/core").mkdir(parents=True)
    (tmp_path / "fedjax_pfl/core/a.py").write_text(CODE)
    budget = {"fedjax_pfl": 5, "fedjax_pfl/core": 4, "prose": 0}
    assert count_lines.over_budget(tmp_path, budget) == []
    assert count_lines.over_budget(tmp_path, budget | {"fedjax_pfl/core": 3}) == [
        "fedjax_pfl/core has 4, 1 above its budget of 3"
    ]
    del budget["fedjax_pfl/core"]
    assert count_lines.over_budget(tmp_path, budget) == ["fedjax_pfl/core has no budget"]
