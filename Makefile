# Every target builds .venv when it has to: nothing but Python 3.11 or newer and make is needed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test lint format typecheck bench docs wheel slow clean

help: ## print this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

demo: $(READY) ## a Pareto front on real data, into demo-out/ (about a minute)
	$(BIN)/bipareto demo --out demo-out

# One worker per core, each with one thread: small tensors gain nothing from a second.
test: lint typecheck ## everything that must hold: lint, types, import arrows, doctests and tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

lint: $(READY) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY) ## ruff: repair what can be repaired
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(READY) ## mypy --strict on src
	$(BIN)/mypy

bench: $(READY) ## ours beside its alternatives, as ratios: the light suites, into bench-out/
	for suite in startup step front; do $(BIN)/bipareto bench $$suite || exit 1; done

docs: $(READY) ## the documentation as a site that can be searched, in site/
	$(BIN)/sphinx-build -q -W docs site

slow: $(READY) ## the tests marked slow
	$(BIN)/pytest -m slow

wheel: $(READY) ## build the wheel, install it into an empty environment and use it there
	sh scripts/wheel.sh $(BIN)/python

clean: ## remove .venv, caches and what the demo wrote
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist demo-out bench-out site jupyter_execute docs/reference docs/gallery src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first, with its pin, so that no other package can pull in a build of its own choice.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)
