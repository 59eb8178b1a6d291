# The two commands of the README are `make demo` and `make test`; everything else is for those who work on Millstream.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The CPU build of torch and tested versions of everything else; on a machine with a GPU: make test CONSTRAINTS=
CONSTRAINTS ?= $(if $(wildcard /dev/nvidia0),,-c .ci/constraints.txt)

# Demonstration and tests start hundreds of processes: each would compile all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check slow bench clean

$(VENV)/.done: pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(CONSTRAINTS) -e '.[dev]'
	touch $@

# Prepares a corpus from Python's own library, mixes it with a converted legacy pair, stops and resumes on another number of ranks; then trains on it
# in PyTorch and in JAX, each killed half-way and resumed on another number of ranks. Two to five minutes on 2 cores, according to how busy they are.
demo: $(VENV)/.done
	$(BIN)/python examples/demo.py demo

# Two processes, a file's tests in one of them.
test: $(VENV)/.done
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# Format, lint, types and import rules: under 30 seconds.
check: $(VENV)/.done
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Long proofs: many kills, gigabytes, fuzzing; what they print is shown.
slow: $(VENV)/.done
	$(BIN)/python -m pytest -q -m slow -raP

bench: $(VENV)/.done
	$(BIN)/python benchmarks/read.py

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
