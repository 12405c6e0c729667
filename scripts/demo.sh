#!/usr/bin/env bash
# Starts a cluster on this machine and makes a real astronomical mosaic inside it.
#
# usage: demo.sh [--down] [--policy POLICY] [--tile WIDTHxHEIGHT] [DIR]
#
#   --down     stop the cluster at the end; without it the cluster stays up for a look
#   --policy   placement policy (default: the cluster's, min-wait)
#   --tile     size of the ten images (default 768x640)
#   DIR        directory for data and cluster (default: demo in the repository)
#
# Each run computes everything again. Only downloads and the ten input images are kept between runs.
set -euo pipefail
repo=$(cd "$(dirname "$0")/.." && pwd)

down=no policy= tile=768x640 dir=$repo/demo
while [ $# -gt 0 ]; do
  case $1 in
    --down) down=yes; shift ;;
    --policy) policy=${2:?--policy needs a name}; shift 2 ;;
    --tile) tile=${2:?--tile needs WIDTHxHEIGHT}; shift 2 ;;
    -*) sed -n '4,9p' "$0" >&2; exit 2 ;;
    *) dir=$1; shift ;;
  esac
done

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

check_rust() {
  local version
  version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || version=
  if [ -z "$version" ] || [ "$(printf '%s\n' 1.91 "$version" | sort -V | head -1)" != 1.91 ]; then
    echo "demo: Rust 1.91 or newer is needed, found ${version:-none}; Debian 12's own is too old." >&2
    echo "demo: install it from https://rustup.rs (apt-get install rustup && rustup default stable on newer Debian)" >&2
    exit 1
  fi
}

# Prints the reason why the cluster can't be mounted here; prints nothing if it can.
no_mount_reason() {
  if [ ! -e /dev/fuse ]; then
    echo "/dev/fuse is missing"
  elif ! { : <> /dev/fuse; } 2>/dev/null; then
    echo "/dev/fuse can't be opened by $(id -un)"
  elif [ "$(id -u)" != 0 ] && ! command -v fusermount3 >/dev/null; then
    echo "not root, and fusermount3 is missing (Debian: apt-get install fuse3)"
  fi
}

json() { python3 -c "import json, sys; v = json.load(sys.stdin); print($1)"; }

say "Building"
check_rust
(cd "$repo" && cargo build --release --locked -p tidemill-cli)
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
export PATH="$repo/target/release:$PATH" TIDEMILL_DIR="$dir/cluster"
# Settings of the user's own clusters must not affect this cluster.
unset TIDEMILL_SERVER TIDEMILL_TOKEN_FILE TIDEMILL_CONFIG TIDEMILL_MOUNT_PATH
mount=$dir/cluster/mnt

say "Getting ten telescope images"
bash "$repo/examples/montage/get-data.sh" --tile "$tile" "$dir/data"

say "Starting a server, four nodes and the server cores"
reason=$(no_mount_reason)
if [ -z "$reason" ] && ! tidemill up --nodes 4 --server-cores 1; then
  reason="mounting failed, see $dir/cluster/log/mount.log"
fi
if [ -n "$reason" ]; then
  echo "demo: no mount: $reason. The demo continues with the client: tidemill put, submit, get."
  tidemill up --nodes 4 --server-cores 1 --no-mount
fi
if [ "$down" = yes ]; then
  trap 'tidemill down' EXIT
fi
tidemill status

# Each run has its own directory: the cluster refuses a job whose outputs would replace existing files.
directory=/montage
for ((n = 2; ; n++)); do
  tidemill --json ls / | json "any(e['name'] == '${directory#/}' for e in v['entries'])" | grep -q True || break
  directory=/montage-$n
done

say "Planning: which images overlap (headers only; every Montage run starts with that)"
python3 "$repo/examples/montage/plan.py" "$dir/data"
python3 "$repo/examples/montage/make-job.py" "$dir/data" "$directory"
script=$dir/data/montage.toml
if [ -n "$policy" ]; then
  sed -i "1i policy = \"$policy\";" "$script"
fi

if [ -z "$reason" ]; then
  say "Copying the images in: cp ... $mount$directory/"
  mkdir "$mount$directory"
  cp "$dir"/data/images/*.fits "$dir"/data/plan/* "$script" "$mount$directory/"
  # A file is sealed shortly after its last close.
  while tidemill --json ls "$directory" | json "any(e['writing'] for e in v['entries'])" | grep -q True; do
    sleep 0.1
  done
  tidemill ls -l "$directory"
  control=$mount/.tidemill/$(id -un)
  say "Submitting: echo $mount$directory/montage.toml > $control/submit"
  if ! echo "$mount$directory/montage.toml" > "$control/submit"; then
    cat "$control/last-error" >&2
    exit 1
  fi
  job=$(tidemill --json job list | json "max(j['job'] for j in v)")
else
  say "Putting the images in: tidemill put ... $directory/"
  tidemill mkdir "$directory"
  tidemill put "$dir"/data/images/*.fits "$dir"/data/plan/* "$directory/"
  tidemill ls -l "$directory"
  say "Submitting: tidemill submit $script"
  job=$(tidemill --json submit "$script" | json "v['job']")
fi

say "Watching: tidemill job watch $job"
if ! tidemill job watch "$job"; then
  tidemill job logs "$job" >&2
  exit 1
fi

say "Costs of the job: tidemill job report $job"
tidemill job report "$job"

say "The last two steps of the mosaic: tidemill lineage show --depth 2 $directory/mosaic.png"
tidemill lineage show --depth 2 "$directory/mosaic.png"
tidemill lineage show --format svg -o "$dir/lineage.svg" "$directory/mosaic.png"
echo "The whole lineage as a picture: $dir/lineage.svg"

say "The mosaic"
if [ -z "$reason" ]; then
  picture=$mount$directory/mosaic.png
  if [ "$down" = yes ]; then
    cp "$picture" "$dir/mosaic.png"
    picture=$dir/mosaic.png
  fi
else
  tidemill get "$directory/mosaic.png" "$dir/mosaic.png"
  picture=$dir/mosaic.png
fi
test -s "$picture"
echo "$picture ($(stat -c %s "$picture") bytes)"

if [ "$down" = no ]; then
  say "The cluster is still up"
  echo "export PATH=$repo/target/release:\$PATH TIDEMILL_DIR=$TIDEMILL_DIR"
  echo "tidemill status              the nodes"
  echo "tidemill job explain $job       the reason for each task's node"
  echo "tidemill ls -l $directory     files with their nodes"
  [ -n "$reason" ] || echo "ls $mount                    the cluster as a file system"
  echo "tidemill down                stop it"
fi
