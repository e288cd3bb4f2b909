# Every target works on a fresh clone and brings up what it needs. .ci/run runs the same targets.

# Statement coverage, in percent, below which make test-all fails.
COVERAGE_BAR = 95

# Major versions of Postgres for make test-versions, of those that internal/tools/package.json pins.
POSTGRES_VERSIONS = 15 16 17 18

# Servers for make test-redis, of those that internal/tools/redis.sh knows.
REDIS_VERSIONS = redis-8.0 valkey-8.0 valkey-8.1

.DEFAULT_GOAL = help
.DELETE_ON_ERROR:

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Watch a stale writer being refused, on real servers (seconds, once it is built)
	@internal/tools/ensure.sh go servers
	go run ./lab/demo

.PHONY: demo-web
demo-web: ## Watch leases, tokens and refusals on a page, and press buttons that do harm (until Ctrl-C)
	@internal/tools/ensure.sh go programs
	@go build -o .bin/demo ./lab/demo
	@.bin/demo page

.PHONY: fencedb
fencedb: ## Build the command of operators, one static binary, as .bin/fencedb
	@internal/tools/ensure.sh go
	CGO_ENABLED=0 go build -trimpath -o .bin/ ./cmd/fencedb

.PHONY: booking
booking: ## Run the service of examples/booking, on http://localhost:8080, until Ctrl-C
	@internal/tools/ensure.sh go servers
	@go build -o .bin/ ./lab/demo ./examples/booking
	@.bin/demo with sh -c '.bin/booking migrate && exec .bin/booking'

.PHONY: inventory
inventory: ## Run the shop of examples/inventory, for commands in another terminal, until Ctrl-C
	@internal/tools/ensure.sh go servers
	@go build -o .bin/ ./lab/demo ./examples/inventory
	@.bin/demo with sh -c 'echo "in another terminal:"; \
		echo "    export FENCEDB_POSTGRES_URL=\"$$FENCEDB_POSTGRES_URL\" FENCEDB_REDIS_URL=\"$$FENCEDB_REDIS_URL\""; \
		echo "    .bin/inventory reserve ann sneaker=1 poster=1; .bin/inventory stock"; exec .bin/inventory'

# What programs import. The longest come first, so that none of them runs alone at the end.
PACKAGES = ./fencedb ./migrations ./lease/... ./guard ./fencedbtest ./grant ./internal/protocol ./observe/...

# One test of each example.
EXAMPLES = ./examples/quickstart ./examples/booking/booking ./examples/inventory/shop ./examples/jobs ./examples/cron ./examples/cache \
	./examples/queues/river ./examples/queues/asynq
EXAMPLES_RUN = TestTheProgramBooksOnAnEmptyDatabaseAndAgain|TestARequestThatWasStoppedBooksNothing|TestAPayerThatWasOvertakenIsRefused|$\
	TestALateOwner|TestManySchedulersSendEachOnce|TestASlowBuilderDoesNotOverwrite|TestAJobThatWasOvertaken|TestATaskWaitsForItsCustomer

# Three packages at once: on two processors, tests that wait leave a third of the time unused otherwise. A machine with
# other load takes longer than the ten minutes of go test. make lint runs go vet. The summary has a line for each
# package, failures in full, and says every ten seconds what goes on.
TEST = go test -vet=off -count=1 -timeout 30m -p 3
SUMMARY = go run internal/tools/testsum/main.go

.PHONY: test
test: ## Run the tests of what programs import, in small sizes, on real servers (five minutes on two processors)
	@internal/tools/ensure.sh go programs
	@$(SUMMARY) $(TEST) -short -parallel 4 $(PACKAGES) , $(TEST) -short -run '^($(EXAMPLES_RUN))' $(EXAMPLES)

# What make check looks at.
P = ./lease

.PHONY: check
check: ## Lint, build and test one package in small sizes: make check P=./lease (two minutes)
	@internal/tools/ensure.sh go programs
	@internal/tools/check.sh $(P)
	@$(SUMMARY) $(TEST) -short -parallel 4 $(P)

# The race detector watches what runs in the programs of users. The rest, which is mostly about servers and processes of
# its own or uses libraries of others, runs without: under it a search in one goroutine takes six times as long, and all
# it depends on is compiled once more. The pattern work is all modules of go.work.
UNRACED = ./lab/matrix ./cmd/fencedb/... ./migrations ./lab/... ./examples ./examples/queues/... ./grant/grpc ./internal/testenv

# These have targets of their own: test-web and interop.
APART = ./lab/browser ./lab/interop

# Without the race detector, four tests of each package at once.
COVERED = $(TEST) -coverpkg=./lease,./fencedb

.PHONY: test-all
test-all: ## Run every test in full size, mostly with the race detector, and check coverage (twenty minutes)
	@internal/tools/ensure.sh go compiler programs prometheus
	@$(SUMMARY) env CGO_ENABLED=1 $(COVERED) -race -coverprofile=coverage.out \
			./fencedb ./lease $$(go list work | grep -vxF "$$(go list $(UNRACED))") , \
		$(COVERED) -parallel 4 -coverprofile=unraced.out $$(go list $(UNRACED) | grep -vxF "$$(go list $(APART))") , \
		env GOWORK=off go -C internal/tools test -vet=off -count=1 ./testsum
	@sed 1d unraced.out >>coverage.out
	@internal/tools/coverage.sh coverage.out $(COVERAGE_BAR) lease fencedb

.PHONY: simulate
simulate: ## Run 5000 seeds of the leases in virtual time, with faults, and find mutants of them (two minutes)
	@internal/tools/ensure.sh go
	GOGC=400 go test -count=1 -timeout 30m ./lease -run 'Simulation' -seeds 5000

.PHONY: mutations
mutations: ## Remove each guard of lab/docs/mutations.md, one at a time, and see its test fail (an hour)
	@internal/tools/ensure.sh go programs
	go test -count=1 -v -timeout 0 ./lab/docs -run MutationsAreNoticed -mutate .

.PHONY: soak
FOR = 1h
soak: ## Keep both halves under a mixed load for FOR (an hour), and look for what grows
	@internal/tools/ensure.sh go programs
	go test -count=1 -v -timeout 0 ./lab/soak -for $(FOR)

.PHONY: test-web
test-web: ## Press every button of the page of make demo-web in a real browser
	@internal/tools/ensure.sh go programs browser
	go -C lab/browser test -count=1 ./...

.PHONY: interop
interop: ## Let clients in Python, Node and Go take turns on one resource, while processes are stopped (half a minute)
	@internal/tools/ensure.sh go programs interop
	go -C lab/interop test -count=1 ./...

.PHONY: test-versions
test-versions: ## Run the tests of the write layer on each major version of Postgres
	@internal/tools/ensure.sh go programs npm
	@internal/tools/versions.sh $(POSTGRES_VERSIONS)

.PHONY: test-redis
test-redis: ## Run the contract of the leases on other Redis servers, Valkey among them
	@internal/tools/ensure.sh go programs
	@internal/tools/redis.sh $(REDIS_VERSIONS)

.PHONY: matrix
matrix: ## Hold every promise of the write layer against every fault, on each major version (some hours)
	@internal/tools/ensure.sh go programs npm
	@FENCEDB_MATRIX=full VERSIONS_TEST='-timeout 24h ./lab/matrix' internal/tools/versions.sh $(POSTGRES_VERSIONS)

.PHONY: matrix-leases
matrix-leases: ## Try every call of a lease under every fault, not only the sample that make test-all takes (ten minutes)
	@internal/tools/ensure.sh go programs
	FENCEDB_MATRIX=full go test -count=1 -timeout 60m ./lab/matrix/leases

.PHONY: bench
bench: ## Measure writes, leases and waiting beside other ways and libraries (fifteen minutes, an idle machine)
	@internal/tools/ensure.sh go programs
	go -C lab/bench run .

.PHONY: bench-quick
bench-quick: ## Measure writes and leases in short rounds (about a minute, an idle machine)
	@internal/tools/ensure.sh go programs
	go -C lab/bench run . -quick

.PHONY: bench-service
bench-service: ## Sell with each way to exclude others: how fast, and how much that is not there (three minutes)
	@internal/tools/ensure.sh go programs
	go -C lab/bench run . -only service

.PHONY: bench-memory
bench-memory: ## Lease a million resources once each, and weigh what that leaves in Redis (three minutes)
	@internal/tools/ensure.sh go programs
	go -C lab/bench test -count=1 -timeout 1h -run Memory -scale -v .

.PHONY: bench-scale
bench-scale: ## Measure what grows with leases, processes, fences and servers: docs/scaling.md (half an hour, an idle machine)
	@internal/tools/ensure.sh go programs
	go -C lab/bench test -count=1 -timeout 2h -run Scale -scale -v .

.PHONY: lint
lint: ## Check format, go vet, golangci-lint, dead code, spelling, plain words, govulncheck, shell syntax and go.mod
	@internal/tools/ensure.sh go
	@internal/tools/lint.sh

.PHONY: alerts
alerts: ## Check the alert rules, and run their tests: each fires, and not on a near miss
	@internal/tools/ensure.sh prometheus
	promtool check config observe/dashboards/prometheus.yml
	promtool test rules observe/dashboards/rules_test.yml

# Without cgo, sqlc brings Postgres's parser as WebAssembly and needs no C compiler.
.PHONY: sqlc
sqlc: ## Generate the code that sqlc makes from queries, in lab/compat
	@internal/tools/ensure.sh go
	CGO_ENABLED=0 GOWORK=off go -C internal/tools/sqlc build -o ../../../.bin/ github.com/sqlc-dev/sqlc/cmd/sqlc
	.bin/sqlc generate --file lab/compat/sqlc/sqlc.yaml

.PHONY: release
release: ## Date the changelog and tag all modules with VERSION=0.1.0, if all of .ci/run passes; publishes nothing
	@internal/tools/ensure.sh go
	@internal/tools/release.sh $(VERSION)

.PHONY: fmt
fmt: ## Format the Go code
	gofmt -w .

.PHONY: up
up: ## Start the Postgres 17 and Redis 7 of docker-compose.yml, which stay until make down, and print their addresses
	@docker compose version >/dev/null 2>&1 || { echo 'make up needs Docker with compose; examples/quickstart/README.md says what to start without it' >&2; exit 1; }
	docker compose up --detach --wait
	@echo "export FENCEDB_POSTGRES_URL='postgres://fencedb:fencedb@127.0.0.1:$${FENCEDB_POSTGRES_PORT:-55432}/fencedb?sslmode=disable'"
	@echo "export FENCEDB_REDIS_URL='redis://127.0.0.1:$${FENCEDB_REDIS_PORT:-56379}/0'"

.PHONY: down
down: ## Stop what make up started; the data stays in named volumes
	docker compose --profile observe down
