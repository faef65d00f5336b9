# Every target prepares .venv by itself; a bare clone needs only Python >= 3.10.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help install demo test check format bench coverage-table gallery notebooks clean

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

coverage-table: $(INSTALLED)  ## write docs/coverage.md: which quantity is exact on which model
	PYTHONPATH=tests $(BIN)/python -m models.coverage

gallery: $(INSTALLED)  ## train, and draw docs/gallery.md: every picture, and how to read it
	$(BIN)/python docs/gallery.py

notebooks: $(INSTALLED)  ## execute the notebooks among the examples, in place
	$(BIN)/python examples/notebooks/make.py

clean:  ## remove what the targets made
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
