# Two commands do everything on a fresh machine with Python 3.11 to 3.13:
#   make demo    sees what the cache saves, on transactions
#   make test    lint, types and tests
SHELL := /bin/bash
PYTHON ?= $(firstword $(foreach v,python3.11 python3.12 python3.13 python3,$(shell command -v $(v) 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: help demo reads quality test lint types fast heavy soak bench bench-short faults clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 to 3.13 found: set PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "make: $(PYTHON) is not Python 3.11 to 3.13: set PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	@echo "installing Hotplate and what the demo needs into $(VENV) (a minute or two the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,quality]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	@echo "installing Hotplate and what its tests need into $(VENV) (a minute or two the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.demo ## fraud scoring on a server of its own: payments, features, model, decisions, what each cache saves
	$(BIN)/python -m pipelines.fraud run $(ARGS)

reads: $(VENV)/.demo ## reads alone, bare and cached, while others write: speed, staleness and its bounds as plots
	$(BIN)/python -m pipelines.reads $(ARGS)

quality: $(VENV)/.dev ## data quality of the demo: good data must pass, every planted fault must be named
	$(BIN)/python -m pipelines.quality $(ARGS)

lint: $(VENV)/.dev ## ruff
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy --strict
	$(BIN)/mypy

test: lint types fast ## lint, types, tests (some eight minutes on two cores)

fast: $(VENV)/.dev ## tests alone, on up to four cores
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile -m "not heavy" $(ARGS)

heavy: $(VENV)/.dev ## the tests that start whole processes, clusters or Spark (minutes more)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile -m heavy $(ARGS)

soak: $(VENV)/.dev ## the randomized comparisons, 100,000 operations a store and minutes of a fleet (over an hour)
	HOTPLATE_ORACLE_EXAMPLES=2200 HOTPLATE_WINDOW_VALUES=3000000 HOTPLATE_WINDOW_SEEDS=500 \
	  HOTPLATE_HANDBOOK=all HOTPLATE_KILLS=300 $(BIN)/python -m pytest tests/online_store/test_oracle.py \
	  tests/lab/test_history.py tests/lab/test_fleet.py tests/online_store/test_ordeal.py \
	  tests/windows/test_online_equals_offline.py tests/windows/test_offline.py \
	  tests/windows/test_handbook_serving.py tests/windows/test_consume_killed.py -s $(ARGS)

bench: $(VENV)/.dev ## every number of docs/performance.md; writes out/bench/table.md
	$(BIN)/python -m pipelines.bench $(ARGS)

bench-short: $(VENV)/.dev ## the same in a minute, for CI: it must run, its numbers mean little
	$(BIN)/python -m pipelines.bench --rounds 1 --entities 2000 --trace-limit 50000 $(ARGS)

faults: $(VENV)/.dev ## what faults of the server cost; writes out/faults/table.md
	$(BIN)/python -m pipelines.faults $(ARGS)

clean: ## remove what make made
	rm -rf $(VENV) out build .pytest_cache .mypy_cache .ruff_cache .hypothesis feature_repo/data
