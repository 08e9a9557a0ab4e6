PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(VENV)/bin/uv pip install --quiet --python $(RUN)
# uv does not read pip.conf. If pip.conf sets a mirror, pass it on to uv.
ifndef UV_DEFAULT_INDEX
export UV_DEFAULT_INDEX := $(shell $(PYTHON) -m pip config get global.index-url 2>/dev/null)
endif
FRAMEWORK_PYTHON ?= $(RUN)
# GuardDog has thirty dependencies, so uv runs it in an environment of its own, which uv caches. Its rules work offline,
# although it asks for lists of well-known names. Its exit status also counts harmless findings, such as reading a file.
# HAS_RISKS counts only errors and risks, which GuardDog derives from several findings.
SCAN = $(VENV)/bin/uvx --quiet --python '>=3.10' --from 'guarddog>=3' guarddog pypi scan --output-format json
HAS_RISKS = 'import json, sys; found = json.load(sys.stdin); sys.exit(found["errors"] or found["risks"] or 0)'
# Each worker keeps one or two TensorFlows in memory. Tests that write to the same place form one group.
SIDE_BY_SIDE = -n auto --maxprocesses 4 --dist loadgroup --junit-xml=.cache/reports/$@.xml $(if $(TURN),--turn=$(TURN))
# Tests without a suite of their own.
ORDINARY := not matrix and not engine and not framework and not readme
# The number of commits decides which of the tests that take turns run. `make TURN=` runs all of them.
TURN ?= $(shell git rev-list --count HEAD 2>/dev/null)

.PHONY: help demo demo-real lab lint docs site package pictures clean
.PHONY: test test-fast test-thorough test-readme test-matrix test-engines test-frameworks test-all test-gpu test-fuzz test-attacks

help:
	@echo "make demo             two jobs at once on a simulated four-GPU server, without and with autogpu"
	@echo "make demo-real        the same demo on this machine's idle GPUs; asks first"
	@echo "make lab              a shell on a simulated server with other people's jobs; another server: FLEET=dgx-a100"
	@echo "make test             lint, types, and the tests that prove what README promises; sets itself up"
	@echo "make test-fast        the quick tests, without TensorFlow"
	@echo "make test-thorough    the long tests without PyTorch and JAX: installers, host set-up, the lab, killed jobs, hostile users"
	@echo "make test-all         every suite, with all tests that otherwise take turns (for one suite: TURN=)"
	@echo "make test-readme      README.md typed into a terminal, from a clone to the first line and the uninstall"
	@echo "make test-matrix      every supported TensorFlow from 1.15 on; takes some minutes"
	@echo "make test-engines     jobs inside a real Slurm, Ray, Dask, Open MPI and MPICH, if they are installed"
	@echo "make test-frameworks  PyTorch, JAX and Keras 3, several versions; installs 8 GB the first time"
	@echo "make test-gpu         tests on this machine's GPU, 9 minutes (MINUTES=); FRAMEWORK_PYTHON=: a Python with PyTorch or JAX"
	@echo "make test-fuzz        100,000 random policies; prints its seed; takes some minutes"
	@echo "make test-attacks     1,000 killed jobs, killed installers, hostile users; prints each attack and its result"
	@echo "make docs             write the generated pages again"
	@echo "make site             the documents as a site, in site/; fails at a dead link"
	@echo "make package          build the wheels and the source archive for a package index, in dist/; scan them with GuardDog"
	@echo "make pictures         draw the pictures of the documents again; installs TensorFlow the first time"

demo: $(VENV)/ready
	@$(RUN) -m demo

demo-real: $(VENV)/ready
	@$(RUN) -m demo.real

lab: $(VENV)/ready
	@$(RUN) -m demo.lab $(if $(FLEET),--fleet $(FLEET))

test: lint
	$(RUN) -m pytest $(SIDE_BY_SIDE)

test-fast: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m "$(ORDINARY) and not thorough and not slow and not tensorflow"

test-thorough: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m "$(ORDINARY) and thorough"

test-readme: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m readme tests/project/test_readme.py

test-matrix: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m matrix

test-engines: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m engine

test-frameworks: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m framework

test-all: $(VENV)/ready
	@$(RUN) -m tests.suites --all

test-gpu: $(VENV)/ready
	@AUTOGPU_TEST_PYTHON=$(FRAMEWORK_PYTHON) $(RUN) -m tests.gpu $(if $(MINUTES),--minutes $(MINUTES))

test-fuzz: $(VENV)/ready
	FUZZ_CASES=100000 $(RUN) -m pytest -q -s tests/policy/test_fuzz.py

test-attacks: $(VENV)/ready
	$(RUN) -m pytest -v -s -m "" tests/lease/test_storm.py tests/lease/test_hostile.py tests/lease/test_without_mutex.py tests/install/test_interrupted.py

lint: $(VENV)/ready
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) docs/generate.py --check
	@complex=$$($(RUN) -m radon cc -n D -s autogpu); [ -z "$$complex" ] || { echo "$$complex" >&2; exit 1; }

docs: $(VENV)/ready
	$(RUN) docs/generate.py

site: $(VENV)/ready
	@$(INSTALL) --group docs
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

package: $(VENV)/ready
	@$(INSTALL) --group package
	@rm -rf dist
	@$(RUN) -m build --installer uv --outdir dist . >/dev/null
	@$(RUN) -m build --installer uv --wheel --outdir dist sitecustomize_template >/dev/null
	$(RUN) -m twine check --strict dist/*
	@mkdir -p .cache
	@for wheel in dist/*.whl; do $(SCAN) $$wheel 2>.cache/guarddog.log | $(RUN) -c $(HAS_RISKS) || { cat .cache/guarddog.log >&2; exit 1; }; done
	@echo "GuardDog finds no risk in the wheels"

pictures: $(VENV)/ready
	@$(RUN) -m demo.pictures

$(VENV)/ready: pyproject.toml
	@echo "setting up $(VENV) (once, some seconds)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9) and "autogpu is developed on Python 3.9 or later: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check uv
	@$(INSTALL) --editable . --group test --group lint --group typing
	@touch $@

clean:
	rm -rf $(VENV) .cache dist
