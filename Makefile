# Commands for a fresh machine: `make demo`, `make test` and `make docs`. PYTHON chooses the interpreter (3.11 to 3.13),
# CUDA the DALI (cuda12 or cuda13; `make clean` before another one, since the two write over each other's files).
PYTHON ?= python3
CUDA ?= cuda12
VENV ?= .venv
BIN = $(VENV)/bin

# A second Ray on a machine joins the first: tests that start Ray run one by one. Ray Data leaves objects
# in the cluster that they share, so its tests come after those that look for any.
RAY_TESTS = tests/engines/ray tests/engines/test_unequal_shapes.py tests/test_laws_of_annotations.py \
    tests/test_ray.py tests/training/test_ray_train.py

KERNEL_TESTS = $(addprefix tests/engines/cpu/test_, \
    color_kernels.py color_stages.py compiled_degradations.py compiled_geometry.py \
    compiled_kernels.py compiled_resize.py decoded_windows.py samples.py stages.py) \
    $(addprefix tests/decoders/builtin/test_, jpeg_window.py libpng.py) tests/native/test_stages.py \
    tests/engines/cpu/test_nearest_resize.py

KERNEL_FUZZERS = regions pngs colors geometry programs degradations calls conversions draws files \
    headers

.PHONY: demo test test-all test-main test-ray test-without-kernels sanitize lint lint-mypy lint-rest \
    wheel docs clean

$(BIN)/activate:
	$(PYTHON) -m venv $(VENV)

SOURCES = setup.cfg setup.py pyproject.toml $(wildcard native/*)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable
# On all cores, where pip compiles on one; not what nothing here imports, a third of all. Some
# packages ship templates that are no Python.
NOT_IMPORTED = /tests?/|/torch/(_inductor|testing)/|/ray/(rllib|serve|tune|llm|autoscaler|dashboard)/ \
    |/(moto|sklearn|skimage|transformers|pip|setuptools|mypy|mypyc|debugpy|IPython|libcst)/ \
    |/(networkx|narwhals|fontTools|tensorboard|docutils|pygments/lexers|sympy/physics)/
empty :=
COMPILE = $(BIN)/python -m compileall -qq -j 0 -x '$(subst $(empty) ,,$(NOT_IMPORTED))' $(VENV)/lib || true

# pytest's compiled tests are for the next run, and for the other workers of this one.
unexport PYTHONDONTWRITEBYTECODE

$(VENV)/.installed: $(SOURCES) | $(BIN)/activate
	$(INSTALL) '.[$(CUDA),cpu,fetch]'
	$(COMPILE)
	touch $@

$(VENV)/.installed-test: $(SOURCES) | $(BIN)/activate
	$(INSTALL) '.[$(CUDA),cpu,fetch,test]'
	$(COMPILE)
	touch $(VENV)/.installed $@

$(VENV)/.installed-lint: $(SOURCES) | $(BIN)/activate
	$(INSTALL) '.[$(CUDA),cpu,fetch,test,lint]'
	$(COMPILE)
	touch $(VENV)/.installed $(VENV)/.installed-test $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) '.[$(CUDA),cpu,fetch,docs]'
	$(COMPILE)
	touch $@

demo: $(VENV)/.installed
	$(BIN)/gpupipe run configs/lfw.yaml

# `make -j 2 test` runs the tests of Ray beside the others.
test: test-main test-ray test-without-kernels

# The same with the full products of cases, where `make test` takes pairs.
test-all: export GPUPIPE_TEST_ALL = 1
test-all: test

PYTEST = $(BIN)/python -m pytest -o faulthandler_exit_on_timeout=true

test-main: $(VENV)/.installed-test
	$(BIN)/python -m compileall -q gpupipe
	$(PYTEST) -n 3 --dist worksteal --durations 20 $(RAY_TESTS:%=--ignore=%)

test-ray: $(VENV)/.installed-test
	$(PYTEST) -n 0 --durations 10 $(RAY_TESTS)

# What is left without the extensions: which kernels are chosen, and their pixels.
test-without-kernels: $(VENV)/.installed-test
	GPUPIPE_KERNELS=off $(PYTEST) -n 0 \
	    $(addprefix tests/engines/cpu/test_, engine.py every_step.py delivery.py lowering.py) \
	    --deselect tests/engines/cpu/test_lowering.py::test_torchvision_alone_does_the_work_of_opencv_and_simplejpeg

# The kernels' tests, and each fuzzer of kernels for FUZZ_SECONDS, with the extensions under
# AddressSanitizer and UndefinedBehaviorSanitizer. It takes about seven minutes on two cores; the last
# line says that nothing was found. torch and Python leak at exit, so leaks are not looked for: the
# tests and the fuzzers watch the memory of the process, of which little may wait to be used again.
SANITIZED = build/sanitized
SANITIZERS = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g
SANITIZED_ENV = LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so)" \
    ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=8 PYTHONPATH=$(SANITIZED)/lib GPUPIPE_KERNELS=on
FUZZ_SECONDS ?= 20

sanitize: $(VENV)/.installed-test
	$(BIN)/python -c 'import setuptools' || $(BIN)/python -m pip install --quiet 'setuptools >= 77'
	CFLAGS="$(SANITIZERS)" CXXFLAGS="$(SANITIZERS)" LDFLAGS="$(SANITIZERS)" GPUPIPE_KERNELS=on \
	    $(BIN)/python setup.py -q build --build-base $(SANITIZED) --build-lib $(SANITIZED)/lib
	nm -D $(SANITIZED)/lib/gpupipe/_kernels.abi3.so | grep -q __asan_init
	$(SANITIZED_ENV) $(BIN)/pytest -n 0 $(KERNEL_TESTS) tests/dataset/test_reading.py \
	    $(addprefix tests/runtime/test_installation.py::test_, any_contiguous_buffer_is_taken every_size_and_alignment_has_the_crc_of_zlib)
	for fuzzer in $(KERNEL_FUZZERS); do \
	    $(SANITIZED_ENV) $(BIN)/python tests/fuzz/fuzz_$$fuzzer.py --seconds $(FUZZ_SECONDS) || exit 1; \
	done
	@echo 'make sanitize: the tests passed, and the fuzzers found nothing'

lint: lint-mypy lint-rest

lint-mypy: $(VENV)/.installed-lint
	$(BIN)/mypy

lint-rest: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# Builds the wheel, and tries it in a new environment without a compiler and without the repository.
wheel: $(VENV)/.installed-lint
	.ci/wheel $(BIN)/python

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build *.egg-info gpupipe/*.so
