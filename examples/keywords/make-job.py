#!/usr/bin/env python3
"""Writes the job file that counts the keywords.

usage: make-job.py DATA WORKDIR

  DATA      directory of get-data.sh
  WORKDIR   directory of the cluster for the files of DATA/input, such as /keywords

Writes DATA/keywords.toml, the job file, and DATA/commands.tsv, the same tasks for offline.sh. The
columns of commands.tsv are name, inputs, outputs and command, with spaces between words. Standard output
is the only output of a task.
"""

import pathlib
import sys


def task(name, kernel, args, inputs, output):
    return {"name": name, "kernel": kernel, "args": args, "in": inputs, "out": output}


def tasks_for(groups):
    """Returns a map task for each group, and the reduce task."""
    maps = [
        task(
            f"count.{group.removeprefix('group-').removesuffix('.txt')}",
            "count.sh",
            ["keywords.txt", group],
            ["keywords.txt", group],
            group.replace("group-", "counts-").replace(".txt", ".tsv"),
        )
        for group in groups
    ]
    counts = [t["out"] for t in maps]
    return [*maps, task("sum", "sum.sh", counts, counts, "keywords.tsv")]


def words(values):
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


def job_file(tasks, workdir):
    """Returns the tasks as a job file."""
    tables = [
        f'\n[[task]]\nname = "{t["name"]}"\nkernel = "{t["kernel"]}"\n'
        f'args = {words(t["args"])}\n'
        f'input = {words(t["in"])}\n'
        f'output = ["{t["out"]}"]\nstdout = "{t["out"]}"\n'
        for t in tasks
    ]
    return f'[job]\nname = "keywords"\nworkdir = "{workdir}"\n' + "".join(tables)


def main():
    if len(sys.argv) != 3 or not sys.argv[2].startswith("/"):
        sys.exit(__doc__.split("\n\n")[1])
    data, workdir = pathlib.Path(sys.argv[1]), sys.argv[2]
    tasks = tasks_for(sorted(path.name for path in (data / "input").glob("group-*.txt")))
    (data / "keywords.toml").write_text(job_file(tasks, workdir))
    lines = [
        "\t".join([t["name"], " ".join(t["in"]), t["out"], " ".join(["./" + t["kernel"], *t["args"]])])
        for t in tasks
    ]
    (data / "commands.tsv").write_text("\n".join(lines) + "\n")
    print(f"keywords: {data / 'keywords.toml'}: {len(tasks)} tasks, 2 kernels")


if __name__ == "__main__":
    main()
