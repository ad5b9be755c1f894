"""The site has all pages, and its reference all public names. `make docs` builds it, not this."""

import importlib
import re
from collections import Counter

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.networks import MODELS
from tests.docs import pages
from tools.site_pages import MOVED

DOCS = pages.ROOT / "docs"
TARGETS = Counter(
    target
    for path in (DOCS / "api").glob("*.md")
    for target in re.findall(r"^::: ([\w.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
)


def test_every_public_name_has_its_place():
    public = {f"fedjax_pfl.{name}" for name in pfl.__all__ if not name.startswith("__")}
    assert sorted(public - set(TARGETS)) == []
    assert [target for target, times in TARGETS.items() if times > 1] == []


def test_every_rule_has_its_place():
    rules = {f"{rule.plan.__module__}.{rule.plan.__qualname__}" for rule in pfl.RULES.values()}
    assert sorted(rules - set(TARGETS)) == []


@pytest.mark.parametrize(("page", "known"), [("partitions", pfl.RULES), ("models", MODELS)])
def test_every_rule_and_network_is_on_its_page(page, known):
    named = re.findall(r"`(\w+)`", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert sorted(set(known) - set(named)) == []


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_what_the_reference_names_is_there(target):
    try:
        importlib.import_module(target)
    except ModuleNotFoundError:
        module, _, name = target.rpartition(".")
        assert hasattr(importlib.import_module(module), name)


def test_every_page_is_in_the_navigation():
    text = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = text.partition("\nnav:\n")[2].partition("\nplugins:\n")[0]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*there, *MOVED.values()])
    assert set(MOVED) == {path.name for path in pages.ROOT.glob("*.md")}
