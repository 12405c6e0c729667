#!/bin/bash
# Installs the packages of this example on Debian 12 or newer; needs root only if a package is missing.
# usage: install.sh
set -euo pipefail

missing=()
command -v xz >/dev/null || missing+=(xz-utils)
command -v python3 >/dev/null || missing+=(python3)
if [ ${#missing[@]} = 0 ]; then
  echo "keywords: all tools are installed"
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  echo "keywords: not installed: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "keywords: installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
