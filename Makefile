# Two commands do everything on a fresh machine, as root: `make demo` and `make test`.
# What each needs from the distribution it installs itself (tools/setup).

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

VERSION        ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
GVISOR_VERSION := $(shell go list -m -f '{{.Version}}' gvisor.dev/gvisor)
# Go's collector wakes every process each minute, and so every sandbox that idles: internal/x/collect.
QUIET          := -tags quietgc
LDFLAGS        := -checklinkname=0 -s -w
STAMP          := -X main.buildVersion=$(VERSION) -X gvisor.dev/gvisor/runsc/version.version=$(GVISOR_VERSION)
GUEST_IMAGE    := internal/guestimage/bin/guest.erofs
TOOLS          := bin/tools

# Tests share one built base template, as a node would; a fresh machine builds it once.
export HUTCH_CACHE_DIR ?= /var/cache/hutch
export HUTCH_EXE       ?= $(CURDIR)/bin/hutch

# Records of these builds go into a data directory that is thrown away: what is in the cache a
# server finds by itself, and the templates of one that runs here stay as they are.
BUILD_TEMPLATE = data=$$(mktemp -d); trap 'rm -rf "$$data"' EXIT; \
  bin/hutch template build --data-dir "$$data" --cache-dir $(HUTCH_CACHE_DIR)

.PHONY: build guest setup demo test test-unit test-sandbox check fmt lint bench soak fault fuzz base templates clean help

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: setup guest ## bin/hutch: the whole platform in one static binary
	CGO_ENABLED=0 go build -trimpath $(QUIET) -ldflags '$(LDFLAGS) $(STAMP)' -o bin/hutch ./cmd/hutch

# The guest agent is an image of its own: uncompressed and not inlined, as the sandbox's
# kernel wants it, and the same bytes for the same agent.
guest: setup
	CGO_ENABLED=0 go build -trimpath $(QUIET) -ldflags '$(LDFLAGS)' -o bin/guest/hutch-guest ./cmd/hutch-guest
	tools/guest-image bin/guest $(GUEST_IMAGE)

setup: ## what building and testing need from the distribution
	tools/setup

base: build ## the template every sandbox starts from, into the shared cache
	$(BUILD_TEMPLATE) base

templates: base ## every template that comes with hutch, into the shared cache
	$(BUILD_TEMPLATE) code-interpreter

demo: build ## an agent's session, from an empty machine to the teardown
	tools/setup demo
	demo/run

# The longest package is named first, so that it is started first.
test: build templates ## every test there is, under the race detector
	go test -race -timeout 25m ./test/e2e ./...

check: setup $(TOOLS)/gofumpt $(TOOLS)/golangci-lint ## what a reviewer's machine can see
	@out="$$($(TOOLS)/gofumpt -l $$(git ls-files -co --exclude-standard '*.go'))"; \
	  if [ -n "$$out" ]; then echo "not gofumpt-clean (make fmt mends it):"; echo "$$out"; exit 1; fi
	go vet ./...
	$(TOOLS)/golangci-lint run ./...

fmt: $(TOOLS)/gofumpt
	$(TOOLS)/gofumpt -w $$(git ls-files -co --exclude-standard '*.go')

$(TOOLS)/gofumpt: tools/go.mod tools/go.sum
	go build -C tools -o ../$@ mvdan.cc/gofumpt

$(TOOLS)/golangci-lint: tools/go.mod tools/go.sum
	go build -C tools -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bench: build base $(TOOLS)/runsc ## measure against the floor and podman; raw results to docs/bench/, tables into docs/benchmarks.md
	mkdir -p docs/bench
	bin/hutch bench create --url '' --baseline --runsc $(TOOLS)/runsc --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/create.json
	bin/hutch bench prepared --baseline --runsc $(TOOLS)/runsc --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/prepared.json
	bin/hutch bench exec --url '' --baseline --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/exec.json
	bin/hutch bench files --url '' --baseline --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/files.json
	bin/hutch bench terminals --url '' --baseline --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/terminals.json
	bin/hutch bench density -n 500 --tier disk --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/density-disk.json
	bin/hutch bench density -n 500 --tier memory --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/density-memory.json
	bin/hutch bench creates --url '' --baseline --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/creates.json
	bin/hutch bench disk --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/disk.json
	bin/hutch bench siege --baseline --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/siege.json
	bin/hutch bench report --into docs/benchmarks.md $(FIGURES)

# gVisor as it is usually run, of the version that hutch has in it: what podman is measured with.
$(TOOLS)/runsc: go.mod go.sum
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X gvisor.dev/gvisor/runsc/version.version=$(GVISOR_VERSION)' -o $@ gvisor.dev/gvisor/runsc

# The tables of the page, in this order: of the results that are there once the recipe gets here.
FIGURES = $$(for b in create prepared exec files terminals creates creates-64 density-disk density-memory disk siege cycles; do \
	  f=docs/bench/$$b.json; [ ! -e $$f ] || echo $$f; done)

soak: build base ## 2,000 sandboxes made, used and ended, nothing may be left of; every test in its long form
	mkdir -p docs/bench
	bin/hutch bench cycles -n 2000 --concurrency 8 --cache-dir $(HUTCH_CACHE_DIR) --out docs/bench/cycles.json
	bin/hutch bench report --into docs/benchmarks.md $(FIGURES)
	HUTCH_SOAK=1 go test -race -timeout 3h ./...

fault: build base ## a server killed at every failpoint, then ten minutes of chaos; raw results to docs/fault/
	mkdir -p docs/fault
	HUTCH_FAULT=$(CURDIR)/docs/fault/walk.json go test -race -count 1 -timeout 2h -run '^TestFaultWalk$$' ./test/e2e
	bin/hutch chaos --for 10m --out docs/fault/chaos.json

fuzz: ## every fuzz target for FUZZTIME each (default 30s)
	tools/fuzz $${FUZZTIME:-30s}

clean: ## what make has built, but for the templates in the cache
	rm -rf bin internal/guestimage/bin/guest.erofs
