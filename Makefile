# Two commands do everything on a fresh machine: `make run` and `make test`.
# Each builds .venv first; nothing has to be installed by hand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# LiteLLM pins other versions than ours: its tests run in an environment of their own.
LITELLM := .venv-litellm
# Half of a small machine is already two workers; more only makes them wait for each other.
WORKERS ?= auto

.PHONY: run test check bench soak postgres format clean help

run: $(READY)  ## the fullest demonstration there is
	@$(BIN)/holdfast demo
	@$(BIN)/python examples/durable_session.py

test: check postgres $(LITELLM)/.ready  ## checks and the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) -m "not soak"

check: $(READY)  ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports

bench: $(READY) postgres  ## speed, side by side with the peers
	@$(BIN)/python -m benchmarks

soak: $(READY) postgres $(LITELLM)/.ready  ## the long runs of which `make test` holds a sample
	HOLDFAST_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS)

postgres:  ## the server the tests start a private copy of
	@scripts/have-postgres

format: $(READY)  ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml constraints.txt
	@scripts/make-venv $(PYTHON) $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(LITELLM)/.ready: tests/environments/litellm.txt
	@scripts/make-venv $(PYTHON) $(LITELLM)
	@$(LITELLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $< -e .
	@touch $@
