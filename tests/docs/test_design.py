"""The walk of an image in docs/design.md."""

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/design.md").read_text()


def test_stations_from_file_to_score_exist():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| `([\w/]+\.py)` \|", PAGE, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == [*range(1, len(rows) + 1)] and len(rows) > 9
    for _, function, file in rows:
        assert f"def {function}(" in (ROOT / "fedjax_pfl" / file).read_text(), (function, file)
