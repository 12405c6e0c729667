# Newcomers need only `make demo` and `make test`; CI runs `make ci`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# All checks have the same features, so that each crate is built once: those of packages, and the queue in NATS.
WHOLE := --locked --workspace --features tidemill-cli/dist,tidemill-cli/nats

PREFIX ?= /usr/local

.PHONY: help build install package demo test ci tidy fmt clippy layering unit e2e faults conformance doc book deny audit setup clean bench lines nats stores writers

help:
	@echo 'make demo         start a cluster and make a real mosaic inside it'
	@echo 'make test         all checks of CI except lints and documentation'
	@echo 'make ci           all checks of CI'
	@echo 'make build        build target/release/tidemill'
	@echo 'make install      install the program, manual pages and completions below PREFIX (/usr/local)'
	@echo 'make package      make a Debian package of the same files in target/'
	@echo 'make bench        measure each claim of bench/README.md in short form, and print one table'
	@echo 'make book         make the book in target/book; needs mdbook'
	@echo 'make audit        check the dependencies for known vulnerabilities; needs the network'
	@echo 'make setup        install the requirements of tests and demo (Debian 12, as root)'

build:
	cargo build --release --locked -p tidemill-cli -p tidemill-label -p tidemill-preload --features tidemill-cli/dist

install: build
	scripts/install.sh target/release/tidemill "$(DESTDIR)$(PREFIX)"

package: build
	scripts/package.sh target/release/tidemill target

demo: setup
	scripts/demo.sh

# `cargo install --locked mdbook` installs mdbook. The pages of docs/reference are written by the program and from the protocols.
book:
	cargo run --quiet --locked -p tidemill-cli -- --quiet man --format markdown docs/reference
	scripts/api_reference.py docs/reference/api.md
	mdbook build
	scripts/book_links.py target/book

test: setup unit e2e faults conformance

# End-to-end tests mostly wait, so the checks that compile run at the same time, at a lower priority.
ci: setup tidy fmt
	cargo test $(WHOLE) --test e2e --no-run
	nice $(MAKE) clippy layering deny doc unit >target/checks.log 2>&1 & checks=$$!; \
	  $(MAKE) e2e && e2e=0 || e2e=$$?; wait $$checks && checks=0 || checks=$$?; \
	  cat target/checks.log; exit $$((e2e | checks))
	$(MAKE) faults conformance

setup:
	scripts/setup.sh

# Checks text and structure against budgets that only fall.
tidy:
	scripts/tidy.py

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy $(WHOLE) --all-targets -- -D warnings
	cargo clippy $(WHOLE) --test e2e -- -D warnings

layering:
	scripts/check-layering.sh

deny:
	cargo deny --locked check licenses bans sources

# Checks the dependencies for known vulnerabilities. CI does not run this check: it needs the advisory database, and new
# advisories appear without a change of the tree.
audit:
	scripts/audit.sh

doc:
	RUSTDOCFLAGS='-D warnings' cargo doc $(WHOLE) --no-deps

# All tests except the end-to-end tests. Tests that send labels run with the second queue, too.
unit:
	scripts/test.sh $(WHOLE)
	TIDEMILL_TEST_QUEUE=memory scripts/test.sh $(WHOLE) --test server -- orphaned_versions:: jobs:: posix:: serving::

# Each test has its own cluster and mostly waits, so several tests run at once.
e2e:
	scripts/test.sh $(WHOLE) --test e2e -- --test-threads=4

# Kills, stops and restarts processes at random, in a short run. Run it longer by hand, with another seed. `e2e` builds the
# binary.
faults:
	bench/faults.py --binary target/debug/tidemill --faults 12 --seed 21

conformance:
	scripts/conformance.sh

# Tests that send labels, with a queue in NATS; not in CI. `scripts/nats.sh install` builds the NATS server.
nats:
	scripts/nats.sh test

# Tests remotes to all kinds of stores with real servers; CI runs only SFTP. `scripts/stores.sh install` gets the servers.
stores:
	scripts/stores.sh test

# Reduces random files of netCDF4, h5py, zarr and xarray, and compares the results with numpy; not in CI. PYTHON needs these
# packages. `e2e` builds the binary.
writers:
	$(or $(PYTHON),python3) tests/writers.py target/debug/tidemill $(or $(CASES),1000) $(or $(SEED),1)

# Takes about ten minutes on a quiet machine. Peers that are not installed are skipped and reported.
bench: build
	cargo build --release --locked -p tidemill-bench-loopback
	cargo build --release --locked -p tidemill-compute -p tidemill-sandbox --features tidemill-sandbox/wasm --examples
	cargo build --release --locked -p tidemill-plan --example simulate_large
	bench/short.py

# Prints the lines of Rust of each crate, without tests.
lines:
	scripts/lines.sh

clean:
	cargo clean
