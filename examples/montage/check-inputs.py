#!/usr/bin/env python3
"""Checks that the job script's lists of inputs and outputs are complete.

usage: check-inputs.py DATA

Runs every task in a new directory with only the declared inputs, keeps only the declared outputs, and
compares the mosaic with that of a plain run (offline.sh) in one directory.
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(command, directory):
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode != 0 or 'stat="ERROR"' in done.stdout:
        sys.exit(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")


def main():
    data = pathlib.Path(sys.argv[1]).resolve()
    here = pathlib.Path(__file__).resolve().parent
    # The directory is in DATA, so that hard links are possible.
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        scratch = pathlib.Path(scratch)
        store = scratch / "store"
        store.mkdir()
        for path in [*(data / "images").iterdir(), *(data / "plan").iterdir()]:
            os.link(path, store / path.name)
        given = {path.name for path in store.iterdir()}
        used = set()
        for number, line in enumerate((data / "commands.tsv").read_text().splitlines()):
            name, inputs, outputs, command = (field.split() for field in line.split("\t"))
            private = scratch / f"task{number}"
            private.mkdir()
            for file in inputs:
                os.link(store / file, private / file)
            run(command, private)
            left = {path.name for path in private.iterdir()} - set(inputs)
            # A task may write further files: mDiffFit also writes an area file that no task reads.
            if not left >= set(outputs):
                sys.exit(f"{name[0]}: declares {sorted(outputs)}, wrote {sorted(left)}")
            for file in outputs:
                (private / file).rename(store / file)
            used.update(inputs)
        if given - used:
            sys.exit(f"given but read by no task: {sorted(given - used)}")
        plain = scratch / "plain"
        subprocess.run(
            ["bash", here / "offline.sh", plain, data], check=True, stdout=subprocess.DEVNULL
        )
        for result in ("mosaic.fits", "mosaic.png"):
            apart, together = digest(store / result), digest(plain / result)
            if apart != together:
                sys.exit(f"{result} differs: {apart} task by task, {together} in one directory")
            print(f"{apart}  {result}")


if __name__ == "__main__":
    main()
