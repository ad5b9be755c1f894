"""The files around the code say what the code says: its citation, its workflows, its hooks."""

import re

import yaml

import fedjax_pfl as pfl
from tests.docs import pages
from tests.docs.programs import check_make

ROOT = pages.ROOT
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == pfl.__version__
    assert citation["title"] == "fedjax_pfl"
    assert citation["authors"] == [{"name": "The fedjax_pfl authors"}]
    config = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    assert f"license = {citation['license']}\n" in config


def steps():
    """(job, what a step runs) of all workflows, once for each line of a matrix."""
    for path in WORKFLOWS:
        for job in read(path)["jobs"].values():
            lines = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
            for line in lines:
                for step in job["steps"]:
                    if "run" in step:
                        said = re.sub(
                            r"\$\{\{ matrix\.(\w+) \}\}",
                            lambda m, x=line: str(x.get(m[1], "")),
                            step["run"],
                        )
                        yield line, said.split()


def test_workflows_run_targets_of_the_makefile():
    for _, (program, *words) in steps():
        assert program == "make"
        check_make(words)


def test_suite_runs_on_every_promised_python():
    config = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    promised = re.findall(r"Python :: (3\.\d+)$", config, re.MULTILINE)
    tried = [line["python"] for line, words in steps() if words[1] in ("test", "coverage")]
    assert set(tried) >= set(promised)


def test_hooks_check_what_lint_checks():
    repos = [one for one in read(".pre-commit-config.yaml")["repos"] if one["repo"] == "local"]
    entries = [hook["entry"] for repo in repos for hook in repo["hooks"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("ruff check", "ruff format", "python -m tools.check_imports", "basedpyright"):
        assert any(f".venv/bin/{command}" in entry for entry in entries), command
        assert f"$(VENV)/bin/{command}" in makefile, command
