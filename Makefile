# stagepipe from a fresh clone. Needs Linux, git, make, and Python 3.11 or newer with its venv module; everything else
# is put into .venv here. To use another Python than python3:  make test PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
IMAGES ?= 2000
MINUTES ?= 20

.DELETE_ON_ERROR:  # an interrupted set-up starts again
.NOTPARALLEL:

.PHONY: help demo test test-slow chaos soak check bench bench-full bench-servers clean
help:
	@echo "make demo       2,000 real photographs through four processes: the hop table and the verdict"
	@echo "make test       the checks and every test but the slow ones"
	@echo "make test-slow  the slow tests"
	@echo "make chaos      random pipelines, their workers killed, against the plain run: MINUTES=20"
	@echo "make soak       one long pipeline, its workers killed now and then: memory stays flat"
	@echo "make check      ruff, mypy, import-linter"
	@echo "make bench      five published experiments, all mechanisms beside stagepipe; some 15 minutes"
	@echo "make bench-full the same with the largest payloads; hours, and 20 GB of memory"
	@echo "make bench-servers  installs the brokers and MPI that some of it needs, where apt and root are"
	@echo "make clean      remove caches and builds; .venv, data/ and runs/ stay"

demo: .venv/.demo
	$(BIN)/python scripts/make_images.py --count $(IMAGES) --out data/images
	$(BIN)/stagepipe run configs/quickstart.yaml --report runs/quickstart.json

test: check
	$(BIN)/python -m pytest --quiet --doctest-modules src
	$(BIN)/python -m pytest -m "not slow"

test-slow: .venv/.test
	$(BIN)/python -m pytest -m slow

chaos: .venv/.test
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

soak: .venv/.test
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES)

check: .venv/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(wildcard src benchmarks scripts)
	$(BIN)/lint-imports

bench: .venv/.bench
	$(BIN)/python benchmarks/published.py
	$(BIN)/python benchmarks/page.py

bench-full: .venv/.bench
	$(BIN)/python benchmarks/published.py --full --json runs/published-full.json
	$(BIN)/python benchmarks/page.py runs/published-full.json runs/benchmarks-full.md

bench-servers: | $(BIN)/python
	$(BIN)/python scripts/install_servers.py

clean:
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find $(wildcard src tests scripts benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: nothing happens while the stamps .venv/.demo, .bench and .test are newer than pyproject.toml --------------

.venv/.demo: pyproject.toml | $(BIN)/python
	$(call install,.[demo])
	@touch $@

.venv/.bench: pyproject.toml | $(BIN)/python
	$(call install,.[bench])
	@touch $@

# The extra `test` contains `demo`.
.venv/.test: pyproject.toml | $(BIN)/python
	$(call install,.[test$(,)check])
	@touch .venv/.demo $@

, := ,

# uv installs several times faster than pip. Where it cannot be had, or does not get through (it does not read pip's
# configuration of mirrors), pip does the work. The machine's own certificates are trusted, as pip does.
export UV_SYSTEM_CERTS := 1
define install
@if $(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet uv; then \
  $(BIN)/python -m uv pip install --python $(BIN)/python --editable '$(1)' && exit 0; \
fi; \
echo "set-up: uv did not do it, going on with pip"; \
$(BIN)/python -m pip install --editable '$(1)'
endef

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { \
  echo "set-up: there is no $(PYTHON) here; stagepipe needs Python 3.11 or newer (make ... PYTHON=/path/to/it)"; \
  exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "set-up: stagepipe needs Python 3.11 or newer, and $(PYTHON) is $$("$(PYTHON)" -V 2>&1)."; \
  echo "        Name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; \
  exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
  echo "set-up: $(PYTHON) has no venv module; install it (Debian and Ubuntu: apt install python3-venv)"; \
  exit 1; }
	"$(PYTHON)" -m venv .venv
