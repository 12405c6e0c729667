#!/usr/bin/env bash
# Installs the program, its manual pages and completions, and the libraries that were built with it.
#
# usage: install.sh PROGRAM PREFIX
set -euo pipefail
program=${1:?usage: install.sh PROGRAM PREFIX} prefix=${2:?usage: install.sh PROGRAM PREFIX}

install -Dm755 "$program" "$prefix/bin/tidemill"
"$program" --quiet man "$prefix/share/man/man1" >/dev/null
# The library of labels, if it was built.
built=$(dirname "$program")
library=$built/libtidemill_label
if [ -f "$library.so" ]; then
  header=$(dirname "$0")/../crates/label/include/tidemill_label.h
  install -Dm644 "$header" "$prefix/include/tidemill_label.h"
  install -Dm755 "$library.so" "$prefix/lib/libtidemill_label.so"
  install -Dm644 "$library.a" "$prefix/lib/libtidemill_label.a"
  mkdir -p "$prefix/lib/pkgconfig"
  cat >"$prefix/lib/pkgconfig/tidemill-label.pc" <<END
prefix=\${pcfiledir}/../..
Name: tidemill-label
Description: asynchronous requests of an application
Version: $("$program" --version | cut -d' ' -f2)
Cflags: -I\${prefix}/include
Libs: -L\${prefix}/lib -ltidemill_label
END
fi
# The library of `tidemill exec`, if it was built.
[ ! -f "$built/libtidemill_preload.so" ] || install -Dm755 "$built/libtidemill_preload.so" "$prefix/lib/libtidemill_preload.so"
completions() { mkdir -p "$(dirname "$2")" && "$program" completions "$1" >"$2"; }
completions bash "$prefix/share/bash-completion/completions/tidemill"
completions zsh "$prefix/share/zsh/site-functions/_tidemill"
completions fish "$prefix/share/fish/vendor_completions.d/tidemill.fish"
echo "installed: $prefix/bin/tidemill"
