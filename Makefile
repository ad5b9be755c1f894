# Commands for development; needs only Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# One process per available core.
WORKERS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
COMPILERS_READY := $(VENV)/.compilers-ready

FUZZ_INPUTS ?= 100000
FUZZ_SEED ?= 0

.PHONY: help demo smoke test thorough test-all coverage fuzz lint format docs accelerators \
	new-algorithm test-algorithm lists lines clean

help:
	@echo "make demo      install, compare five algorithms on handwritten digits, print the table"
	@echo "make smoke     one algorithm's reference and checks, and a run (a minute)"
	@echo "make test      install, lint and run the test suite (minutes)"
	@echo "make thorough  the checks of make test in further settings (minutes)"
	@echo "make test-all  the full matrix of algorithms, participation patterns and executions"
	@echo "make coverage  the test suite, and which lines it runs (htmlcov/index.html)"
	@echo "make fuzz      100,000 hostile inputs to commands, files and the interface (minutes)"
	@echo "make lint      style (ruff), layers of imports, and types (basedpyright)"
	@echo "make format    fix style with ruff"
	@echo "make docs      build the documentation site strictly (site/index.html)"
	@echo "make accelerators  compile every algorithm for TPUs and GPUs (an hour)"
	@echo "make new-algorithm NAME=fedx TITLE='Federated X'  the files of a new algorithm"
	@echo "make test-algorithm NAME=fedx  the quick tests of one algorithm and its reference"
	@echo "make lists     counts and lists of algorithms in the pages, from the registry"
	@echo "make lines     count code, docstrings and prose by package"
	@echo "make clean     remove the environment and everything that was built"

$(READY): requirements.txt setup.cfg setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed; try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# DEMO_FLAGS shortens or changes the demo, such as DEMO_FLAGS='--rounds=3 --num_seeds=1'.
demo: $(READY)
	$(VENV)/bin/python -m experiments.run --preset=digits_groups $(DEMO_FLAGS)

# One algorithm against its reference and through a run, one through the shared checks.
SMOKE := tests/utils/test_structs.py tests/utils/test_trees.py tests/utils/test_conversions.py \
	tests/utils/test_errors.py \
	tests/aggregation/test_leaf_plan.py tests/algorithms/test_fedavg.py::test_fedavg \
	'tests/algorithms/test_contract.py::test_contract[feddwa-partial_participation]' \
	'tests/algorithms/test_contract.py::test_contract[feddwa-no_recompilation]' \
	tests/experiments/test_run.py::test_files tests/experiments/test_run.py::test_summary

smoke: $(READY)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(SMOKE) $(TEST_FLAGS)

# By file: its tests share fixtures and compiled programs.
test: lint
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(TEST_FLAGS)

thorough: $(READY)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "thorough and not slow" $(TEST_FLAGS)

test-all: lint
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "" $(TEST_FLAGS)

# The second command finds what the name alone selects.
test-algorithm: $(READY)
	@test -n '$(NAME)' || { echo 'usage: make test-algorithm NAME=fedx'; exit 2; }
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/docs/test_docs.py \
		tests/utils/test_name_matching.py tests/algorithms/test_published_defaults.py \
		tests/references/test_limits.py::test_no_file_imports_the_library_or_jax $(TEST_FLAGS)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/algorithms tests/references \
		tests/aggregation tests/engine/test_draws.py -k '$(NAME)' $(TEST_FLAGS)

new-algorithm: $(READY)
	@$(VENV)/bin/python -m tools.new_algorithm '$(NAME)' '$(TITLE)'

lists: $(READY)
	$(VENV)/bin/python -m tools.new_algorithm lists

lines: $(READY)
	$(VENV)/bin/python -m tools.count_lines

coverage: $(READY)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term \
		--cov-report=html --cov-report=xml $(TEST_FLAGS)

# FUZZ_INPUTS and FUZZ_SEED change what is tried.
fuzz: $(READY)
	FUZZ_INPUTS=$(FUZZ_INPUTS) FUZZ_SEED=$(FUZZ_SEED) $(VENV)/bin/python -m pytest -q -n $(WORKERS) tests/fuzz

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m tools.check_imports
	$(VENV)/bin/basedpyright --pythonpath $(VENV)/bin/python

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The site's tools are an extra of their own: tests need none of them.
$(DOCS_READY): $(READY)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

# The compilers of TPUs and of NVIDIA GPUs; of CUDA itself nothing is needed.
$(COMPILERS_READY): $(READY)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[aot-tpu,aot-gpu]'
	@touch $@

# What was compiled is kept in accelerators/, and an interrupted command continues there.
# ACCELERATORS_FLAGS keeps to some, such as ACCELERATORS_FLAGS='--only=small/v5e/'.
accelerators: $(COMPILERS_READY)
	JAX_PLATFORMS=cpu $(VENV)/bin/python -m tools.accelerators accelerators docs/engineering_log.md \
		$(ACCELERATORS_FLAGS)

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage* coverage.xml *.egg-info .pytest_cache .ruff_cache
