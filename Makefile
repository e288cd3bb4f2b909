# Every target works on a fresh clone and brings up what it needs. .ci/run runs the same targets.

# Statement coverage, in percent, below which make test-all fails.
COVERAGE_BAR = 95

# Major versions of Postgres for make test-versions and make matrix, of those that internal/tools/package.json pins.
POSTGRES_VERSIONS = 15 16 17 18

# Servers for make test-versions, of those that internal/tools/redis.sh knows.
REDIS_VERSIONS = redis-8.0 valkey-8.0 valkey-8.1

.DEFAULT_GOAL = help
.DELETE_ON_ERROR:

## Try it

.PHONY: help demo demo-web example up
help: ## Print this list
	@awk -F ':.*## ' '/^## / { print "\n" substr($$0, 4) } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Watch a stale writer being refused, on real servers (seconds, once it is built)
	@internal/tools/ensure.sh go servers
	@go build -o .bin/ ./internal/testenv/servers ./cmd/fencedb
	@.bin/servers .bin/fencedb drill

demo-web: ## Watch leases, tokens and refusals on a page, and press buttons that do harm (until Ctrl-C)
	@internal/tools/ensure.sh go programs
	@go build -o .bin/demo ./lab/demo
	@.bin/demo

# booking is a service on http://localhost:8080; inventory takes commands in another terminal.
EXAMPLE = booking
example_booking = .bin/booking migrate && exec .bin/booking
example_inventory = echo "in another terminal:"; \
	echo "    export FENCEDB_POSTGRES_URL=\"$$FENCEDB_POSTGRES_URL\" FENCEDB_REDIS_URL=\"$$FENCEDB_REDIS_URL\""; \
	echo "    .bin/inventory reserve ann sneaker=1 poster=1; .bin/inventory stock"; exec .bin/inventory

example: ## Run examples/booking, or EXAMPLE=inventory, until Ctrl-C
	@internal/tools/ensure.sh go servers
	@go build -o .bin/ ./internal/testenv/servers ./examples/$(EXAMPLE)
	@.bin/servers sh -c '$(or $(example_$(EXAMPLE)),$(error EXAMPLE is booking or inventory))'

up: ## Start the Postgres 17 and Redis 7 of docker-compose.yml, and print their addresses and how to stop them
	@docker compose version >/dev/null 2>&1 || { echo 'make up needs Docker with compose; examples/quickstart/README.md says what to start without it' >&2; exit 1; }
	docker compose up --detach --wait
	@echo "export FENCEDB_POSTGRES_URL='postgres://fencedb:fencedb@127.0.0.1:$${FENCEDB_POSTGRES_PORT:-55432}/fencedb?sslmode=disable'"
	@echo "export FENCEDB_REDIS_URL='redis://127.0.0.1:$${FENCEDB_REDIS_PORT:-56379}/0'"
	@echo '# docker compose --profile observe down stops them; the data stays in named volumes'

## Change it

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

.PHONY: fencedb check lint test test-all
fencedb: ## Build the command of operators, one static binary, as .bin/fencedb
	@internal/tools/ensure.sh go
	CGO_ENABLED=0 go build -trimpath -o .bin/ ./cmd/fencedb

# What make check looks at.
P = ./lease

check: ## Lint, build and test one package in small sizes: make check P=./lease (two minutes)
	@internal/tools/ensure.sh go programs
	@internal/tools/check.sh $(P)
	@$(SUMMARY) $(TEST) -short -parallel 4 $(P)

lint: ## Check format, go vet, golangci-lint, dead and generated code, spelling, words, alert rules, govulncheck, shell, go.mod
	@internal/tools/ensure.sh go prometheus
	@internal/tools/lint.sh

test: ## Run the tests of what programs import, in small sizes, on real servers (five minutes on two processors)
	@internal/tools/ensure.sh go programs
	@$(SUMMARY) $(TEST) -short -parallel 4 $(PACKAGES) , $(TEST) -short -run '^($(EXAMPLES_RUN))' $(EXAMPLES)

# The race detector watches what runs in the programs of users. The rest, which is mostly about servers and processes of
# its own or uses libraries of others, runs without: under it a search in one goroutine takes six times as long, and all
# it depends on is compiled once more. The pattern work is all modules of go.work.
UNRACED = ./lab/matrix/writes ./cmd/fencedb/... ./migrations ./lab/... ./examples ./examples/queues/... ./grant/grpc ./internal/testenv/...

# make test-lab runs these.
APART = ./lab/browser ./lab/interop

# Tests that are smaller under the race detector, as testenv.Small says. Here they run in full size.
SIZED = TestSimulation|TestTheSimulationFindsMutants|TestASeedGivesTheSameRunAgain|TestAThousandSlowCancels|$\
	TestAnAnswerThatEndsAtAnyByte|TestASealThatIsCut|TestAnAlteredByte|TestRandomCuts|TestPropertiesS1ToS5

# Several tests of each package at once, because most of their time they wait.
COVERED = $(TEST) -coverpkg=./lease,./fencedb

test-all: ## Run every test in full size, mostly with the race detector, and check coverage (twenty minutes)
	@internal/tools/ensure.sh go compiler programs prometheus
	@$(SUMMARY) env CGO_ENABLED=1 $(COVERED) -race -parallel 6 -coverprofile=coverage.out \
			./fencedb ./lease $$(go list work | grep -vxF "$$(go list $(UNRACED))") , \
		$(COVERED) -parallel 4 -coverprofile=unraced.out $$(go list $(UNRACED) | grep -vxF "$$(go list $(APART))") , \
		$(TEST) -parallel 4 -run '^($(SIZED))' ./fencedb ./lease , \
		env GOWORK=off go -C internal/tools test -vet=off -count=1 ./testsum
	@sed 1d unraced.out >>coverage.out
	@internal/tools/coverage.sh coverage.out $(COVERAGE_BAR) lease fencedb

## Before a release

.PHONY: test-versions test-lab simulate mutations soak matrix bench release
test-versions: ## Test the write layer on each major version of Postgres, and the leases on other Redis servers
	@internal/tools/ensure.sh go programs npm
	@internal/tools/versions.sh $(POSTGRES_VERSIONS)
	@internal/tools/redis.sh $(REDIS_VERSIONS)

test-lab: ## Press every button of the page in a browser; let Python, Node and Go take turns on one resource
	@internal/tools/ensure.sh go programs browser interop
	go -C lab/browser test -count=1 ./...
	go -C lab/interop test -count=1 ./...

simulate: ## Run 5000 seeds of the leases in virtual time, with faults, and find mutants of them (two minutes)
	@internal/tools/ensure.sh go
	GOGC=400 go test -count=1 -timeout 30m ./lease -run 'Simulation' -seeds 5000

mutations: ## Remove each guard of lab/docs/mutations.md, one at a time, and see its test fail (an hour)
	@internal/tools/ensure.sh go programs
	go test -count=1 -v -timeout 0 ./lab/docs -run MutationsAreNoticed -mutate .

FOR = 1h
soak: ## Keep both halves under a mixed load for FOR (an hour), and look for what grows
	@internal/tools/ensure.sh go programs
	go test -count=1 -v -timeout 0 ./lab/soak -for $(FOR)

MATRIX = writes
matrix_writes = VERSIONS_TEST='-timeout 24h ./lab/matrix/writes' internal/tools/versions.sh $(POSTGRES_VERSIONS)
matrix_leases = go test -count=1 -timeout 60m ./lab/matrix/leases

matrix: ## Hold every promise against every fault: of writes (some hours), or MATRIX=leases (ten minutes)
	@internal/tools/ensure.sh go programs npm
	@FENCEDB_MATRIX=full $(or $(matrix_$(MATRIX)),$(error MATRIX is writes or leases))

# service: how fast, and how much is sold that is not there, with each way to exclude others. memory: what a million
# leases leave in Redis. scale: what grows with leases, processes, fences and servers.
BENCH = all
bench_all = run .
bench_quick = run . -quick
bench_service = run . -only service
bench_memory = test -count=1 -timeout 1h -run Memory -scale -v .
bench_scale = test -count=1 -timeout 2h -run Scale -scale -v .

bench: ## Measure beside other ways and libraries (fifteen minutes), or BENCH=quick, service, memory or scale
	@internal/tools/ensure.sh go programs
	go -C lab/bench $(or $(bench_$(BENCH)),$(error BENCH is all, quick, service, memory or scale))

release: ## Date the changelog and tag all modules with VERSION=0.1.0, if all of .ci/run passes; publishes nothing
	@internal/tools/ensure.sh go
	@internal/tools/release.sh $(VERSION)
