# Every target works in a local .venv and needs only Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
# The core is also tested without its extras, and with the oldest supported versions of its dependencies.
CORE_TESTS := $(filter-out %_docs.py %_examples.py %_perf.py %_onnx.py %_recipes.py %_wheel.py %_site.py %_evidence.py %_summary.py,$(wildcard tests/test_*.py)) tests/data tests/regression tests/decisions tests/scores
LOWEST := numpy==1.26.* scipy==1.11.* threadpoolctl==3.5.* pyarrow==15.*

.PHONY: help demo test test-plain test-slow test-pythons test-lowest test-sanitized check format results pages perf docs wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/bench.stamp  ## install truing, print the table of methods on real features, write truing-demo.html
	$(BIN)/truing demo -o truing-demo.html

# pytest starts one process per core, so every process uses one BLAS thread. Slow tests use the default.
test: .venv/dev.stamp .venv-clients/stamp  ## install what the tests need, and run all tests that are not marked slow
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto -m "not slow"

test-plain: .venv/dev.stamp  ## run the tests of the core with NumPy instead of the compiled kernels
	TRUING_KERNELS=plain $(BIN)/pytest --numprocesses auto -m "not slow" $(CORE_TESTS) tests/contrast

test-slow: .venv/slow-tests.stamp .venv-clients/stamp  ## run the tests marked slow
	$(BIN)/pytest --numprocesses auto -m slow

test-pythons:  ## run the tests of the core on every installed Python from 3.11 to 3.14
	@for python in python3.11 python3.12 python3.13 python3.14; do \
	  if $$python --version > /dev/null 2>&1; then $(MAKE) .venv-core CORE=.venv-$$python PYTHON=$$python LOWEST= || exit 1; \
	  else echo "$$python not found, skipped"; fi; done

test-lowest:  ## run the tests of the core with the oldest supported dependencies
	$(MAKE) .venv-core CORE=.venv-lowest

test-sanitized: .venv/dev.stamp  ## test the compiled kernels with the sanitizers of gcc or clang
	.ci/sanitized

.PHONY: .venv-core
.venv-core:
	test -x $(CORE)/bin/python || $(PYTHON) -m venv $(CORE)
	$(CORE)/bin/pip install --quiet --editable ".[core-tests]" $(LOWEST)
	$(CORE)/bin/pytest -m "not slow" $(CORE_TESTS)

check: .venv/dev.stamp  ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/dev.stamp  ## format the code, and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

results: .venv/evidence.stamp  ## measure everything that the documentation shows, in about 35 minutes; ARGS=--again starts over
	$(BIN)/python -m evidence.run $(ARGS)

pages: .venv/evidence.stamp  ## fill the pages of the documentation from the stored rows
	$(BIN)/python -m evidence.pages

perf: .venv/evidence.stamp  ## run the benchmarks alone, on a quiet machine
	$(BIN)/python -m perf

docs: .venv/docs.stamp  ## build the documentation site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: .venv-wheel/stamp  ## build the wheel and the sdist of the last commit in dist/, and try them on every Python
	.ci/wheel

clean:  ## remove build outputs
	rm -rf .venv .venv-* build dist site truing-demo.html src/truing/_kernels/*.so src/*.egg-info

.venv/%.stamp: pyproject.toml constraints.txt src/truing/_kernels/compiled.c
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

# pytorch-ood asks for torchvision, which no detector here uses.
.venv/evidence.stamp: pyproject.toml constraints.txt src/truing/_kernels/compiled.c
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[evidence]"
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps pytorch-ood
	touch $@

# The clients of the service need other versions of packages than truing, so they have their own environment.
.venv-clients/stamp: clients.txt
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --constraint clients.txt "tritonclient[grpc,http]" kserve
	touch $@

.venv-wheel/stamp: constraints.txt
	test -x .venv-wheel/bin/python || $(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --quiet --constraint constraints.txt auditwheel build twine
	touch $@
