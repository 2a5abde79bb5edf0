# Each target does its own set-up: a machine needs Python 3.11 or newer, git and make. Nothing is installed outside
# of this folder. Works with GNU make 3.81, which macOS has.

# The first Python that is new enough; name another one with `make PYTHON=...`.
CANDIDATES = python3 python3.14 python3.13 python3.12 python3.11
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do "$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && { echo "$$p"; break; }; done)

VENV ?= .venv
BIN = $(VENV)/bin
DEMO_READY = $(VENV)/.ready-demo
DEV_READY = $(VENV)/.ready-dev
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCK = $(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help demo dev test check bench docs lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_READY) ## Watch agents being killed and recovered
	$(BIN)/perdure demo

dev: $(DEV_READY) ## Make .venv ready for work: pytest, ruff, mypy
	@echo "$(BIN) is ready: $(BIN)/python -m pytest tests/unit"

test: $(DEV_READY) ## Run all tests, with SQLite and PostgreSQL
	$(BIN)/python -m pytest

check: $(DEV_READY) ## Run every check that is not a test: style, types, layers, sizes, SQL, words, docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/check_sql.py
	$(BIN)/python tools/check_words.py
	@if [ -f tools/generate_docs.py ]; then echo "$(BIN)/python tools/generate_docs.py --check"; \
		$(BIN)/python tools/generate_docs.py --check; fi

bench: $(DEV_READY) ## Measure speed and compare it with the recorded numbers
	$(BIN)/python -m benchmarks

docs: $(DEV_READY) ## Write the generated pages of the documentation anew
	$(BIN)/python tools/generate_docs.py

lock: ## Choose the newest versions anew and pin them in requirements/
	@$(MAKE) --no-print-directory $(VENV)/lock/bin/uv
	$(LOCK) --upgrade pyproject.toml requirements/build.in --output-file requirements/demo.txt
	$(LOCK) --upgrade --extra dev --extra postgres --extra pydantic-ai --constraint requirements/demo.txt \
		pyproject.toml requirements/build.in --output-file requirements/dev.txt

clean: ## Delete everything that these targets have made, the environment too
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. A stamp is newer than what it was made from, so that the second run starts at once.

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "perdure needs Python 3.11 or newer, and none of these is: $(CANDIDATES)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; fi
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' || { \
		echo "perdure needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" --version 2>&1)." >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(DEMO_READY): requirements/demo.txt pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --require-hashes --requirement requirements/demo.txt
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV_READY): requirements/dev.txt pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) --require-hashes --requirement requirements/dev.txt
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@ $(DEMO_READY)

$(VENV)/lock/bin/uv:
	@$(MAKE) --no-print-directory $(BIN)/python
	$(BIN)/python -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
