# Every target does its own set-up: a .venv with the pinned packages; stamp files keep it current.
# Needs Python 3.11 or newer and make (GNU make 3.81 is enough). `make help` lists the targets.

.DEFAULT_GOAL := help
.SUFFIXES:
SHELL := /bin/sh

# The interpreter that .venv is made with; empty: the first on PATH that is new enough.
PYTHON ?=
export PYTHON
# Processes that pytest uses.
WORKERS ?= 2
# Of `make soak`.
ROUNDS ?= 200
SEED ?= 12
# More arguments for pytest, such as ARGS="-k submit -x", or for the demo.
ARGS ?=
# With this variable, set in many container images, each of the suite's processes would compile all its imports again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
RUNTIME := .venv/.runtime-stamp
DEV := .venv/.dev-stamp
# buf and protoc's plug-ins are looked up on PATH.
WITH_VENV := PATH="$(CURDIR)/$(BIN):$$PATH"
# In the order of the folders; the last, tests/unit, has the short files: so no long file starts at the end.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Prevents mixed output of parallel checks, if make supports it.
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

$(RUNTIME): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh runtime

$(DEV): pyproject.toml constraints.txt tools/setup.sh
	@sh tools/setup.sh dev

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(RUNTIME) ## 256 jobs on a simulated 16-GPU cluster, through the real services, with a report
	@$(BIN)/adlro demo $(ARGS)

.PHONY: up
up: $(RUNTIME) ## all services, until Ctrl-C
	@$(BIN)/adlro up $(ARGS)

.PHONY: setup
setup: $(DEV) ## only the set-up: .venv with the packages of tests and checks
	@echo "$(BIN) is up to date"

.PHONY: test
test: $(DEV) ## the whole test suite, slow tests included (about fifty minutes on two cores)
	$(PYTEST) -m "not compose and not browser" $(ARGS)

.PHONY: test-deep
test-deep: $(DEV) ## the long random comparisons with all their cases: five times those of `make test`
	ADLRO_TEST_DEEP=1 $(PYTEST) $$(grep -rl "tests.volume import" tests --include="test_*.py") $(ARGS)

.PHONY: soak
soak: $(DEV) ## network faults between all processes, 200 rounds with silences of 30 s (about an hour; ROUNDS=, SEED=)
	ADLRO_TEST_NETWORK_ROUNDS=$(ROUNDS) ADLRO_TEST_NETWORK_SEED=$(SEED) \
		$(BIN)/python -m pytest -n 0 -s tests/fault/test_network.py $(ARGS)

.PHONY: soak-preemption
soak-preemption: $(DEV) ## kills in replays that stop jobs for others, 200 rounds (about half an hour; ROUNDS=, SEED=)
	ADLRO_TEST_PREEMPTION_ROUNDS=$(ROUNDS) ADLRO_TEST_PREEMPTION_SEED=$(SEED) \
		$(BIN)/python -m pytest -n 0 -s tests/fault/test_random_preemption.py $(ARGS)

.PHONY: test-compose
test-compose: $(DEV) ## the containers: builds the images and tests the suite in them (needs Docker, or root to start it)
	@sh tools/docker_engine.sh start || true
	$(BIN)/python -m pytest -m compose tests/e2e $(ARGS)

.PHONY: test-browser
test-browser: $(DEV) node_modules/.stamp ## the page in a real browser, and examples for Node.js (needs Chromium or Chrome, and Node.js)
	browser="$$(sh tools/page_tools.sh find)" && ADLRO_TEST_CHROMIUM="$$browser" \
		$(BIN)/python -m pytest -m browser tests/browser tests/e2e/test_grpc_page.py $(ARGS)

node_modules/.stamp: package.json package-lock.json
	@sh tools/page_tools.sh find >/dev/null
	npm ci --no-audit --no-fund --loglevel=error
	@touch $@

.PHONY: test-fast
test-fast: $(DEV) ## the tests without the marker slow
	$(PYTEST) -m "not slow and not browser" $(ARGS)

.PHONY: test-interpreters
test-interpreters: $(DEV) ## the fast unit tests on every supported Python of this machine
	@$(BIN)/python tools/interpreters.py --workers $(WORKERS) $(ARGS)

.PHONY: check
check: lint ## the checks before a commit: lint and fast unit tests (five minutes on two cores)
	$(PYTEST) -m "not slow" tests/unit

.PHONY: lint
lint: $(DEV) ## format, ruff, mypy, import rules, generated code, contracts: no tests
	@$(MAKE) --no-print-directory -j2 $(SYNC) -k types style imports generated contracts

.PHONY: style
style: $(DEV)
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .

.PHONY: format
format: $(DEV) ## formats the code, and applies ruff's fixes
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format .

.PHONY: types
types: $(DEV)
	@$(BIN)/mypy

.PHONY: imports
imports: $(DEV)
	@$(BIN)/lint-imports --no-logo

.PHONY: generated
generated: $(DEV)
	@$(WITH_VENV) $(BIN)/python tools/generate_protos.py --check
	@$(BIN)/python tools/generate_blocking_client.py --check
	@$(BIN)/python tools/generate_settings_page.py --check

.PHONY: contracts
contracts: $(DEV)
	@$(WITH_VENV) buf lint
	@$(WITH_VENV) buf breaking --against protos/image.binpb

.PHONY: protos
protos: $(DEV) ## generates adlro/v1 from protos/
	$(WITH_VENV) $(BIN)/python tools/generate_protos.py

.PHONY: client
client: $(DEV) ## generates the blocking client from the asyncio client
	$(BIN)/python tools/generate_blocking_client.py

.PHONY: settings
settings: $(DEV) ## generates docs/settings.md from the classes of settings
	$(BIN)/python tools/generate_settings_page.py

.PHONY: site
site: $(DEV) ## the pages as a web site in build/site; dead links and anchors, and pages that no list names, fail it
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs/site -d build/site-cache . build/site
	@echo "build/site/index.html"

.PHONY: protos-image
protos-image: $(DEV) ## makes the present contracts the reference of `make check` (for a release)
	$(WITH_VENV) buf build -o protos/image.binpb

.PHONY: policy
policy: $(DEV) ## trains the learned policy again, as out/policy/best.onnx (hours; resumes after an interruption)
	$(BIN)/adlro train out/policy --recipe policy_iteration $(ARGS)

.PHONY: policy-gangs
policy-gangs: $(DEV) ## trains its network for jobs of several GPUs again, as out/gangs/gangs.onnx (half an hour; resumes)
	$(BIN)/python -m adlro.lab.learn.gang_training out/gangs $(ARGS)

.PHONY: clean
clean: ## removes .venv and caches
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build dist
	find adlro services tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
