"""The site has all pages, and its reference all public names. `make docs` builds it, not this."""

import importlib
import re
from collections import Counter

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.networks import MODELS
from fedjax_pfl.utils import typing
from tests.docs import pages
from tools.site_pages import MOVED, NOTEBOOKS

DOCS = pages.ROOT / "docs"
TARGETS = Counter(
    target
    for path in (DOCS / "api").rglob("*.md")
    for target in re.findall(r"^::: ([\w.]+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
)


def test_every_public_name_has_its_place():
    packages = [pfl.algorithms, pfl.core, pfl.data, pfl.training, pfl.models, pfl.engine,
                pfl.results]  # fmt: skip
    public = {
        f"{package.__name__}.{name}" for package in [pfl, *packages] for name in package.__all__
    }
    # Some are in two packages; pages of a package, and types without a page, are left out.
    shown = {id(_of(target)) for target in TARGETS}
    hidden = {"fedjax_pfl.__version__", *(package.__name__ for package in packages)}
    types = {f"fedjax_pfl.core.{name}" for name in vars(typing) if not name.startswith("_")}
    missing = {name for name in public - hidden - types if id(_of(name)) not in shown}
    assert sorted(missing) == []
    assert [target for target, times in TARGETS.items() if times > 1] == []


def test_the_top_has_what_most_programs_use():
    assert len(pfl.__all__) <= 45


def _of(target):
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError:
        module, _, name = target.rpartition(".")
        return getattr(importlib.import_module(module), name)


def test_every_rule_has_its_place():
    rules = {f"{rule.plan.__module__}.{rule.plan.__qualname__}" for rule in pfl.data.RULES.values()}
    assert sorted(rules - set(TARGETS)) == []


@pytest.mark.parametrize(("page", "known"), [("partitions", pfl.data.RULES), ("models", MODELS)])
def test_every_rule_and_network_is_on_its_page(page, known):
    named = re.findall(r"`(\w+)`", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert sorted(set(known) - set(named)) == []


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_what_the_reference_names_is_there(target):
    assert _of(target) is not None


def test_every_page_is_in_the_navigation():
    text = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = text.partition("\nnav:\n")[2].partition("\nplugins:\n")[0]
    listed = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted([*there, *MOVED.values(), *NOTEBOOKS.values()])
    assert {*MOVED, "README.md"} == {path.name for path in pages.ROOT.glob("*.md")}
