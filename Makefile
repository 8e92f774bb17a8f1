# cubemesh: `make run` measures this machine and writes a report, `make test` runs the tests.
# Each target makes its own environment in .venv; nothing else needs to be installed.

PYTHON ?= python3.11
ifeq (,$(shell command -v $(PYTHON) 2>/dev/null))
PYTHON := python3
endif
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
REPORT ?= cubemesh-report.html

.DEFAULT_GOAL := help
.PHONY: help run test soak fuzz check docs man documents format clean

help: ## show what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 20

run: .venv/.run ## measure this machine in about three minutes and write the report
	$(BIN)/cubemesh run quick --report $(REPORT)

test: .venv/.dev ## run the tests
	$(BIN)/pytest -n auto

soak: .venv/.dev ## run the tests ten times: idle, with a load, on one core (SOAK="--runs 3 ...")
	$(BIN)/python benchmarks/soak.py $(SOAK)

fuzz: .venv/.dev ## run 3,000 commands made by chance (FUZZ="--commands 300 --seed 7")
	$(BIN)/python benchmarks/fuzz.py --jobs 2 $(FUZZ)

check: .venv/.dev ## lint, check the format and the types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.docs ## build the documentation site, with a search, in build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs/site -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

man: .venv/.run ## write the manual page docs/cubemesh.1 from the command line
	$(BIN)/python docs/site/man_page.py > docs/cubemesh.1

documents: .venv/.run ## write docs/documents.md from docs/documents.toml
	$(BIN)/python docs/site/documents_page.py > docs/documents.md

format: .venv/.dev ## put the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment and what tools left behind
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "cubemesh needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/python pyproject.toml constraints.txt
	@echo "Installing cubemesh and what it needs into .venv (once) ..."
	$(PIP) --editable '.[torch,images,views]'
	@touch $@

.venv/.docs: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) --editable '.[docs]'
	@touch $@

.venv/.dev: .venv/.run
	@echo "Installing what the tests need into .venv (once) ..."
	$(PIP) --editable '.[dev]'
	@touch $@
