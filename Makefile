# Everything runs from .venv, which is made on first use and again when the dependencies change.
# Names that may be set: PYTHON (3.11 or newer), PORT, TESTS (what to test), ARGS (passed on to the command).

PYTHON ?= python3
PORT   ?= 8080
TESTS  ?=
ARGS   ?=

VENV := .venv
BIN  := $(VENV)/bin
# Only relative paths and `python -m`: so a folder with spaces in its path works.
RUN  := $(BIN)/python -m
PIP  := $(RUN) pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test test-faults lint check bench fmt clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## make .venv and install the project and its tools into it

run: $(VENV)/.ready ## serve on 127.0.0.1, embedded store, echo model [PORT=8080 ARGS='--upstream URL']
	$(BIN)/session-coordinator serve --port $(PORT) $(ARGS)

test: $(VENV)/.ready ## run the tests [TESTS=tests/lua ARGS='-k reset']
	$(RUN) pytest $(ARGS) $(TESTS)

test-faults: $(VENV)/.ready ## the long fault scenarios, half an hour at most [FAULTS_SEED=1 ARGS='-k killed']
	$(RUN) pytest -m slow -s --session-timeout 1800 tests/faults $(ARGS)

lint: $(VENV)/.ready ## check style, types and the Lua scripts
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) coordinator.scripts --check

check: lint test ## lint, then test: what CI runs

bench: $(VENV)/.ready ## measure against the baselines [ARGS=...]
	$(RUN) benchmarks $(ARGS)

fmt: $(VENV)/.ready ## format, and fix what can be fixed
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

clean: ## remove .venv, caches and built packages
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The builder is installed first, at its pinned version, so that nothing unpinned is fetched to build the project.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt hatchling
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@
