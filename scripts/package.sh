#!/usr/bin/env bash
# Makes a Debian package of the program, its manual pages and completions.
#
# usage: package.sh PROGRAM DIRECTORY
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)
program=${1:?usage: package.sh PROGRAM DIRECTORY} directory=${2:?usage: package.sh PROGRAM DIRECTORY}

version=$("$program" --version | cut -d' ' -f2)
architecture=$(dpkg --print-architecture)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
"$repo/scripts/install.sh" "$program" "$tree/usr" >/dev/null
gzip -9n "$tree"/usr/share/man/man1/*.1
install -Dm644 "$repo/examples/tidemill.toml" "$tree/usr/share/doc/tidemill/examples/tidemill.toml"
install -Dm644 "$repo/LICENSE-MIT" "$tree/usr/share/doc/tidemill/copyright"
mkdir "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<END
Package: tidemill
Version: $version
Architecture: $architecture
Maintainer: The Tidemill authors <tidemill@localhost>
Installed-Size: $(du -sk "$tree/usr" | cut -f1)
Depends: libc6, fuse3
Section: science
Priority: optional
Description: storage that runs your analysis where the data already is
 Data is written to a mounted file system; workflows run on the storage nodes
 that hold it; results and their lineage come out, raw data stays put.
END
package=$directory/tidemill_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$tree" "$package" >/dev/null
echo "made: $package"
