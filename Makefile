# Run stagepipe from a fresh clone. Requires Linux, git, make, and Python 3.11 or newer with its venv module. Everything
# else is installed into .venv. To use another Python than python3:  make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
BUILT_FROM := pyproject.toml hatch_build.py stagepipe/transport/_native.c
IMAGES ?= 2000
MINUTES ?= 20
# Processes that run tests. Two a core, as tests wait for processes and clocks half of their time.
JOBS ?= $(shell echo $$((2 * $$(nproc) < 8 ? 2 * $$(nproc) : 8)))
PIPELINES ?= 2000
BASE ?=
KILLS ?= 2000
HISTORIES ?= 1000

.DELETE_ON_ERROR:  # an interrupted set-up runs again
ifndef PARALLEL  # set where all that runs at once is installed
.NOTPARALLEL:
endif

# Images of containers often set it. Then each of a thousand processes compiles torch and all else: 2 s more to import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-quick test-wheel test-doctests test-slow coverage chaos kills histories properties soak
.PHONY: check check-code check-types check-docs docs verdicts bench bench-check bench-full bench-servers clean
help:
	@echo "make demo           run 2,000 photographs through four processes and print the report"
	@echo "make test           run the checks, test-wheel, and all tests except the slow ones: JOBS=4 at once"
	@echo "make test-quick     run the core's unit tests: about a minute"
	@echo "make test-slow      run the slow tests"
	@echo "make test-wheel     build the wheel, install it into a clean environment, run a pipeline"
	@echo "make coverage       run the unit and integration tests and print their coverage"
	@echo "make chaos          kill the workers of random pipelines, compare with undisturbed runs: MINUTES=20"
	@echo "make properties     run random pipelines in several ways, compare their values: PIPELINES=2000"
	@echo "make kills          kill workers of random pipelines until so many have died: KILLS=2000; half an hour"
	@echo "make histories      let the workers of random small pipelines come and go, and kill some: HISTORIES=1000"
	@echo "make soak           kill the workers of one long pipeline, check that memory stays flat: MINUTES=20"
	@echo "make check          run ruff, mypy, import-linter and deptry, and build the documentation"
	@echo "make docs           update the generated tables of the documentation and build its site in site/"
	@echo "make verdicts       run 60 small pipelines, check their verdicts: some ten minutes"
	@echo "make bench          rerun five published experiments with all mechanisms; some 15 minutes"
	@echo "make bench-check    compare what an item costs with the last tag, or a week before: BASE=COMMIT for another; three minutes"
	@echo "make bench-full     the same with the largest payloads; hours, and 20 GB of memory"
	@echo "make bench-servers  install the brokers and MPI for some of them; requires apt and root"
	@echo "make clean          remove caches and builds; .venv, data/ and runs/ stay"

demo: .venv/.demo
	$(BIN)/python scripts/make_images.py --count $(IMAGES) --out data/images
	$(BIN)/stagepipe run configs/quickstart.yaml --report runs/quickstart.json

test: .venv/.test
	$(MAKE) --no-print-directory --jobs=2 --output-sync PARALLEL=yes check test-wheel test-doctests
	$(BIN)/python -m pytest -m "not slow" --numprocesses $(JOBS)

test-quick: .venv/.test
	$(BIN)/python -m pytest --quiet -m "not slow" --numprocesses $(JOBS) tests/unit $(addprefix --ignore=tests/unit/,torch bench calibration)

test-wheel: .venv/.test
	$(BIN)/python scripts/check_wheel.py

test-doctests: .venv/.test
	$(BIN)/python -m pytest --quiet --doctest-modules stagepipe

coverage: .venv/.test
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --quiet -m "not slow" tests/unit tests/integration
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

test-slow: .venv/.test
	$(BIN)/python -m pytest -m slow

chaos: .venv/.test
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

properties: .venv/.test
	$(BIN)/python -m tests.properties --pipelines $(PIPELINES)
kills: .venv/.test
	$(BIN)/python -m tests.chaos --kills $(KILLS)

histories: .venv/.test
	$(BIN)/python -m tests.chaos --histories $(HISTORIES) --jobs 2

soak: .venv/.test
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES)

check: check-code check-types check-docs

check-code: .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/deptry stagepipe --optional-dependencies-dev-groups demo,examples,test,docs,check,bench
	$(BIN)/deptry . $(wildcard benchmarks examples examples/*/ configs)

check-types: .venv/.test
	$(BIN)/mypy $(wildcard stagepipe benchmarks scripts)

check-docs: .venv/.test
	$(BIN)/python -m scripts.build_docs

docs: .venv/.test
	$(BIN)/python -m scripts.build_docs --update

verdicts: .venv/.test
	$(BIN)/python -m benchmarks.verdicts.grid --json runs/grid.json

bench: .venv/.bench
	$(BIN)/python -m benchmarks.published
	$(BIN)/python -m benchmarks.published.make_page

bench-check: .venv/.test
	$(BIN)/python -m benchmarks.guard --base '$(BASE)'

bench-full: .venv/.bench
	$(BIN)/python -m benchmarks.published --full --json runs/published-full.json
	$(BIN)/python -m benchmarks.published.make_page runs/published-full.json runs/benchmarks-full.md

bench-servers: | $(BIN)/python
	$(BIN)/python scripts/install_servers.py

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache build dist site
	find $(wildcard stagepipe tests scripts benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: runs only if a stamp (.venv/.demo, .bench, .test) is missing or older than what is built ---------------

.venv/.demo: $(BUILT_FROM) | $(BIN)/python
	$(call install,.[demo])
	@touch $@

.venv/.bench: $(BUILT_FROM) | $(BIN)/python
	$(call install,.[bench])
	@touch $@

# The extra `test` contains `demo`.
.venv/.test: $(BUILT_FROM) | $(BIN)/python
	$(call install,.[test$(,)check])
	@touch .venv/.demo $@

, := ,

# uv installs several times faster than pip. If uv cannot be installed, or cannot reach the index (it does not read pip's
# configuration of mirrors), pip installs instead. uv trusts the machine's own certificates, as pip does.
export UV_SYSTEM_CERTS := 1
define install
@if $(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet uv; then \
  $(BIN)/python -m uv pip install --python $(BIN)/python --editable '$(1)' && exit 0; \
fi; \
echo "set-up: uv failed, continuing with pip"; \
$(BIN)/python -m pip install --editable '$(1)'
endef

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
  echo "set-up: $(PYTHON) not found; stagepipe requires Python 3.11 or newer (make ... PYTHON=/path/to/python)"; \
  exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "set-up: stagepipe requires Python 3.11 or newer, but $(PYTHON) is $$("$(PYTHON)" -V 2>&1)."; \
  echo "        Choose a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; \
  exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
  echo "set-up: $(PYTHON) has no venv module; install it (Debian and Ubuntu: apt install python3-venv)"; \
  exit 1; }
	"$(PYTHON)" -m venv .venv
