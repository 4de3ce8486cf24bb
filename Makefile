# OrbitKV. `make` alone lists the targets.
#
# Variables:
#   ENGINE=vllm       the engine of setup, demo, gpu-bench and gpu-test: vllm or sglang, of demo also both; test takes both
#   SEEDS=20000       number of seeds `make sim` runs
#   PLANT=NAME|all    `make sim` plants this defect (or each in turn) and must find it
#   PREPARE=on        `make demo` also reads ahead from the SSD for requests that wait
#   PYTHON=python3    Python 3.11 or 3.12 that the environments are made from
#   GPU_PYTHON=python3, GPU_BUDGET_S=600, GPU_OUT=DIR   interpreter, time and folder of gpu-bench, gpu-test
#   ORBITKV_VENV_CACHE=DIR   (environment) keep the engine environment outside the checkout

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

ENGINE ?= vllm
SEEDS ?= 20000
PLANT ?=
PREPARE ?=
PYTHON ?= python3
GPU_PYTHON ?= python3
GPU_BUDGET_S ?= 600
GPU_OUT ?= $(or $(OUT),out/gpu)

TOOLS := .venv/tools/bin
# Environments are named after engine and device, and there is one device.
ENVIRONMENT := $(patsubst %-cpu,%,$(ENGINE))-cpu
ENGINE_PYTHON := .venv/$(ENVIRONMENT)/bin/python
VLLM_PYTHON := .venv/vllm-cpu/bin/python
SGLANG_PYTHON := .venv/sglang-cpu/bin/python
MODEL := .venv/models/tiny-qwen3
# The test wheel is unpacked here and put before everything else on the paths of the tests, so that the
# engine environment never holds a build with test hooks.
HOOKS := $(CURDIR)/.venv/test-hooks
# The same for the wheel that is measured.
BENCHED := $(CURDIR)/.venv/bench
SOURCES := $(wildcard python tools tests benches)
PIP := -m pip --disable-pip-version-check --quiet install --no-deps

# No libpython is needed to build the native module: an interpreter always loads it. maturin sets the
# same, and with equal settings cargo builds pyo3 once for both.
export PYO3_BUILD_EXTENSION_MODULE := 1

.PHONY: help setup setup-tools demo demo-one demo-both test test-rust test-models test-python test-vllm test-sglang test-wheel sim bench bench-engine gpu-bench gpu-test lint wheel wheel-test-hooks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile
	@sed -n 's/^#   /  /p' Makefile

setup: setup-tools ## check the compilers, create the engine environment and the tiny model
	@$(PYTHON) tools/setup_engine.py $(ENVIRONMENT)
	@test -d $(MODEL) || $(ENGINE_PYTHON) tools/tiny_model.py $(MODEL)

setup-tools:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "setup: $(PYTHON) is missing: apt-get install python3 python3-venv (Debian 12 brings 3.11)"; exit 1; }
	@$(PYTHON) tools/setup_tools.py

demo: $(if $(filter both,$(ENGINE)),demo-both,demo-one) ## serve a tiny model through OrbitKV and compare cold and restored requests

demo-one: setup wheel
	@$(ENGINE_PYTHON) $(PIP) --force-reinstall dist/orbitkv-*.whl
	@$(ENGINE_PYTHON) tools/demo.py --engine $(ENVIRONMENT) $(if $(filter on,$(PREPARE)),--prepare)

# One manager under two engines, each from its own environment.
demo-both: wheel
	@for engine in vllm sglang; do \
	    $(MAKE) --no-print-directory setup ENGINE=$$engine; \
	    .venv/$$engine-cpu/bin/python $(PIP) --force-reinstall dist/orbitkv-*.whl; \
	done
	@$(VLLM_PYTHON) tools/demo.py --engine both

test: test-rust ## run every test: Rust, models of threads, simulator, planted defects, Python, real engines, wheel
	@$(MAKE) --no-print-directory sim SEEDS=$(SEEDS) PLANT=
	@$(MAKE) --no-print-directory sim PLANT=all
	@$(MAKE) --no-print-directory test-python
	@$(MAKE) --no-print-directory test-wheel

test-rust:
	@if command -v cargo-nextest >/dev/null; then \
	    cargo nextest run --workspace --locked && cargo test --workspace --locked --doc; \
	else \
	    cargo test --workspace --locked; \
	fi
	@$(MAKE) --no-print-directory test-models

# Every order in which threads can meet (loom). All crates are built anew for it, so in a place of their own.
test-models:
	@RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
	    cargo test --locked -q -p orbitkv-client -p orbitkv-copy --lib models::

wheel-test-hooks: setup-tools
	@$(TOOLS)/python tools/build_wheel.py --test-hooks

# One session an engine: each has an environment of its own. Both use the same unpacked wheel.
test-python: wheel-test-hooks
	@$(MAKE) --no-print-directory setup ENGINE=vllm
	@$(MAKE) --no-print-directory setup ENGINE=sglang
	@rm -rf $(HOOKS)
	@$(VLLM_PYTHON) $(PIP) --target $(HOOKS) dist/test-hooks/orbitkv-*.whl
	@$(MAKE) --no-print-directory test-vllm
	@$(MAKE) --no-print-directory test-sglang

# These two take what test-python has prepared.
test-vllm:
	@PYTHONPATH=$(HOOKS) PATH=$(HOOKS)/bin:$$PATH $(VLLM_PYTHON) -m pytest tests \
	    --ignore=tests/wheel --ignore-glob='*/tests/sglang*'

# SGLang compiles its page hashes with ninja, which is in its environment.
test-sglang:
	@PYTHONPATH=$(HOOKS) PATH=$(HOOKS)/bin:$(CURDIR)/$(dir $(SGLANG_PYTHON)):$$PATH $(SGLANG_PYTHON) -m pytest $(wildcard tests/sglang*)

test-wheel: wheel wheel-test-hooks
	@$(MAKE) --no-print-directory setup ENGINE=vllm
	@$(VLLM_PYTHON) -m pytest tests/wheel

sim: ## run the simulator over SEEDS seeds, or with PLANT=NAME|all find planted defects
	@cargo run --release --locked -q -p orbitkv-sim $(if $(PLANT),--features plant -- --plant $(PLANT),-- --seeds $(SEEDS))

bench: ## measure speed and memory beside their limits; rows in out/bench/summary.json; PART=core|copies|ssd|queries
	@cargo run --release --locked -q -p orbitkv-bench -- $(PART)
	@if test -n "$(PART)"; then :; elif test -x $(VLLM_PYTHON) && test -d $(MODEL); then \
	    $(MAKE) --no-print-directory bench-engine; \
	else \
	    echo "bench: no engine environment, what saving costs an engine was not measured (make setup)"; \
	fi

bench-engine: wheel
	@rm -rf $(BENCHED)
	@$(VLLM_PYTHON) $(PIP) --target $(BENCHED) dist/orbitkv-*.whl
	@PYTHONPATH=$(BENCHED):$(CURDIR)/tests/engine:$(CURDIR)/tests/shared PATH=$(BENCHED)/bin:$$PATH VLLM_LOGGING_LEVEL=ERROR \
	    $(VLLM_PYTHON) benches/save_cost.py out/bench/summary.json

# These two need no build and no network: a GPU, and the engine and an installed wheel for GPU_PYTHON.
gpu-bench: ## measure beside the engine's own host cache on a host with a GPU (ENGINE); the table comes last
	@$(GPU_PYTHON) -m benches.gpu.run bench --engine $(ENGINE) --budget-s $(GPU_BUDGET_S) --out $(GPU_OUT)

gpu-test: ## test restores, restarts and deaths on a host with a GPU (ENGINE)
	@$(GPU_PYTHON) -m benches.gpu.run test --engine $(ENGINE) --budget-s $(GPU_BUDGET_S) --out $(GPU_OUT)

lint: setup-tools ## check format, lints, dependency licences and sources
	cargo fmt --all --check
	cargo clippy --workspace --locked --all-targets --all-features -- -D warnings
	@if command -v cargo-deny >/dev/null; then \
	    cargo deny --locked --all-features check bans licenses sources; \
	else \
	    echo "lint: cargo-deny is missing, licences and sources were not checked (cargo install --locked cargo-deny)"; \
	fi
	$(TOOLS)/ruff check $(SOURCES)
	$(TOOLS)/ruff format --check $(SOURCES)

wheel: setup-tools ## build dist/orbitkv-*.whl with both commands inside
	@$(TOOLS)/python tools/build_wheel.py

clean: ## remove everything that was built here (an engine environment in ORBITKV_VENV_CACHE stays)
	rm -rf target .venv out dist
