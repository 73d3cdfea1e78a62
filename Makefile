# Everything that is done with this project, by name: `make` alone lists it.
# PYTHON=python3.12 chooses the interpreter; ARGS='...' goes on to what a target runs.

PYTHON ?=
PYTHONS ?= python3.12 python3.13 python3.14
ARGS ?=
N ?= 10000
ROUNDS ?= 50
SEED ?= 1
ENGINE ?= mutation
SECONDS ?= 600
MODE ?=
# Tests of one file stay in one process: they share what is dear to start. One process more than there are cores, and no
# more than 4: many tests wait for servers that they have started.
SIDE_BY_SIDE := --numprocesses $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4))) --dist loadfile --no-loadscope-reorder
# Tests with SQLite wait for fsync on a disk: their files are in memory where it has room for 4 GiB, and deleted at once
# where a test passed. TMPDIR=/var/tmp chooses another folder; make test-long always uses the disk.
IN_MEMORY := $(if $(TMPDIR),,$(shell [ -w /dev/shm ] && [ $$(df -Pk /dev/shm | awk 'END { print $$4 }') -gt 4194304 ] && \
    echo TMPDIR=/dev/shm))
KEPT := $(if $(IN_MEMORY),-o tmp_path_retention_policy=failed -o tmp_path_retention_count=1)
VENV := .venv
PY := $(VENV)/bin/python
UV_VERSION := 0.13.9

# mypy refuses a folder without any Python.
SOURCES := hushsum hushsum_cli hushsum_page edge_client aggregator hushsum_simulator proto/hushsum_proto benchmarks examples build_tools compose tests
TYPED := $(foreach folder,$(SOURCES),$(if $(wildcard $(folder)/*.py $(folder)/*/*.py),$(folder)))

export MPLBACKEND := Agg
export PYTHONUNBUFFERED := 1
# The environment's packages and these sources are all that counts, whatever the caller's shell has on its path.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup broker promtool browser helm demo test test-long test-python test-pythons fuzz compose-demo check stubs simulate-faults simulate-cohorts real-faults bench bench-accuracy bench-service bench-secure bench-local soak lock clean bench-edge bench-fleet paper-tables docs sbom audit-dependencies licences release-check

help: ## list these targets
	@echo "Hushsum: hash at the edge, add in the middle, noise once, query for ever."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter (3.11 to 3.14); ARGS='...' is passed on (demo, test, bench, bench-accuracy, paper-tables, bench-service, bench-secure, bench-local, bench-edge, bench-fleet, docs, lock)."

setup: ## make the environment in .venv; does nothing when it is up to date
	@sh build_tools/setup.sh "$(PYTHON)" "$(VENV)"

broker: setup ## fetch the Kafka that tests start into .cache, once (Java 17 and Maven)
	@$(PY) build_tools/kafka_jars.py

promtool: setup ## fetch the promtool that tests of alerts run into .cache, once (Debian's package prometheus)
	@$(PY) build_tools/promtool.py

browser: ## install Chromium, in which tests look at the web page; does nothing where it is installed
	@sh build_tools/browser.sh

helm: setup ## build the helm that tests render the chart with into .cache, once (Go)
	@$(PY) build_tools/helm.py

demo: setup ## the main job: a fleet sends real records, the aggregator is killed, one private release answers
	@$(VENV)/bin/hushsum simulate $(ARGS)

test: setup broker promtool browser helm ## the test suite, nine minutes on two cores (ARGS="-k name" runs a part)
	@$(IN_MEMORY) $(PY) -m pytest $(SIDE_BY_SIDE) $(KEPT) --durations=20 $(ARGS)

test-long: setup broker promtool browser ## the tests that make test leaves out: kills of real processes, long runs (ARGS="-k name" runs a part)
	@HUSHSUM_TEST_LONG=1 $(PY) -m pytest $(SIDE_BY_SIDE) --durations=20 $(ARGS)

test-python: ## the test suite under another interpreter, in an environment of its own (PYTHON=python3.13)
	@[ -n "$(PYTHON)" ] || { echo "test-python: name the interpreter: make test-python PYTHON=python3.13" >&2; exit 1; }
	@$(MAKE) --no-print-directory test VENV=.venv-$(notdir $(PYTHON)) PYTHON="$(PYTHON)"

test-pythons: ## the test suite under Python 3.12, 3.13 and 3.14, one after the other (PYTHONS="python3.12 /path/to/python3.14")
	@failed=; for python in $(PYTHONS); do \
	    echo "test-pythons: $$python"; \
	    $(MAKE) --no-print-directory test-python PYTHON="$$python" || failed="$$failed $$python"; \
	done; \
	[ -z "$$failed" ] || { echo "test-pythons: failed:$$failed" >&2; exit 1; }; echo "test-pythons: passed: $(PYTHONS)"

fuzz: setup ## a million inputs to every decoder of what others send (N=1000000 SEED=1 ARGS="--target NAME"; ENGINE=coverage SECONDS=600)
	@$(PY) -m tests.fuzz --engine $(ENGINE) --seconds $(SECONDS) --inputs $(if $(filter file,$(origin N)),1000000,$(N)) --seed $(SEED) $(ARGS)

check: setup ## ruff, strict mypy, the import contracts, generated stubs up to date
	@$(PY) -m ruff check --output-format=concise .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy $(TYPED)
	@$(VENV)/bin/lint-imports --no-logo --no-cache
	@$(PY) build_tools/make_stubs.py --check

stubs: setup ## generate the Python stubs of proto/
	@$(PY) build_tools/make_stubs.py

simulate-faults: setup ## random schedules of faults in virtual time (N=10000 SEED=1)
	@$(PY) -m tests.simulation --schedules $(N) --seed $(SEED)

simulate-cohorts: setup ## random schedules of secure sums with dropouts and a lying server (N=10000 SEED=1)
	@$(PY) -m tests.hushsum.secure_sum.schedules --schedules $(N) --seed $(SEED)

real-faults: setup broker ## kill and pause real processes, Kafka and PostgreSQL under load (ROUNDS=50 SEED=1)
	@$(PY) -m hushsum_simulator.deployment faults --rounds $(ROUNDS) --seed $(SEED) $(ARGS)

docs: setup ## build the documentation site in build/site; a warning, a dead link or an undocumented public name fails
	@$(PY) -m sphinx --quiet --fresh-env --fail-on-warning --keep-going --builder html docs build/site $(ARGS)
	@echo "docs: open build/site/index.html"

compose-demo: setup ## the whole service in containers: killed, restarted, checked (MODE=central|local|secure; Docker)
	@$(PY) -m compose.demo $(if $(MODE),--mode $(MODE)) $(ARGS)

bench: setup ## measure speed side by side, as a table and as JSON
	@$(PY) -m benchmarks $(ARGS)

bench-accuracy: setup ## measure errors against exact sums, and write docs/accuracy.md (minutes; ARGS=--quick)
	@$(PY) -m benchmarks.accuracy $(ARGS)

# diffprivlib needs an environment of its own: build_tools/diffprivlib.txt says how to make it.
PEERS_PY := .cache/diffprivlib/bin/python
paper-tables: setup ## repeat the papers' experiments, and write docs/papers.md (15 minutes of one core; ARGS=--quick)
	@$(if $(filter-out --quick,$(ARGS)),:,[ ! -x $(PEERS_PY) ] || $(PEERS_PY) -m benchmarks.accuracy --papers peers $(ARGS))
	@$(PY) -m benchmarks.accuracy --papers $(ARGS)

bench-service: setup broker ## measure the service beside the bare libraries, on 2 cores (ARGS=--quick)
	@$(PY) -m benchmarks.service $(ARGS)

bench-secure: setup ## measure secure sums beside raw ciphers and Flower's helpers (ARGS=--quick)
	@$(PY) build_tools/peers.py
	@$(PY) -m benchmarks.secure $(ARGS)

bench-local: setup ## measure randomised reports beside bare sketching and numpy.bincount (ARGS=--quick)
	@$(PY) -m benchmarks.local $(ARGS)

bench-edge: setup ## measure a device beside the least that it needs: memory, flash, CPU, wire (Linux; ARGS=--quick)
	@$(PY) -m benchmarks.edge $(ARGS)

bench-fleet: setup ## measure visits, idle sessions, a storm after an outage, what a delta costs and a day of 100,000 devices (ARGS=--quick)
	@$(PY) -m benchmarks.fleet $(ARGS)

soak: setup ## an hour with 2,000 hostile connections beside 50 good clients, as a picture (ARGS="--minutes 5")
	@$(PY) -m benchmarks.soak $(ARGS)

# uv stands apart from the environment, which holds what the lock names and nothing else. What the image holds, and what
# builds the wheel in it, are locks of their own, with the versions of the first.
LOCK := $(VENV)/lock_tool/bin/uv pip compile --universal --fork-strategy fewest --python $(PY) --python-version 3.11 \
    --generate-hashes --no-header --no-annotate --quiet
lock: setup ## pin the dependencies again (ARGS=--upgrade takes the newest)
	@$(PY) -m pip install --quiet --upgrade --target $(VENV)/lock_tool uv==$(UV_VERSION)
	@rm -f $(VENV)/*.lock
	@cp requirements.lock $(VENV)/new.lock 2>/dev/null || true
	@$(LOCK) pyproject.toml --all-extras --output-file $(VENV)/new.lock $(ARGS)
	@$(LOCK) pyproject.toml compose/requirements.in --constraint $(VENV)/new.lock --output-file $(VENV)/image.lock \
	    --extra fast --extra page --extra server
	@echo hatchling | $(LOCK) - --constraint $(VENV)/new.lock --output-file $(VENV)/build.lock
	@{ echo "# The exact packages and the hashes of their files for every platform. Made by: make lock"; \
	   grep -v '^#' $(VENV)/new.lock; } >requirements.lock
	@{ echo "# What the image holds beside the project: exact packages, hashes of their files. Made by: make lock"; \
	   grep -v '^#' $(VENV)/image.lock; } >compose/requirements.lock
	@{ echo "# What builds the project's wheel, and is not in the image. Made by: make lock"; \
	   grep -v '^#' $(VENV)/build.lock; } >compose/build.lock
	@echo "lock: $$(grep -c '^[a-z]' requirements.lock) packages, $$(grep -c '^[a-z]' compose/requirements.lock) in the image; run make setup"

sbom: setup ## list the packages of the image as a CycloneDX document, in build/hushsum.cdx.json
	@mkdir -p build
	@$(PY) -W ignore::UserWarning -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible \
	    --output-file build/hushsum.cdx.json compose/requirements.lock
	@echo "sbom: build/hushsum.cdx.json"

audit-dependencies: setup ## compare the lock with known vulnerabilities; needs a network, and fails without
	@$(PY) -m pip_audit --strict --progress-spinner off --disable-pip --require-hashes --requirement requirements.lock

licences: setup ## list the licences of the packages of the lock; one that is not allowed fails
	@$(PY) build_tools/licences.py

release-check: setup ## build wheel and sdist twice to the same bytes, install in a fresh environment, run the demo
	@$(PY) build_tools/release_check.py $(ARGS)

clean: ## delete caches and what was built (the environment stays: rm -r .venv deletes it)
	@rm -rf build dist out .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +
