#!/usr/bin/env python3
"""Packs source files into groups of about the same size.

usage: make-groups.py TREE OUT N      writes OUT/group-000.txt and so on

A group contains the text of the files of some directories. A task reads one group, which is one object of
megabytes. Thousands of objects of a few kilobytes would take longer to open than to read.
"""

import pathlib
import sys


def split(files, count):
    """Returns the files in order, in `count` runs of about the same number of bytes."""
    total = sum(size for _, size in files)
    groups, passed = [[] for _ in range(count)], 0
    for path, size in files:
        groups[min(count - 1, passed * count // max(total, 1))].append(path)
        passed += size
    return groups


def main():
    tree, out, count = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    # Links are skipped, so that each file is counted once.
    paths = sorted(path for path in tree.rglob("*.[ch]") if path.is_file() and not path.is_symlink())
    groups = split([(path, path.stat().st_size) for path in paths], count)
    if not all(groups):
        sys.exit(f"make-groups: {len(paths)} files are too few for {count} groups")
    for number, group in enumerate(groups):
        with open(out / f"group-{number:03d}.txt", "wb") as packed:
            for path in group:
                text = path.read_bytes()
                packed.write(text)
                # The last word of a file and the first word of the next must stay separate.
                if not text.endswith(b"\n"):
                    packed.write(b"\n")
    total = sum(path.stat().st_size for path in out.glob("group-*.txt"))
    print(f"keywords: {len(paths)} files, {total / 1e6:.1f} MB in {count} groups")


if __name__ == "__main__":
    main()
