# The same targets for people and for CI. Only Go is needed for build, run, test and
# lint; race needs a C compiler. CONTRIBUTING.md has what the other tests need. With
# CI=true, targets install the Codex releases that they need, and a test that lacks
# something fails; otherwise nothing is installed, and such a test is skipped.

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
# Nobody debugs most tests. Without the tables for debuggers they link in half of the time.
FAST_LINK := -ldflags=-w
# Four packages run at a time, and up to eight tests of each, because they mostly wait.
TOGETHER := -p 4 -parallel 8
# The packages that take longest, which come first.
LONGEST := ./server ./client ./cmd/exec-server
space := $(subst ,, )
RELEASE_PLATFORMS := $(or $(PLATFORMS),linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 freebsd/amd64 windows/amd64)
PLATFORMS ?= darwin/arm64 windows/amd64 freebsd/amd64 linux/arm64
# Of two releases between which nothing changed that the tests see, the newer one.
CODEX := 0.171.0
CODEX_RELEASES ?= $(CODEX) 0.169.0 0.130.0
install_codex = $(if $(filter true,$(CI)),scripts/install-codex $(1),@:)
CODEX_PACKAGES ?= ./test/codex ./client ./examples/codex-demo
PAGES_SHORT := Story|HandOver|Keyboard|Foreign|Codex|Files|Commands|Fleet(\b|OfOne|OfLiars|OfHostile|Without)
PICTURES ?= $(CURDIR)/coverage/page
VERSION ?= $(shell scripts/version 2>/dev/null || echo dev)

# No target is a file.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*##.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

build: ## build bin/exec-server and bin/exec-fleet, static and stripped
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/exec-server ./cmd/exec-server
	cd fleet && $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o ../bin/exec-fleet ./cmd/exec-fleet

run: ## serve on $(LISTEN)
	$(GO) run ./cmd/exec-server --listen $(LISTEN)

# NEEDY would skip everything.
NEEDY := bulk codex connect doors pages sandbox slopes slowlink terminal workspace
test: ## run the tests that need nothing but Go, as any user
	$(GO) test $(FAST_LINK) -shuffle=on $(TOGETHER) -count=$(COUNT) -timeout $(TIMEOUT) \
		$(if $(filter ./...,$(PACKAGES)),$(LONGEST) $$($(GO) list ./... | grep -vE '/test/($(subst $(space),|,$(NEEDY)))$$'),$(PACKAGES))

# A test of the sandbox runs with up to six servers at a time.
test-system: ## run the tests with sshd, tmux, Chromium, Prometheus, namespaces and other users, as root on Linux
	EXEC_SERVER_TEST_SYSTEM=1 $(GO) test $(FAST_LINK) -shuffle=on -parallel 6 -count=$(COUNT) -timeout $(TIMEOUT) \
		./test/sandbox ./test/connect $$(grep -rl --include='*_test.go' --exclude-dir=page --exclude-dir=pages --exclude-dir=metrics --exclude-dir=faults 'testkit\.System' ./test | xargs -n1 dirname | sort -u)
	EXEC_SERVER_TEST_SYSTEM=1 $(GO) test $(FAST_LINK) -shuffle=on -count=$(COUNT) -timeout $(TIMEOUT) -run '^TestSystem' \
		$$(grep -rl --include='*_test.go' '^func TestSystem' cmd client internal scripts server transport | xargs -n1 dirname | sort -u | sed 's|^|./|')
	$(MAKE) test-pages
	$(MAKE) test-metrics
	$(MAKE) test-page PAGES='$(or $(PAGES),$(PAGES_SHORT))'

test-fleet: ## run the tests of gateways and the machines behind them
	cd fleet && $(GO) test $(FAST_LINK) -shuffle=on -parallel 4 -count=$(COUNT) -timeout $(TIMEOUT) ./...

# make lint and make test vet the same code.
race: ## the same with the race detector, which needs a C compiler (SKIP leaves tests out)
	CGO_ENABLED=1 $(GO) test -race -vet=off $(FAST_LINK) -shuffle=on -p 4 -count=$(COUNT) -timeout $(TIMEOUT) \
		$(if $(SKIP),-skip '$(SKIP)') $(if $(filter ./...,$(PACKAGES)),$(LONGEST)) $(PACKAGES)

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
	for platform in $(PLATFORMS); do \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO) vet $(PACKAGES) && \
		(cd fleet && GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO) vet ./...) || exit 1; \
	done
	$(TOOL) staticcheck $(PACKAGES)
	cd fleet && $(GO) vet ./... && $(GO) tool -modfile=../tools/go.mod staticcheck ./...

docs: ## rewrite the settings in docs/operations.md, docs/protocol-reference.md and protocol/schema.json after a change of flags or messages
	$(GO) test -count=1 -run TestConfigurationReference ./internal/cli/serve -update
	$(GO) test -count=1 -run 'TestSchema$$' ./protocol -update

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
		"$$(scripts/install-codex $(CODEX)) exec-server --listen ws://127.0.0.1:0"

microbench: ## run the benchmarks of the packages that have some
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) \
		$$(grep -rl --include='*_test.go' '^func Benchmark' . | xargs -n1 dirname | sort -u)

test-codex: ## run the tests with the Codex releases that scripts/install-codex installs with npm
	$(call install_codex,$(CODEX_RELEASES))
	EXEC_SERVER_TEST_CODEX=1 $(GO) test -count=$(COUNT) -timeout $(TIMEOUT) $(CODEX_PACKAGES)

model: ## 100,000 random operations against a reference model, with the race detector
	CGO_ENABLED=1 MODEL_STEPS=100000 $(GO) test -race -count=1 -timeout 60m -v ./test/model

chaos: ## 1,000 processes over a network that delays, stalls, cuts and forgets connections
	CGO_ENABLED=1 CHAOS_PROCESSES=1000 $(GO) test -race -count=1 -timeout 60m -v ./test/chaos

test-memory: ## bounds of memory, on a quiet machine
	QUIET_MACHINE=1 $(GO) test -count=1 -run 'ConfinedReadsReserve|FilesWithoutSize' ./server

test-neighbours: ## bounds of time on a quiet machine: neighbours of large hashes, walks and removals, and the end of the program
	QUIET_MACHINE=1 $(GO) test -count=1 -v -run 'NeighboursOfLong|ManyProcessesEnd|Reaping|Script|End|Signal' ./cmd/exec-server

test-sleep: ## stop a released Codex client for 200 seconds, as a laptop does that sleeps, and let it go on
	$(call install_codex,$(CODEX))
	EXEC_SERVER_TEST_CODEX=1 EXEC_SERVER_TEST_SLEEP=200s $(GO) test -count=1 -timeout 10m -run SleepingLaptop -v ./test/codex

test-transcripts: ## the transcripts over every transport
	EXEC_SERVER_TEST_TRANSCRIPTS=full $(GO) test -count=1 -run 'TestTranscripts$$' -timeout 20m ./server

test-cuts: ## cut the link 1,000 times during a gigabyte, and during 10,000 writes
	EXEC_SERVER_TEST_CUTS=full $(GO) test -count=1 -run Cuts -v -timeout 60m ./client

test-pause: ## a consumer that pauses for 95 seconds, with the released Codex server
	$(call install_codex,$(CODEX))
	EXEC_SERVER_TEST_CODEX=1 EXEC_SERVER_TEST_PAUSE=95s $(GO) test -count=1 -run PausesAtCodex -v ./client

test-sandbox: ## write 10,000 files through a link that leads in and out of the sandbox in turn
	EXEC_SERVER_TEST_SYSTEM=1 EXEC_SERVER_TEST_ROUNDS=10000 $(GO) test -count=1 -run 'FlippedLinks/(ordinary|self)/userNamespace' -v -timeout 60m ./test/sandbox

test-faults: ## make every system call fail or be late, one at a time, and look whether contracts hold
	EXEC_SERVER_TEST_SYSTEM=1 $(GO) test -tags faults -count=1 -v -timeout 90m ./test/faults

test-terminal: ## people at terminals in tmux, whose links are down for a minute
	EXEC_SERVER_TEST_SYSTEM=1 EXEC_SERVER_TEST_CUT=60s $(GO) test -count=1 -v -timeout 20m ./test/terminal

test-page: ## the page in Chromium, and with released Codex (PICTURES gets pictures of its steps, PAGES chooses tests)
	$(call install_codex,$(CODEX))
	mkdir -p '$(PICTURES)'
	cd test/page && $(GO) vet ./... && PICTURES='$(PICTURES)' EXEC_SERVER_TEST_SYSTEM=1 EXEC_SERVER_TEST_CODEX=1 $(GO) test -parallel 4 -count=$(COUNT) -timeout $(TIMEOUT) -v $(if $(PAGES),-run '$(PAGES)') ./...

test-pages: ## type the commands of the README and the guides, with sshd and a released Codex, as root
	$(call install_codex,$(CODEX))
	EXEC_SERVER_TEST_SYSTEM=1 EXEC_SERVER_TEST_CODEX=1 $(GO) test -count=$(COUNT) -timeout $(TIMEOUT) ./test/pages

test-metrics: ## metrics in a real Prometheus, if there is one, and the dashboard in Grafana's schema
	cd test/metrics && $(GO) vet ./... && EXEC_SERVER_TEST_SYSTEM=1 $(GO) test -count=$(COUNT) -v ./...

slopes: ## 100,000 commands in one session and in a thousand
	EXEC_SERVER_TEST_SYSTEM=1 SLOPES_COMMANDS=$${SLOPES_COMMANDS:-100000} $(GO) test -count=1 -v -timeout 120m ./test/slopes

measure-copies: ## cp, keys and seq beside rsync, scp and ssh, over a link of 20 Mbit/s with 50 ms for a round trip
	EXEC_SERVER_MEASURE_COPIES=1 $(GO) test -count=1 -v -timeout 60m ./test/slowlink

measure-bulk: ## a gigabyte out of commands, and in and out, beside ssh, $(ROUNDS) times, on a quiet machine
	EXEC_SERVER_MEASURE_BULK=$(ROUNDS) $(GO) test -count=1 -v -timeout 60m ./test/bulk

measure-fleet: ## three gateways that are killed and cut off from each other under 200 sessions, 2,000 machines, stalled readers, throughput
	cd fleet && FLEET_SESSIONS=200 FLEET_PACE=100ms FLEET_SECONDS=60 FLEET_MACHINES=2000 $(GO) test -count=1 -parallel 1 -v -timeout 20m ./test/fleet

measure-connect: ## the start of connect over ssh beside ssh HOST true, in turns, on a quiet machine
	EXEC_SERVER_TEST_SYSTEM=1 EXEC_SERVER_MEASURE_CONNECT=$${EXEC_SERVER_MEASURE_CONNECT:-51} $(GO) test -count=1 -v -run TestStart -timeout 20m ./test/connect

soak: ## the suite five times with the race detector
	$(MAKE) race COUNT=5 TIMEOUT=90m

nightly: ## what takes long: the tests that .ci/run leaves out or shortens, with a summary at the end
	scripts/nightly
