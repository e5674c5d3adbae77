# `make run` trains the embedded default, `make test` passes the tests of every commit, `make test-all` passes all of them.
# Each creates the environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# -qq: errors alone, for pip warns of every package that one of several places does not have. Imports write the bytecode of what
# they need: pip would make all of it, 25,000 files, on one core.
INSTALL ?= $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE # with it, each process compiles all that it imports
# torch goes first and alone, pinned: any looser request could replace it by another build later.
TORCH ?= torch==2.13.0
ARGS ?=

.PHONY: run test gate test-all check lint docs audit lock dist-check clean

run: $(VENV)/.run-installed
	$(BIN)/python jobs/products_geco.py $(ARGS)

# Two processes, a file at a time, those with Ray first (tests/conftest.py); the checks run beside them.
test: $(VENV)/.dev-installed
	$(MAKE) -j2 check gate

gate: $(VENV)/.dev-installed
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: check
	$(BIN)/python -m pytest --long $(ARGS)

check: lint
	$(BIN)/mypy
	$(BIN)/lint-imports

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The site of guides and of the Python API, into build/site.
docs: $(VENV)/.dev-installed
	$(BIN)/mkdocs build --strict

audit: $(VENV)/.dev-installed
	$(BIN)/python .ci/audit.py $(ARGS)

$(VENV)/.run-installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "graphmill needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@echo "installing into $(VENV): once, a minute or two and about 2 GB"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) "$(TORCH)"
	$(INSTALL) -c constraints.txt -e .
	@# Makes the bytecode of what a run imports. Otherwise the first processes of the first run all make it, at the same time.
	$(BIN)/python -c "import graphmill.cluster.training.ray_train, graphmill.cluster.serving.partition_server"
	touch $@

$(VENV)/.dev-installed: $(VENV)/.run-installed
	$(INSTALL) -c constraints.txt -e '.[dev]'
	touch $@

# Rewrites constraints.txt from what is installed now, and the lists and the lock that are made from it.
lock: $(VENV)/.dev-installed
	$(BIN)/python .ci/lock.py

# Before a release: wheel and sdist, tried in an empty environment made from requirements.lock.
dist-check: $(VENV)/.dev-installed
	.ci/dist-check

clean:
	rm -rf $(VENV) build .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
