#!/usr/bin/env python3
"""Plans a mosaic: which images it has, which region it covers, which pairs overlap.

usage: plan.py OUT      reads OUT/images, writes OUT/plan and OUT/tables

This is what a Montage workflow does before its first task; it reads the images' headers only.
"""

import pathlib
import shutil
import subprocess
import sys

import ipac


def run(*command, folder):
    """Runs one of Montage's tools, which report errors in their output too."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0 or 'stat="ERROR"' in done.stdout:
        sys.exit(f"plan: {' '.join(command)} failed: {done.stdout}{done.stderr}")


def list_table(names):
    """A table of file names."""
    width = max(map(len, names)) + 2
    head = f"|{'fname':^{width}}|\n|{'char':^{width}}|\n"
    return head + "".join(f" {name:<{width}}\n" for name in names)


def fit_list(tables):
    """The table of the fits to be made, one for each pair of images that overlap."""
    number = {row["file"]: int(row["cntr"]) for row in ipac.rows(tables / "pimages.tbl")}
    head = f"|{'cntr1':^7}|{'cntr2':^7}|{'stat':^26}|\n|{'int':^7}|{'int':^7}|{'char':^26}|\n"
    lines = []
    for pair in ipac.rows(tables / "diffs.tbl"):
        a, b = number["p" + pair["plus"]], number["p" + pair["minus"]]
        lines.append(f" {a:7d} {b:7d} {f'fit.{a:06d}.{b:06d}.txt':<26}\n")
    return head + "".join(lines)


def main():
    out = pathlib.Path(sys.argv[1]).resolve()
    images, tables, plan = out / "images", out / "tables", out / "plan"
    tables.mkdir(exist_ok=True)
    plan.mkdir(exist_ok=True)
    names = sorted(path.name for path in images.glob("*.fits"))
    (tables / "list.tbl").write_text(list_table(names))
    run("mImgtbl", "-t", "list.tbl", str(images), "images.tbl", folder=tables)
    run("mMakeHdr", "images.tbl", "region.hdr", folder=tables)
    header = tables / "region.hdr"
    header.write_text(header.read_text().replace("BITPIX  = -64", "BITPIX  = -32"))
    raw = ("images.tbl", "region.hdr", "rimages.tbl", "pimages.tbl", "cimages.tbl")
    run("mDAGTbls", *raw, folder=tables)
    # From images.tbl: mDAGTbls rounds the pixel size in its own table.
    run("mOverlaps", "images.tbl", "diffs.tbl", folder=tables)
    for name in ("region.hdr", "pimages.tbl", "cimages.tbl"):
        shutil.copy(tables / name, plan / name)
    (plan / "fitlist.tbl").write_text(fit_list(tables))


if __name__ == "__main__":
    main()
