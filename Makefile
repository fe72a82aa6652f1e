.PHONY: demo docs test test-unit test-all test-deep check mutation test-engine test-agents bench bench-growth bench-index bench-isolation bench-explain bench-journal bench-dashboard bench-experiment bench-canon bench-overload bench-hostile bench-several bench-silence bench-replay chaos soak format image lock pin-images test-containers

# Without cached bytecode every start compiles the gateway, and every run of the tests rewrites their assertions.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin

demo: .venv/installed
	$(BIN)/prefix-gateway demo

# Packages without I/O: the loop while writing.
test-unit: .venv/installed
	$(BIN)/python -m tests.parts unit

# Without tests marked slow, in parts side by side; `.venv/bin/python -m tests.parts fast PART` runs one part.
test: .venv/installed
	$(BIN)/python -m tests.parts fast

# Every test but the longest, property tests with more examples: what `.ci/run` runs.
test-all: .venv/installed
	$(BIN)/python -m tests.parts all

# The longest tests, and property tests with many examples; a longer run, on its own.
test-deep: .venv/installed
	$(BIN)/python -m tests.parts deep

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.conventions

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Changes the code in 120 places, one at a time, and counts the changes that the tests of `make test` notice; hours.
mutation: .venv/installed
	$(BIN)/python -m tests.mutation

# The documentation site, in build/site; a warning (a link that leads nowhere, a page that no list names) is an error.
docs: .venv/installed
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html -d build/docs docs build/site
	@echo "build/site/index.html"

# Real vLLM with a real model on the CPU; installs about 3.5 GB into the user's cache folder the first time.
test-engine: .venv/installed
	tests/engine/install.sh
	$(BIN)/python -m tests.engine.report
	$(BIN)/python -m pytest -q -m engine tests/evaluation

# Coding agents (npm; about 1.2 GB in AGENTS_HOME, else build/agents) against the gateway with two simulated engines.
test-agents: .venv/installed
	$(BIN)/python -m tests.agents.run

# The gateway's own cost per request, against the bare floor.
bench: .venv/installed
	$(BIN)/python -m benchmarks.overhead

# How the cost grows with prompts, replicas, blocks, streams, conversations and workers. Writes the plots and tables of
# docs/performance.md; a quarter of an hour with these sizes, ten minutes without them.
bench-growth: .venv/installed
	$(BIN)/python -m benchmarks.growth --page docs/performance.md --blocks 100000 1000000 10000000 \
		--conversations 1000 10000 100000 1000000

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

# Whether one tenant can stall the gateway for another one: some 190 attacks, about half an hour.
bench-hostile: .venv/installed
	$(BIN)/python -m benchmarks.hostile

# Eight gateways with one Redis, and without, against one gateway on the same recorded traffic; needs redis-server.
bench-several: .venv/installed
	$(BIN)/python -m benchmarks.several

# What clients notice of a replica that hangs behind passing health checks, and of four slow ones: three minutes.
bench-silence: .venv/installed
	$(BIN)/python -m benchmarks.silence

# Hit shares over sockets against `prefix-gateway simulate`; TRACE=FILE names the trace.
bench-replay: .venv/installed
	$(BIN)/python -m benchmarks.replay $(TRACE)

# Ten minutes in which replicas, gateways and Redis die and stop under load; needs redis-server.
chaos: .venv/installed
	$(BIN)/python -m benchmarks.chaos

# Half an hour of steady, mixed load on one gateway: memory stays flat, and no file descriptor is left behind.
soak: .venv/installed
	$(BIN)/python -m benchmarks.soak

# Whether the intervals of the experiment cover a gain that is planted, in 100 runs.
bench-experiment: .venv/installed
	$(BIN)/python -m benchmarks.experiment

# How soon the dashboard is there in Chromium, and how many bytes it takes.
bench-dashboard: .venv/installed
	$(BIN)/python -m benchmarks.dashboard

# The container image, with docker or podman: the one whose engine answers.
image:
	tool=$$($(PYTHON) -m tests.deploy.container_tool) && $$tool build --tag prefix-gateway:local .

# The packages of the image with their hashes, the newest that pyproject.toml allows.
lock: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' | \
		$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.13 --extra tracing --generate-hashes --no-emit-index-url \
		--no-annotate --custom-compile-command 'make lock' --output-file deploy/container/requirements.lock pyproject.toml -

# The digests of the images that Dockerfile, compose stack and manifests name. Needs their registry, and skopeo or docker.
pin-images:
	$(PYTHON) deploy/pin_images.py

# Builds the image and runs the compose stack on simulated engines, with a real Redis and a real Prometheus. Needs docker,
# or podman with podman-compose (the one whose engine answers), and an image registry.
test-containers: .venv/installed
	$(BIN)/python -m tests.deploy.containers

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5) and "Python 3.11.5 or newer is needed: regular expressions of older ones are faulty. Set PYTHON to another one, such as PYTHON=python3.13")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@
