# `make quickstart` and `make test` are all that a newcomer needs. Everything goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Keeps a multi-GB CUDA build of torch away. For a GPU: make install CONSTRAINTS=/dev/null
CONSTRAINTS ?= constraints.txt
# torch's threads wait for each other: on small models one thread a process is fastest.
export OMP_NUM_THREADS ?= 1

.PHONY: help install quickstart test lint types check lab clean

help:  ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

install: $(VENV)/.installed  ## Make .venv and install the package: local engine, diagnosis, server

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unfrozen needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[local,diagnose,serve]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[local,diagnose,serve,anthropic,dev]'
	touch $@

quickstart: install  ## Run the lab comparison and write runs/quickstart/report.html
	$(BIN)/unfrozen compare examples/quickstart.toml

test: $(VENV)/.installed-dev  ## Run the tests
	$(BIN)/python -m pytest -n auto --maxprocesses 4

lint: $(VENV)/.installed-dev  ## Lint and check the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev  ## Check the types
	$(BIN)/mypy

check: test lint types  ## All of the above

lab: install  ## Make results/lab again (the whole comparison, three seeds)
	$(BIN)/unfrozen compare examples/lab.toml --out runs/lab
	$(BIN)/python scripts/publish_results.py runs/lab results/lab

clean:  ## Remove .venv
	rm -rf $(VENV)
