# Every target first brings its own environment, .venv, up to date. `make help` lists the targets.

# The Python that environments are made with. Without PYTHON=… it is the first of PYTHONS that runs and can make one, else
# one that uv brings. MXNet, which lesson 21 imports, runs on x86-64 Linux with 3.10 and 3.11 only: 3.11 comes first there.
PYTHONS := $(shell uname -sm | grep -q '^Linux x86_64' && echo python3.11) \
  python3.14 python3.13 python3.12 python3.11 python3.10
PYTHON ?= $(shell for python in $(PYTHONS); do \
  if $$python -c 'import ensurepip, venv' >/dev/null 2>&1; then echo $$python; exit; fi; done)
VENV ?= .venv
PORT ?= 8888
# Started by root, as in a container, JupyterLab wants to be told that this is meant.
LAB_ARGS ?= --no-browser $(if $(filter 0,$(shell id -u)),--allow-root)
NOTEBOOKS := $(sort $(wildcard notebooks/*.ipynb notebooks/solutions/*.ipynb))
BIN = $(VENV)/bin
comma := ,
READER := $(VENV)/reader
READY := $(VENV)/ready
# Exact releases with hashes, of `make lock`: what readers need, and what tests need on top of it. LOCK= installs what
# pyproject.toml allows instead.
LOCK ?= lock.txt
TESTS_LOCK := lock-tests.txt
# More arguments for pip. Who can reach PyTorch's own index takes its wheels for CPUs alone, some 4 GB less:
# make lab LOCK= PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu". It is not tested here.
PIP_ARGS ?=
# A folder of `make wheels` to install from, without a network.
WHEELS ?=
OFFLINE := $(if $(WHEELS),--no-index --find-links $(WHEELS))

# Sites, slides, handouts and wheels are made in a small environment of their own, without torch and TVM.
SITE_VENV ?= .venv-site
# The tools read the course and the engine's names; neither is installed there.
SITE_PYTHON := PYTHONPATH=engine $(SITE_VENV)/bin/python
SITE_READY := $(SITE_VENV)/ready
# Where `make wheels` puts wheels: those of the lock, and what `make site` needs.
TO ?= wheels
# What `make lock` renews: everything, or one package: make lock RENEW="--upgrade-package pillow".
RENEW ?= --upgrade

# Progress bars draw themselves into stored outputs; a test never waits for the network.
QUIET := TQDM_DISABLE=1 TVMNOTES_OFFLINE=1

# Tests run in several processes, one more than there are cores, as some wait for servers. torch's threads should sleep,
# not spin, while another process computes. engine/tests/testing.py has the files that take longest come first.
# Each takes up to 3 GiB with what it starts.
TESTERS = $$($(BIN)/python -c "import os; memory = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30; \
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1; \
  print(max(1, min(4, 1 + cores, memory // 3)))")
PASSIVE := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout 1800 --nbval-kernel-startup-timeout 600
PYTEST = $(BIN)/python -m pytest --file-times --durations 15
PARALLEL = --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder
SMOKE = $(QUIET) $(PASSIVE) TVMNOTES_QUICK=1 $(PYTEST) $(PARALLEL) $(NBVAL) $(wildcard notebooks/0[0-2]*.ipynb) \
  tests/test_vision.py $(patsubst %,engine/tests/test_%.py,import_pytorch import_onnx frontends runtime)
ALL := $(NBVAL) $(NOTEBOOKS) tests engine/tests --ignore tests/ui
# What has tests that run alone, after the rest.
ALONE = $(NBVAL) $(filter %/12_distributed_tuning.ipynb,$(NOTEBOOKS)) \
  $(shell grep -l 'mark\.alone' tests/test_*.py engine/tests/test_*.py)
# Tests that compare computed numbers, and what moves their rounding: kernels for older CPUs, other sums in PyTorch.
NUMERIC = $(shell grep -l '^from agreement import' tests/test_*.py engine/tests/test_*.py)
ROUNDINGS := TESTS_LIMIT=avx2 TESTS_LIMIT=avx512-no-vnni 'ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2'

define PREFLIGHT
import platform, shutil, sys
here = "%d.%d" % sys.version_info[:2]
if not (3, 10) <= sys.version_info[:2] <= (3, 14):
    sys.exit("tvmnotes needs Python 3.10 to 3.14; this is %s. Name another: make PYTHON=python3.12 lab" % here)
system, processor = platform.system(), platform.machine()
if (system, processor) == ("Darwin", "x86_64"):
    sys.exit("TVM and PyTorch have no wheels for macOS on Intel: use a container, as .devcontainer/ describes it, "
             "or on Apple silicon a Python for arm64")
download, disk, needed = ("0.4 GB", "1.5 GB", 3) if system == "Darwin" else ("3.2 GB", "6.5 GB", 10)
free = shutil.disk_usage(".").free / 2**30
if free < needed:
    sys.exit("tvmnotes needs %d GiB of disk for its environment; here are %.1f GiB free" % (needed, free))
print("Making $(VENV) with Python %s: %s to download, %s on disk, a few minutes." % (here, download, disk))
if sys.version_info[:2] > (3, 11) or (system, processor) != ("Linux", "x86_64"):
    print("MXNet and GluonCV need Python 3.10 or 3.11 on x86-64 Linux, so they are left out here; "
          "notebook 21 says what it does without.")
endef
define NO_PYTHON
tvmnotes needs Python 3.10 to 3.14 with its module venv, and finds none. It is installed by
  Debian, Ubuntu: sudo apt install python3 python3-venv python3-dev
  Fedora: sudo dnf install python3 python3-devel
  macOS: brew install python@3.13, or the installer of python.org
  Windows: WSL 2 with Ubuntu (wsl --install), and there as on Ubuntu
or, on any of them, by uv, which brings a Python of its own: make uses it where it is installed.
endef
export PREFLIGHT NO_PYTHON

# $(call fresh,FOLDER) makes an environment without packages.
fresh = python="$(PYTHON)"; if [ -n "$$python" ]; then $$python -m venv --clear $(1); \
  elif uv --version >/dev/null 2>&1; then rm -rf $(1) && uv venv --quiet --seed --python 3.11 $(1); \
  else echo "$$NO_PYTHON" >&2; exit 1; fi
FRESH = { $(call fresh,$(VENV)); } && $(BIN)/python -c "$$PREFLIGHT"
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check $(OFFLINE) $(PIP_ARGS)
# $(call install,LOCKS,EXTRAS) installs a lock, then the two packages of this folder, which have no hash.
PACKAGES := --editable ./engine --editable
install = $(if $(LOCK),$(PIP) --require-hashes $(addprefix -r ,$(1)) && \
  $(PIP) --no-deps --no-build-isolation $(PACKAGES) .,$(PIP) $(PACKAGES) '.[$(2)]')
PROJECTS := pyproject.toml engine/pyproject.toml
SITE_PIP = $(SITE_PYTHON) -m pip install --quiet --disable-pip-version-check $(OFFLINE) $(PIP_ARGS)

.PHONY: help lab test smoke test-full suites storms test-ui tvm-upgrade newest notebooks site slides handout clock \
  wheels lock lint bench gpu-tiles clean smoke-arm
.DEFAULT_GOAL := help

help:  ## List the targets, and the commands of python, which is .venv/bin/python
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@awk -F ' *## ' '/^# python -m .*## / { printf "%s\n            %s\n", substr($$1, 3), $$2 }' $(MAKEFILE_LIST)
# python -m tvmnotes doctor       ## Show what this machine is, and check that TVM compiles and runs
# python -m tvmnotes check FOLDER ## List who passed which exercise, from notebooks that people handed in
# python -m tvmnotes write "def " ## Continue a text with the small language model of data/lm/
# python -m tvmfast bench NAMES   ## Time networks against PyTorch and ONNX Runtime; engine/README.md has more
# python -m tvmfast tune NAME     ## Search for faster configs of a network's kernels
# python -m tvmclassic SCRIPT     ## Run a script of TVM's old API
# python -m tools.ranges FOLDER   ## Compare the times in executed lessons with those of known machines

# What readers need; and the same with what tests need, on top of it where it is there.
$(READER): $(PROJECTS) $(LOCK)
	$(FRESH)
	$(call install,$(LOCK),mxnet)
	@touch $@

$(READY): $(PROJECTS) $(LOCK) $(TESTS_LOCK)
	@test -e $(READER) $(addprefix -a $(READER) -nt ,$(PROJECTS) $(LOCK)) || { $(FRESH); }
	$(call install,$(LOCK) $(TESTS_LOCK),dev$(comma)mxnet)
	@touch $(READER) $@

$(SITE_READY): pyproject.toml
	$(call fresh,$(SITE_VENV))
	$(SITE_PIP) --upgrade 'pip>=25.1'
	$(SITE_PIP) --group site
	@touch $@

# tools/jupyter has JupyterLab's settings: it asks nobody about news, and gives the side bar's width to names.
lab: $(READER)  ## Open the course in JupyterLab on 127.0.0.1
	JUPYTER_CONFIG_PATH="$(CURDIR)/tools/jupyter$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" $(BIN)/jupyter lab \
	  --ip 127.0.0.1 --port $(PORT) $(LAB_ARGS) --notebook-dir notebooks \
	  --LabApp.default_url=/lab/tree/00_start_here.ipynb

test: $(READY)  ## Run the packages' tests and, under nbval, the notebooks
	$(QUIET) $(PASSIVE) TVMNOTES_QUICK=1 $(PYTEST) $(PARALLEL) -m "not alone" $(ALL)
	$(QUIET) $(PASSIVE) TVMNOTES_QUICK=1 $(PYTEST) -m alone $(ALONE)

smoke: $(READY)  ## Run what shows in 3 minutes that an installation works
	$(BIN)/python -m tvmnotes doctor
	$(SMOKE)

smoke-arm: $(READY)  ## Compile four networks for 64-bit ARM, and run them under QEMU where it is installed
	$(QUIET) $(BIN)/python -W ignore tests/smoke_arm.py

test-full: $(READY)  ## The same, all of it whole: networks, sweeps, readers' measuring times, processes from nothing
	$(QUIET) $(PASSIVE) $(PYTEST) --margins $(PARALLEL) -m "not alone" $(ALL)
	$(QUIET) $(PASSIVE) $(PYTEST) --margins -m alone $(ALONE)
	for rounding in $(ROUNDINGS); do echo "$$rounding"; \
	  env $(QUIET) $(PASSIVE) TVMNOTES_QUICK=1 $$rounding $(PYTEST) --margins $(PARALLEL) -m "not alone" $(NUMERIC) || exit; \
	done

suites: $(READY)  ## Compare ONNX's and PyTorch's samples, and whole model zoos, with their makers
	$(QUIET) $(PASSIVE) $(BIN)/python -W ignore engine/tests/test_onnx_suite.py
	$(QUIET) $(BIN)/python -m pytest engine/tests/test_networks.py
	$(QUIET) $(BIN)/python engine/tests/test_gluon_zoo.py
	$(QUIET) $(PASSIVE) $(BIN)/python -W ignore engine/tests/test_transformers.py
	$(QUIET) $(BIN)/python -W ignore engine/tests/slow_kernels.py
	$(QUIET) $(PASSIVE) $(BIN)/python -W ignore engine/tests/compile_suite.py
	$(QUIET) $(PASSIVE) $(BIN)/python engine/tests/torch_suite.py 0
	$(QUIET) $(PASSIVE) $(BIN)/python engine/tests/torch_suite.py 3
	for frontend in torch onnx mxnet; do \
	  $(QUIET) $(PASSIVE) $(BIN)/python -W ignore engine/tests/adversarial.py $$frontend 0,3 0 2000 || exit; done

storms: $(READY)  ## Kill tunings, saves and builds by the hundred, read damaged files by the ten thousand
	$(QUIET) $(PASSIVE) TESTS_STORM=5 $(BIN)/python -m pytest engine/tests -m storm

test-ui: $(READY) site  ## Run every notebook in a real JupyterLab, and look at site and slides, in headless Chromium
	$(QUIET) $(BIN)/python -m pytest tests/ui -m ui

tvm-upgrade: $(READY)  ## Leave out each workaround for TVM, run its tests, run engine/UPSTREAM.md; print what may go
	$(QUIET) $(BIN)/python engine/tests/tvm_upgrade.py

newest: VENV := .venv-newest
newest:  ## Try the newest of everything in .venv-newest: print what is newer than the lock, run the smoke set
	$(FRESH)
	sed -nE '/^(dependencies|dev|torch|onnx|profile|tune|rpc|cli) = \[/,/^\]/ s/^ *"([A-Za-z0-9._-]+)[^;"]*(;[^"]*)?".*/\1\2/p' \
	  $(PROJECTS) | grep -v '^tvmfast$$' > $(VENV)/names
	$(PIP) --upgrade -r $(VENV)/names
	$(PIP) --no-deps $(PACKAGES) .
	$(BIN)/python tests/newest.py
	$(SMOKE)

notebooks: $(READY)  ## Execute all notebooks but 17, which stores a GPU's outputs; write maps and times into README, TEACHING and 00
	$(QUIET) $(BIN)/jupyter nbconvert --to notebook --execute --inplace \
	  --ExecutePreprocessor.record_timing=False --ExecutePreprocessor.timeout=300 \
	  $(filter-out notebooks/17_%,$(NOTEBOOKS))
	$(BIN)/python -m tvmnotes.lessons
	$(BIN)/python -m tools.ranges --add

site: $(SITE_READY)  ## Make the course, as it is stored, into pages with a search, in site/
	$(SITE_PYTHON) -m mkdocs build --quiet --clean --config-file tools/mkdocs.yml
	$(SITE_PYTHON) -m tools.links site

slides: $(SITE_READY)  ## Make slides of each lesson, in slides/
	$(SITE_PYTHON) -m tools.slides slides

handout: $(SITE_READY)  ## Make handout.zip for a class: lessons without answers, with blanks where a teacher types
	$(SITE_PYTHON) -m tools.handout handout.zip

clock: $(READER)  ## Execute the lessons with a clock, and write what each part takes into TEACHING.md
	rm -rf .cache/clock
	TVMNOTES_OFFLINE=1 TVMNOTES_CACHE=$(CURDIR)/.cache/clock/cache $(BIN)/jupyter nbconvert --to notebook --execute \
	  --ExecutePreprocessor.timeout=300 --output-dir .cache/clock \
	  $(filter-out notebooks/solutions/%,$(NOTEBOOKS))
	$(BIN)/python -m tools.clock .cache/clock
	$(BIN)/python -m tools.ranges .cache/clock

wheels: $(SITE_READY)  ## Collect all packages in wheels/, for `make lab WHEELS=folder` without a network
	$(SITE_PYTHON) -m pip download --disable-pip-version-check $(PIP_ARGS) --require-hashes -r $(LOCK) --dest $(TO)
	$(SITE_PYTHON) -m pip wheel --disable-pip-version-check $(PIP_ARGS) --group site --wheel-dir $(TO)

COMPILE = $(SITE_PYTHON) -m uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
  --custom-compile-command "make lock" --no-emit-package tvmfast pyproject.toml --group build --extra mxnet
# The second lock leaves out what the first one has. Each Python and platform must do without building anything.
lock: $(SITE_READY)  ## Renew the lock: the newest releases that pyproject.toml allows, with hashes
	$(SITE_PIP) --upgrade uv
	mkdir -p .cache && cat $(LOCK) $(TESTS_LOCK) > .cache/lock.txt
	$(COMPILE) --extra dev $(RENEW) --output-file .cache/lock.txt
	$(COMPILE) --constraint .cache/lock.txt --output-file $(LOCK)
	awk 'NR == FNR { seen[$$0]; next } /^[a-z]/ { skip = $$0 in seen } !skip' $(LOCK) .cache/lock.txt > $(TESTS_LOCK)
	for python in $(sort $(PYTHONS:python%=%)); do \
	  for platform in x86_64-manylinux_2_28 aarch64-manylinux_2_28 aarch64-apple-darwin; do \
	    MACOSX_DEPLOYMENT_TARGET=14.0 $(SITE_PYTHON) -m uv pip install --quiet --dry-run --target .cache/lock --no-build \
	      --python-version $$python --python-platform $$platform --require-hashes -r $(LOCK) -r $(TESTS_LOCK) || exit 1; \
	  done; done

lint: $(READY)  ## Check code and notebooks with ruff, types with mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## Time the notes' networks against PyTorch and ONNX Runtime
	$(BIN)/python -m tvmfast bench resnet18 resnet50 mobilenet_v2

gpu-tiles: $(READY)  ## Measure tiles of matrix products on an NVIDIA GPU in 3 minutes: lines for tvmfast's table
	$(QUIET) PYTHONPATH=engine:. $(BIN)/python -m tools.gpu_tiles

clean:  ## Remove the environments, what quick tests have compiled, and what was made for readers and classes
	rm -rf $(VENV) $(SITE_VENV) .venv-newest .cache site slides handout.zip
