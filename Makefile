# Every target first brings its own environment, .venv, up to date. `make help` lists the targets.

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8888
# Started by root, as in a container, JupyterLab wants to be told that this is meant.
LAB_ARGS ?= --no-browser $(if $(filter 0,$(shell id -u)),--allow-root)
NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb notebooks/solutions/*.ipynb))
BIN := $(VENV)/bin
READER := $(VENV)/reader
READY := $(VENV)/ready
# More arguments for pip. Who can reach PyTorch's own index takes its wheels for CPUs alone, some 4 GB less:
# make lab PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu". It is not tested here.
PIP_ARGS ?=
# A folder of `make wheels` to install from, without a network.
WHEELS ?=
OFFLINE := $(if $(WHEELS),--no-index --find-links $(WHEELS))

# Sites, slides, handouts and wheels are made in a small environment of their own, without torch and TVM.
SITE_VENV ?= .venv-site
SITE_PYTHON := $(SITE_VENV)/bin/python
SITE_READY := $(SITE_VENV)/ready
# Where `make wheels` puts wheels, and for what: what the two environments need, and what builds the package.
TO ?= wheels
PACKED ?= '.[mxnet]' --group site hatchling editables

# Progress bars draw themselves into stored outputs; a test never waits for the network.
QUIET := TQDM_DISABLE=1 TVMNOTES_OFFLINE=1

# Tests run in several processes, one more than there are cores, as some wait for servers. torch's threads should sleep,
# not spin, while another process computes. conftest.py has the files that take longest come first.
# Each takes up to 3 GiB with what it starts.
TESTERS := $(shell $(PYTHON) -c "import os; memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30; \
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1; \
  print(max(1, min(4, 1 + cores, memory // 3)))")
PASSIVE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout 1800 --nbval-kernel-startup-timeout 600
PYTEST := $(BIN)/python -m pytest --file-times --durations 15
PARALLEL := --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder
ALL := $(NBVAL) $(NOTEBOOKS) tests --ignore tests/ui
# Tests that compare computed numbers, and what moves their rounding: kernels for older CPUs, other sums in PyTorch.
NUMERIC = $(shell grep -l '^from agreement import' tests/test_*.py)
ROUNDINGS := TESTS_LIMIT=avx2 TESTS_LIMIT=avx512-no-vnni 'ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2'

define PREFLIGHT
import shutil, sys
here = "%d.%d" % sys.version_info[:2]
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit("tvmnotes needs Python 3.10 to 3.13; $(PYTHON) is %s. Name another: make PYTHON=python3.12 lab" % here)
free = shutil.disk_usage(".").free / 2**30
if free < 10:
    sys.exit("tvmnotes needs 10 GiB of disk for its environment; here are %.1f GiB free" % free)
print("Making $(VENV) with Python %s: some 6.5 GB of packages, a few minutes." % here)
if sys.version_info[:2] > (3, 11):
    print("MXNet and GluonCV need Python 3.10 or 3.11, so they are left out here; notebook 07 says what it does without.")
endef
export PREFLIGHT

FRESH = $(PYTHON) -c "$$PREFLIGHT" && $(PYTHON) -m venv --clear $(VENV)
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint tests/constraints.txt $(OFFLINE) \
  $(PIP_ARGS)
SITE_PIP = $(SITE_PYTHON) -m pip install --quiet --disable-pip-version-check $(OFFLINE) $(PIP_ARGS)

.PHONY: help lab test smoke test-full suites storms test-ui tvm-upgrade notebooks site slides handout clock wheels lint \
  bench clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# What readers need; and the same with what tests need, on top of it where it is there.
$(READER): pyproject.toml tests/constraints.txt
	$(FRESH)
	$(PIP) --editable '.[mxnet]'
	@touch $@

$(READY): pyproject.toml tests/constraints.txt
	@test $(READER) -nt pyproject.toml || { $(FRESH); }
	$(PIP) --editable '.[dev,mxnet]'
	@touch $(READER) $@

$(SITE_READY): pyproject.toml
	$(PYTHON) -m venv --clear $(SITE_VENV)
	$(SITE_PIP) --upgrade 'pip>=25.1'
	$(SITE_PIP) --group site
	@touch $@

lab: $(READER)  ## Open the course in JupyterLab on 127.0.0.1
	$(BIN)/jupyter lab --ip 127.0.0.1 --port $(PORT) $(LAB_ARGS) --notebook-dir notebooks

test: $(READY)  ## Run the package's tests and, under nbval, the notebooks
	$(QUIET) $(PASSIVE) TVMNOTES_QUICK=1 $(PYTEST) $(PARALLEL) -m "not alone" $(ALL)
	$(QUIET) $(PASSIVE) TVMNOTES_QUICK=1 $(PYTEST) -m alone $(ALL)

smoke: $(READY)  ## Run what shows in 3 minutes that an installation works
	$(BIN)/python -m tvmnotes doctor
	$(QUIET) $(PASSIVE) TVMNOTES_QUICK=1 $(PYTEST) $(PARALLEL) $(NBVAL) $(wildcard notebooks/0[0-2]*.ipynb) \
	  tests/test_import_pytorch.py tests/test_import_onnx.py tests/test_importers.py tests/test_runtime.py

test-full: $(READY)  ## The same, all of it whole: networks, sweeps, readers' measuring times, processes from nothing
	$(QUIET) $(PASSIVE) $(PYTEST) --margins $(PARALLEL) -m "not alone" $(ALL)
	$(QUIET) $(PASSIVE) $(PYTEST) --margins -m alone $(ALL)
	for rounding in $(ROUNDINGS); do echo "$$rounding"; \
	  env $(QUIET) $(PASSIVE) TVMNOTES_QUICK=1 $$rounding $(PYTEST) --margins $(PARALLEL) -m "not alone" $(NUMERIC) || exit; \
	done

suites: $(READY)  ## Compare ONNX's and PyTorch's samples, and whole model zoos, with their makers
	$(QUIET) $(PASSIVE) $(BIN)/python -W ignore tests/test_onnx_suite.py
	$(QUIET) $(BIN)/python -m pytest tests/test_networks.py
	$(QUIET) $(BIN)/python tests/test_gluon_zoo.py
	$(QUIET) $(PASSIVE) $(BIN)/python -W ignore tests/test_transformers.py
	$(QUIET) $(BIN)/python -W ignore tests/slow_kernels.py
	$(QUIET) $(PASSIVE) $(BIN)/python -W ignore tests/compile_suite.py
	$(QUIET) $(PASSIVE) $(BIN)/python tests/torch_suite.py 0
	$(QUIET) $(PASSIVE) $(BIN)/python tests/torch_suite.py 3

storms: $(READY)  ## Kill tunings, saves and builds by the hundred, read damaged files by the ten thousand
	$(QUIET) $(PASSIVE) TESTS_STORM=5 $(BIN)/python -m pytest tests --ignore tests/ui -m storm

test-ui: $(READY) site  ## Run every notebook in a real JupyterLab, and look at site and slides, in headless Chromium
	$(QUIET) $(BIN)/python -m pytest tests/ui -m ui

tvm-upgrade: $(READY)  ## Leave out each workaround for TVM in turn, run its tests, and print which may go
	$(QUIET) $(BIN)/python tests/tvm_upgrade.py

notebooks: $(READY)  ## Execute every notebook and store its outputs; write maps and times into README, TEACHING and 00
	$(QUIET) $(BIN)/jupyter nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.record_timing=False --ExecutePreprocessor.timeout=300 $(NOTEBOOKS)
	$(BIN)/python -m tvmnotes.course.lessons
	$(BIN)/python -m tvmnotes ranges --add

site: $(SITE_READY)  ## Make the course, as it is stored, into pages with a search, in site/
	$(SITE_PYTHON) -m tvmnotes.course.publish.pages
	$(SITE_PYTHON) -m mkdocs build --quiet --clean --config-file .cache/site/mkdocs.yml
	$(SITE_PYTHON) -m tvmnotes.course.publish.links site

slides: $(SITE_READY)  ## Make slides of each lesson, in slides/
	$(SITE_PYTHON) -m tvmnotes.course.publish.slides slides

handout: $(SITE_READY)  ## Make handout.zip for a class: lessons without answers, with blanks where a teacher types
	$(SITE_PYTHON) -m tvmnotes.course.publish.handout handout.zip

clock: $(READER)  ## Execute the lessons with a clock, and write what each part takes into TEACHING.md
	rm -rf .cache/clock
	TVMNOTES_OFFLINE=1 TVMNOTES_CACHE=$(CURDIR)/.cache/clock/cache $(BIN)/jupyter nbconvert --to notebook --execute \
	  --ExecutePreprocessor.timeout=300 --output-dir .cache/clock \
	  $(filter-out notebooks/solutions/%,$(NOTEBOOKS))
	$(BIN)/python -m tvmnotes.course.publish.clock .cache/clock
	$(BIN)/python -m tvmnotes ranges .cache/clock

wheels: $(SITE_READY)  ## Collect all packages in wheels/, for `make lab WHEELS=folder` without a network
	$(SITE_PYTHON) -m pip wheel --disable-pip-version-check --constraint tests/constraints.txt $(PIP_ARGS) \
	  --wheel-dir $(TO) $(PACKED)

lint: $(READY)  ## Check code and notebooks with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(READY)  ## Time the notes' networks against PyTorch and ONNX Runtime
	$(BIN)/python -m tvmnotes bench resnet18 resnet50 mobilenet_v2

clean:  ## Remove the environments, what quick tests have compiled, and what was made for readers and classes
	rm -rf $(VENV) $(SITE_VENV) .cache site slides handout.zip
