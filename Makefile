# Every target sets up what it needs: only Python 3.11+, pip and make have to be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP     = $(BIN)/pip install --quiet --disable-pip-version-check
# torch first and pinned, so that no later requirement pulls another build of it.
CONSTRAIN := -c constraints.txt

.PHONY: help demo test check test-full bench format clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("trainwright needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(CONSTRAIN) torch
	@touch $@

$(VENV)/demo: $(VENV)/torch pyproject.toml
	$(PIP) $(CONSTRAIN) -e '.[demo]'
	@touch $@

$(VENV)/dev: $(VENV)/torch pyproject.toml
	$(PIP) $(CONSTRAIN) -e '.[demo,hf,trackers,monitor,metrics,lora,schedulefree,recipes,search]' --group dev
	@touch $@

# Heavy, and only for tests that are marked full.
$(VENV)/full: $(VENV)/dev
	$(PIP) $(CONSTRAIN) -e '.[ray,deepspeed]'
	@touch $@

demo: $(VENV)/demo  ## learn handwritten digits, then keep 7 % of the weights, in under a minute
	$(BIN)/trainwright demo

check: $(VENV)/dev  ## format, lint, types, layers and fast tests: the daily loop
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow and not full and not gpu"

test: $(VENV)/dev  ## everything, with sampled points and one seed: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadgroup -m "not full and not gpu"

test-full: $(VENV)/full  ## all points, several seeds; before an issue is resolved
	$(BIN)/pytest -n 2 --dist loadgroup -m "not gpu" --seeds 5 --hypothesis-profile=thorough

bench: $(VENV)/dev  ## measure; results belong into bench/RESULTS.md
	$(BIN)/python bench/correctness.py
	$(BIN)/python bench/imports.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/evaluate.py
	$(BIN)/python bench/checkpoint.py
	$(BIN)/python bench/resume.py
	$(BIN)/python bench/micro_batch.py
	$(BIN)/python bench/recipe_language.py
	$(BIN)/python bench/recipes_digits.py
	$(BIN)/python bench/recipes_grammar.py
	$(BIN)/python bench/recipes_characters.py
	$(BIN)/python bench/export.py

format: $(VENV)/dev  ## rewrite what `make check` would complain about
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
