"""Links of the repository's pages lead where they should on the site."""

import json

import pytest

from tools.site_docstrings import annotation, imported, one_each
from tools.site_pages import notebook_page, relinked, typeset

PLACES = {
    "README.md": "index.md",
    "docs/running.md": "running.md",
    "docs/a/README.md": "a/README.md",
    "docs/images/x.png": "images/x.png",
}


@pytest.mark.parametrize(
    ("page", "link", "wanted"),
    [
        ("README.md", "[r](docs/running.md#a-b)", "[r](running.md#a-b)"),
        ("README.md", "![r](docs/images/x.png)", "![r](images/x.png)"),
        ("docs/a/README.md", "[`r`](../../README.md)", "[`r`](../index.md)"),
        ("docs/running.md", "[r [1]](a/README.md)", "[r [1]](a/README.md)"),
        ("docs/running.md", "[r](#here)", "[r](#here)"),
        ("docs/running.md", "[r](https://x.org/a)", "[r](https://x.org/a)"),
        ("docs/running.md", "[r](../setup.cfg)", "[r](https://x.org/r/blob/HEAD/setup.cfg)"),
        ("docs/running.md", "[r](../tests)", "[r](https://x.org/r/blob/HEAD/tests)"),
    ],
)
def test_links(page, link, wanted):
    assert relinked(f"see {link}.", page, PLACES, "https://x.org/r/") == f"see {wanted}."


def test_without_a_repository_names_remain():
    assert relinked("[the `x`](../setup.cfg)", "docs/running.md", PLACES, "") == "the `x`"


@pytest.mark.parametrize("link", ["none.md", "../none.py", "../../outside.md"])
def test_links_that_lead_nowhere(link):
    with pytest.raises(ValueError, match="which is not there"):
        relinked(f"[r]({link})", "docs/running.md", PLACES, "")


def test_blocks_are_left_alone_and_marks_taken_out():
    page = "<!-- needs: data -->\n```\n[r](none.md)\n```\n[r](../README.md)\n"
    wanted = "```\n[r](none.md)\n```\n[r](index.md)\n"
    assert relinked(page, "docs/running.md", PLACES, "") == wanted


def test_formulas_but_not_code_are_typeset():
    page = "`$a$` is 5 $ or $b$\n\n$$\nc\n$$\n\n```\n$d$\n```\n"
    wanted = "`$a$` is 5 $ or <span><inline b></span>\n\n<div><block c></div>\n\n```\n$d$\n```\n"
    assert typeset(page, lambda latex, display: f"<{display} {latex}>") == wanted


def test_a_formula_with_an_unknown_command():
    with pytest.raises(ValueError, match=r"unknown command: \\foo"):
        typeset(r"$\foo$", lambda latex, display: latex)


def test_an_entry_for_each_name():
    text = """Does it.

    Args:
      a, b: numbers,
        both.
      *c: more.

    a, b: no entry.

    Attributes:
      d, e: text."""
    assert (
        one_each(text)
        == """Does it.

    Args:
      a: numbers,
        both.
      b: numbers,
        both.
      *c: more.

    a, b: no entry.

    Attributes:
      d: text.
      e: text."""
    )


def test_docstrings_without_sections_stay():
    text = "One line.\n\nMore, of it: *and* `a*`, w+_i - w+_j, '+a,+b'."
    assert one_each(text.replace("+", "*")) == text.replace("+", r"\*")


def test_options_declared_elsewhere_are_shown():
    text, parameters = imported("fedjax_pfl.federation.build.federate")
    assert "**options" not in text
    named = {one.name: annotation(one) for one in parameters}
    assert all(f"  {name}: " in text for name in named)
    assert named["batch_size"] == "int" and named["share"].startswith("str | SharedLayers | ")


def test_cells_of_a_notebook_become_a_page():
    cells = [
        {"cell_type": "markdown", "id": "a", "source": ["# A\n", "[b](c.md)"]},
        {"cell_type": "code", "id": "data", "source": ["x = 1\n", "x"]},
    ]
    text = notebook_page(json.dumps({"cells": cells}), "tutorial")
    page, _, picture = text.rstrip().rpartition("\n\n")
    assert page == "# A\n[b](c.md)\n\n```python\nx = 1\nx\n```"
    assert picture.endswith("(images/tutorial_data.png)")
