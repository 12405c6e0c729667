#!/usr/bin/env python3
"""Checks that the seeds of the simulation find deliberate defects.

Usage: tests/simulation/mutations.py [--only N,N...] [--limit SECONDS] [--json FILE]

`mutants.json` lists the defects ("mutants"), each as a text that replaces another text of a source file. The script copies the sources to
`target/mutations`, builds all mutants into one binary, in which `TIDEMILL_MUTANT` chooses one, and runs the seeds of `tests/seeds.txt` with each
mutant. A mutant is found if a seed fails within the limit. The script prints a line for each mutant and ends with 1 if one is not found. All seeds
take two to three minutes on two cores.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COPY = ROOT / "target" / "mutations"
SWITCH = """
/// Returns whether the environment chooses a mutant.
pub fn mutant(number: u32) -> bool {
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let chosen = || std::env::var("TIDEMILL_MUTANT").ok().and_then(|text| text.parse().ok());
    *CHOSEN.get_or_init(|| chosen().unwrap_or(0)) == number
}
"""


def copied(mutants):
    """Copies the sources and applies all mutants to the copy."""
    shutil.rmtree(COPY / "source", ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            target = COPY / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    for number, mutant in enumerate(mutants, 1):
        path = COPY / "source" / mutant["file"]
        text = path.read_text()
        if text.count(mutant["old"]) != 1:
            sys.exit(f"mutant {number}: {mutant['file']} does not have its text once; adapt mutants.json")
        crate = "crate" if mutant["file"].startswith("crates/model/") else "tidemill_model"
        path.write_text(text.replace(mutant["old"], mutant["new"].replace("{on}", f"{crate}::mutant({number})")))
    with open(COPY / "source/crates/model/src/lib.rs", "a") as library:
        library.write(SWITCH)


def built():
    """Builds the test of the seeds with all mutants; returns its path."""
    # With the features of all checks, cargo uses the libraries that they have built. The simulation runs no kernel.
    command = ["cargo", "test", "--locked", "--workspace", "--features", "tidemill-cli/dist,tidemill-cli/nats"]
    command += ["--test", "seeds", "--no-run"]
    command += ["--config", "profile.dev.package.tidemill-compute.opt-level=0"]
    environment = dict(os.environ, CARGO_TARGET_DIR=str(ROOT / "target"))
    done = subprocess.run(
        command, cwd=COPY / "source", env=environment, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(done.stderr)
    return re.findall(r"Executable .* \((.*)\)", done.stderr)[-1]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--only", help="numbers of the mutants to run")
    arguments.add_argument("--limit", type=int, default=600, help="seconds for each mutant")
    arguments.add_argument("--json", help="file for the results")
    given = arguments.parse_args()
    mutants = json.loads((HERE / "mutants.json").read_text())
    only = [int(number) for number in given.only.split(",")] if given.only else range(1, len(mutants) + 1)
    copied(mutants)
    seeds = built()
    results, missed = [], 0
    for number in [0, *only]:
        begun = time.monotonic()
        try:
            ran = subprocess.run(
                [seeds, "acknowledged_data"],
                cwd=COPY / "source/tests/simulation",
                env=dict(os.environ, TIDEMILL_MUTANT=str(number)),
                capture_output=True,
                text=True,
                timeout=given.limit,
            )
            said = ran.stdout + ran.stderr
            defect = re.search(r"seed (\d+): (.*(?:\n.*)?)", said)
            found = defect.group(0).replace("\n", " ")[:160] if defect else ""
            found = found or ("the test failed" if ran.returncode else "")
        except subprocess.TimeoutExpired:
            found = ""
        seconds = round(time.monotonic() - begun)
        if number == 0:
            # Without a mutant, all seeds must pass.
            if found or seconds >= given.limit:
                sys.exit(f"without a mutant: {found or 'the limit is too short'}")
            print(f"without a mutant: all seeds pass ({seconds} s)", flush=True)
            continue
        mutant = mutants[number - 1]
        missed += not found
        results.append({"number": number, "file": mutant["file"], "what": mutant["what"], "found": found, "s": seconds})
        print(f"{number:3} {'found' if found else 'NOT FOUND'} ({seconds} s) {mutant['file']}: {mutant['what']}\n    {found}", flush=True)
    print(f"{len(results) - missed} of {len(results)} mutants found")
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(results, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
