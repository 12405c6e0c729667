#!/usr/bin/env python3
"""offline.py COMMANDS.tsv DIRECTORY: runs the commands of a workload in sequence in DIRECTORY, and prints, as JSON,
the wall and processor time of each command. A failed command ends the run.
"""
import json
import os
import subprocess
import sys
import time


def main():
    commands, directory = sys.argv[1:3]
    tasks = []
    with open(commands) as file:
        lines = [line.rstrip("\n").split("\t") for line in file if line.strip()]
    for kernel, command in ((line[0], line[-1]) for line in lines):
        start = time.monotonic()
        process = subprocess.Popen(["bash", "-c", command], cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        error = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"{command}: ended with {os.waitstatus_to_exitcode(status)}\n{error.decode(errors='replace')}")
        tasks.append({"kernel": kernel, "wall_s": time.monotonic() - start, "cpu_s": usage.ru_utime + usage.ru_stime})
    json.dump(tasks, sys.stdout)


if __name__ == "__main__":
    main()
