# Every target sets up .venv. `make` or `make help` lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.demo
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Whether `make docs` executes the notebooks: off, cache or force.
EXECUTE ?= off

# Two pytest workers with one torch thread each use two cores better than one worker with two.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test hostile wheels torches lint format bench figures docs release clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO)  ## seven methods on a synthetic mixture: progress, a table, a page (minutes)
	$(BIN)/tricouple demo

test: $(STAMP)  ## run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

hostile: $(STAMP)  ## sanitizers, flat memory (under five minutes)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python hostile.py

wheels: $(STAMP)  ## build sdist and wheel into dist/, and audit the wheel's limited API
	$(PIP) build
	rm -rf dist && $(BIN)/python -m build
	$(BIN)/abi3audit --strict --summary dist/*.whl

torches: wheels  ## test that wheel beside the oldest and the newest torch (downloads gigabytes)
	$(BIN)/python tests/torches.py

lint: $(STAMP)  ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## rewrite the sources in the common format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## time and memory against the dense algorithm and peers (minutes)
	$(BIN)/tricouple bench --out results/bench/core.json

figures: $(STAMP)  ## redraw the pictures and tables of the documentation from results
	$(BIN)/python docs/forces.py docs/assets
	$(BIN)/python docs/modalities.py docs/assets
	$(BIN)/python docs/figures.py results/synthetic results/text docs/assets
	$(BIN)/tricouple verify --read results/theory/theory.json --out results/theory
	$(BIN)/python -m benchmarks.versions --read results/bench/versions.json --markdown docs/assets/bench-versions.md
	for run in core shapes step_vision step_clip processes; do \
	  $(BIN)/tricouple bench --read results/bench/$$run.json --markdown docs/assets/bench-$$run.md || exit 1; \
	done

docs: $(VENV)/.docs  ## build the documentation site into docs/_build (EXECUTE=force: run the notebooks, minutes)
	$(BIN)/python -m sphinx -W --keep-going -b html -D nb_execution_mode=$(EXECUTE) docs docs/_build/html
	@echo "docs/_build/html/index.html"

release: $(STAMP)  ## VERSION=1.2.3 [ADDRESS=https://…]: write them, check everything, build, commit and tag
	$(BIN)/python .ci/release.py "$(VERSION)" "$(ADDRESS)"

clean:  ## remove .venv and everything generated
	rm -rf $(VENV) build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

# A stamp makes installing a one-time step, repeated only when the dependencies change.
# $(PYTHON) is checked first, because an old pip would fail much later and less clearly.
SOURCES := pyproject.toml constraints.txt $(wildcard src/tricouple/ot/c/*.[ch])

$(VENV): $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit("tricouple needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.11 ..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(DEMO): $(SOURCES) | $(VENV)
	@echo "once: torch, Lightning and the other packages of .[train] into $(VENV): 1.5 GB, some minutes"
	@echo "      (a CUDA build of torch, the default of pip on Linux, is larger by several GB)"
	$(PIP) --no-compile -c constraints.txt -e ".[train]"
	@touch $@

$(STAMP): $(SOURCES) | $(VENV)
	@echo "once: all packages into $(VENV): 2.5 GB and more, some minutes"
	$(PIP) -c constraints.txt -e ".[all,adapters,dev]"
	@touch $(DEMO) $@

$(VENV)/.docs: $(STAMP)
	$(PIP) -c constraints.txt -e ".[docs]"
	@touch $@
