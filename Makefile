# make demo   install into .venv, fit a forecaster on a real table, predict, say which rows are strange
# make test   install what the tests need, run all of them
# make lint   style, types, the ladder of imports
# make warm   compile the kernels for this machine
# make bench  every benchmark in turn, which takes a day or more; figures go to bench/results
# make map    write the map of files into README.md
#
# PYTHON names the interpreter that .venv is made from (3.11 or newer).

PYTHON ?= python3
BIN := .venv/bin
DATA := examples/data/beijing-air.csv.xz

.PHONY: demo test lint warm bench map clean

# --force, so that the demo can be run again: it replaces its own runs/air, forecast.csv and novelty.csv.
demo: .venv/.user
	$(BIN)/conca fit $(DATA) --target pm2.5 --time time --horizon 24 --out runs/air --force
	$(BIN)/conca predict runs/air $(DATA) --out forecast.csv --force
	$(BIN)/conca score runs/air $(DATA) --rows --out novelty.csv --force

# Two processes; what they would both compile is compiled before.
test: .venv/.developer .cache/data/typeseg warm
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: .venv/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

warm: .venv/.developer
	$(BIN)/python -c "from conca import kernels; kernels.warm(processes=2)"

bench: .venv/.developer
	@failed=; for file in $$(grep -l __main__ bench/*.py); do \
	  echo "$$file"; $(BIN)/python "$$file" || failed="$$failed $$file"; \
	done; test -z "$$failed" || { echo "these failed:$$failed"; exit 1; }

clean:
	rm -rf .venv

.venv/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "conca needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.user: .venv/.python constraints.txt pyproject.toml
	@echo "Installing into .venv, which takes a minute or two"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]"
	touch $@

.venv/.developer: .venv/.python constraints.txt pyproject.toml
	@echo "Installing into .venv, which takes a minute or two"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all,dev]"
	touch .venv/.user $@

# A published model whose numbers the tests compare; its dependencies are not wanted.
.cache/data/typeseg: | .venv/.developer
	$(BIN)/python -m pip install --quiet --no-deps --target .cache/data typeseg==0.2.7

map: .venv/.developer
	$(BIN)/python tests/test_house.py
