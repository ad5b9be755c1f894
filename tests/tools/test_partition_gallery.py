"""Pictures of the papers' partitions: legible, and the ones that the page on partitions shows."""

import re

import pytest

from tests.docs.pages import ROOT
from tools import partition_gallery

pytestmark = pytest.mark.costly


@pytest.fixture(scope="module")
def drawn():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return partition_gallery.figures()


def test_page_shows_every_picture(drawn):
    text = (ROOT / "docs" / "partitions.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(images/(\w+)\.png\)", text)) == sorted(drawn)
    for name in drawn:
        assert (ROOT / "docs" / "images" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_files(tmp_path, monkeypatch, drawn):
    monkeypatch.setattr(partition_gallery, "figures", lambda: {"one": drawn["partition_spfl"]})
    assert partition_gallery.main(["gallery", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["one.png"]
