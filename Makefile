# `make demo` and `make test` are all a newcomer needs; `make ci` is what CI runs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

.PHONY: help build demo test ci fmt clippy layering unit e2e conformance doc deny setup clean

help:
	@echo 'make demo         bring up an array and make a real mosaic inside it'
	@echo 'make test         everything CI runs except lints and documentation'
	@echo 'make ci           everything CI runs'
	@echo 'make build        target/release/tidemill'
	@echo 'make setup        install what tests and demo need (Debian 12, as root)'

build:
	cargo build --release --locked -p tidemill-cli

demo: setup
	scripts/demo.sh

test: setup unit e2e conformance

ci: setup fmt clippy layering deny doc unit e2e conformance

setup:
	scripts/setup.sh

fmt:
	cargo fmt --all --check

clippy:
	cargo clippy --locked --workspace --all-targets --features tidemill-cli/wasm -- -D warnings

layering:
	scripts/check-layering.sh

deny:
	cargo deny --locked check licenses bans sources

doc:
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps

# All but the end-to-end tests, which share the machine's mounts and network and run one after the other.
unit:
	cargo test --locked --workspace --exclude tidemill-cli
	cargo test --locked -p tidemill-cli --features wasm --bins --test cli

e2e:
	cargo test --locked -p tidemill-cli --features wasm --test e2e -- --test-threads=1

conformance:
	scripts/conformance.sh

clean:
	cargo clean
