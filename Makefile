# make demo: the whole way once, on a throw-away Slurm cluster.   make lint: style, types, layers.
# make test: every test but the slow ones that are not due (tests/harness/rotation.py).   make test-all: every test.
# make docs: the documentation as a site, in build/docs.   make capture: docs/capture.svg, a terminal of today.
# make coverage: which lines the unit tests reach.   make changelog [VERSION=x.y.z]: the news since the last version.
SHELL := /bin/bash
PYTHON ?= python3
TORCH ?= 2.11.0
MATRIX := 2.4.1 2.6.0 2.8.0 2.15.0
BIN := .venv/bin
JOB_PYTHON = .venvs/torch-$(TORCH)/bin/python

.PHONY: demo test test-all lint docs tree capture coverage changelog setup test-torch-matrix test-debian-13 test-installed test-cgroup2 clean

demo: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo.sh "$(CURDIR)/.venvs/torch-$(TORCH)"

test: ROTATE := --rotate
test test-all: setup .venvs/trainers-$(TORCH)/ready
	.ci/system-packages test
	XMEM_TEST_PYTHON="$(CURDIR)/$(JOB_PYTHON)" XMEM_TEST_TRAINERS="$(CURDIR)/.venvs/trainers-$(TORCH)/bin/python" \
	  $(BIN)/pytest -n 3 --dist loadfile $(ROTATE) $(PYTEST_ARGS)

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -c 'import sys; sys.path[:0] = ["", "xmem_slurm/probe"]; import importlinter.cli as c; c.lint_imports_command()'
	cd xmem_slurm/device/src && ../../../$(BIN)/clang-format --dry-run -Werror *.h */*.h */*.c
	$(BIN)/pylint --disable=all --enable=duplicate-code --min-similarity-lines=8 --ignore-signatures=y xmem_slurm benchmarks
	$(BIN)/shellcheck .ci/* launchers/xsbatch examples/*.sh examples/*/job.sh

# Which lines the unit tests reach, in build/coverage.txt; of the probe, which runs in the job's Python, it could say little.
# What a child was still writing of its count when its parent ended is left out ("Error reading").
# slipcover's count costs a twentieth; coverage's more than doubles the time on Python 3.11, which has no sys.monitoring.
coverage: .venv/ready
	mkdir -p build
	$(BIN)/python -m slipcover --source xmem_slurm --omit 'xmem_slurm/probe/*' --missing-width 60 --out build/coverage.txt \
	  -m pytest -q -W ignore::pytest.PytestAssertRewriteWarning -W "ignore:Error reading:UserWarning" tests/unit
	@# A child that went to / counts its lines under another path, as not reached: those rows are left out.
	@awk '$$1 ~ "^xmem_slurm/" {lines += $$2; missed += $$3} END {print "Unit tests: of " lines \
	  " lines they reach " lines - missed ", " int(100 - 100 * missed / lines) " %"}' build/coverage.txt

docs: .venv/ready
	$(BIN)/zensical build --strict

# The tree of docs/architecture.md, from the rules of imports and what each module says of itself.
tree:
	$(PYTHON) docs/tree.py

# A real submission of examples/gpt2 on a lab of its own, drawn; the README's text of it is held to the picture by a test.
capture: export PATH := $(CURDIR)/.venvs/torch-$(TORCH)/bin:$(CURDIR)/$(BIN):$(PATH)
capture: export XMEM_LAB := /tmp/xmem-capture
capture: setup
	trap 'xmem-slurm lab down' EXIT; xmem-slurm lab up --site site-config/example.toml && \
	  SBATCH_OUTPUT=/dev/null XMEM_FRESH=1 xmem-slurm lab exec -- $(BIN)/python docs/capture.py docs/capture.svg xsbatch examples/gpt2/job.sh

# With a VERSION the news become its entry in CHANGELOG.md, and it the version: of the package and in the man page.
changelog: .venv/ready
ifdef VERSION
	sed -i 's/^__version__ = .*/__version__ = "$(VERSION)"/' xmem_slurm/__init__.py
	$(BIN)/towncrier build --yes --version "$(VERSION)"
	$(BIN)/python -m xmem_slurm.cli.pages
else
	$(BIN)/towncrier build --draft --version next
endif

# The stand-in libraries, and calls that are skipped, under the other releases of torch that are supported.
test-torch-matrix: .venv/ready
	set -e; for version in $(MATRIX); do \
	  $(MAKE) .venvs/torch-$$version/ready; \
	  XMEM_TEST_PYTHON="$(CURDIR)/.venvs/torch-$$version/bin/python" $(BIN)/pytest -m torch \
	    tests/integration/device/test_device_torch.py tests/integration/probe/test_fast_forward.py; \
	done

# Every test with another Slurm (24.11) and Python (3.13), on a Debian 13 of its own; as root.
test-debian-13:
	.ci/on-debian trixie make test-all PYTEST_ARGS="$(PYTEST_ARGS)"

# The wheel and the sdist on a bare Debian 12, 13 and testing, as their first user has them; as root, some minutes.
test-installed:
	for release in bookworm trixie forky; do .ci/on-debian $$release .ci/installed || exit 1; done

# What control groups v2 hold a dry run to, under a Linux of its own that has them: Debian's, in an emulator; minutes.
test-cgroup2: .venv/ready
	.ci/on-cgroup2 $(BIN)/pytest -p no:cacheprovider tests/integration/sandbox/test_control_group.py $(PYTEST_ARGS)

setup: .venv/ready .venvs/torch-$(TORCH)/ready
	.ci/system-packages

.venv/ready: pyproject.toml
	@echo "setting up .venv, the tools: 0.3 GB on disk, a minute or two" >&2
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install -q --editable . --group dev
	touch $@

.venvs/torch-%/ready: .ci/job-python
	@echo "setting up $(@D), a job's Python with torch $*: 2.3 GB on disk, some minutes" >&2
	PYTHON="$(PYTHON)" .ci/job-python $* $(@D)
	touch $@

.venvs/trainers-%/ready: .ci/job-trainers .venvs/torch-%/ready
	@echo "setting up $(@D), the trainers of others over that Python: 0.7 GB on disk, a minute or two" >&2
	.ci/job-trainers .venvs/torch-$* $(@D)
	touch $@

clean:
	rm -rf .venv .venvs build
