# make run    creates .venv, installs, and trains DP-FedPaq on scikit-learn's digits
# make test   creates .venv if missing, installs the test extras, and runs the tests
# make ci     everything that CI runs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# One thread a process: the tests run side by side, and results must not depend on the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: run test test-slow lint types format ci clean
.DELETE_ON_ERROR:

run: $(VENV)/installed
	$(BIN)/fl-app run randomness=secret

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile $(PYTEST_ARGS)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-dev
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ci: test test-slow lint types

clean:
	rm -rf $(VENV) outputs build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(VENV)/installed
	$(PIP) install --quiet -e '.[dev]'
	@touch $@
