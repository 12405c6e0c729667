#!/usr/bin/env bash
# Installs what the tests and the demo need on Debian 12. Does nothing where all of it is there already.
set -euo pipefail

packages=(fuse3 e2fsprogs acl attr libacl1-dev iproute2 rsync sqlite3 git curl gcc libc6-dev python3 python3-venv)
# Modules from C and kernels that use MPI, which tests make, and a server of SFTP, where all tests must run.
[ -z "${TIDEMILL_TEST_REQUIRE:-}" ] || packages+=(clang lld mpich libmpich-dev openssh-client openssh-server)
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

# tool NAME VERSION: a cargo tool, built once.
tool() {
  command -v "$1" >/dev/null || { echo "setup: building $1"; cargo install --quiet --locked "$1" --version "$2"; }
}
if [ -n "${TIDEMILL_TEST_REQUIRE:-}" ] || [ "${1:-}" = all ]; then
  tool cargo-deny 0.20.2
fi
