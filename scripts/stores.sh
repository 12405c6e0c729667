#!/usr/bin/env bash
# Tests remotes with real servers of stores. `install` gets the servers into DIRECTORY (/opt/tidemill-stores); it needs Go, npm,
# Maven, Java and Python, and root for openssh-server. `test` uses the installed servers and reports missing ones.
set -euo pipefail
cd "$(dirname "$0")/.."

directory=${2:-${TIDEMILL_STORES:-/opt/tidemill-stores}}
case "${1:-}" in
  install)
    mkdir -p "$directory/hadoop"
    if ! [ -x /usr/sbin/sshd ]; then
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-client openssh-server apache2-bin >/dev/null
    fi
    GOBIN="$directory/bin" go install github.com/fsouza/fake-gcs-server@v1.56.1
    npm install --silent --prefix "$directory/npm" azurite@3.35.0
    python3 -m venv "$directory/venv"
    "$directory/venv/bin/pip" install -q wsgidav==4.4.0 cheroot==11.1.2
    cp scripts/stores/pom.xml "$directory/hadoop/pom.xml"
    (cd "$directory/hadoop" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars)
    echo "stores: installed in $directory"
    ;;
  test)
    export TIDEMILL_STORES=$directory
    whole=(--locked --workspace --features tidemill-cli/full)
    cargo clippy "${whole[@]}" -p tidemill-remote --all-targets -- -D warnings
    cargo test "${whole[@]}" --test services -- --test-threads=1
    cargo test "${whole[@]}" --test e2e stores:: -- --test-threads=1
    ;;
  *) echo "usage: scripts/stores.sh install|test [DIRECTORY]" >&2; exit 2 ;;
esac
