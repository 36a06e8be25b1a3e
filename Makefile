# Everything runs from .venv, which the first target that needs it makes. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready

# Tests and examples run several processes; one thread each keeps them from fighting over the cores.
export OMP_NUM_THREADS ?= 1
# `make test TESTS=tests/test_pace.py` runs a part.
TESTS ?=

.PHONY: .venv demo test test-slow check format bench clean

demo: $(READY)
	$(PY) examples/demo.py

test: $(READY)
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow" $(TESTS)

test-slow: $(READY)
	$(PY) -m pytest -m slow $(TESTS)

check: $(READY)
	$(PY) -m ruff format --check
	$(PY) -m ruff check
	$(PY) -m pyright
	$(PY) -m pytest -q -m "not slow" tests/test_house.py tests/test_pace.py tests/test_config.py tests/test_cli.py $(wildcard tests/logic tests/roles) src/paceline/logic

format: $(READY)
	$(PY) -m ruff format
	$(PY) -m ruff check --fix

bench: $(READY)
	$(PY) benchmarks/coordinator.py
	$(PY) benchmarks/step.py
	$(PY) benchmarks/wire.py
	$(PY) benchmarks/virtual.py --mnist

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist

.venv: $(READY)

$(READY): pyproject.toml requirements/constraints.txt requirements/data.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --editable '.[test,dev]' --constraint requirements/constraints.txt
	$(PY) -m pip install --quiet --no-deps --requirement requirements/data.txt
	touch $(READY)
