# Everything that a fresh machine needs is set up by `make setup`; the other targets call it when needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PARTS := $(VENV)/.jvm-parts

.DEFAULT_GOAL := help
.PHONY: help setup java archive servers versitygw demo test check lint types layers unit soak bench docs clean

help: ## Print this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: archive $(PARTS) servers ## Java and servers where they are missing, the packages, the JVM parts; afterwards no network is needed

java:
	@sh scripts/ensure-java.sh

servers:
	@sh scripts/ensure-server.sh postgres postgresql
	@sh scripts/ensure-server.sh redis-server redis-server
	@sh scripts/ensure-server.sh rabbitmq-server rabbitmq-server

# Only for long campaigns: it is built for minutes, and the other tests have moto.
versitygw:
	@sh scripts/ensure-versitygw.sh

$(STAMP): pyproject.toml | java
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

# Made once for each set of jars, and looked for every time: it is kept in the user's cache folder, where others make
# room for theirs. Everything works without it, only slower.
archive: $(STAMP)
	@$(BIN)/python -m tallystick.spark.faststart || true

# Servers and Spark's connectors, fetched once into the user's cache folder. What needs one and finds it missing fetches
# it by itself; here all of them are, so that the tests run without a network.
$(PARTS): $(STAMP) src/tallystick/jvm/ivy.xml src/tallystick/servers/kinesalite/package-lock.json
	$(BIN)/python -m tallystick.jvm
	$(BIN)/python -c "from tallystick.servers import npm; raise SystemExit(npm.main())"
	@touch $@

demo: archive ## Kill a running count again and again, in three delivery modes, and count what came out
	$(BIN)/tallystick demo

test: setup lint types layers ## What CI runs: linters, types, layers and all tests
	$(BIN)/python -m pytest -m 'not slow' -n 2 --dist loadfile --no-loadscope-reorder --durations 25

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

soak: setup versitygw ## Long campaigns: every kill point, many times, and every other fault
	$(BIN)/python -m pytest -m slow

bench: setup ## Measure what the layer costs, as ratios from one run
	$(BIN)/python bench/run.py

docs: $(STAMP) ## Write the generated pages of the documentation
	$(BIN)/python scripts/generate_docs.py

clean: ## Remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
