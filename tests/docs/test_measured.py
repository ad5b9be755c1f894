"""Kendall's taus on the pages are those of the reproduced tables."""

import re

from tests.docs.pages import ROOT
from tools import claims

DOCS = ROOT / "docs"
TAU = re.compile(r"(?<![\d.(])(-?\d\.\d\d)(?!\d)(?:\sat\s(Dir\([\d.]+\)))?")  # and of which column


def read(name):
    return (DOCS / name).read_text(encoding="utf-8")


def test_taus_of_the_picture_of_claims():
    (sentence,) = re.findall(r"Kendall's tau is ([^.]*(?:\.\d[^.]*)*)\.", read("reproduce.md"))
    quoted = {name: float(tau) for tau, name in re.findall(r"(-?\d\.\d+)\sfor\s(\w+)", sentence)}
    found = {claim: claims.measured(claim, DOCS / "reproduced") for claim in claims.CLAIMS}
    drawn = {claim.statement.partition(":")[0]: one.tau for claim, one in found.items() if one}
    assert len(drawn) == 5
    assert quoted == drawn


def test_taus_of_measured_tables():
    quoted = 0
    for paragraph in read("measured.md").split("\n\n"):
        tables = "".join(map(read, re.findall(r"\((reproduced/[\w-]+\.md)\)", paragraph)))
        known = re.findall(r"^\| ([^|]+) \| ([+-]\d\.\d\d) \|", tables, re.M)
        for sentence in re.split(r"(?<=[.:])\s", paragraph):
            for tau, column in TAU.findall(sentence) if re.search(r"\btau\b", sentence) else ():
                here = {float(one) for title, one in known if column in ("", title)}
                assert float(tau) in here, f"{tau} {column}: {here}"
                quoted += 1
    assert quoted
