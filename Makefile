# make demo: environment, the main job, the comparison table.   make test: environment, tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SWEEP := policy/accounting=eager,lazy,shared_atomic

.PHONY: demo test services quick lint bench charts lock clean

$(VENV)/.run: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.lock
	touch $@

demo: $(VENV)/.run
	$(BIN)/zexp run -m experiment=munmap_24g $(SWEEP)
	@printf '\nThe same three designs predicted for this very host, 512 MiB:\n\n'
	$(BIN)/zexp run -m experiment=munmap_24g machine=host workload.total_size=512MiB $(SWEEP)
	@printf '\nMany kswapds and one lock: 60 s of a reclaim storm, flushed at once and rate-limited:\n\n'
	$(BIN)/zexp run -m experiment=zswap_shrinker_flush policy/flush=sync,ratelimited
	@printf '%s\n' '' 'Where to look next:' \
	  '  $(BIN)/zexp ui                                  the runs in MLflow, on 127.0.0.1' \
	  '  $(BIN)/zexp show last                           the last run in the terminal' \
	  '  $(BIN)/zexp explain experiment=munmap_24g       the staged program, with costs' \
	  '  $(BIN)/zexp list                                what else can be composed' \
	  '  experiments/munmap_24g/README.md            what was found, for 1 to 192 processes' \
	  '  experiments/zswap_shrinker_flush/README.md  where reclaim storms break, and what staleness costs'

test: lint
	$(BIN)/python -m pytest -n 2

# needs what .ci/services installs
services: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-services.lock
	$(BIN)/python -m pytest -o addopts="" -q -p no:cacheprovider tests/services

quick: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m pytest tests/bench -m bench -s

charts: $(VENV)/.run
	$(BIN)/python experiments/munmap_24g/charts.py
	$(BIN)/python experiments/zswap_shrinker_flush/charts.py

lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate pyproject.toml -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra dev --extra bench --extra joblib --extra optuna pyproject.toml -c requirements.lock -o requirements-dev.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --extra slurm --extra postgres --extra browser pyproject.toml -c requirements-dev.lock -o requirements-services.lock

clean:
	rm -rf $(VENV) dist build .hypothesis .mypy_cache .ruff_cache
