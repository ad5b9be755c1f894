# Commands for development; needs only Python 3.11 or newer.
PYTHON ?= python3
VENV ?= .venv
# One process per available core.
WORKERS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
PIP := $(VENV)/bin/pip install --quiet --disable-pip-version-check
PYTEST := $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
COMPILERS_READY := $(VENV)/.compilers-ready

FUZZ_INPUTS ?= 100000
FUZZ_SEED ?= 0

.PHONY: help demo smoke test check lint style types thorough test-all mutants coverage fuzz format \
	docs accelerators new-algorithm test-algorithm lists lines clean

help:
	@echo "make demo      install, compare five algorithms on handwritten digits, print the table"
	@echo "make smoke     one algorithm's reference and checks, and a run (a minute)"
	@echo "make test      install and run the quick tests (three to five minutes)"
	@echo "make check     make test and make lint side by side"
	@echo "make thorough  the costly tests (more than an hour)"
	@echo "make test-all  all tests, in the full matrix of participation, execution and variants"
	@echo "make mutants   whether the quick tests find one-line faults (half an hour)"
	@echo "make coverage  the quick tests, and which lines it runs (htmlcov/index.html)"
	@echo "make fuzz      100,000 hostile inputs to commands, files and the interface (minutes)"
	@echo "make lint      style (ruff), layers of imports, budget of lines, and types (basedpyright)"
	@echo "make format    fix style with ruff"
	@echo "make docs      build the documentation site strictly (site/index.html)"
	@echo "make accelerators  compile every algorithm for TPUs and GPUs (an hour)"
	@echo "make new-algorithm NAME=fedx TITLE='Federated X'  the files of a new algorithm"
	@echo "make test-algorithm NAME=fedx  the quick tests of one algorithm and its reference"
	@echo "make lists     counts and lists of algorithms in the pages, from the registry"
	@echo "make lines     count code, docstrings and prose by package"
	@echo "make clean     remove the environment and everything that was built"

# NEWEST=1 installs the newest jax on top of the pinned versions.
$(READY): requirements.txt requirements-newest.txt setup.cfg setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed; try: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt $(if $(NEWEST),&& $(PIP) -r requirements-newest.txt)
	$(PIP) -e '.[dev]'
	@touch $@

# DEMO_FLAGS shortens or changes the demo, such as DEMO_FLAGS='--rounds=3 --num_seeds=1'.
demo: $(READY)
	$(VENV)/bin/python -m experiments.run --preset=digits_groups $(DEMO_FLAGS)

# One algorithm against its reference and through the shared checks, and a run.
SMOKE := tests/utils/test_structs.py tests/utils/test_trees.py tests/utils/test_conversions.py \
	tests/utils/test_errors.py tests/aggregation/test_leaf_plan.py tests/algorithms/test_fedavg.py \
	tests/experiments/test_run.py

smoke: $(READY)
	$(PYTEST) $(SMOKE) $(TEST_FLAGS)

# By file: its tests share fixtures and compiled programs. tests/README.md says what runs when.
test: $(READY)
	$(PYTEST) $(TEST_FLAGS)

check: $(READY)
	$(MAKE) -j 2 test lint

thorough: $(READY)
	$(PYTEST) -m costly $(TEST_FLAGS)

test-all: $(READY)
	$(PYTEST) -m "" --matrix --cpu-limit=1 $(TEST_FLAGS)

# Parts of paths choose faults, such as MUTANTS=mixing.
mutants: $(READY)
	$(VENV)/bin/python -m tools.mutants $(MUTANTS)

# The second command finds what the name alone selects.
test-algorithm: $(READY)
	@test -n '$(NAME)' || { echo 'usage: make test-algorithm NAME=fedx'; exit 2; }
	$(PYTEST) tests/docs/test_docs.py \
		tests/utils/test_name_matching.py tests/algorithms/test_published_defaults.py \
		tests/references/test_limits.py::test_no_file_imports_the_library_or_jax $(TEST_FLAGS)
	$(PYTEST) tests/algorithms tests/references \
		tests/aggregation tests/engine/test_draws.py -k '$(NAME)' $(TEST_FLAGS)

new-algorithm: $(READY)
	@$(VENV)/bin/python -m tools.new_algorithm '$(NAME)' '$(TITLE)'

lists: $(READY)
	$(VENV)/bin/python -m tools.new_algorithm lists

lines: $(READY)
	$(VENV)/bin/python -m tools.count_lines

coverage: $(READY)
	$(PYTEST) --cov --cov-report=term \
		--cov-report=html --cov-report=xml $(TEST_FLAGS)

# FUZZ_INPUTS and FUZZ_SEED change what is tried.
fuzz: $(READY)
	FUZZ_INPUTS=$(FUZZ_INPUTS) FUZZ_SEED=$(FUZZ_SEED) $(VENV)/bin/python -m pytest -q -n $(WORKERS) tests/fuzz

lint: style types

style: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m tools.check_imports
	$(VENV)/bin/python -m tools.count_lines --budget

types: $(READY)
	$(VENV)/bin/basedpyright --pythonpath $(VENV)/bin/python

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The site's tools are an extra of their own: tests need none of them.
$(DOCS_READY): $(READY)
	$(PIP) -e '.[docs]'
	@touch $@

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict

# The compilers of TPUs and of NVIDIA GPUs; of CUDA itself nothing is needed.
$(COMPILERS_READY): $(READY)
	$(PIP) -e '.[aot-tpu,aot-gpu]'
	@touch $@

# What was compiled is kept in accelerators/, and an interrupted command continues there.
# ACCELERATORS_FLAGS keeps to some, such as ACCELERATORS_FLAGS='--only=small/v5e/'.
accelerators: $(COMPILERS_READY)
	JAX_PLATFORMS=cpu $(VENV)/bin/python -m tools.accelerators accelerators $(ACCELERATORS_FLAGS)

clean:
	rm -rf $(VENV) build dist site htmlcov .coverage* coverage.xml *.egg-info .pytest_cache .ruff_cache
