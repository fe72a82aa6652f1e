.PHONY: demo test test-processes test-sockets test-failures test-texts test-rest check test-engine bench bench-index bench-isolation bench-explain bench-journal bench-dashboard bench-canon bench-overload bench-hostile bench-several chaos soak format image test-containers

PYTHON ?= python3
BIN := .venv/bin

demo: .venv/installed
	$(BIN)/prefix-gateway demo

# Five parts side by side for two cores: those that start whole processes (a gateway for every scenario, the demo, browsers,
# Prometheus); the gateway over sockets, and what fails, comes, goes and ends there, which both wait much of their time; and the
# rest in two halves, which waits for nothing and gives way to the others. Where requests are sent depends on what answers take,
# so tests of that have the machine for themselves in the end.
STARTS_PROCESSES := tests/scenarios tests/browser tests/observability tests/demo
FAILS := tests/state tests/discovery tests/workers $(addprefix tests/gateway/test_,workers.py stopping.py discovery.py \
  replicas_come_and_go.py shared_state.py shared_past.py shared_figures.py draining.py slow_clients.py reload.py command_line.py)
TEXTS := tests/canon tests/settle
TAKES_TIMES := $(addprefix tests/gateway/test_,shared_engines.py routing.py isolation_prefill.py hot_prefixes.py overload.py)
ignored = $(patsubst %,--ignore=%,$(1))

test: .venv/installed
	$(MAKE) --no-print-directory --jobs=5 test-processes test-sockets test-failures test-texts test-rest
	$(BIN)/pytest $(TAKES_TIMES)

test-processes: .venv/installed
	$(BIN)/pytest $(STARTS_PROCESSES)

test-sockets: .venv/installed
	$(BIN)/pytest tests/gateway $(call ignored,$(FAILS) $(TAKES_TIMES))

test-failures: .venv/installed
	$(BIN)/pytest $(FAILS)

test-texts: .venv/installed
	nice --adjustment=10 $(BIN)/pytest $(TEXTS)

test-rest: .venv/installed
	$(BIN)/pytest tests $(call ignored,tests/gateway $(STARTS_PROCESSES) $(FAILS) $(TEXTS))

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

# What a tenant notices of another one's flood, with the queue and without, and what the queue costs otherwise.
bench-overload: .venv/installed
	$(BIN)/python -m benchmarks.overload

# What a normal client notices of ten thousand idle connections, slow requests, huge bodies and bombs.
bench-hostile: .venv/installed
	$(BIN)/python -m benchmarks.hostile

# Eight gateways with one Redis, and without, against one gateway on the same recorded traffic; needs redis-server.
bench-several: .venv/installed
	$(BIN)/python -m benchmarks.several

# Ten minutes in which replicas, gateways and Redis die and stop under load; needs redis-server.
chaos: .venv/installed
	$(BIN)/python -m benchmarks.chaos

# Half an hour of steady, mixed load on one gateway: memory stays flat, and no file descriptor is left behind.
soak: .venv/installed
	$(BIN)/python -m benchmarks.soak

# How soon the dashboard is there in Chromium, and how many bytes it takes.
bench-dashboard: .venv/installed
	$(BIN)/python -m benchmarks.dashboard

# The container image, with docker or podman.
image:
	$$(command -v docker || command -v podman) build --tag prefix-gateway:local .

# Builds the image and runs the compose stack on simulated engines, with a real Redis and a real Prometheus. Needs docker,
# or podman with podman-compose, and an image registry.
test-containers: .venv/installed
	$(BIN)/python -m tests.deploy.containers

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@
