"""The pictures of the families are the tool's, and the list of algorithms shows each."""

from tests.docs.pages import ROOT
from tools.family_pictures import pictures, svg


def test_pictures_are_the_tools_and_shown():
    page = (ROOT / "docs/algorithms/README.md").read_text(encoding="utf-8")
    for name, drawing in pictures().items():
        path = ROOT / f"docs/images/family_{name}.svg"
        assert path.read_text(encoding="utf-8") == svg(drawing), "run tools.family_pictures"
        assert f"/{path.name})" in page
    assert page.count("/family_") == len(pictures()) == page.count("\n## ")
