# The targets that people use. Each one makes what it needs, and nothing twice.
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := proto libs/core libs/runtime services/controller services/storage-node services/gateway client spark

.PHONY: help setup

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: .venv/.ready ## make .venv with every package of this repository

.venv/.ready: constraints.txt $(addsuffix /pyproject.toml,$(PACKAGES))
	$(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; call make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(addprefix -e ./,$(PACKAGES))
	touch $@
