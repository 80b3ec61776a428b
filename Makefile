# One command a task; `make` lists them. Everything below needs only this file's `setup`, which runs by itself.
SHELL := /bin/sh
PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin
export PATH
VENV := .venv
PY := $(VENV)/bin/python
UV := $(VENV)/bin/uv
COMPILE := pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
# The script that `make vm` runs, and where it may leave files.
RUN ?= ipvsadm -Ln
OUT ?= build/shell

.DEFAULT_GOAL := help
.PHONY: help setup demo check lint chart image test test-long bench golden-update format vm lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: requirements-build.txt requirements-dev.txt pyproject.toml tests/lab/setup.sh
	@sh tests/lab/setup.sh $(VENV)

setup: $(VENV)/.ready ## make .venv with ipvsproxy in it, after installing what the system lacks

demo: setup ## show ipvsproxy at work in a kernel with IPVS
	@$(PY) tests/lab/demo.py

check: lint ## format, lint, types, layers, workflows and pure tests: no root, a minute or two
	@$(PY) tests/lab/stages.py pure

lint: setup ## format, lint, types, layers and workflows
	@echo "== ruff"; $(PY) -m ruff format --check --quiet . && $(PY) -m ruff check --quiet .
	@echo "== mypy"; $(PY) -m mypy
	@echo "== import-linter"; $(VENV)/bin/lint-imports --no-logo
	@echo "== zizmor"; $(VENV)/bin/zizmor --offline --pedantic --quiet .github

chart: setup ## check the chart with Helm 3 and 4: lint, goldens, refusals, schemas, installs on a real control plane
	@$(PY) tests/lab/stages.py chart

image: setup ## build the image without an image registry (root, mmdebstrap, buildah), and print its size
	@$(PY) tests/lab/image.py

test: lint ## check, then the tests that need an API server or a kernel with IPVS (in a VM where this one has none)
	@$(PY) tests/lab/stages.py pure kube netfilter api vm

test-long: lint ## all of test and chart, the real kube-proxy, every cell of docs/snat.md, and docs/performance.md counted anew
	@$(PY) tests/lab/stages.py pure chart kube netfilter api api-long vm vm-long figures

bench: setup ## count what it costs, in instructions, and compare with tests/perf/figures.json
	@$(PY) tests/lab/bench.py

golden-update: setup ## rewrite golden files, tables of docs, schemas, completions, manual, chart's values from what the code says; review the diff
	@$(PY) -m pytest tests/golden --golden-update
	@$(PY) tests/tables/pages.py
	@$(PY) tests/tables/screens.py
	@$(PY) tests/tables/shell_files.py
	@$(PY) tests/tables/chart.py
	@$(PY) tests/chart/cases.py
	@$(PY) -m ipvsproxy.config.schema
	@$(PY) -m ipvsproxy.status.document
	@$(PY) -m ipvsproxy.inspect.document

format: setup ## format the code and fix what ruff can fix
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format --quiet .

vm: setup ## run a shell command as root beside a kernel with IPVS: make vm RUN='ipvsadm -Ln' [OUT=folder]
	@$(PY) tests/lab/machine.py --auto --out $(OUT) -- sh -c '$(RUN)'

lock: setup ## rewrite the requirements files from pyproject.toml, newest allowed versions
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| $(UV) $(COMPILE) --upgrade --output-file requirements-build.txt -
	@$(UV) $(COMPILE) --upgrade --output-file requirements.txt pyproject.toml
	@$(UV) $(COMPILE) --upgrade --extra dev --constraint requirements.txt --output-file requirements-dev.txt pyproject.toml

clean: ## remove what the other targets made, .venv too
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find ipvsproxy tests -name __pycache__ -type d -prune -exec rm -rf {} +
