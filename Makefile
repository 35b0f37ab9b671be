# `make` lists the targets. Every target makes the environment that it needs, once.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCHES := $(filter-out bench/figures.py bench/logs.py bench/rivals.py bench/tasks.py bench/token_rows.py bench/token_tree.py,$(wildcard bench/*.py))

SHELL := /bin/bash

# tests and benches compare numbers and times: one thread gives the same ones on every machine
export OMP_NUM_THREADS ?= 1
# nothing is left outside of this folder
export CLAW_CACHE_DIR ?= $(CURDIR)/.cache
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv test lint format types layers demo golden docs rivals bench tokenizers faults fuzz sample-data clean
.NOTPARALLEL:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,bench]'
	@touch $@

venv: $(READY)  ## create .venv and install what constraints.txt pins

test: $(READY)  ## run the tests and the examples in docstrings
	$(BIN)/python -m pytest -q -n auto --dist worksteal

lint: $(READY)  ## check style, format and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell

format: $(READY)  ## put the code into shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(READY)  ## check the types of the package
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(READY)  ## check that modules import only what their layer allows
	$(BIN)/lint-imports

# tiny has random weights, hence the high learning rates
demo: $(READY)  ## run the whole line on sample_data, into demo/
	rm -rf demo
	@echo "# 1. The log of another model: to a table, to rows for other trainers, to a run"
	$(BIN)/claw ingest sample_data/agent-logs -o demo/data
	$(BIN)/claw curate demo/data --where "group_reward_std > 0" -o demo/spread
	$(BIN)/claw export demo/spread --as sft -o demo/sft.jsonl
	$(BIN)/claw merge-prefixes demo/spread --tokenizer tiny -o demo/tree
	$(BIN)/claw verify demo/tree
	$(BIN)/claw export demo/tree --merge tree -o demo/shards
	$(BIN)/claw train demo/shards --model tiny --objective sft --set optim.learning_rate=1e-2 \
		-o demo/run-sft
	@echo "# 2. The log of tiny itself: the same line, and PPO"
	$(BIN)/claw ingest sample_data/own-policy.jsonl -o demo/own-data
	$(BIN)/claw merge-prefixes demo/own-data --tokenizer tiny -o demo/own-tree
	$(BIN)/claw export demo/own-tree --merge tree --max-tokens-per-row 64 -o demo/own-shards
	$(BIN)/claw train demo/own-shards --model tiny --objective ppo --set optim.learning_rate=1e-3 \
		-o demo/run-ppo
	@echo "# Where to look"
	@echo "demo/data, demo/spread      step tables (Delta): the whole log, and what curation kept"
	@echo "demo/sft.jsonl              prompt-completion rows for another trainer"
	@echo "demo/tree/manifest.json     what the prompts share, and how that was proved"
	@echo "demo/shards/manifest.json   the plan: phases, updates, rows"
	@echo "demo/run-sft/metrics.jsonl  one line an update; checkpoint/ opens in transformers"
	@echo "demo/run-ppo/metrics.jsonl  the same of PPO; priorities.parquet has its advantages"

docs: $(READY)  ## write docs/cli.md, docs/step-table.md and tests/golden from the code
	$(BIN)/python -m clawcli.cli.docs docs

golden: docs  ## the same; review the diff of tests/golden

.rivals/.ready: bench/rivals.txt
	$(PYTHON) -m venv .rivals
	.rivals/bin/python -m pip install --quiet -r $<
	@touch $@

rivals: .rivals/.ready  ## create .rivals, with the libraries that bench/export.py is measured beside

bench: $(READY) rivals  ## measure, and print one table of what was asked and what was found
	@set -o pipefail; for bench in $(BENCHES); do $(BIN)/python $$bench --json || exit 1; done \
		| $(BIN)/python bench/figures.py

tokenizers: $(READY)  ## fetch real tokenizers and templates into .tokenizers/ (300 MB)
	$(BIN)/python tests/real_tokenizers.py

faults: $(READY)  ## kill and disturb ingest and forget again and again (minutes)
	$(BIN)/python -m pytest -q -x tests/faults/*_many.py

fuzz: $(READY)  ## feed ingest damaged logs of every format for FUZZ_SECONDS (480)
	$(BIN)/python -m pytest -q tests/fuzz/fuzz_ingest.py

sample-data: $(READY)  ## write sample_data and the tiny tokenizer again from their scripts
	$(BIN)/python sample_data/make_tiny_tokenizer.py
	$(BIN)/python sample_data/generate.py
	$(BIN)/python sample_data/mixed_logs.py
	$(BIN)/python sample_data/own_policy.py

clean:  ## remove what the targets made, the environment too
	rm -rf demo $(VENV) .rivals .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
