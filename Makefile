# Everything a contributor needs; Go on PATH is enough. The first run downloads the modules.
GO      ?= go
LINTER  := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
TIMEOUT ?= 45m
# The checker (drill/check) is one goroutine that runs SQL: the race detector has nothing to find there, and makes SQLite, which
# is compiled into the program, ten times slower. The race detector needs a C compiler; without one the tests run all the same, and say so.
RACE    := $(shell command -v "$$($(GO) env CC)" >/dev/null 2>&1 && echo -race)

.DEFAULT_GOAL := build
.PHONY: build servers test format lint bench demo drill

build: ## the program, in bin/
	$(GO) build -trimpath -o bin/ ./cmd/...

servers: ## installs the servers that the tests start (Debian, as root); does nothing when they are there
	testserver/install/all.sh

test: format ## everything that must hold: go vet, gofmt, all tests, with the race detector but for drill/check
	@[ -n "$(RACE)" ] || echo "no C compiler found: the race detector is off"
	$(GO) vet ./...
	@rooms=$$($(GO) list ./...) || exit 1; set -x; $(GO) test $(RACE) -timeout $(TIMEOUT) $$(echo "$$rooms" | grep -v '/drill/check$$')
	$(GO) test -timeout $(TIMEOUT) ./drill/check

format:
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted with gofmt:"; echo "$$files"; exit 1; fi

lint: ## golangci-lint, at the version above, built by Go itself
	$(GO) run $(LINTER) run

bench: ## the figures of docs/reference/benchmarks.md
	$(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./bench/...
	$(GO) test -run '^$$' -bench 'ABusiness|WakeUps' -benchtime 1x -timeout 60m ./store/postgres
	$(GO) test -run '^$$' -bench Business -benchtime 60x -timeout 60m ./store/mysql

demo: build ## a shop's day with everything going wrong
	bin/convergo demo

drill: build ## the demo, longer and with more kills, for several seeds; a million events past killed relays; cleaners of 200,000 events; more crash points than the tests have
	@for seed in 1 2 3 4 5; do echo "seed $$seed"; bin/convergo demo --seed $$seed --kills 6 || exit 1; done
	CONVERGO_ORDER_EVENTS=1000000 $(GO) test -run TestNoEventIsLostOrOutOfOrder -v -timeout 60m ./cmd/convergo
	CONVERGO_SENT_EVENTS=200000 $(GO) test -run TestCaseB14 -v -timeout 60m ./store/mysql
	CONVERGO_CRASH_ROUNDS=10 $(GO) test -run TestACrash -timeout 60m ./cmd/convergo
