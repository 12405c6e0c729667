#!/usr/bin/env python3
"""Plans a mosaic: lists its images, chooses its region and finds the overlapping pairs.

usage: plan.py OUT      reads OUT/images, writes OUT/plan and OUT/tables

A Montage workflow makes this plan before its first task. The script reads only the headers of the images.
"""

import pathlib
import shutil
import subprocess
import sys

import ipac


def run(*command, directory):
    """Runs a tool of Montage. These tools also report errors in their output."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode != 0 or 'stat="ERROR"' in done.stdout:
        sys.exit(f"plan: {' '.join(command)} failed: {done.stdout}{done.stderr}")


def list_table(names):
    """Returns a table of file names."""
    width = max(map(len, names)) + 2
    head = f"|{'fname':^{width}}|\n|{'char':^{width}}|\n"
    return head + "".join(f" {name:<{width}}\n" for name in names)


def fit_list(tables):
    """Returns the table of planned fits, one for each pair of overlapping images."""
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
    run("mImgtbl", "-t", "list.tbl", str(images), "images.tbl", directory=tables)
    run("mMakeHdr", "images.tbl", "region.hdr", directory=tables)
    header = tables / "region.hdr"
    header.write_text(header.read_text().replace("BITPIX  = -64", "BITPIX  = -32"))
    raw = ("images.tbl", "region.hdr", "rimages.tbl", "pimages.tbl", "cimages.tbl")
    run("mDAGTbls", *raw, directory=tables)
    # The pixel size is from images.tbl, as mDAGTbls rounds it in its own table.
    run("mOverlaps", "images.tbl", "diffs.tbl", directory=tables)
    for name in ("region.hdr", "pimages.tbl", "cimages.tbl"):
        shutil.copy(tables / name, plan / name)
    (plan / "fitlist.tbl").write_text(fit_list(tables))


if __name__ == "__main__":
    main()
