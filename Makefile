# Everything that a fresh machine needs is set up by `make setup`; the other targets call it when needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARCHIVE := $(VENV)/.faststart

.DEFAULT_GOAL := help
.PHONY: help setup java demo test check lint types layers unit soak bench docs clean

help: ## Print this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(ARCHIVE) ## Java where it is missing, the virtual environment, the packages, the JVM archive for fast starts

java:
	@sh scripts/ensure-java.sh

$(STAMP): pyproject.toml | java
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

$(ARCHIVE): $(STAMP)
	$(BIN)/python -m tallystick.spark.faststart
	@touch $@

demo: setup ## Kill a running count again and again, in three delivery modes, and count what came out
	$(BIN)/tallystick demo

test: setup lint types layers ## What CI runs: linters, types, layers and all tests
	$(BIN)/python -m pytest -m 'not slow'

check: test ## The same as test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP) ## The tests that need no Spark: seconds
	$(BIN)/python -m pytest tests/unit tests/protocol

soak: setup ## Long campaigns: every kill point, many times
	$(BIN)/python -m pytest -m slow

bench: setup ## Measure what the layer costs, as ratios from one run
	$(BIN)/python bench/run.py

docs: $(STAMP) ## Write the generated pages of the documentation
	$(BIN)/python scripts/generate_docs.py

clean: ## Remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
