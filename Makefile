# Everything a developer or a visitor runs. Stamps make repeated calls quick; `make clean` forgets them.
# Needs: Python 3.11 or later, make, g++. CMake and Ninja come from pip.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
COMPILE_ARGS ?=
BENCH_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
PACKAGE := pyproject.toml CMakeLists.txt cmake/native_stub.txt
NATIVE := $(shell find src -name '*.cpp' -o -name '*.hpp' 2>/dev/null)
CXX_SOURCES = $(NATIVE) $(wildcard tests/*/*.cpp tools/*.cpp)
# Several people may build in one tree at once.
LOCK := flock build/.lock

SANITIZE := build/sanitize
SANITIZE_ENV = $(QUIET) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)"

.DEFAULT_GOAL := help
.PHONY: help demo test check check-quick lint format types build test-triton compile-check bench memory accuracy exp-check docs sanitize wheels wheel-aarch64 compat sdist-check lint-release dev clean
.DELETE_ON_ERROR:

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1	\2/' | expand -t 20

# --- Environments ------------------------------------------------------------------------------------------------
$(VENV)/.pip: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	@touch $@

$(VENV)/.group-%: $(VENV)/.pip pyproject.toml
	$(INSTALL) --group $*
	@touch $@

# If dist/ has a wheel, and nothing that its module is compiled from has changed since the wheel's commit, that module is
# installed, and nothing is compiled.
COMPILED := $(PACKAGE) src/softargmax/__init__.py ':(glob)src/**/*.cpp' ':(glob)src/**/*.hpp'
UNCHANGED_SINCE = test -z "$$(git ls-files --others --exclude-standard -- $(COMPILED))" && git diff --quiet $(1) -- $(COMPILED)
WHEEL = $(abspath $(shell test -f dist/commit && $(call UNCHANGED_SINCE,"$$(cat dist/commit)") && \
	ls dist/*-"$$($(BIN)/python -c 'import sys; print("cp311-cp311" if sys.version_info < (3, 12) else "cp312-abi3")')"-*_"$$(uname -m)".whl))

# Editable, without build isolation: build/dev stays, so that a rebuild compiles only what changed.
$(VENV)/.editable: $(VENV)/.group-build $(PACKAGE)
	@mkdir -p build
	$(LOCK) $(INSTALL) --no-build-isolation --config-settings cmake.define.SOFTARGMAX_WHEEL="$(WHEEL)" --editable .
	@touch $@

$(VENV)/.native: $(VENV)/.editable $(NATIVE)
	$(LOCK) $(BIN)/cmake --log-level=WARNING -DSOFTARGMAX_WHEEL="$(WHEEL)" build/dev > build/configure.log
	$(LOCK) $(BIN)/cmake --build build/dev
	$(LOCK) $(BIN)/cmake --install build/dev --prefix "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" > build/install.log
	@touch $@

# --- Commands ----------------------------------------------------------------------------------------------------
demo: $(VENV)/.native $(VENV)/.group-tour ## install, then the tour
	$(BIN)/softargmax demo

test: lint types check ## lint, types, all tests and doctests

# Several processes share a few cores, so waiting threads must sleep. Those of OpenBLAS always spin: with one OpenBLAS
# thread per process, the tests of classify and attend take 41 s in place of 139. worksteal keeps neighbouring tests in
# one process, where the next test uses what an earlier one has compiled or computed.
QUIET := OMP_WAIT_POLICY=passive OPENBLAS_NUM_THREADS=1
check: $(VENV)/.native $(VENV)/.group-test $(VENV)/.group-examples ## tests and doctests only
	$(QUIET) $(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

check-quick: $(VENV)/.native $(VENV)/.group-test $(VENV)/.group-examples ## a sample of the tests, in about two minutes
	$(QUIET) $(BIN)/python -m pytest --quick -n auto --dist worksteal -q $(PYTEST_ARGS)

# Triton looks at TRITON_INTERPRET when it compiles a kernel, so these tests need a process of their own.
TRITON_TESTS := tests/triton $(addprefix tests/normalize/test_,edges.py numbers.py temperatures.py identities.py) \
	$(addprefix tests/loss/test_,edges.py options.py extremes.py) \
	$(addprefix tests/sparse/test_,edges.py rows.py) \
	$(addprefix tests/attend/test_,not_finite.py broadcast.py slopes.py scales.py)
test-triton: $(VENV)/.native $(VENV)/.group-test ## the CUDA kernels, in Triton's interpreter
	$(QUIET) TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto --dist worksteal -q $(TRITON_TESTS) $(PYTEST_ARGS)

# The oldest Triton that the kernels are compiled with, beside the pinned one.
build/triton-3.6.0: $(VENV)/.group-test
	$(PIP) install --quiet --no-deps --target $@ triton==3.6.0

compile-check: $(VENV)/.native build/triton-3.6.0 ## compile the CUDA kernels for four GPUs, without one
	$(BIN)/python -m tests.triton.compile_check $(COMPILE_ARGS)
	PYTHONPATH=build/triton-3.6.0 $(BIN)/python -m tests.triton.compile_check $(COMPILE_ARGS)

lint: $(VENV)/.group-lint ## ruff, formatting, of C++ too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)

format: $(VENV)/.group-lint ## rewrite to the house format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .
	$(BIN)/clang-format -i $(CXX_SOURCES)

types: $(VENV)/.group-lint $(VENV)/.native $(VENV)/.group-test ## mypy and pyright, strict
	$(BIN)/mypy
	$(BIN)/basedpyright

build: $(VENV)/.native ## rebuild the native module, incrementally

dev: $(VENV)/.native $(VENV)/.group-dev ## everything a developer needs, in .venv

# Every room with a bench of its name. The bench of word vectors belongs to the room output, and that of last layers of
# many sizes to the room loss.
ROOM ?= $(patsubst bench/%.py,%,$(wildcard $(patsubst src/softargmax/%/__init__.py,bench/%.py,$(wildcard src/softargmax/*/__init__.py))))
bench: $(VENV)/.native $(VENV)/.group-bench ## ratios against the installed peers; ROOM=loss: one room, BENCH_ARGS=WORDS: some cases
	failed=0; $(foreach bench,$(patsubst loss,loss last_layer,$(ROOM:output=output word2vec)),$(BIN)/python -m bench.$(bench) $(BENCH_ARGS) || failed=1;) exit $$failed

AVX2 = SOFTARGMAX_ISA=x86-64-v3 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 \
	OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"
.PHONY: bench-avx2
bench-avx2: ## make bench with AVX2 only, for softargmax and the peers, on a machine with AVX-512
	$(AVX2) $(MAKE) bench

.PHONY: bench-compare
bench-compare: ## two commits of ours, or the Pythons of two installs, against each other: A=.. B=..
	$(PYTHON) -m bench.compare $(A) $(B) $(ROOM)

memory: $(VENV)/.native $(VENV)/.group-test ## a 4 GiB file converted under a cap
	$(BIN)/python -m bench.memory

accuracy: $(VENV)/.native $(VENV)/.group-test ## the ulp tables against mpmath, written to docs
	$(BIN)/python -m bench.accuracy
	$(BIN)/python -m bench.sparse_accuracy

exp-check: $(VENV)/.native $(VENV)/.group-test ## exp on every float32, every instruction set (minutes)
	$(BIN)/python tools/exp_check.py

docs: $(VENV)/.native $(VENV)/.group-docs $(VENV)/.group-test ## the pages, warnings are errors
	$(BIN)/python -m tools.tables --check
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# A virtual environment of its own, without torch and without the editable finder, which would win over it.
$(SANITIZE)/venv/.installed: $(PACKAGE) $(NATIVE) $(shell find src -name '*.py' 2>/dev/null) constraints.txt
	@mkdir -p $(SANITIZE)
	test -x $(SANITIZE)/venv/bin/python || $(PYTHON) -m venv $(SANITIZE)/venv
	$(SANITIZE)/venv/bin/python -m pip install -q -c constraints.txt --upgrade pip
	$(SANITIZE)/venv/bin/python -m pip install -q -c constraints.txt --group build --group sanitize
	$(SANITIZE)/venv/bin/python -m pip install -q -c constraints.txt --no-build-isolation --force-reinstall --no-deps \
		-C build-dir=$(SANITIZE)/cmake -C cmake.define.SOFTARGMAX_SANITIZE=ON .
	$(SANITIZE)/venv/bin/python -m pip install -q -c constraints.txt numpy array-api-compat
	@touch $@

sanitize: $(SANITIZE)/venv/.installed ## native tests under address and undefined-behaviour sanitizers
	$(SANITIZE_ENV) $(SANITIZE)/venv/bin/python -m pytest -n auto --dist worksteal -q --capture=sys -p no:cacheprovider \
		--ignore-glob='*torch*' --doctest-ignore-import-errors -m 'sanitize and not no_sanitize' tests $(PYTEST_ARGS)

# Python 3.11 has a wheel of its own. The wheel built with 3.12 is for the stable ABI, and serves later Pythons too. With
# pyenv: PYENV_VERSION=3.11.7:3.12.1:3.13.0 make wheels
WHEEL_PYTHONS ?= python3.11 python3.12
TEST_PYTHONS ?= $(WHEEL_PYTHONS) python3.13
wheels: $(VENV)/.group-release ## wheels in dist/, checked and tested with several Pythons
	rm -rf dist build/wheels
	mkdir -p build/wheels
	if $(call UNCHANGED_SINCE,HEAD); then git rev-parse HEAD > build/wheels/commit; fi
	for python in $(WHEEL_PYTHONS); do $$python -m pip wheel --quiet --no-deps --wheel-dir build/wheels . || exit; done
	PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist build/wheels/*.whl
	$(BIN)/python -m tools.check_wheel dist/*.whl --python $(TEST_PYTHONS)
	if test -f build/wheels/commit && $(call UNCHANGED_SINCE,"$$(cat build/wheels/commit)"); \
		then mv build/wheels/commit dist/commit; fi

wheel-aarch64: $(VENV)/.native $(VENV)/.group-release ## a wheel for aarch64 in dist/, cross-compiled, tested under qemu
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tools.aarch64_wheel

compat: $(VENV)/.group-release ## what pyproject.toml claims: oldest and newest packages, each Python; uses the wheels in dist/
	@test -f dist/commit && git diff --quiet "$$(cat dist/commit)" -- src || \
		{ echo "compat: expected wheels of these sources in dist/; run make wheels" >&2; exit 1; }
	$(BIN)/python -m tools.compat dist/*_"$$(uname -m)".whl

sdist-check: $(VENV)/.group-release ## an sdist, and from it a wheel, tests and the pages, in a directory of its own
	rm -rf build/sdist
	$(BIN)/python -m build --sdist --outdir build/sdist
	mkdir build/sdist/source
	tar -xzf build/sdist/*.tar.gz -C build/sdist/source --strip-components=1
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/sdist/wheel build/sdist/*.tar.gz
	cd build/sdist/source && $(MAKE) .venv/.group-test .venv/.group-docs VENV=.venv
	cd build/sdist/source && .venv/bin/python -m pip install --quiet --constraint constraints.txt ../wheel/*.whl
	cd build/sdist/source && $(QUIET) .venv/bin/python -m pytest -n auto -q -m 'not slow' tests/test_tools.py tests/normalize
	cd build/sdist/source && .venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

SCHEMA := $(BIN)/check-jsonschema --builtin-schema
lint-release: $(VENV)/.group-release ## workflows, issue forms, package metadata, citation: without the network
	$(BIN)/zizmor --offline --quiet .github
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff
	$(BIN)/validate-pyproject pyproject.toml

clean: ## forget builds and stamps
	rm -rf build dist docs/_build $(VENV)/.pip $(VENV)/.group-* $(VENV)/.editable $(VENV)/.native
