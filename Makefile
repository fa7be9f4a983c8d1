# The same targets for people and for CI. Only Go is needed for build, run, test
# and lint; race needs a C compiler, and test-codex needs npm, which it installs
# on Debian as root.

GO ?= go
export CGO_ENABLED ?= 0

PACKAGES := ./...
TOOL := $(GO) tool -modfile=tools/go.mod
LISTEN ?= ws://127.0.0.1:8765
FUZZTIME ?= 60s
BENCHTIME ?= 1s
COUNT ?= 1
TIMEOUT ?= 20m
ROUNDS ?= 5
RELEASE_PLATFORMS := $(or $(PLATFORMS),linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 freebsd/amd64 windows/amd64)
PLATFORMS ?= darwin/arm64 windows/amd64 freebsd/amd64 linux/arm64
CODEX_PACKAGES ?= ./test/codex ./client ./examples/codex-demo
PICTURES ?= $(CURDIR)/coverage/page
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.PHONY: help build core otel run test race lint docs fmt fuzz bench bench-codex bench-commands microbench cover test-codex test-codex-fleet picture soak model chaos test-sleep test-cuts test-sandbox test-pause test-faults test-terminal test-page test-metrics test-otel test-neighbours test-embedding test-module-path corpus slopes measure-copies measure-bulk measure-connect measure-fleet release test-release install

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

build: ## build bin/exec-server, static and stripped
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/exec-server ./cmd/exec-server

core: ## build bin/exec-server-core, without the parts that can be left out
	$(GO) build -tags core -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/exec-server-core ./cmd/exec-server

otel: ## build bin/exec-server-otel, which sends traces
	$(GO) build -tags otel -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/exec-server-otel ./cmd/exec-server

run: ## serve on $(LISTEN)
	$(GO) run ./cmd/exec-server --listen $(LISTEN)

test: ## run all tests that need nothing but Go
	$(GO) test -shuffle=on -parallel 4 -count=$(COUNT) -timeout $(TIMEOUT) $(PACKAGES)

race: ## the same with the race detector, which needs a C compiler (SKIP leaves tests out)
	CGO_ENABLED=1 $(GO) test -race -shuffle=on -count=$(COUNT) -timeout $(TIMEOUT) $(if $(SKIP),-skip '$(SKIP)') $(PACKAGES)

test-embedding: ## build and run the programs of the module in examples/embedding
	cd examples/embedding && $(GO) vet ./... && $(GO) test ./...

release: ## build dist/: archives, packages, checksums for RELEASE_PLATFORMS (PLATFORMS chooses others)
	$(GO) run ./scripts/release -version '$(VERSION)' -platforms '$(RELEASE_PLATFORMS)'

test-release: ## build a release for this machine twice, compare the bytes, and install it
	scripts/test-release

install: ## build and install below PREFIX (default: /usr/local for root, ~/.local for others)
	scripts/install.sh $(if $(PREFIX),--prefix '$(PREFIX)')

test-module-path: ## give a copy of the tree another module path, and build it
	scripts/test-module-path

lint: ## formatting, vet on every platform (PLATFORMS), staticcheck
	@test -z "$$($(TOOL) gofumpt -l .)" || { echo "gofumpt would change:"; $(TOOL) gofumpt -l .; exit 1; }
	$(GO) vet $(PACKAGES)
	$(GO) vet -tags core ./cmd/exec-server
	$(GO) vet -tags otel ./cmd/exec-server ./internal/tracing
	for platform in $(PLATFORMS); do \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO) vet $(PACKAGES) || exit 1; \
	done
	$(TOOL) staticcheck $(PACKAGES)

docs: ## rewrite docs/configuration.md when a flag of serve has changed
	$(GO) test -count=1 -run TestConfigurationReference ./cmd/exec-server -update

fmt: ## format the code
	$(TOOL) gofumpt -w .

fuzz: ## run every fuzz target for $(FUZZTIME)
	FUZZTIME=$(FUZZTIME) GO=$(GO) scripts/fuzz

corpus: ## record programs, and how tmux shows them, for the tests of internal/screen (as root)
	scripts/screen-corpus

bench: build ## measure the server (BENCHFLAGS=-help tells what can be chosen)
	$(GO) run ./bench $(BENCHFLAGS) 'bin/exec-server --listen ws://127.0.0.1:0'

bench-codex: build ## measure the server and the released Codex beside each other
	$(GO) run ./bench $(BENCHFLAGS) 'bin/exec-server --listen ws://127.0.0.1:0' \
		"$$(scripts/install-codex 0.169.0) exec-server --listen ws://127.0.0.1:0"

bench-commands: ## time a command as Codex sees it: this server, the released one, and none
	scripts/install-codex 0.169.0
	EXEC_SERVER_TEST_CODEX=1 $(GO) test -run '^$$' -bench Command -benchtime 5x ./test/codex

microbench: ## run the benchmarks of the packages that have some
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) \
		$$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -n1 dirname | sort -u)

cover: ## write coverage/coverage.html
	mkdir -p coverage
	$(GO) test -coverpkg=$(PACKAGES) -coverprofile=coverage/coverage.out $(PACKAGES)
	$(GO) tool cover -html=coverage/coverage.out -o coverage/coverage.html

test-codex: ## released Codex clients with the server, also behind a gateway, and its server with our client (installs them with npm)
	scripts/install-codex 0.169.0 0.130.0
	EXEC_SERVER_TEST_CODEX=1 $(GO) test -count=$(COUNT) -timeout $(TIMEOUT) $(CODEX_PACKAGES)

test-codex-fleet: ## released Codex clients with the server behind a gateway, alone
	scripts/install-codex 0.169.0 0.130.0
	EXEC_SERVER_TEST_CODEX=1 $(GO) test -count=$(COUNT) -timeout $(TIMEOUT) -run '//-gateway$$' ./test/codex

model: ## 100,000 random operations against a reference model, with the race detector
	CGO_ENABLED=1 MODEL_STEPS=100000 $(GO) test -race -count=1 -timeout 60m -v ./test/model

chaos: ## 1,000 processes over a network that delays, stalls, cuts and forgets connections
	CGO_ENABLED=1 CHAOS_PROCESSES=1000 $(GO) test -race -count=1 -timeout 60m -v ./test/chaos

test-neighbours: ## hold what clients wait beside large hashes, walks and removals against 100 ms, on a quiet machine
	QUIET_MACHINE=1 $(GO) test -count=1 -v -run 'NeighboursOfLong|ManyProcessesEnd' ./cmd/exec-server

test-sleep: ## stop a released Codex client for 200 seconds, as a laptop does that sleeps, and let it go on
	scripts/install-codex 0.169.0
	EXEC_SERVER_TEST_CODEX=1 EXEC_SERVER_TEST_SLEEP=200s $(GO) test -count=1 -timeout 10m -run SleepingLaptop -v ./test/codex

test-cuts: ## cut the link 1,000 times during a gigabyte, and during 10,000 writes
	EXEC_SERVER_TEST_CUTS=full $(GO) test -count=1 -run Cuts -v -timeout 60m ./client

test-pause: ## a consumer that pauses for 95 seconds, with the released Codex server
	scripts/install-codex 0.169.0
	EXEC_SERVER_TEST_CODEX=1 EXEC_SERVER_TEST_PAUSE=95s $(GO) test -count=1 -run PausesAtCodex -v ./client

test-sandbox: ## write 10,000 files through a link that leads in and out of the sandbox in turn
	EXEC_SERVER_TEST_ROUNDS=10000 $(GO) test -count=1 -run 'FlippedLinks/(ordinary|self)/userNamespace' -v -timeout 60m ./test/sandbox

test-faults: ## make every system call fail or be late, one at a time, and look whether contracts hold
	$(GO) test -tags faults -count=1 -v -timeout 90m ./test/faults

test-terminal: ## people at terminals in tmux, whose links are down for a minute
	EXEC_SERVER_TEST_CUT=60s $(GO) test -count=1 -v -timeout 20m ./test/terminal

test-page: ## the page in Chromium, with released Codex (PICTURES gets pictures of its steps, PAGES chooses tests)
	scripts/install-codex 0.169.0
	mkdir -p '$(PICTURES)'
	cd test/page && $(GO) vet ./... && PICTURES='$(PICTURES)' EXEC_SERVER_TEST_CODEX=1 $(GO) test -count=$(COUNT) -timeout $(TIMEOUT) -v $(if $(PAGES),-run '$(PAGES)') ./...

test-metrics: ## metrics in a real Prometheus, if there is one, and the dashboard in Grafana's schema
	cd test/metrics && $(GO) vet ./... && $(GO) test -count=$(COUNT) -v ./...

test-otel: ## what only a build with the tag otel has
	CGO_ENABLED=1 $(GO) test -race -tags otel -count=$(COUNT) ./internal/tracing

slopes: ## 100,000 commands in one session and in a thousand; coverage/slopes has the plots
	SLOPES_COMMANDS=$${SLOPES_COMMANDS:-100000} SLOPES_OUT=$(CURDIR)/coverage/slopes \
		$(GO) test -count=1 -v -timeout 120m ./test/slopes

measure-copies: ## cp, keys and seq beside rsync, scp and ssh, over a link of 20 Mbit/s with 50 ms for a round trip
	EXEC_SERVER_MEASURE_COPIES=1 $(GO) test -count=1 -v -timeout 60m ./test/slowlink

measure-bulk: ## a gigabyte out of commands, and in and out, beside ssh, $(ROUNDS) times, on a quiet machine
	EXEC_SERVER_MEASURE_BULK=$(ROUNDS) $(GO) test -count=1 -v -timeout 60m ./test/bulk

measure-fleet: ## three gateways that are killed and cut off from each other under 200 sessions, 2,000 machines, stalled readers, throughput
	FLEET_SESSIONS=200 FLEET_PACE=100ms FLEET_SECONDS=60 FLEET_MACHINES=2000 $(GO) test -count=1 -parallel 1 -v -timeout 20m ./test/fleet

measure-connect: ## the start of connect over ssh beside ssh HOST true, in turns, on a quiet machine
	EXEC_SERVER_MEASURE_CONNECT=$${EXEC_SERVER_MEASURE_CONNECT:-51} $(GO) test -count=1 -v -run TestStart -timeout 20m ./test/connect

picture: build ## record docs/picture.svg, the picture of the README, in a real run (root on Linux with tmux and sshd)
	codex=$$(scripts/install-codex 0.169.0) && $(GO) run ./internal/picture/record bin/exec-server "$${codex%/codex}" docs/picture.svg

soak: ## the suite 20 times with the race detector
	$(MAKE) race COUNT=20 TIMEOUT=90m
