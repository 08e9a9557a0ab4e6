PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
FRAMEWORK_PYTHON ?= $(RUN)
# Each keeps a TensorFlow or two in memory. Tests that share something that they write to are one group.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadgroup

.PHONY: help demo demo-real lab test test-fast test-readme test-matrix test-engines test-frameworks test-gpu test-fuzz test-attacks
.PHONY: lint docs site package pictures clean

help:
	@echo "make demo             two jobs at once on a simulated four-GPU server, without and with autogpu"
	@echo "make demo-real        the same on this machine's idle GPUs; asks first"
	@echo "make lab              a shell on a simulated server on which other people's jobs come and go; FLEET=dgx-a100"
	@echo "make test             lint, types and all tests; sets itself up, takes some minutes"
	@echo "make test-fast        the tests that need no TensorFlow"
	@echo "make test-readme      README.md typed into a terminal, from a clone to the first line and the uninstall"
	@echo "make test-matrix      every supported TensorFlow from 1.15 on; takes some minutes"
	@echo "make test-engines     jobs inside a real Slurm, Ray, Dask, Open MPI and MPICH, where they are installed"
	@echo "make test-frameworks  PyTorch, JAX and Keras 3, several versions; installs 8 GB the first time"
	@echo "make test-gpu         on this machine's GPU; FRAMEWORK_PYTHON names a Python that has PyTorch or JAX"
	@echo "make test-fuzz        100,000 random policies; prints its seed; takes some minutes"
	@echo "make test-attacks     1,000 killed jobs, killed installers, hostile users; prints what was tried and what held"
	@echo "make docs             write the generated pages again"
	@echo "make site             the documents as a site, in site/; fails at a dead link"
	@echo "make package          the wheel and the source archive, in dist/, as a package index wants them"
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
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m "not tensorflow and not framework"

test-readme: $(VENV)/ready
	$(RUN) -m pytest -m readme tests/project/test_readme.py

test-matrix: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m matrix

test-engines: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m engine

test-frameworks: $(VENV)/ready
	$(RUN) -m pytest $(SIDE_BY_SIDE) -m framework

test-gpu: $(VENV)/ready
	AUTOGPU_TEST_PYTHON=$(FRAMEWORK_PYTHON) $(RUN) -m pytest -rP -m gpu tests

test-fuzz: $(VENV)/ready
	FUZZ_CASES=100000 $(RUN) -m pytest -q -s tests/policy/test_fuzz.py

test-attacks: $(VENV)/ready
	$(RUN) -m pytest -v -s tests/lease/test_storm.py tests/lease/test_hostile.py tests/lease/test_without_mutex.py tests/install/test_interrupted.py

lint: $(VENV)/ready
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) docs/generate.py --check
	@test -z "$$($(RUN) -m radon cc -n D -s autogpu | tee /dev/stderr)"

docs: $(VENV)/ready
	$(RUN) docs/generate.py

site: $(VENV)/ready
	@$(RUN) -m pip install --quiet --disable-pip-version-check --group docs
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

package: $(VENV)/ready
	@$(RUN) -m pip install --quiet --disable-pip-version-check --group package
	@rm -rf dist
	@$(RUN) -m build --outdir dist . >/dev/null
	$(RUN) -m twine check --strict dist/*

pictures: $(VENV)/ready
	@$(RUN) -m demo.pictures

$(VENV)/ready: pyproject.toml
	@echo "setting up $(VENV) (once, about half a minute)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9) and "autogpu is developed on Python 3.9 or later: make PYTHON=python3.11 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(RUN) -m pip install --quiet --disable-pip-version-check --editable . --group test --group lint --group typing
	@touch $@

clean:
	rm -rf $(VENV) .cache dist
