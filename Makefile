# Everything happens in a local .venv; Python 3.11 or newer is all that is needed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow check format perf pages clean

demo: .venv/bench.stamp
	$(BIN)/truing demo -o truing-demo.html

test: .venv/dev.stamp
	$(BIN)/pytest -m "not slow"

test-slow: .venv/dev.stamp
	$(BIN)/pytest -m slow

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

perf: .venv/perf.stamp
	for script in perf/[a-z]*.py; do $(BIN)/python $$script || exit 1; done

# The pages of the committed rows: the report, every table, and docs/reproduce.md from its template.
pages: .venv/bench.stamp
	$(BIN)/truing bench report docs/results/rows -o docs/results/report.html --tables docs/results/tables.md
	$(BIN)/python -m truing.bench.report.fill docs/reproduce.md.in docs/results/rows docs/reproduce.md

clean:
	rm -rf .venv truing-demo.html

.venv/%.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable ".[$*]"
	touch $@
