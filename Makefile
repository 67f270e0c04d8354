# The two that matter:   make test   (the tests)      make run   (the quickstart)
# Both install requirements-dev.txt (exact versions, with hashes) into .venv when it is missing or
# that file has changed, and reuse it otherwise.

PYTHON ?= python3
VENV   := .venv
BIN     = $(VENV)/bin
LOCK   := requirements-dev.txt
PIP     = $(BIN)/python -m pip install -qq --disable-pip-version-check
STAMP   = $(VENV)/.installed
# Two test files at a time, one thread each: most tests are too small to share among threads.
# A worker that dies ends the run: xdist would wait for it without end.
TWO_AT_ONCE = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --max-worker-restart 0

# Real data for the tests, where it is at hand; without it they use generated data and say so.
ifndef PROTAIL_SHARED
SHARED := $(shell cd ../shared 2>/dev/null && pwd)
ifneq ($(SHARED),)
export PROTAIL_SHARED := $(SHARED)
endif
endif
ifndef PROTAIL_DATA
UNPACK := $(wildcard $(PROTAIL_SHARED)/data/unpack_cifar.py)
ifneq ($(UNPACK)$(wildcard .data/cifar),)
CIFAR := .data/cifar
export PROTAIL_DATA := $(CURDIR)/$(CIFAR)
endif
endif

.DEFAULT_GOAL := help
.PHONY: help test test-slow test-latest lint lock audit format run docs bench clean

help:
	@echo "make test         set up .venv if needed, then run the tests and the documentation examples"
	@echo "make run          set up .venv if needed, then protail quickstart"
	@echo "make lint         style, types and import order"
	@echo "make test-slow    make test, slow tests included"
	@echo "make test-latest  make test and make lint with the newest release of every dependency"
	@echo "make lock         write $(LOCK) again, with the newest releases"
	@echo "make audit        licences of what protail brings, and known vulnerabilities"
	@echo "make format       rewrite the code in the project's style"
	@echo "make docs         the documentation, into site/"
	@echo "make bench        speed, memory and accuracy of the estimator beside its rivals"
	@echo "make clean        remove .venv and everything the tools leave behind"

test: $(STAMP) $(CIFAR)
	@echo "== tests and documentation examples"
	@$(TWO_AT_ONCE) -m "not slow"

test-slow: $(STAMP) $(CIFAR)
	@echo "== tests and documentation examples, slow ones included"
	@$(TWO_AT_ONCE) -m "slow or not slow"

# A release that breaks something shows up here before `make lock` lets it in.
test-latest:
	@echo "== setting up .venv-latest: the newest release of every dependency"
	@rm -rf .venv-latest
	@$(PYTHON) -m venv .venv-latest
	@.venv-latest/bin/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch .venv-latest/.installed
	@$(MAKE) --no-print-directory test lint VENV=.venv-latest

lock:
	@echo "== $(LOCK) (uv)"
	@$(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install -qq --disable-pip-version-check uv
	@.venv-lock/bin/uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.11 \
	  --upgrade --generate-hashes --no-annotate --custom-compile-command 'make lock' --output-file $(LOCK)
	@rm -rf .venv-lock

audit: $(STAMP)
	@echo "== licences, and known vulnerabilities (pip-audit)"
	@$(BIN)/python tools/audit.py

lint: $(STAMP)
	@echo "== style (ruff)"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "Some files are not in the project's style: run 'make format'."; exit 1; }
	@echo "== types (mypy)"
	@$(BIN)/mypy
	@echo "== import order (import-linter)"
	@$(BIN)/lint-imports
	@$(BIN)/python tools/measure_code.py --check

format: $(STAMP)
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

run: $(STAMP)
	@echo "== protail quickstart"
	@$(BIN)/protail quickstart --overwrite

docs: $(STAMP)
	@echo "== documentation (mkdocs)"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)
	@echo "== benchmarks/estimator.py"
	@$(BIN)/python benchmarks/estimator.py

.data/cifar: | $(STAMP)
	@echo "== unpacking CIFAR"
	@mkdir -p .data
	@$(BIN)/python $(UNPACK) $@.part
	@mv $@.part $@

$(STAMP): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "protail needs Python 3.11 or newer; '$(PYTHON)' is older or not there."; \
	  echo "Name another one, for example: make $(or $(MAKECMDGOALS),test) PYTHON=python3.12"; exit 1; }
	@echo "== setting up $(VENV): protail and its tools (about 6 GB with torch; minutes, this once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --requirement $(LOCK)
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

clean:
	rm -rf $(VENV) .venv-latest .venv-lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site protail-quickstart
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
