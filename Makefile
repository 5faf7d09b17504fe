# Everything sets itself up: `make demo` and `make test` work in a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-long lint audit docs package setup clean

demo: $(VENV)/ready
	$(BIN)/python -m bayesncl demo

# a file of tests is one process's; threads rest while they wait: spinning ones take the cores that others need
test: $(VENV)/ready
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-long: $(VENV)/ready
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/mypy

# needs the network and `pip install pip-audit`
audit: $(VENV)/ready
	$(BIN)/python -m pip_audit --strict --no-deps --disable-pip --requirement constraints.txt

docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

package:
	.ci/package

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "bayesncl needs Python 3.11 or newer; make PYTHON=python3.12 ... names another"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[demo,dev,docs,faiss,heic,hub,onnx,tables,tensorboard]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
