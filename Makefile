# make demo and make test do all of their own set-up. `make help` lists the rest.
VENV = .venv
EXTRAS = spark delta connect fast s3 rocksdb archive acl metrics console notebook  # of pyproject.toml, those that tests use
JOBS = 3  # test processes, more than cores because some wait; each may start a JVM of its own
PYTEST = $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
unexport PYTHONDONTWRITEBYTECODE  # else each of the hundreds of processes that tests start compiles this project again
PYTHON_FILES = storage spark_mq jobs tests bench pyspark_spark_mq.py pytest_spark_mq.py setup.py scripts examples

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-rest test-all test-long test-spark test-versions test-interop test-crash torture soak check walks bench doctor wheel docs examples lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## virtual environment, locked packages, Java; PYTHON=... chooses the interpreter
	@scripts/setup.sh

demo: setup ## read and stream a store that an Apache RocketMQ broker wrote, and write one
	@$(VENV)/bin/spark-mq demo

test: JOBS = 4  # its tests wait more than those of test-rest: 250 s on two cores
test: setup ## some of every kind of test, five minutes; what needs a JDK and Maven is skipped with the reason where they are absent
	@$(PYTEST) -m "not slow and not long" $(ARGS)

test-rest: setup ## what make test leaves out, but for what takes an hour
	@$(PYTEST) -m "slow and not long" $(ARGS)

test-all: test test-rest ## both

test-long: setup ## what takes an hour, or is one of many cases whose siblings the others run
	@$(PYTEST) -m long -o faulthandler_timeout=0 $(ARGS)

test-spark: setup ## the tests that start Spark; SPARK=4.1.4: some of them with that release, in an environment of its own
ifdef SPARK
	@python=$$(scripts/spark_environment.sh $(SPARK)) && \
		$$python -m tests.support.spark_releases docs/tables/spark-releases.md tests/spark -q -m "release or not (slow or long)" $(ARGS)
else
	@$(VENV)/bin/python -m pytest -m spark $(ARGS)
endif

test-versions: setup ## a quick choice of tests with Python 3.11 to 3.14, lowest and newest dependencies; PYTHONS="3.12" for some
	@$(VENV)/bin/python -m tests.support.version_matrix docs/tables/versions.md $(PYTHONS)

test-interop: setup ## the tests against Apache RocketMQ's own classes (JDK and Maven); RELEASE=5.5.0 chooses the release (5.3.3)
	@$(VENV)/bin/python -m pytest -m interop $(ARGS)

test-crash: setup ## the crash tests, then drivers killed 50 times and duties 100 times (ROUNDS=n each); writes docs/tables/kills.md
	@$(VENV)/bin/python -m pytest -m crash $(ARGS)
	@$(VENV)/bin/python -m tests.torture killed-drivers --rounds $(or $(ROUNDS),50) --page docs/tables/kills.md
	@$(VENV)/bin/python -m tests.torture killed-duties --rounds $(or $(ROUNDS),100) --page docs/tables/kills.md

torture: setup ## every kind of fault for MINUTES=60 minutes, planted mutants first; writes docs/tables/torture.md; SEED=n for the same rounds
	@$(VENV)/bin/python -m tests.torture docs/tables/torture.md --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: setup ## our broker for MINUTES=20 with each flush, among kills and bad connections; writes docs/tables/soak.md
	@$(VENV)/bin/python -m tests.broker_server.soak --flush SYNC_FLUSH --minutes $(or $(MINUTES),20) --page docs/tables/soak.md
	@$(VENV)/bin/python -m tests.broker_server.soak --flush ASYNC_FLUSH --minutes $(or $(MINUTES),20) --page docs/tables/soak.md

check: setup ## formatting, lint, types
	@$(VENV)/bin/ruff format --check $(wildcard $(PYTHON_FILES))
	@$(VENV)/bin/ruff check $(wildcard $(PYTHON_FILES))
	@$(VENV)/bin/mypy

walks: setup ## which files a deed enters: open, read, write, SEND, PULL; ARGS=-v names them
	@$(VENV)/bin/python -m tests.walks $(ARGS)

bench: setup ## source, sink and clients beside Kafka's and Java's, as tables
	@$(VENV)/bin/python bench/run.py $(ARGS)

doctor: setup ## look for what keeps Spark from working here
	@$(VENV)/bin/spark-mq doctor

wheel: ## dist/: sdist and wheel, to be installed elsewhere; needs no development environment
	@scripts/build.sh

docs: ## build/site, the documentation; a wrong link ends it
	@scripts/docs.sh

examples: setup ## run the programs of examples/, one after the other
	@$(VENV)/bin/python examples/run_all.py

lock: setup ## write requirements.lock anew from pyproject.toml, keeping versions that still fit
	@$(VENV)/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate $(addprefix --extra ,$(EXTRAS)) --group dev --custom-compile-command "make lock" \
		--output-file requirements.lock pyproject.toml

clean: ## remove everything that make has made
	rm -rf $(VENV) .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
