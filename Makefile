# Two commands do everything on a fresh machine: `make run` and `make test`.
# Each builds its environment first; nothing has to be installed by hand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := -m pip install --quiet --disable-pip-version-check
# Its wheel brings a Claude Code of 160 MB. The tests use the one of `make agents`.
DEV := --no-binary claude-agent-sdk -e '.[dev]'
# `make run` needs a tenth of what the tests need: it has a small environment of its own (under 120 MB).
RUN := .venv-run
# LiteLLM pins other versions than ours: its tests run in an environment of their own.
LITELLM := .venv-litellm
# Half of a small machine is already two workers; more only makes them wait for each other.
WORKERS ?= auto

.PHONY: run test check lint mypy basedpyright docs types bench live soak pythons postgres pgbouncer redis erlang chromium agents format clean help

run: $(RUN)/.ready  ## the whole in under a minute, each count beside the other side's
	@$(RUN)/bin/python examples/whole

test: check postgres pgbouncer redis erlang chromium agents $(LITELLM)/.ready  ## checks and the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) -m "not soak"

# Two at a time, the longest first: each of them uses one core.
check: $(READY)  ## lint, format, types, import rules, the docs site with its links
	@$(MAKE) --no-print-directory --jobs=2 mypy lint basedpyright docs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@$(BIN)/python scripts/documents.py --check
	@$(BIN)/python scripts/codes.py --check

mypy: $(READY)
	$(BIN)/mypy

basedpyright: $(READY)
	$(BIN)/basedpyright

docs: $(READY)  ## the docs site, in build/docs/site; it needs no network
	@$(BIN)/python -m scripts.docs_site

types: $(READY)  ## types as each supported Python sees them (make check looks at the oldest)
	@for version in 3.12 3.13 3.14; do \
	  echo "mypy --python-version $$version"; \
	  $(BIN)/mypy --python-version $$version || exit 1; \
	done

bench: $(READY) postgres pgbouncer redis  ## speed, side by side with the peers
	@$(BIN)/python -m benchmarks

live: $(READY)  ## a few small calls with your own keys: what the real providers do otherwise than the fault provider
	@$(BIN)/python scripts/live.py

soak: types postgres pgbouncer redis erlang chromium agents $(LITELLM)/.ready  ## the long runs of which `make test` holds a sample, then every Python found here
	HOLDFAST_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS)
	$(MAKE) pythons

pythons: $(READY) postgres pgbouncer redis $(LITELLM)/.ready  ## the suite on every supported Python found on this machine
	$(BIN)/python scripts/every_python.py -n $(WORKERS)

postgres:  ## the server the tests start a private copy of
	@scripts/have-postgres

pgbouncer:  ## the pooler that is put before that server
	@scripts/have-pgbouncer

redis:  ## the server of shared state, of which the tests start private copies
	@scripts/have-redis

erlang:  ## the supervisor that ours is compared with
	@scripts/have-erlang

chromium:  ## the browser in which the tests look at the bridge's page
	@scripts/have-chromium

agents:  ## the real Claude Code and Codex, which the tests run against the fault provider
	@scripts/have-agents >/dev/null

format: $(READY)  ## let ruff lay out the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

help:
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml constraints.txt
	@scripts/make-venv $(PYTHON) $(VENV)
	@$(BIN)/python $(PIP) -c constraints.txt $(DEV)
	@touch $@

# pip and setuptools are a third of the small environment, and only building it needs them.
$(RUN)/.ready: pyproject.toml constraints.txt
	@scripts/make-venv $(PYTHON) $(RUN)
	@$(RUN)/bin/python $(PIP) --no-compile -c constraints.txt -e '.[demo,server]'
	@$(RUN)/bin/python -m pip uninstall --quiet --yes setuptools pip
	@touch $@

$(LITELLM)/.ready: tests/environments/litellm.txt
	@scripts/make-venv $(PYTHON) $(LITELLM)
	@$(LITELLM)/bin/python $(PIP) --no-deps -r $< -e .
	@touch $@
