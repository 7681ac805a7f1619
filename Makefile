# make demo: the whole way once, on a throw-away Slurm cluster.   make test: every test.   make lint: style, types, layers.
# make docs: the documentation as a site, in build/docs.   make capture: docs/capture.svg, a terminal of today.
SHELL := /bin/bash
PYTHON ?= python3
TORCH ?= 2.11.0
MATRIX := 2.4.1 2.6.0 2.8.0 2.15.0
BIN := .venv/bin
JOB_PYTHON = .venvs/torch-$(TORCH)/bin/python

.PHONY: demo test lint docs capture setup test-torch-matrix test-debian-13 test-cgroup2 clean

demo: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo.sh "$(CURDIR)/.venvs/torch-$(TORCH)"

test: setup
	.ci/system-packages test
	XMEM_TEST_PYTHON="$(CURDIR)/$(JOB_PYTHON)" $(BIN)/pytest -n 3 --dist loadfile $(PYTEST_ARGS)

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd xmem_slurm/device/src && ../../../$(BIN)/clang-format --dry-run -Werror *.h */*.h */*.c
	$(BIN)/pylint --disable=all --enable=duplicate-code --min-similarity-lines=8 --ignore-signatures=y xmem_slurm benchmarks
	$(BIN)/shellcheck .ci/* launchers/xsbatch examples/*.sh examples/*/job.sh

docs: .venv/ready
	$(BIN)/zensical build --strict

# A real submission of examples/gpt2 on a lab of its own, drawn; the README's text of it is held to the picture by a test.
capture: export PATH := $(CURDIR)/.venvs/torch-$(TORCH)/bin:$(CURDIR)/$(BIN):$(PATH)
capture: export XMEM_LAB := /tmp/xmem-capture
capture: setup
	trap 'xmem-slurm lab down' EXIT; xmem-slurm lab up --site site-config/example.toml && \
	  SBATCH_OUTPUT=/dev/null XMEM_FRESH=1 xmem-slurm lab exec -- $(BIN)/python docs/capture.py docs/capture.svg xsbatch examples/gpt2/job.sh

# The stand-in libraries under the other releases of torch that are supported.
test-torch-matrix: .venv/ready
	set -e; for version in $(MATRIX); do \
	  $(MAKE) .venvs/torch-$$version/ready; \
	  XMEM_TEST_PYTHON="$(CURDIR)/.venvs/torch-$$version/bin/python" $(BIN)/pytest -m torch tests/integration/test_device_torch.py; \
	done

# Every test with another Slurm (24.11) and Python (3.13), on a Debian 13 of its own; as root.
test-debian-13:
	.ci/on-debian trixie make test PYTEST_ARGS="$(PYTEST_ARGS)"

# What control groups v2 hold a dry run to, under a Linux of its own that has them: Debian's, in an emulator; minutes.
test-cgroup2: .venv/ready
	.ci/on-cgroup2 $(BIN)/pytest -p no:cacheprovider tests/integration/test_control_group.py $(PYTEST_ARGS)

setup: .venv/ready .venvs/torch-$(TORCH)/ready
	.ci/system-packages

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install -q --editable . --group dev
	touch $@

.venvs/torch-%/ready: .ci/job-python
	PYTHON="$(PYTHON)" .ci/job-python $* $(@D)
	touch $@

clean:
	rm -rf .venv .venvs build
