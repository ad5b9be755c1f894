"""The pages on algorithms say what the code has, and all links are good.

`test_commands.py` checks the commands.
"""

import inspect
import re
import shlex
import sys

import jax
import pytest

import fedjax_pfl as pfl
from experiments import sweep
from experiments.cli import flags
from experiments.figures import __main__ as figures
from fedjax_pfl.data.partitions.rule_registry import parse_options
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.testing.reads import rows_read
from fedjax_pfl.testing.toys import toy_federation, toy_for
from tests.docs import pages
from tools import new_algorithm

ROOT = pages.ROOT
FOLDER = ROOT / "docs/algorithms"
ALGORITHMS = sorted(pfl.core.ALGORITHMS)
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
# The head of a page: where a paper has neither arXiv number nor DOI, its page on OpenReview.
PAPER = re.compile(
    r"# .+ \(`\w+`\)\n\n- \*\*Paper:\*\* \*(?P<title>.+)\*\n- \*\*Authors:\*\* (?P<authors>.+)\n"
    r"- \*\*Venue:\*\* .+ (?P<year>\d{4})\b.*\n- \*\*Link:\*\* \["
    r"(?:arXiv:(?P<arxiv>\d{4}\.\d{5}(?:v\d)?)|doi:(?P<doi>10\.[^\s\]]+)|OpenReview|CVF)\]"
    r"\((?P<link>https://(?(arxiv)arxiv\.org/abs/(?P=arxiv)"
    r"|(?(doi)doi\.org/(?P=doi)|(?:openreview\.net/forum\?id=\w+|openaccess\.thecvf\.com/[\w/.]+))))\)\n"
    r"(?:- \*\*Code:\*\* \[(?P<code>[\w.-]+/[\w.-]+)\]"
    r"\(https://github\.com/(?P=code)\)(?: \(\w{7}\))?\n)?\n"
)
SMALL = "small/"


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def read(name):
    path = FOLDER / f"{name}.md"
    assert path.exists(), f"docs/algorithms/{name}.md is missing: CONTRIBUTING.md says what to copy"
    return path.read_text(encoding="utf-8")


def assert_all(listed, where):
    """The list has every algorithm once, and nothing else."""
    listed = sorted(listed)
    assert listed == ALGORITHMS, f"{where} differs in {sorted({*listed} ^ {*ALGORITHMS})}"


def section(text, heading):
    """The text under a heading of the second level."""
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"no section {heading!r}"
    return rest.partition("\n## ")[0]


def links(text):
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(text):
    """GitHub's names of the headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_algorithm_has_a_page_and_every_page_an_algorithm():
    assert_all(PAGES, "docs/algorithms")


def moment(text):
    """The sentence of an algorithm's page on the moment at which it is scored."""
    (found,) = re.findall(r"^- Moment of scoring: (.*)$", text, re.MULTILINE)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_moment_of_scoring(name):
    """It is one of the conventions' sentences, and that of local steps if there are such steps."""
    conventions = read("../conventions").partition("| Sentence |")[2]
    known = re.findall(r"^\| (.*?\.) \|", conventions.partition("\n\n")[0], re.MULTILINE)
    assert len(known) == 5
    found = moment((FOLDER / f"{name}.md").read_text(encoding="utf-8"))
    assert found in known
    assert (pfl.make_algorithm(name).adaptation() is None) or "after further local steps" in found


def test_pages_count_and_list_what_is_registered():
    """`make lists` writes them."""
    for path, text in new_algorithm.lists(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is old: run make lists"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_todo_is_left(name):
    places = [f"docs/algorithms/{name}.md", f"tests/references/{name}.py",
              pfl.core.ALGORITHMS[name].__module__.replace(".", "/") + ".py"]  # fmt: skip
    for place in (ROOT / one for one in places):
        text = place.read_text(encoding="utf-8") if place.exists() else ""
        assert "TODO" not in text, f"{place.name} has a TODO for its author"
    assert f"`{name}` | TODO" not in read("README"), "docs/algorithms/README.md has a TODO"


def test_index_names_every_algorithm():
    """In its first column, with a link to the page of this name."""
    listed = re.findall(r"\[(\w+)\]\((\w+)\.md\)", read("README"))
    assert all(label == page for label, page in listed)
    names = re.findall(r"^\| `(\w+)` \|.*\[(\w+)\]", read("README"), re.MULTILINE)
    assert all(first == last for first, last in names)
    assert_all([first for first, _ in names], "docs/algorithms/README.md")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_hyperparameters_and_their_defaults(name):
    text = section(read(name), "Hyperparameters")
    listed = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.MULTILINE))
    known = vars(pfl.make_algorithm(name))
    assert listed == {key: str(value) for key, value in known.items()}
    if not known:
        assert text.strip().startswith("None.")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_batch_norm_policy(name):
    policies = re.findall(r"^- Batch-norm: `(\w+)`", read(name), re.MULTILINE)
    own = pfl.core.ALGORITHMS[name].batch_norm
    assert policies == [own], f"docs/algorithms/{name}.md needs the line '- Batch-norm: `{own}`.'"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_paper_on_top(name):
    """Title, authors, venue and link, in one form."""
    text = read(name)
    title, empty, head, *_ = text.split("\n", 3)
    assert f"(`{name}`)" in title and empty == ""
    if name == "local":
        assert head == "- **Paper:** none"
    else:
        assert PAPER.match(text), text[:400]


def head_of(name):
    """The docstring of the file that an algorithm is in."""
    return inspect.getdoc(sys.modules[pfl.core.ALGORITHMS[name].__module__])


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"local"}))
def test_the_file_names_the_same_paper(name):
    """Title, authors, year and link; a file of two papers names both."""
    page, parts = PAPER.match(read(name)), head_of(name).split("\n\n")
    assert page, "the page's head comes first: test_the_paper_on_top"
    parts = [" ".join(part.splitlines()) for part in parts]
    first = [i for i, part in enumerate(parts) if part.startswith(page["title"])]
    assert first, f"no paragraph begins {page['title']!r}"
    title, rest = parts[first[0]], " ".join(parts[first[0] + 1 :])
    assert title.endswith("."), "the title has a full stop and an empty line behind"
    authors, _, rest = rest.partition(f"{page['year']}. https://")
    link = page["link"].removeprefix("https://")
    assert rest == link or rest.startswith(f"{link} "), f"no '{page['year']}. {page['link']}'"
    named = re.sub(r"\band\b", "", page["authors"]).split(", ")
    if "anonymous" in named:
        named = ["Anonymous authors"]
    assert all(author.strip() in authors for author in named)


def test_local_training_has_no_paper():
    assert "without a paper" in head_of("local")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_commands_run_the_algorithm(name):
    presets = []
    for _, _, script, *words in (command.words for command in pages.commands(read(name))):
        assert script == "experiments.run"
        assert name in flags.parse([script, *words]).algorithms, words
        presets += [word.partition("=")[2] for word in words if word.startswith("--preset=")]
    small = [preset for preset in presets if preset.startswith(SMALL) or "quick" in preset]
    assert small, f"no small command: --preset={SMALL}NAME, or a preset that has 'quick' in it"
    assert set(presets) - set(small), "no command of a paper's setting: --preset=PAPER/NAME"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_figures_exist_and_take_the_options(name):
    text = read(name)
    if "\n## Figures\n" not in text:  # those of any run: docs/conventions.md
        return
    spans = re.findall(r"`(\w+/\w+[^`]*)`", section(text, "Figures"))
    assert spans
    for span in spans:
        figure, *words = shlex.split(span)
        assert figure in figures.FIGURES, span
        _, args = figures.parse(["figures", figure, *words])
        parse_options(figures.options_given(args), figures.FIGURES[figure].options, "option")


@pytest.mark.parametrize("path", pages.PAGES, ids=pages.name)
def test_relative_links_resolve(path):
    text = path.read_text(encoding="utf-8")
    for link in links(text):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file) if file else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_the_sweep_on_the_page_has_as_many_settings_as_it_says():
    given = pages.commands((ROOT / "docs/running.md").read_text(encoding="utf-8"))
    (words,) = [c.words[3:] for c in given if c.words[2] == "experiments.sweep"]
    config = flags.parse(["sweep", *words], sweep.define)
    queue = sweep.programs(config.instances, sweep.parse_grid(config.grid))
    assert [len(cell.inside) for cell in queue] == [3, 3, 9, 9]  # two batch sizes, two algorithms


def test_broken_pages_are_noticed():
    """The helpers find broken links and missing sections."""
    page = "# A\n\n## B c\n[x](y.md)\n```bash\n[x](z.md)\n```\n"
    assert links(page) == ["y.md"]
    assert anchors(page) == {"a", "b-c"}
    with pytest.raises(AssertionError, match="no section 'None'"):
        section(page, "None")


@pytest.mark.costly
def test_algorithms_that_average_whole_models_are_named():
    federation, refused = toy_federation(share="body", dtype="float32"), []
    for name in ALGORITHMS:
        algorithm = pfl.make_algorithm(name)
        try:
            algorithm.check(algorithm.prepare(federation))
        except pfl.InputError as error:
            refused += [name] * ("averages whole models" in str(error))
    text = " ".join(read("../conventions").split())
    (said,) = re.findall(r"average whole models and refuse it: (.+?)\.", text)
    assert sorted(re.findall(r"`(\w+)`", said)) == refused


def reads_the_cohort(algorithm):
    with jax.enable_x64(True):
        return rows_read(algorithm, toy_for(algorithm, participation=0.6)) == "cohort"


@pytest.mark.costly
def test_rounds_that_need_more_than_the_cohort_are_named():
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| The round needs | Algorithms |\n|---|---|\n")
    rows = table.partition("\n\n")[0].splitlines()
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row) if name in ALGORITHMS]
    more = [name for name in ALGORITHMS if not reads_the_cohort(pfl.make_algorithm(name))]
    assert sorted(listed) == more


def reads_num_rounds(algorithm):
    with jax.enable_x64(True):
        federation = algorithm.prepare(toy_for(algorithm))
        return round_facts(one_run(algorithm), federation).reads_num_rounds


@pytest.mark.costly
def test_algorithms_that_depend_on_the_number_of_rounds_are_named():
    text = (ROOT / "docs/running.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"depend on the number of rounds \((.+?)\)", text, re.DOTALL)
    depend = [name for name in ALGORITHMS if reads_num_rounds(pfl.make_algorithm(name))]
    assert re.findall(r"`(\w+)`", found) == depend


def test_algorithms_without_personalized_models_are_named():
    """`make lists` counts the others."""
    text = (ROOT / "docs/comparison.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"These end with one global model: (.+?)\.", text, re.DOTALL)
    listed = re.findall(r"`(\w+)`", found)
    assert listed == sorted(set(listed) & set(ALGORITHMS))
