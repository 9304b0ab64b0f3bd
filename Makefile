# Headrace: everything that one does to it. `make` alone prints this list.
#
# A target's line is the comment above it. Every command runs in the environment of setup/environment.py.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

RUN := .venv/bin/python setup/environment.py
PYTEST := $(RUN) .venv/bin/python -m pytest
SEEDS := 0-2999
STARTS := 20
INSTALLATIONS := tests/package tests/airflow tests/demo tests/compose
# counting is a job of benchmarks, Nexmark takes hours, and scale takes gigabytes of memory and disk.
BENCHMARKS := $(sort $(filter-out _% counting flame nexmark scale,$(notdir $(basename $(wildcard benchmarks/*.py)))))

.PHONY: help setup .ready .site-tools demo verify-demo airflow test test-all test-long test-faults test-starts golden lint types imports format reference reports release matrix audit peers bench bench-page site clean lock \
        tier-unit tier-pure-python tier-compose tier-spark tier-airflow tier-fault tier-simulation tier-cluster tier-kafka tier-installations tier-types lane-spark lane-others closing-line

# show this list
help:
	@awk '/^# /{said=substr($$0,3)} /^[a-z%-]+:/{split($$0,a,":"); if (said && seen) printf "  make %-13s %s\n", a[1], said; said=""} /^$$/{said=""; seen=1}' Makefile

# make .venv, install the locked packages, find Java, fetch Delta's jars, archive Spark's classes (about a minute; a second time: nothing to do)
setup:
	@python=$$(PYTHON="$(PYTHON)" setup/find-python.sh) && "$$python" setup/bootstrap.py

.ready:
	@python=$$(PYTHON="$(PYTHON)" setup/find-python.sh) && "$$python" setup/bootstrap.py --quiet

# run the flights job end to end: service, input, Airflow, Spark, Delta tables, the board (a few minutes)
demo: setup
	@$(RUN) .venv/bin/python -m pipelines.flights.demo

# compare what the demo left in its tables with a plain, synchronous computation of the same flights
verify-demo: .ready
	@$(RUN) .venv/bin/python -m pipelines.flights.demo verify

# start Airflow with scheduler and UI on this machine, on SQLite or with AIRFLOW_DB=postgresql; Ctrl-C ends it
airflow: .ready
	@$(RUN) .venv/bin/python setup/airflow.py

# what must hold before a commit: lint, types, import rules, tests (unit, compose, spark, airflow, fault)
test: .ready lint types imports
	@$(LANES) SPARK="spark fault" OTHERS="unit compose airflow"
	@$(MAKE) closing-line

# test, the slow tests, those of the engine without its module in C, those on a local Spark cluster and on a Kafka broker, and those of whole installations
test-all: .ready .site-tools lint imports
	@$(LANES) SPARK="spark fault cluster kafka" OTHERS="types installations airflow compose simulation pure-python unit" QUICK="$(ALL)"
	@$(MAKE) closing-line

# the long tests: many more examples of what test-all draws, a job on YARN, Airflow on SQLite and an image for pods
test-long: export HEADRACE_EXAMPLES = 4
test-long: .ready
	@$(MAKE) tier-unit QUICK="$(LONG)"
	@$(MAKE) tier-spark QUICK="$(LONG)"
	@$(MAKE) tier-fault QUICK="$(LONG)"
	@$(MAKE) tier-cluster QUICK="$(LONG)"
	@$(MAKE) tier-installations INSTALLED="-m 'slow and long'"

# simulate a job whose world fails, without a JVM: thousands of worlds, a seed each; SEEDS=17-17 plays one again (about 0.4 s each)
test-faults: export HEADRACE_SEEDS = $(SEEDS)
test-faults: tier-simulation

# start the demo 20 times from nothing, on a busy machine: each start has to reach its first finished run (an hour; STARTS=3 for less)
test-starts: .ready
	@$(RUN) .venv/bin/python -m tests.demo.starts $(STARTS)

# compare results of the flights, the logbook and Nexmark with tests/golden.json (some minutes; OPTIONS="--against HEAD~3 q4")
golden: .ready
	@$(RUN) .venv/bin/python -m tests.golden $(OPTIONS)

# write docs/reports/ again: what `headrace report` writes about a shop and a year of flights (ten minutes or more)
reports: .ready
	@$(RUN) .venv/bin/python setup/example_reports.py

# ruff: everything minus the reasoned list in pyproject.toml
lint: .ready
	@$(RUN) ruff check . && $(RUN) ruff format --check --quiet . || { echo "make format puts the layout right"; exit 1; }

# mypy: --strict on engine/, pipelines/, dags/ and setup/; in tests/ and benchmarks/, names and arguments that do not exist
types: .ready
	@$(RUN) mypy

# who may import whom
imports: .ready
	@$(RUN) lint-imports

# let ruff lay the code out and repair what it can
format: .ready
	@$(RUN) ruff format . && $(RUN) ruff check --fix-only --quiet .

# write docs/reference/ from docstrings (of public doors, the configuration, the commands), docs/types.md from the kinds of columns, docs/metrics.md from the metrics
reference: .ready
	@$(RUN) .venv/bin/python setup/reference.py
	@$(RUN) .venv/bin/python setup/configuration_page.py
	@$(RUN) .venv/bin/python setup/commands_page.py
	@$(RUN) .venv/bin/python setup/types_page.py
	@$(RUN) .venv/bin/python setup/metrics_page.py

# build the site of docs/ into var/site; it can be read from the disk, or from any web server
site: .ready .site-tools
	@$(RUN) .venv/bin/python setup/site/build.py

.site-tools: .ready
	@.venv/bin/uv venv --quiet --allow-existing --python .venv/bin/python var/site-tools
	@.venv/bin/uv pip install --quiet --python var/site-tools/bin/python --require-hashes -r setup/site/tools.txt

# run all benchmarks but nexmark and scale, one process each, and write benchmarks/report.html (36 minutes on a quiet machine)
bench: .ready
	@failed=; for name in $(BENCHMARKS); do SECONDS=0; $(MAKE) "bench-$${name//_/-}" || failed="$$failed $$name"; \
	    echo "$$name took $$SECONDS s"; done; \
	$(MAKE) bench-page; [ -z "$$failed" ] || { echo "these benchmarks failed, and the page lacks their new results:$$failed"; exit 1; }

# install what benchmarks need beside the project (bytewax, py-spy), into var/peers
peers: .ready
	@.venv/bin/uv venv --quiet --allow-existing --python .venv/bin/python var/peers
	@.venv/bin/uv pip install --quiet --python var/peers/bin/python --require-hashes -r benchmarks/peers.txt

# write benchmarks/report.html from the last results of all benchmarks
bench-page: .ready
	@$(RUN) .venv/bin/python -m benchmarks._page

# run one benchmark, e.g. make bench-state-look-ups
bench-%: .ready
	@$(RUN) .venv/bin/python -m benchmarks.$(subst -,_,$*)

# undo everything: the environment, Airflow's home, the demo's input, tables and state
clean:
	rm -rf .venv var dist benchmarks/out benchmarks/report.html .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
	    spark-warehouse metastore_db derby.log
	rm -f engine/headrace/native/*.so engine/headrace/native/.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# build the commit's sdist, wheels, SBOM and licences into dist/, twice, and install them (ten minutes; PYTHONS="3.11 3.12")
release: .ready
	@$(RUN) .venv/bin/python setup/release.py $(PYTHONS)
	@HEADRACE_DIST=$(CURDIR)/dist $(PYTEST) tests/package/test_index.py -m slow

# play a first day with the wheel beside eight sets of versions; what passed with the same wheel is left out (40 minutes; CELLS="NAME")
matrix: .ready
	@$(RUN) .venv/bin/python setup/matrix.py $(CELLS)

# ask for known vulnerabilities of the locked packages, and of the oldest that the wheel admits (exit code 3: no service answers)
audit: .ready
	@$(RUN) .venv/bin/python setup/audit.py

# make requirements.txt again from pyproject.toml and requirements.in; UPGRADE=--upgrade moves the pins
lock: .ready
	@$(RUN) setup/lock.sh $(UPGRADE)

# A tier is a folder of tests/, run in a process of its own: Airflow and Spark both change a process for good.
# Every tier's closing line is kept for the summary. Each run has a temporary folder of its own, also for projects whose tests it runs:
# pytest clears what earlier runs left in a shared one, and fails where two runs clear it at once. The folder stays where a test failed.
TIER = set -o pipefail; mkdir -p var/log; printf '\n-- %s\n' '$(1)'; \
    export PYTEST_DEBUG_TEMPROOT=$$(mktemp -d "$${TMPDIR:-/tmp}/tests-XXXXXX"); \
    $(PYTEST) --basetemp="$$PYTEST_DEBUG_TEMPROOT/t" $(2) 2>&1 | tee var/log/tests-$(1).log && rm -rf "$$PYTEST_DEBUG_TEMPROOT"

# A tier leaves its slow tests out, except in test-all: there they share what the others have set up, such as a Spark session. Long
# tests draw many more examples of what quick ones draw; only test-long runs them.
QUICK := -m 'not (slow or long)'
ALL := -m 'not long'
INSTALLED := -m 'slow and not long'
LONG := -m 'long or drawn'

# Two lanes of tiers go on at once: those that share a Spark session or a broker often wait, for a JVM or a disk, and leave a
# core to the others. Never two of the first kind at once. Whole installations wait even more. The unit tests are the last ones: they
# have a process for each core, also when the other lane has ended. Lines of both are shown as they come; each tier's own are in
# var/log/.
LANES = lanes() { $(MAKE) --jobs=2 lane-spark lane-others "$$@" || { $(MAKE) closing-line; exit 1; }; }; lanes

tier-types: types

lane-spark:
	@for tier in $(SPARK); do $(MAKE) tier-$$tier || exit 1; done

lane-others:
	@for tier in $(OTHERS); do $(MAKE) tier-$$tier || exit 1; done

# Unit tests and simulations share nothing but the machine: a process for each core. In the tier of Airflow, each process has
# an Airflow of its own, and takes whole files. Whole installations often wait: two files go on at once, however many cores
# there are, the longest ones first. Tests that share a Spark session, or a broker, go on one at a time.

tier-unit: .ready
	@$(call TIER,unit,tests/unit $(QUICK) --numprocesses logical --dist worksteal)

# The same tests of execution, state and the hot objects once more, without the module in C.

tier-pure-python: export HEADRACE_PURE_PYTHON = 1
tier-pure-python: .ready
	@$(call TIER,pure-python,tests/unit/execution tests/unit/native tests/unit/state $(ALL) --numprocesses logical --dist worksteal)

tier-simulation: .ready
	@$(call TIER,simulation,tests/simulation --numprocesses logical --dist worksteal)

tier-compose: .ready
	@$(call TIER,compose,tests/compose -m 'not slow')

tier-airflow: .ready
	@$(call TIER,airflow,tests/airflow -m 'not slow' --numprocesses logical --dist loadfile)

tier-installations: .ready
	@$(call TIER,installations,$(INSTALLATIONS) $(INSTALLED) --numprocesses 2 --dist loadfile)

tier-spark tier-fault tier-cluster tier-kafka: tier-%: .ready
	@$(call TIER,$*,tests/$* $(QUICK))

closing-line:
	@echo; for log in unit pure-python compose spark airflow fault simulation cluster kafka installations; do \
	    file=var/log/tests-$$log.log; [ ! -e $$file ] || printf '%-13s %s\n' $$log "$$(grep -E '^=+ .* in [0-9.]+s' $$file || tail -n 1 $$file)"; done
