# Every target prepares .venv by itself; a bare clone needs only Python >= 3.10.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help install demo test soak check format bench faults coverage-table docs pages instruments notebooks fuzz clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

install: $(INSTALLED)  ## create .venv with the package and the tools of this repository

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(INSTALLED)  ## train a small network on real images, watch it, show the pictures
	$(BIN)/cockpit demo

test: $(INSTALLED)  ## run the whole test suite
	$(BIN)/python -m pytest

soak: $(INSTALLED)  ## the long reliability checks: about half an hour
	$(BIN)/python -m pip install --quiet --editable ".[fuzz]"
	PYTHONPATH=tests $(BIN)/python -m reliability.soak

check: $(INSTALLED)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)  ## mend what the linter and the formatter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)  ## cost of the statistics, side by side with the plain step; writes the README's table
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.readme

faults: $(INSTALLED)  ## train with known faults and without, and count what the doctor says of it
	$(BIN)/python -m benchmarks.faults cost
	$(BIN)/python -m benchmarks.faults run
	$(BIN)/python -m benchmarks.faults report --write

fuzz: $(INSTALLED)  ## feed a million broken inputs to all that reads files and requests
	$(BIN)/python -m pip install --quiet --editable ".[fuzz]"
	cd tests && ../$(BIN)/python -m reliability.fuzz

coverage-table: $(INSTALLED)  ## write docs/coverage.md: which quantity is exact on which model
	PYTHONPATH=tests $(BIN)/python -m models.coverage

docs: $(INSTALLED)  ## build the documentation into site/; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pages: $(INSTALLED)  ## write docs/quantities.md and the README's table of quantities from the docstrings
	$(BIN)/python docs/quantities.py

instruments: $(INSTALLED)  ## train, and draw docs/instruments/: every picture, healthy and unhealthy
	$(BIN)/python docs/instruments.py

notebooks: $(INSTALLED)  ## execute the notebooks among the examples, in place
	$(BIN)/python examples/notebooks/make.py

clean:  ## remove what the targets made
	rm -rf .venv site runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
