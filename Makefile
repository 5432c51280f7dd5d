# towerpack. `make` lists the targets. It needs only venv and pip, and makes two environments:
#   .venv       everything, with tensorflow-cpu and the tools
#   .venv-data  no TensorFlow: its tests prove that the data half does not need it
# An environment is updated when pyproject.toml has changed.

PYTHON ?= python3
# The number of test processes, and the seed of the order of the tests and of what hypothesis draws:
# `make test WORKERS=4 SEED=7`.
WORKERS ?= 2
SEED ?= 1

BIN := .venv/bin
DATA_BIN := .venv-data/bin
PIP := -m pip --disable-pip-version-check install --quiet

FORMATS := arrayrecord,hdf5,image,lmdb,matlab,parquet,protobuf,svmlight,safetensors
TEST_EXTRAS := tf-cpu,test,lint,$(FORMATS),export,rl,sklearn,sweep

CLUSTER_PACKAGES := iproute2 mpich munge openmpi-bin slurm-wlm  # of Debian

TF_FREE := core dataflow monitor report launch
TF_FREE_PATHS := $(wildcard $(TF_FREE:%=tests/%) $(TF_FREE:%=src/towerpack/%))
PYTEST := -m pytest -n $(WORKERS) --dist loadfile --randomly-seed $(SEED) --hypothesis-seed $(SEED)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-deploy test-clusters test-quick test-tf-free test-tf test-trackers soak bench-data bench-augment bench-train bench-sklearn bench-distributed bench-checkpoint lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

demo: .venv/.demo ## train a small network on digits, from a fresh clone, in about two minutes
	$(BIN)/towerpack demo

test: lint test-tf-free test-tf ## lint, types, import contracts, and all tests except soak

lint: .venv/.test ## check style, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: .venv/.test ## fix and format the code as lint requires
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test-tf-free: .venv-data/.test ## test the data half, where TensorFlow is not installed
	TOWERPACK_TF_FREE=1 $(DATA_BIN)/python $(PYTEST) $(TF_FREE_PATHS) \
		tests/house/test_without_tensorflow.py

test-tf: .venv/.test .deploy-node/.installed ## run all other tests, the slow ones last
	$(BIN)/python $(PYTEST) $(TF_FREE_PATHS:%=--ignore=%) -m 'not slow and not soak'
	$(BIN)/python $(PYTEST) $(TF_FREE_PATHS:%=--ignore=%) -m 'slow and not soak'

test-deploy: .venv/.test .deploy-node/.installed ## test exported models in C++, Node.js and LiteRT
	$(BIN)/python -m pytest tests/deploy

test-clusters: .venv-clusters/.test ## test ranks under a real Slurm, mpirun and Ray; installs them as root
	dpkg --status $(CLUSTER_PACKAGES) > /dev/null 2>&1 || \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $(CLUSTER_PACKAGES); } || \
		echo "$(CLUSTER_PACKAGES): not all could be installed, so some tests are skipped"
	TOWERPACK_CLUSTERS=1 .venv-clusters/bin/python -m pytest -n 0 tests/clusters

test-trackers: .venv-trackers/.test ## test the monitors for wandb, MLflow and Comet with the real packages
	TOWERPACK_TRACKERS=1 .venv-trackers/bin/python -m pytest -n 0 tests/monitor/test_trackers.py

test-quick: .venv/.test ## run all tests that take seconds, in one environment
	$(BIN)/python $(PYTEST) -m 'not slow and not soak'

soak: .venv/.test ## run the load and fault tests with large counts: an hour or more
	$(BIN)/python -m pytest -m soak --timeout 7200

bench-data: .venv/.test .venv-peers/.loaders ## compare data loading with torch, grain, tf.data, webdataset
	$(BIN)/python benchmarks/data_loading.py

bench-train: .venv/.test .venv-peers/.trainers ## compare training with Keras, torch, Lightning, JAX
	$(BIN)/python benchmarks/training.py

bench-sklearn: .venv/.test .venv-peers/.estimators ## compare fits with MLPClassifier, skorch, scikeras
	$(BIN)/python benchmarks/sklearn_fit.py

bench-distributed: .venv/.test .venv-peers/.trainers ## compare two ranks with torch's DDP and gloo
	$(BIN)/python benchmarks/distributed.py

bench-checkpoint: .venv/.test ## compare saving (during training) and loading with tf.train.Checkpoint
	$(BIN)/python benchmarks/checkpoint.py

bench-augment: .venv-peers/.augment ## compare image augmentation with albumentations
	NO_ALBUMENTATIONS_UPDATE=1 .venv-peers/bin/python benchmarks/augment.py

clean: ## remove the environments, builds and caches
	rm -rf .deploy-node .venv .venv-clusters .venv-data .venv-peers .venv-tensorpack .venv-trackers build dist docs/_build
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -prune -exec rm -rf {} +

# Stamp files. `venv` keeps what is installed, so an environment is extended and not made again.

.venv/.demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) --editable '.[tf-cpu]'
	touch $@

.venv/.test: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) --editable '.[$(TEST_EXTRAS)]'
	touch $@ .venv/.demo

.venv-data/.test: pyproject.toml
	$(PYTHON) -m venv .venv-data
	$(DATA_BIN)/python $(PIP) --editable '.[test,$(FORMATS),sweep]'
	touch $@

# Ray does not exist for every platform and Python.
.venv-clusters/.test: pyproject.toml
	$(PYTHON) -m venv .venv-clusters
	.venv-clusters/bin/python $(PIP) --editable '.[tf-cpu,test]'
	.venv-clusters/bin/python $(PIP) --editable '.[ray]' || echo "the tests with Ray are skipped"
	touch $@

# A separate environment, because the trackers install web servers, databases and much else.
.venv-trackers/.test: pyproject.toml
	$(PYTHON) -m venv .venv-trackers
	.venv-trackers/bin/python $(PIP) --editable '.[test,trackers]'
	touch $@

# Without Node.js its tests are skipped. The GPU libraries, a separate download, are not needed.
.deploy-node/.installed: examples/deploy/node/package.json
	mkdir -p $(@D) && cp $< $(@D)
	! command -v npm || \
		(cd $(@D) && ONNXRUNTIME_NODE_INSTALL=skip npm install --no-audit --no-fund --silent)
	touch $@

# tensorpack runs on Python 3.10 and older. If there is such a Python, TENSORPACK_PYTHON is its path.
TENSORPACK_PYTHON ?= $(shell command -v python3.10)
.venv-peers/.loaders: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python $(PIP) torch==2.13.0 grain==0.2.18 webdataset==1.0.2 lmdb \
		opencv-python-headless
	[ -z "$(TENSORPACK_PYTHON)" ] || ! $(TENSORPACK_PYTHON) --version || \
		{ $(TENSORPACK_PYTHON) -m venv .venv-tensorpack && .venv-tensorpack/bin/python $(PIP) \
		tensorpack==0.11 'numpy<2' 'opencv-python-headless<5' lmdb; }
	touch $@

.venv-peers/.trainers: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python $(PIP) torch==2.13.0 lightning==2.6.6 'jax[cpu]==0.10.2'
	touch $@

# albumentations 2.0.8 is the last release under the MIT licence.
.venv-peers/.augment: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python $(PIP) --editable '.[image]' albumentations==2.0.8
	touch $@

.venv-peers/.estimators: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python $(PIP) torch==2.13.0 skorch==1.4.0 scikeras==0.13.0 scikit-learn==1.9.1 \
		'tensorflow-cpu>=2.21,<2.22' 'keras>=3.15,<3.16'
	touch $@
