# The targets that people use. Each one makes what it needs, and nothing twice.
PYTHON ?= python3
BIN := .venv/bin
PACKAGES := proto libs/core libs/kafka libs/runtime libs/frontend services/controller services/storage-node services/gateway client spark

.PHONY: help setup

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: .venv/.ready ## make .venv with every package of this repository

.venv/.ready: constraints.txt proto/protoc.txt $(addsuffix /pyproject.toml,$(PACKAGES))
	$(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; call make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --upgrade --target .venv/protoc -r proto/protoc.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(addprefix -e ./,$(PACKAGES))
	$(BIN)/python -m compileall -q $(PACKAGES)
	touch $@

.PHONY: demo
demo: setup ## real flights, a killed node, Spark: the whole thing in about a minute (needs Java 17)
	@$(BIN)/python -m demo

.PHONY: test lint unit-test cluster-test spark-test spark-parity compose-test proto lock clean
PYTEST := $(BIN)/python -m pytest

# With WHOLE=1 nothing is left out of `make test` (tests/whole.txt). Long runs leave nothing out.
WHOLE ?=
export PENSTOCK_WHOLE := $(WHOLE)
spark-parity compose-test security rotation canary quotas transactions-test large ops-test alerts-test dashboards: export PENSTOCK_WHOLE := 1
spark-jobs-test spark-sink-test spark-source-test spark-reading-test spark-sink-rows: export PENSTOCK_WHOLE := 1
spark-connect-test spark-credentials-test secure-clients upgrade-secure upgrade-test conformance-java: export PENSTOCK_WHOLE := 1

# How many tests at once. Most of them wait more than they compute; a file's tests stay together, in their order.
WORKERS ?= 2
# In the order of tests/conftest.py, and not of how many tests a file has.
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: setup ## every check and test: the README's test command (WORKERS=4 where there are cores; WHOLE=1 for its long form, an hour)
	$(MAKE) --no-print-directory lint
	@failed=; PENSTOCK_TEST_FAILURES=$$(mktemp); export PENSTOCK_TEST_FAILURES; set -x; \
	$(PYTEST) tests -m "not alone" $(SIDE_BY_SIDE) || failed="$$failed side by side,"; \
	$(PYTEST) tests -m alone || failed="$$failed alone,"; \
	set +x; tail -n 200 "$$PENSTOCK_TEST_FAILURES"; names=$$(grep '^FAILED' "$$PENSTOCK_TEST_FAILURES" | tail -n 15); rm -f "$$PENSTOCK_TEST_FAILURES"; \
	test -z "$$failed" || { echo "tests failed: $${failed%,}; each part ends with a summary of its own"; echo "$$names"; exit 1; }

lint: setup ## ruff, mypy --strict, import contracts, generated files current
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint-types lint-rest

.PHONY: lint-types lint-rest
lint-types: # about as long as the rest of lint together
	$(BIN)/mypy

lint-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_protos.py --check
	$(BIN)/python tools/lock.py --check
	$(BIN)/python tools/bill.py --check
	$(BIN)/bandit -q -ll -r $(PACKAGES) --exclude proto/src/penstock_proto/v1

unit-test: setup ## the quick tests: no processes but short-lived ones, servers on loopback alone
	$(PYTEST) tests/unit $(SIDE_BY_SIDE)

cluster-test: setup ## real processes and real Kafka clients
	$(PYTEST) tests/cluster

spark-test: setup ## real Spark
	$(PYTEST) tests/spark

spark-parity: setup ## every option beside Spark's Kafka connector on Kafka 4.3.1, streams and writes too (java, mvn)
	PENSTOCK_SPARK_PARITY=1 $(PYTEST) tests/spark/test_spark_parity.py

compose-test: setup ## images, compose, a killed container; starts Docker Engine when none runs
	PENSTOCK_COMPOSE_SPARK=1 $(PYTEST) tests/compose

proto: setup ## generate the protobuf stubs again
	$(BIN)/python tools/generate_protos.py

lock: setup ## resolve constraints.txt again
	$(BIN)/python tools/lock.py
	$(BIN)/python tools/bill.py

clean: ## remove what make made, the environment included
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-report bench-report
	find . -name '*.egg-info' -prune -exec rm -rf {} +

.PHONY: bench
bench: setup ## Penstock beside Apache Kafka in pairs: ONLY=regex ROUNDS=5 SECURE=1, BENCH=--quick or --list (java, mvn, gcc)
	$(BIN)/python -m bench.runner $(if $(ONLY),--only "$(ONLY)") $(if $(filter-out file,$(origin ROUNDS)),$(if $(ROUNDS),--rounds $(ROUNDS))) $(if $(SECURE),--secure) $(BENCH)

.PHONY: bench-transactions
bench-transactions: setup ## transactions beside Apache Kafka's in pairs, two clients: ONLY=regex ROUNDS=5, BENCH=--quick or --list (java, javac, mvn, gcc)
	$(BIN)/python -m bench.transactions $(if $(ONLY),--only "$(ONLY)") $(if $(filter-out file,$(origin ROUNDS)),$(if $(ROUNDS),--rounds $(ROUNDS))) $(if $(SECURE),--secure) $(BENCH)

.PHONY: bench-readme
bench-readme: setup ## README's table from a document of make bench: DOCUMENT=bench/results/FILE.json
	@$(BIN)/python -m bench.runner.readme "$(DOCUMENT)"

.PHONY: bench-versions
bench-versions: setup ## this checkout beside another one, in pairs: BENCH="--before DIR" (kcat)
	$(BIN)/python -m bench.versions $(BENCH)

.PHONY: bench-groups
bench-groups: setup ## what heartbeats, commits, 1,000 live groups, large rebalances and idempotence cost (java, mvn, kcat; BENCH="--help")
	$(BIN)/python -m bench.groups $(BENCH)

.PHONY: bench-stages
bench-stages: setup ## CPU by process and thread, sleeps and bytes of a record's way (gcc; STAGES="--help")
	$(BIN)/python -m bench.stages $(STAGES)

.PHONY: bench-transaction-stages
bench-transaction-stages: setup ## CPU by process and thread, sleeps and flushes of a transaction's way (gcc, java, javac, mvn; STAGES="--help")
	$(BIN)/python -m bench.transaction_stages $(STAGES)

.PHONY: bench-spark
bench-spark: setup ## Spark's source beside Spark's Kafka connector on Kafka 4.3.1 (java, mvn; BENCH="--help")
	PYTHONPATH=tests $(BIN)/python -m bench.spark $(BENCH)

.PHONY: chaos
chaos: setup ## every way to hurt a cluster of real processes, and what it lost: nothing (root; CHAOS="--help")
	PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

.PHONY: bank
bank: setup ## a bank's money moved by two clients while everything is hurt: ROUNDS=20 SEED=n ONLY="fault names" (root, gcc, iptables, java, mvn; BANK="--help")
	PYTHONPATH=tests $(BIN)/python -m chaos.bank $(ROUNDS_AND_SEED) $(if $(ONLY),--only $(ONLY)) $(BANK)

.PHONY: failpoints kill-all power-cut
CRASH := PYTHONPATH=tests $(BIN)/python -m crash
ROUNDS ?=
SEED ?=
ROUNDS_AND_SEED = $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED))

failpoints: setup ## a process dies at every named failpoint, under load; ONLY="words" chooses some
	@$(CRASH) failpoints $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)") $(ARGS)

kill-all: setup ## kill -9 of every process at once under load; ROUNDS=100 SEED=n
	@$(CRASH) kill-all $(ROUNDS_AND_SEED) $(ARGS)

power-cut: setup ## the same, and what was not synced is gone (needs gcc); ROUNDS=20 SEED=n
	@$(CRASH) power-cut $(ROUNDS_AND_SEED) $(ARGS)

.PHONY: simulate simulate-planted
SIMULATION := PYTHONHASHSEED=0 PYTHONPATH=tests $(BIN)/python -m simulation
SEEDS ?= 200
FIRST ?= 1

simulate: setup ## the cluster in one process under a seeded scheduler: SEEDS=1000, or SEED=n to replay one
	$(SIMULATION) $(if $(SEED),--seed $(SEED) $(if $(PLANTED),--bug $(PLANTED)),--seeds $(SEEDS) --first $(FIRST)) $(if $(JSON),--json $(JSON))

simulate-planted: setup ## plant known bugs, one at a time: each must be found (ONLY="a b": those)
	$(SIMULATION) --planted $(if $(ONLY),"$(ONLY)") $(if $(JSON),--json $(JSON))

.PHONY: conformance
conformance: setup ## every Kafka client against Penstock and against Kafka itself, and the matrix (java, mvn, kcat; CONFORMANCE="--help")
	PYTHONPATH=tests $(BIN)/python -m conformance $(CONFORMANCE)

.PHONY: fuzz
EXECUTIONS ?= 1000000

fuzz: setup ## every parser against a coverage-guided fuzzer: EXECUTIONS=10000000 SEED=n ONLY="words" (Linux)
	@PYTHONPATH=tests $(BIN)/python -m fuzz --executions $(EXECUTIONS) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only "$(ONLY)") $(ARGS)

.PHONY: security
security: setup ## attacks from outside on a real cluster, and what each costs everybody else (SECURITY="--help")
	@PYTHONPATH=tests $(BIN)/python -m security $(SECURITY)

.PHONY: rotation
rotation: setup ## the CA and all certificates replaced twice under 1,000 messages a second
	PENSTOCK_ROTATION_RATE=1000 $(PYTEST) tests/security/test_rotation.py -s

.PHONY: canary
canary: setup ## a whole run of a secure cluster, and no password, key or token anywhere but in the files that hold them
	PENSTOCK_CANARY=1 $(PYTEST) tests/security/test_canary.py -s

.PHONY: quotas
quotas: setup ## quotas with stock clients, on one gateway and on three, those of bytes over a minute each: within a tenth; a login flood
	PENSTOCK_QUOTA_SECONDS=60 $(PYTEST) tests/cluster/test_quotas.py tests/cluster/test_login_flood.py -s

.PHONY: transactions-test
transactions-test: setup ## transactions of every client by both ways in while nodes, gateways and members are killed, all is restarted, versions change: ROUNDS=3 of these; compacted topics; coordinators' traces beside Kafka's (java, mvn)
	PENSTOCK_TRANSACTIONS=1 PENSTOCK_TRANSACTIONS_ROUNDS=$(ROUNDS) $(PYTEST) tests/cluster/test_transactions.py tests/cluster/test_transactions_operated.py tests/cluster/test_offsets_in_transactions.py tests/cluster/test_compacted_transactions.py tests/conformance/test_coordinator_traces.py -s

.PHONY: spark-jobs-test
spark-jobs-test: setup ## all jobs by command on RECORDS=200000; killed at random they end equal to their topic; a replay's rate; a standalone Spark; ONLY="words" (java)
	PENSTOCK_SPARK_JOBS=1 PENSTOCK_SPARK_RECORDS=$(RECORDS) $(PYTEST) tests/spark/test_spark_jobs.py tests/spark/test_spark_jobs_cluster.py tests/spark/test_spark_jobs_commands.py tests/spark/test_spark_jobs_killed.py tests/spark/test_spark_jobs_long.py $(if $(ONLY),-k "$(ONLY)") -s

.PHONY: spark-sink-test
spark-sink-test: setup ## exactly-once writing with a kill at every point, ROUNDS=20 SEED=n ONLY="task-in or foreign" (java)
	PENSTOCK_SPARK_SINK=1 ROUNDS=$(or $(ROUNDS),20) SEED=$(or $(SEED),$(shell date +%s)) $(PYTEST) tests/spark/test_spark_sink_killed.py $(if $(ONLY),-k "$(ONLY)") -s

.PHONY: spark-source-test
spark-source-test: setup ## exactly-once reading with nodes, gateways and executors killed in mid-read, each way to fetch: ROUNDS=20 of one query each and 18 fresh ones, SEED=n ONLY="rounds and direct" (java)
	PENSTOCK_SPARK_SOURCE=1 ROUNDS=$(or $(ROUNDS),20) SEED=$(SEED) $(PYTEST) tests/spark/test_spark_source_killed.py $(if $(ONLY),-k "$(ONLY)") -s

.PHONY: spark-reading-test
spark-reading-test: setup ## streams that lose, wait, are refused or misled, and how far behind a group is told: ONLY="trimmed" for some (java)
	PENSTOCK_SPARK_READING=1 $(PYTEST) tests/spark/test_spark_committed.py tests/spark/test_spark_data_loss.py tests/spark/test_spark_bad_input.py tests/spark/test_spark_planned.py tests/spark/test_spark_streaming.py $(if $(ONLY),-k "$(ONLY)") -s

.PHONY: spark-sink-rows
spark-sink-rows: setup ## a million rows of random keys beside librdkafka's murmur2, every shape and codec read back; ROWS=1000000 SEED=n (java)
	PENSTOCK_SPARK_SINK_ROWS=$(or $(ROWS),1000000) SEED=$(SEED) $(PYTEST) tests/spark/test_spark_sink_rows.py -s

.PHONY: spark-connect-test spark-credentials-test
spark-connect-test: setup ## Spark Connect over two workers: our packages installed, or sent along by a client (java)
	PENSTOCK_SPARK_CONNECT=1 $(PYTEST) tests/spark/test_spark_connect.py -s

spark-credentials-test: setup ## every job over SASL_SSL by a file, with and without rights; no password on a page, in a plan or in a file of Spark's (java)
	PENSTOCK_SPARK_CREDENTIALS=1 $(PYTEST) tests/spark/test_spark_credentials.py -s

.PHONY: large
large: setup ## a hundred thousand partitions: snapshots, controllers that lag, new subscribers, a fenced node: nobody notices
	PENSTOCK_LARGE_PARTITIONS=100000 $(PYTEST) tests/cluster/test_controller_large.py -s

.PHONY: ops-test
ops-test: setup ## planned changes of a cluster: every proof in its long form, and a table; ONLY="words" chooses lines, SEEDS=2000 (OPS="--help")
	@PYTHONPATH=tests $(BIN)/python -m ops $(if $(ONLY),--only "$(ONLY)") $(if $(filter-out file,$(origin SEEDS)),--seeds $(SEEDS)) $(OPS)

.PHONY: alerts-test dashboards
alerts-test: setup ## alerts fire by their fault on a cluster of real processes (prometheus)
	PENSTOCK_ALERTS=1 $(PYTEST) -v tests/observability/test_rules.py tests/observability/test_alerts_fire.py

dashboards: setup ## write Grafana's dashboards, ask their queries of a cluster at work, draw the answers for docs (prometheus)
	$(BIN)/python tools/dashboards.py
	answers=$$(mktemp) && PENSTOCK_DASHBOARD_ANSWERS=$$answers $(PYTEST) tests/observability/test_dashboards.py && $(BIN)/python tools/dashboards.py --pictures $$answers && rm $$answers

.PHONY: secure-clients
secure-clients: setup ## stock clients that come in for a minute by each mechanism and by certificate, a gateway and a node killed (java, mvn, kcat)
	PENSTOCK_STOCK_CLIENTS_S=60 $(PYTEST) tests/cluster/test_stock_clients_sign_in.py

.PHONY: upgrade-secure
upgrade-secure: setup ## from a build of before in plaintext to this one and SASL_SSL, under load: BEFORE=DIR, a checkout with its .venv (java, mvn, kcat)
	@test -x "$(BEFORE)/.venv/bin/python" || { echo "BEFORE=$(BEFORE) is no checkout with a .venv; make upgrade-secure BEFORE=DIR"; exit 1; }
	@# kafka-python frees sockets of dials that failed when the interpreter ends, where the test's own mark holds no more.
	PENSTOCK_BEFORE=$(BEFORE) $(PYTEST) -W "ignore:unclosed <socket.socket:ResourceWarning" tests/security/test_upgrade.py -s

.PHONY: upgrade-test
upgrade-test: setup ## an earlier commit to this one and back, each role first and at random, under load of three clients, and of transactions: BASE=COMMIT, PENSTOCK_UPGRADE_SEED=n, ONLY="words" (java, mvn)
	@# As above: kafka-python's sockets of dials that failed.
	PENSTOCK_UPGRADE_MATRIX=1 PENSTOCK_UPGRADE_BASE=$(BASE) $(PYTEST) -W "ignore:unclosed <socket.socket:ResourceWarning" tests/upgrade $(if $(ONLY),-k "$(ONLY)") -s

.PHONY: wheels-test
wheels-test: setup ## README's lines where only the built wheels are, newest and oldest versions, PySpark 4.2 and 4.3: ONLY="oldest" (root, java; WHEELS="--help")
	@PYTHONPATH=tests $(BIN)/python -m wheels $(if $(ONLY),--only "$(ONLY)") $(WHEELS)

.PHONY: conformance-java
conformance-java: setup ## Kafka's tools, Java groups and failover, Connect, Streams, MirrorMaker 2: STREAMS_SECONDS=600 ONLY="streams" (java, mvn)
	PENSTOCK_CONFORMANCE=1 PENSTOCK_STREAMS_SECONDS=$(STREAMS_SECONDS) $(PYTEST) tests/conformance/test_java_*.py tests/cluster/test_kafka_tools_*.py $(if $(ONLY),-k "$(ONLY)") -s
