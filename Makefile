.PHONY: demo test test-processes test-rest check test-engine bench bench-index bench-isolation bench-explain bench-journal bench-dashboard bench-canon format

PYTHON ?= python3
BIN := .venv/bin

demo: .venv/installed
	$(BIN)/prefix-gateway demo

# Two halves side by side, each about one core's worth; the one that starts whole processes (a gateway for every scenario,
# the demo, browsers, Prometheus) waits most of the time and gives way to the other. Where requests are sent depends on
# what answers take, so tests of that have the machine for themselves in the end.
STARTS_PROCESSES := tests/scenarios tests/browser tests/observability tests/demo
TAKES_TIMES := $(addprefix tests/gateway/test_,shared_engines.py routing.py isolation_prefill.py hot_prefixes.py)

test: .venv/installed
	$(MAKE) --no-print-directory --jobs=2 test-processes test-rest
	$(BIN)/pytest $(TAKES_TIMES)

test-processes: .venv/installed
	nice $(BIN)/pytest $(STARTS_PROCESSES)

test-rest: .venv/installed
	$(BIN)/pytest tests $(patsubst %,--ignore=%,$(STARTS_PROCESSES) $(TAKES_TIMES))

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Real vLLM with a real model on the CPU; installs about 3.5 GB into the user's cache folder the first time.
test-engine: .venv/installed
	tests/engine/install.sh
	$(BIN)/python -m tests.engine.report

# The gateway's own cost per request, against the bare floor.
bench: .venv/installed
	$(BIN)/python -m benchmarks.overhead

# Memory and look-up time of the index with up to ten million blocks; takes some minutes and 2 GB.
bench-index: .venv/installed
	$(BIN)/python -m benchmarks.index

# Whether one tenant can tell by the time an answer takes that another one sent the same prompt.
bench-isolation: .venv/installed
	$(BIN)/python -m benchmarks.isolation

# What the rules of canonicalization cost, each alone, all together, and a whole gateway with them.
bench-canon: .venv/installed
	$(BIN)/python -m benchmarks.canon

# What it costs to explain requests, in the gateway's process and beside it, and what requests notice of it.
bench-explain: .venv/installed
	$(BIN)/python -m benchmarks.explain

# What the admin port's questions take with a full journal, alone and while requests come in.
bench-journal: .venv/installed
	$(BIN)/python -m benchmarks.journal

# How soon the dashboard is there in Chromium, and how many bytes it takes.
bench-dashboard: .venv/installed
	$(BIN)/python -m benchmarks.dashboard

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@
