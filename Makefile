# `make demo` and `make test` are all a newcomer needs; `make ci` is what CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# All packages with the same features, so that tests of all kinds build each crate once.
WHOLE := --locked --workspace --features tidemill-cli/wasm

PREFIX ?= /usr/local

.PHONY: help build install package demo test ci tidy fmt clippy layering unit e2e faults conformance doc deny audit setup clean bench lines nats stores writers

help:
	@echo 'make demo         bring up an array and make a real mosaic inside it'
	@echo 'make test         everything CI runs except lints and documentation'
	@echo 'make ci           everything CI runs'
	@echo 'make build        target/release/tidemill'
	@echo 'make install      the program, its manual pages and completions, below PREFIX (/usr/local)'
	@echo 'make package      a Debian package of the same, in target/'
	@echo 'make bench        every claim of bench/README.md in short form, and one table of them'
	@echo 'make audit        known vulnerabilities of the crates that are built in; needs the network'
	@echo 'make setup        install what tests and demo need (Debian 12, as root)'

build:
	cargo build --release --locked -p tidemill-cli -p tidemill-label -p tidemill-preload

install: build
	scripts/install.sh target/release/tidemill "$(DESTDIR)$(PREFIX)"

package: build
	scripts/package.sh target/release/tidemill target

demo: setup
	scripts/demo.sh

test: setup unit e2e faults conformance

ci: setup tidy fmt clippy layering deny doc unit e2e faults conformance

setup:
	scripts/setup.sh

# Budgets of text and structure, which only fall.
tidy:
	scripts/tidy.py

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy $(WHOLE) --all-targets -- -D warnings
	cargo clippy $(WHOLE) --test e2e -- -D warnings
	cargo clippy $(WHOLE),tidemill-cli/nats --bins --test nats -- -D warnings

layering:
	scripts/check-layering.sh

deny:
	cargo deny --locked check licenses bans sources

# Known vulnerabilities of what is built in. Not in CI: it needs the advisory database, and a new advisory is no change of the tree.
audit:
	scripts/audit.sh

doc:
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps

# All but the end-to-end tests.
# What sends labels is tested with the second queue, too.
unit:
	scripts/test.sh $(WHOLE)
	TIDEMILL_TEST_QUEUE=memory scripts/test.sh $(WHOLE) --test ends --test jobs --test posix --test serving

# Each test has an array of its own, and waits much: with two at once two cores are idle for most of the time.
e2e:
	scripts/test.sh $(WHOLE) --test e2e -- --test-threads=4

# Processes killed, stopped and restarted at random, in short; longer by hand, with another seed. After `e2e`, which builds.
faults:
	bench/faults.py --binary target/debug/tidemill --faults 12 --seed 21

conformance:
	scripts/conformance.sh

# What sends labels, with a queue in NATS; not in CI. `scripts/nats.sh install` builds its server.
nats:
	scripts/nats.sh test

# Bridges to stores of all kinds, by real servers; not in CI but for SFTP. `scripts/stores.sh install` gets them.
stores:
	scripts/stores.sh test

# Random files of netCDF4, h5py, zarr and xarray, which PYTHON must have, reduced and compared with numpy; not in CI. After `e2e`, which builds.
writers:
	$(or $(PYTHON),python3) tests/writers.py target/debug/tidemill $(or $(CASES),1000) $(or $(SEED),1)

# About ten minutes on a quiet machine. Peers that are not installed are left out, and said to be.
bench: build
	cargo build --release --locked -p tidemill-bench-loopback
	cargo build --release --locked -p tidemill-kernel --features wasm --examples
	cargo build --release --locked -p tidemill-plan --example simulate_large
	bench/short.py

# Lines of Rust without tests, crate by crate.
lines:
	scripts/lines.sh

clean:
	cargo clean
