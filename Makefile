# All commands for developers and build machines. `make` without a target lists them.
#
# A fresh Debian machine needs only Python 3.11 or newer and make: each target installs what it needs (.ci/setup) at its
# first call; a stamp file makes later calls instant.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
STAMP := $(VENV)/.ready
LOCKS := requirements-build.lock requirements.lock
SOURCES := .ci/protobuf.py .ci/pythons.py hatch_build.py src tests examples docs/conf.py docs/extensions docs/pictures $(wildcard benchmarks)

# Every test process, and every program that a test starts, imports the same modules. Where Python may not keep what it
# compiled, each of them compiles the sources and rewrites the assertions again: twice the processor time of `quick`.
unexport PYTHONDONTWRITEBYTECODE

# Options for the program behind a target, for example: make test ARGS="tests/store -x"
ARGS ?=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

$(STAMP): .ci/setup pyproject.toml $(LOCKS)
	@.ci/setup venv $(VENV)
	@touch $@ $(VENV)/.speed

# After a change of its sources the accelerator alone is compiled again. A machine without a compiler goes without.
$(VENV)/.speed: $(STAMP) hatch_build.py $(wildcard speed/*)
	@$(VENV)/bin/python hatch_build.py || true
	@touch $@

.PHONY: setup
setup: $(STAMP) $(VENV)/.speed ## make .venv with the locked dependencies and find (or, as root, install) a JVM
	@.ci/setup jvm $(VENV)

.PHONY: demo
demo: setup ## send a year of flights through all parts; ARGS="--flights 20000" for a short run
	@$(VENV)/bin/rucola demo $(ARGS)

# Modules run in the order of their names, so that short ones are last; the tests of a module share servers and a JVM. Tests
# without Spark wait for half of their time, so there is one worker more than cores. When a worker crashes, as with a test that
# hangs (faulthandler_timeout), the run ends and names the test: xdist would wait for ever, or repeat it in worker after worker.
WORKERS := -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist loadfile --max-worker-restart 0
PARALLEL := --maxprocesses 4 --no-loadscope-reorder $(WORKERS)

# The areas are the whole suite, each test once (tests/test_house.py). The times are those of two cores.
TESTS :=
AREAS := test-core test-broker test-client test-faults test-ha test-reliable test-spark test-cli test-e2e
test-core: ## formats, store, remoting, name server, rules of the code: 1.5 minutes
test-core: TESTS := tests/conformance tests/fuzz tests/http2 tests/message tests/namesrv tests/protocol tests/proxy tests/remoting tests/speed \
	tests/store tests/test_accelerator.py tests/test_fastjson.py tests/test_files.py tests/test_house.py tests/test_outages.py \
	tests/test_settings.py
test-broker: ## broker and access control: 1.5 minutes
test-broker: TESTS := tests/acl tests/broker tests/differential tests/test_compatibility.py tests/test_scenarios.py
test-client: ## client, AdminClient and pytest fixtures: 1.5 minutes
test-client: TESTS := tests/admin tests/client tests/testing
test-faults: ## power cuts, kills, damage, full disks, broken networks, simulated clusters: 5 minutes
test-faults: TESTS := tests/chaos tests/faults tests/load/test_soak.py tests/simulation
test-ha: ## elected groups: 2.5 minutes
test-ha: TESTS := tests/coordination tests/load/test_elected_soak.py
test-reliable: ## effects exactly once, on each database: 2 minutes
test-reliable: TESTS := tests/load/test_effects_soak.py tests/reliable
test-spark: ## data source, lake, jobs and demo: 9 minutes
test-spark: TESTS := tests/demo tests/spark
test-cli: ## the command, console, documentation, deployment and packages: 3 minutes
test-cli: TESTS := tests/cli tests/console tests/docs tests/test_package.py tests/test_platforms.py tests/test_readme.py \
	tests/test_setup.py
test-e2e: ## clients of others, in JavaScript, C++ and Python: 1.5 minutes
test-e2e: TESTS := tests/e2e

.PHONY: test $(AREAS)
test: ## run all tests, modules in parallel: 33 minutes; ARGS="tests/store -x" selects some
test $(AREAS): setup
	@.ci/setup node
	@.ci/setup browser
	@.ci/setup databases
	@.ci/setup etcd
	@.ci/setup prometheus
	@$(VENV)/bin/python -m pytest $(PARALLEL) $(TESTS) $(ARGS)

# The markers are described in pyproject.toml; tests/conftest.py sets `external`, and has the profile of hypothesis.
.PHONY: quick
quick: lint ## lint, and on all cores every test that takes neither Spark, another server nor long: about a minute
	@$(VENV)/bin/python -m pytest $(WORKERS) -m "not spark and not external and not slow" --hypothesis-profile quick $(ARGS)

# Versions that are not at hand are named and left out. PYTHONS=/path/to/python:/another adds interpreters.
.PHONY: pythons
pythons: $(STAMP) ## run the core's tests with every other Python from 3.11 to 3.14 that is found here
	@$(VENV)/bin/python .ci/pythons.py $(ARGS)

.PHONY: lint
lint: $(STAMP) ## check style, formatting and types
	@$(VENV)/bin/ruff check $(SOURCES)
	@$(VENV)/bin/ruff format --check $(SOURCES)
	@$(VENV)/bin/mypy

.PHONY: docs
docs: $(STAMP) ## build the documentation site into build/docs; a warning is an error
	@$(VENV)/bin/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

.PHONY: pictures
pictures: setup ## record the pictures of README and tutorials again; ARGS="search" some of them
	@$(VENV)/bin/python docs/pictures/record.py $(ARGS)

.PHONY: bench
bench: setup ## run the benchmarks next to reference figures of the same run; write them as JSON
	@$(VENV)/bin/python benchmarks/run.py $(ARGS)

.PHONY: soak
soak: setup ## clients that join, leave and crash, then a failing network; no acknowledged message may be lost
	@$(VENV)/bin/python benchmarks/soak.py $(ARGS)

.PHONY: soak-reliable
soak-reliable: setup ## orders amid kills, pauses, wiped disks and cut networks; each has its effect exactly once
	@.ci/setup databases
	@$(VENV)/bin/python benchmarks/soak_reliable.py $(ARGS)

.PHONY: soak-ha
soak-ha: setup ## masters killed, stopped and paused a hundred times; no acknowledged message may be lost
	@.ci/setup etcd
	@$(VENV)/bin/python benchmarks/soak_ha.py $(ARGS)

.PHONY: fuzz
fuzz: setup ## mutated input for every parser, store, lake and server, for hours; ARGS="--minutes 600 --only broker"
	@PYTHONPATH=tests $(VENV)/bin/python -m support.fuzz.run $(ARGS)

.PHONY: simulate
simulate: setup ## a whole cluster in simulated time, from a seed; ARGS="--seed 7", "--seeds 1-200", "--hours 8", "--mutations"
	@PYTHONPATH=tests $(VENV)/bin/python -m simulation.cluster $(ARGS)

# Beside the sources, where `make setup` puts it as well.
.PHONY: speed
speed: $(STAMP) ## compile the accelerator again
	@$(VENV)/bin/python hatch_build.py
	@$(VENV)/bin/rucola --version

# After a change of its commits: the messages of gRPC, from the .proto files of RocketMQ and gRPC.
.PHONY: protobuf
protobuf: $(STAMP) ## generate the messages of gRPC again
	@$(VENV)/bin/python .ci/protobuf.py

# The extension checks each access to memory and each operation on numbers, while the comparisons with Python run.
.PHONY: sanitize
sanitize: $(STAMP) ## run the tests of the accelerator with AddressSanitizer and UndefinedBehaviorSanitizer
	@LD_PRELOAD="$$(cc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
		SPEED_FLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" \
		$(VENV)/bin/python -m pytest -p no:cacheprovider --capture=sys tests/speed $(ARGS)

# A lock file contains no addresses or paths, so that only the hashes decide what is installed.
COMPILE := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header

.PHONY: lock
lock: $(STAMP) ## resolve the dependencies again and write the lock files
	@$(VENV)/bin/python -m pip install --quiet uv
	@$(COMPILE) --upgrade --group pyproject.toml:build --output-file requirements-build.lock
	@$(COMPILE) --upgrade --all-extras --constraint requirements-build.lock pyproject.toml \
		--output-file requirements.lock
	@$(COMPILE) --group pyproject.toml:core-tests --constraint requirements.lock pyproject.toml \
		--output-file requirements-core.lock

# Strict: a dependency that the database of vulnerabilities does not answer for counts as a failure.
.PHONY: audit-dependencies
audit-dependencies: $(STAMP) ## look up the locked dependencies in the database of published vulnerabilities
	@$(VENV)/bin/python -m venv build/audit
	@build/audit/bin/python -m pip install --quiet pip-audit
	@build/audit/bin/pip-audit --strict --require-hashes --disable-pip --requirement requirements.lock

# pip fetches the dependencies for each environment.
.PHONY: release-check
release-check: $(STAMP) ## build wheels and sdist, check them, and run the first program from each in an empty environment
	@$(VENV)/bin/python .ci/release_check.py

.PHONY: clean
clean: ## remove the output of tests, builds and the demo; keep .venv
	@rm -rf build dist bench-output demo-output spark-warehouse metastore_db derby.log
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
