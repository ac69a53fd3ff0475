# artifactd. `make help` lists the targets; `make dev` is the one to try first.

BIN      := $(CURDIR)/.cache/bin
GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -X main.version=$(VERSION)
TOOLMOD  := -modfile=tools/go.mod
# The MinIO server is a test tool: installed into the checkout, never linked.
MINIO_VERSION := v0.0.0-20260212201848-7aac2a2c5b7c
MINIO_STAMP   := $(BIN)/.minio-$(MINIO_VERSION)
DEV_FLAGS     ?=
# One test binary may start several servers; race mode is slow on two cores.
TEST_TIMEOUT  ?= 25m
# Packages tested at once. They wait for their servers more than they compute: four at a time took two
# cores seven to eight minutes, two at a time ten.
TEST_PACKAGES ?= 4
TEST_FLAGS    ?=

.DEFAULT_GOAL := help
.PHONY: help dev build test lint generate bench plans mutants vuln clean postgres testtools minio

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

dev: postgres build ## Postgres, S3 and the service on this machine, nothing to configure
	@exec $(BIN)/artifactd dev $(DEV_FLAGS)

build: ## build .cache/bin/artifactd
	@mkdir -p $(BIN)
	@$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/artifactd ./cmd/artifactd

test: postgres testtools minio ## all tests, with the race detector, against real servers
	$(GO) test -race -p $(TEST_PACKAGES) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) ./...

lint: ## gofmt, vet, staticcheck, generated code is current, no test is skipped
	@sh scripts/lint.sh

generate: ## write the generated code anew
	$(GO) generate ./...

# One benchmark and its sizes: make bench BENCH_FLAGS='-only collect -dead 100000 -live 1000000'.
BENCH_FLAGS ?=

bench: postgres ## speed against bare echo, pgbench, raw PUTs and the SDK, as ratios (minutes)
	$(GO) run ./internal/bench $(BENCH_FLAGS)

plans: postgres ## no statement of collection reads a table of a million rows from end to end (minutes)
	$(GO) test ./gc -count=1 -run TestExplainEachStatement -args -catalogue 1000000

mutants: postgres testtools minio ## break the protocol line by line; a named test must notice each
	$(GO) run ./internal/mutants

# The fence is attacked for DURATION; after that the database is taken back ROLLBACKS times, for at most
# twice DURATION. The report lies in the checkout's .cache.
DURATION  ?= 10m
ROLLBACKS ?= 50
.PHONY: campaign proof model
campaign: postgres ## fence, collection and recovery under faults: DURATION=10m, ROLLBACKS=50, SEED= to replay; writes .cache/campaign.md
	$(GO) run ./internal/campaign -duration $(DURATION) -rollbacks $(ROLLBACKS) $(if $(SEED),-seed $(SEED)) -report .cache/campaign.md

proof: postgres ## attack protocols that are broken in one place: the campaign must notice each (minutes)
	$(GO) run ./internal/campaign -prove

model: ## check the protocol's model exhaustively with spin
	@sh pointer/model/check.sh

vuln: ## known vulnerabilities (govulncheck; needs its database on the network)
	@echo "govulncheck asks the Go vulnerability database, which not every network reaches;" >&2
	@echo "on such a network this target fails and says nothing about the code." >&2
	$(GO) tool $(TOOLMOD) govulncheck ./...

clean: ## remove what was built here (.cache); data of make dev stays in .artifactd
	rm -rf .cache

postgres:
	@sh scripts/postgres.sh

testtools:
	@sh scripts/testtools.sh

minio: $(MINIO_STAMP)

$(MINIO_STAMP):
	@mkdir -p $(BIN)
	@echo "installing the MinIO server for tests (minutes, the first time)" >&2
	@CGO_ENABLED=0 GOBIN=$(BIN) sh scripts/retry.sh $(GO) install github.com/minio/minio@$(MINIO_VERSION)
	@rm -f $(BIN)/.minio-* && touch $@
