#!/usr/bin/env bash
# Installs the program with its manual pages and completions.
#
# usage: install.sh PROGRAM PREFIX
set -euo pipefail
program=${1:?usage: install.sh PROGRAM PREFIX} prefix=${2:?usage: install.sh PROGRAM PREFIX}

install -Dm755 "$program" "$prefix/bin/tidemill"
"$program" --quiet man "$prefix/share/man/man1" >/dev/null
completions() { mkdir -p "$(dirname "$2")" && "$program" completions "$1" >"$2"; }
completions bash "$prefix/share/bash-completion/completions/tidemill"
completions zsh "$prefix/share/zsh/site-functions/_tidemill"
completions fish "$prefix/share/fish/vendor_completions.d/tidemill.fish"
echo "installed: $prefix/bin/tidemill"
