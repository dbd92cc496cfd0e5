# Every target sets up what it needs: only Python 3.11+, pip and make have to be there.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP     = $(BIN)/pip install --quiet --disable-pip-version-check
# torch first and pinned, so that no later requirement pulls another build of it.
CONSTRAIN := -c constraints.txt

.PHONY: help demo test check test-full test-jax test-mindspore test-ecosystem test-browser bench format clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("trainwright needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) $(CONSTRAIN) torch
	@touch $@

$(VENV)/demo: $(VENV)/torch pyproject.toml
	$(PIP) $(CONSTRAIN) -e .
	@touch $@

$(VENV)/dev: $(VENV)/torch pyproject.toml
	$(PIP) $(CONSTRAIN) -e '.[hf,trackers,monitor,metrics,lora,schedulefree,recipes,search,interactive,media]' --group dev
	@touch $@

# Heavy, and only for tests that are marked full.
$(VENV)/full: $(VENV)/dev
	$(PIP) $(CONSTRAIN) -e '.[ray,deepspeed]'
	@touch $@

# Other frameworks pin what the rest of trainwright does not: each has an environment of its own.
# MindSpore has packages for Python 3.12 and older only; the first fitting Python is taken.
MINDSPORE_PYTHON ?= $(shell for python in $(PYTHON) python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$python && break; done)
ENGINE_PYTHON = $(if $(filter mindspore,$*),$(MINDSPORE_PYTHON),$(PYTHON))

.venv-%/ready: constraints.txt pyproject.toml
	@test -n "$(ENGINE_PYTHON)" || \
	{ echo "There are no MindSpore packages for $$($(PYTHON) --version): install Python 3.11 or 3.12, or name one (make test-mindspore MINDSPORE_PYTHON=...)"; exit 1; }
	$(ENGINE_PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	.venv-$*/bin/pip install --quiet --disable-pip-version-check $(CONSTRAIN) torch
	.venv-$*/bin/pip install --quiet --disable-pip-version-check $(CONSTRAIN) -e '.[hf,tensorboard,$*]' --group engines
	@touch $@

demo: $(VENV)/demo  ## learn handwritten digits, then keep 7 % of the weights, in under a minute
	$(BIN)/trainwright demo

check: $(VENV)/dev  ## format, lint, types, layers and fast tests: the daily loop
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow and not full and not gpu and not jax and not mindspore and not ecosystem and not browser"

test: $(VENV)/dev  ## everything, with sampled points and one seed: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadgroup -m "not full and not gpu and not jax and not mindspore and not ecosystem and not browser"

test-full: $(VENV)/full test-jax test-mindspore test-ecosystem test-browser  ## all points, several seeds, every engine; before an issue is resolved
	$(BIN)/pytest -n 2 --dist loadgroup -m "not gpu and not jax and not mindspore and not ecosystem and not browser" --seeds 5 --hypothesis-profile=thorough

test-jax: .venv-jax/ready  ## the tests of engine="jax", in .venv-jax; within 15 minutes
	timeout -s KILL 900 .venv-jax/bin/pytest -n 2 --dist loadgroup -m jax tests/engines

test-mindspore: .venv-mindspore/ready  ## the tests of engine="mindspore", in .venv-mindspore; within 15 minutes
	timeout -s KILL 900 .venv-mindspore/bin/pytest -n 2 --dist loadgroup -m mindspore tests/engines tests/compat/test_mindnlp_example.py

# Libraries on top of transformers change fast, and pin each other: an environment of their own.
.venv-ecosystem/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-ecosystem
	.venv-ecosystem/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	.venv-ecosystem/bin/pip install --quiet --disable-pip-version-check $(CONSTRAIN) torch
	.venv-ecosystem/bin/pip install --quiet --disable-pip-version-check $(CONSTRAIN) -e '.[hf,lora]' --group ecosystem
# These pin older versions of everything: themselves alone, each with the TRL that it was written for beside it.
	.venv-ecosystem/bin/pip install --quiet --disable-pip-version-check --no-deps axolotl==0.19.0 llamafactory==0.9.5 torchdata modelscope
	.venv-ecosystem/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv-ecosystem/with-axolotl trl==1.9.0
	.venv-ecosystem/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv-ecosystem/with-llamafactory trl==0.24.0
	@touch $@

# REPOSITORIES=folder with checkouts named stanford_alpaca and LLaVA, which are not on PyPI
test-ecosystem: .venv-ecosystem/ready  ## TRL, sentence-transformers, axolotl, LLaMA-Factory, ... on our Trainer; writes docs/libraries.md
	REPOSITORIES='$(REPOSITORIES)' .venv-ecosystem/bin/pytest -n 2 -m ecosystem tests/ecosystem

# Chromium and tmux are Debian's, and installed where they are missing.
SUDO = $(shell [ "$$(id -u)" = 0 ] || echo sudo)

test-browser: $(VENV)/dev  ## reports in a real Chromium, the terminal in a real tmux; writes their pictures into docs/pictures
	@{ command -v chromium && command -v tmux; } >/dev/null || { $(SUDO) apt-get -qq update && $(SUDO) apt-get -qq install -y chromium tmux; }
	timeout -s KILL 900 $(BIN)/pytest -n 2 -m browser tests/browser tests/callbacks

bench: $(VENV)/dev  ## measure; results belong into bench/RESULTS.md
	$(BIN)/python bench/correctness.py
	$(BIN)/python bench/imports.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/evaluate.py
	$(BIN)/python bench/checkpoint.py
	$(BIN)/python bench/slow_disk.py
	$(BIN)/python bench/long_run.py --steps 20000
	$(BIN)/python bench/goodput.py --kills 10
	$(BIN)/python bench/resume.py
	$(BIN)/python bench/micro_batch.py
	$(BIN)/python bench/recipe_language.py
	$(BIN)/python bench/recipes_digits.py
	$(BIN)/python bench/recipes_grammar.py
	$(BIN)/python bench/recipes_characters.py
	$(BIN)/python bench/export.py
	$(BIN)/python bench/report.py

format: $(VENV)/dev  ## rewrite what `make check` would complain about
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the environments and caches
	rm -rf $(VENV) .venv-jax .venv-mindspore .venv-ecosystem .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
