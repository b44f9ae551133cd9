# `make` lists what can be made. Nothing has to be installed but Python with venv, and make:
# each target sets up .venv first, where it is missing or older than what describes it.

PYTHON ?= python3
PYTEST_ARGS ?=
# A file's tests stay on one worker, since they share what is costly to make; tests/conftest.py has
# the order of files. A worker that dies ends the run with the name of its test. There is one more
# than cores, since tests wait for browsers and ranks.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
TORCH ?=
FUZZ_ARGS ?=
OTHER_PYTHON = $(PYTHON) -c 'import platform; print("python-" + platform.python_version())'
VENV := .venv$(if $(TORCH),-torch-$(TORCH))$(if $(filter-out python3,$(PYTHON)),-$(shell $(OTHER_PYTHON)))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PINS := $(if $(TORCH),$(VENV)/pins.txt,constraints.txt)
DEMO := build/demo
RUN_DEMO := $(BIN)/commtrace run --nproc 4 --force

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS ?= 1
# The tests start hundreds of processes, each of which would compile the packages anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check format-check lint types contracts format bench bench-recording bench-page bench-import bench-dataset bench-scale bench-values bench-whatif check-values bench-operators opdb refused programs compiled fuzz hangs docs docs-site notebooks clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

COPIED := commtrace/launching/auto.pth commtrace/launching/auto_start.py examples/train_tp.py
$(READY): pyproject.toml constraints.txt $(COPIED)
	$(PYTHON) -m venv --clear $(VENV)
	$(if $(TORCH),sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $(PINS))
	$(BIN)/python -m pip install --quiet -c $(PINS) -e '.[dev]'
	@touch $@

demo: $(READY) ## train with tensor parallelism on 4 local ranks, recorded; print and draw it
	@mkdir -p $(DEMO)
	$(RUN_DEMO) -o $(DEMO)/run.json examples/train_tp.py
	$(RUN_DEMO) -o $(DEMO)/sp.json examples/train_tp.py --sequence-parallel
	$(BIN)/commtrace summary $(DEMO)/run.json
	$(BIN)/commtrace summary $(DEMO)/sp.json
	$(BIN)/commtrace report $(DEMO)/sp.json --force -o $(DEMO)/sp.html
	$(BIN)/commtrace report $(DEMO)/run.json --force -o $(DEMO)/report.html
	@echo "open $(CURDIR)/$(DEMO)/report.html and sp.html in a browser"

test: $(READY) ## all tests; PYTEST_ARGS="-k name" for some; TORCH=2.15.0, PYTHON=python3.12 for others
	$(BIN)/python $(PYTEST) $(PYTEST_ARGS)

check: format-check lint types contracts docs-site test ## format, lint, types, contracts, site, tests

format-check: $(READY) ## is everything formatted?
	$(BIN)/ruff format --check .

lint: $(READY) ## ruff's rules
	$(BIN)/ruff check .

types: $(READY) ## pyright
	$(BIN)/pyright --pythonpath $(BIN)/python

contracts: $(READY) ## which module may import which
	$(BIN)/lint-imports

docs-site: $(READY) ## the documentation as a site, in build/site; a broken link is an error
	@if [ -x $(BIN)/mkdocs ]; then \
		NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && \
		echo "build/site: $(BIN)/python -m http.server --directory build/site serves it"; \
	else echo "docs-site left out: MkDocs' plugins need Python 3.11.5 or newer"; fi

format: $(READY) ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## how long operators and a training step take, against torch's DTensor
	$(BIN)/python -m benchmarks

bench-recording: $(READY) ## what being recorded costs a training step, a file and the memory
	$(BIN)/python -m benchmarks.recording

bench-page: $(READY) ## the page of a million calls: writing, size, opening, zooming, filtering
	$(BIN)/python -m benchmarks.large_page

bench-import: $(READY) ## import of files of 100 MB of each tool: processor time, memory for 1, 2 and 4 files
	$(BIN)/python -m benchmarks.importing

bench-dataset: $(READY) ## spools to Parquet: calls in a second of a core, bytes of a call
	$(BIN)/python -m benchmarks.dataset

bench-scale: $(READY) ## a run that is larger than memory: all tables, their passes, time and memory
	$(BIN)/python -m benchmarks.scale

bench-values: $(READY) ## what fingerprints of tensors cost a training step
	$(BIN)/python -m benchmarks.values

bench-whatif: $(READY) ## predictions of commtrace whatif, checked by making the change; speed of a replay
	$(BIN)/python -m benchmarks.whatif

check-values: $(READY) ## five models in 22 layouts, ten steps in float32 and bfloat16, compared with one device
	VALUES_STEPS=10 $(BIN)/python $(PYTEST) tests/values/test_layouts_agree.py

bench-operators: $(READY) ## what torch's operator database communicates, against torch's DTensor
	$(BIN)/python -m benchmarks.operators --json build/operators.json

opdb: $(READY) ## torch's operator database on DTensors, on 4 ranks that are threads
	$(BIN)/python -m tests.opdb --json build/opdb.json

refused: $(READY) ## calls that torch refuses, on DTensors: all ranks must refuse them alike
	$(BIN)/python -m tests.opdb.spoiled --json build/refused.json

programs: $(READY) ## 20,000 random programs on DTensors, on ranks that are threads
	$(BIN)/python -W ignore -m tests.programs --count 20000

compiled: $(READY) ## 500 random programs, compiled: the same collectives on all ranks, eager's values
	$(BIN)/python -W ignore -m tests.dtensor_core.works_with.compiled_programs --count 500 --backend aot_eager

fuzz: $(READY) ## 10,000 spoiled traces, profiles, dumps and baselines through every reading command
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS) --json build/fuzz.json

hangs: $(READY) ## score of check and of the alarm on hangs that others wrote
	$(BIN)/python -m tests.hangs.score $(HANGS_ARGS)

docs: $(READY) ## what docs/ says of columns, analyses, commands and operators
	$(BIN)/python docs/generate/bytes.py
	$(BIN)/python docs/generate/trace_format.py
	$(BIN)/python docs/generate/analyses.py
	$(BIN)/python docs/generate/commands.py
	$(BIN)/python docs/generate/operators.py
	$(BIN)/python docs/generate/whatif.py

notebooks: $(READY) ## run the notebooks and keep what they show
	$(BIN)/python notebooks/write.py

clean: ## remove .venv and build
	rm -rf .venv .venv-* build
