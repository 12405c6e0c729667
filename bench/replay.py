#!/usr/bin/env python3
"""How accurate are predictions of real jobs, on a new cluster and on a cluster that has run the job before?

  replay.py [--policies round-robin,...] [--inputs 16] [--mib 24] [--rounds 3] [--binary TIDEMILL] [--out DIRECTORY]

Under each policy a new cluster of this machine (two nodes of one core each; hence --processors in all predictions) gets the
inputs, in turn. It runs one job three times, and each run leaves a trace (`tidemill job export-trace`):

  cold    the first run
  warm    the same again: nodes have copies of each other's files, and the cluster knows the times of kernels
  again   the same with cached results allowed: no task has to run

For each run the script prints, for the whole job:

  before    the prediction that needs no data of the run: a cold run is predicted from a cold run of an earlier cluster under min-wait
            (`plan compare RUN --times-of OTHER`), a warm run from the cold run before it
  replay    the error with the run's own times, which is the error of the simulator itself

The job compresses every input, counts words in pairs of inputs on different nodes, and joins all results: three kernels, one
of them a program. Prints a table of medians over the rounds; OUT/replay.jsonl has a line for each run. Needs root, and an otherwise
idle machine.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

POLICIES = ["round-robin", "random", "input-locality", "min-wait", "write-amplification", "advised"]
WORDS = [b"tide", b"mill", b"pond", b"and", b"the", b"of", b"water", b"wheel"]
RUNS = ["cold", "warm", "again"]


def script(inputs):
    """Returns the job script."""
    names = [f"raw{n}" for n in range(inputs)]
    tasks = []
    for n, name in enumerate(names):
        tasks.append(f'{{ name = "pack{n}"; kernel = "gzip"; args = [ "level=1" ]; input = [ "{name}" ]; output = [ "{name}.gz" ]; }}')
        other = names[(n + 1) % inputs]
        tasks.append(f'{{ name = "count{n}"; kernel = "wordcount"; input = [ "{name}", "{other}" ]; output = [ "count{n}" ]; }}')
    counts = ", ".join(f'"count{n}"' for n in range(inputs))
    tasks.append(f'{{ name = "join"; kernel = "sort"; type = "program"; args = [ {counts} ]; input = [ {counts} ]; '
                 f'output = [ "all" ]; stdout = "all"; }}')
    return f'name = "replay"; workdir = "/"; tasks = ( {", ".join(tasks)} );'


class Cluster:
    """Starts a new cluster with the inputs."""

    def __init__(self, options):
        from local_cluster import Cluster as Local
        self.options = options
        self.cluster = Local(nodes=2, cores=1, directory=options.out, binary=options.binary)
        block = b" ".join(WORDS[byte & 7] for byte in os.urandom(1 << 18))[:1 << 20]
        with tempfile.NamedTemporaryFile(dir=options.out) as file:
            for n in range(options.inputs):
                # Sizes vary between a half and one and a half.
                size = options.mib * (8 + 16 * n // options.inputs) // 16
                file.truncate(0)
                file.seek(0)
                file.writelines([block] * size)
                file.flush()
                self.tidemill("-q", "put", "--node", str(n % 2), file.name, f"/raw{n}")
        self.job = os.path.join(self.cluster.directory, "replay.conf")
        with open(self.job, "w") as file:
            file.write(script(options.inputs))

    def tidemill(self, *args):
        done = self.cluster.run(*args)
        if done.returncode != 0:
            raise SystemExit(f"tidemill {' '.join(args)}: {done.stderr}")
        return done.stdout

    def measure(self, policy, run, path):
        cache = [] if run == "again" else ["--no-cache"]
        reply = json.loads(self.tidemill("--json", "submit", *cache, "--replace", self.job, "--policy", policy))
        self.tidemill("-q", "job", "watch", str(reply["job"]))
        self.tidemill("job", "export-trace", str(reply["job"]), "--output", path)

    def close(self):
        self.cluster.__exit__()


def compare(options, *args):
    command = [options.binary, "--json", "plan", "compare", "--processors", str(os.cpu_count()), *args]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def error(pair):
    return 100 * (pair["predicted"] / pair["measured"] - 1) if pair["measured"] else 0.0


def reported(options, policy, run, number, path, earlier):
    replayed = compare(options, path)
    line = {"policy": policy, "run": run, "round": number, "measured_s": replayed["makespan_ns"]["measured"] / 1e9,
            "replay_percent": error(replayed["makespan_ns"]), "transferred_bytes": replayed["transferred_bytes"]["measured"],
            "replayed_bytes": replayed["transferred_bytes"]["predicted"], "same_node": replayed["same_node"],
            "tasks": len(replayed["tasks"])}
    if earlier:
        before = compare(options, path, "--times-of", earlier)
        line |= {"before_percent": error(before["makespan_ns"]), "before_bytes": before["transferred_bytes"]["predicted"]}
    return line


def measure(options):
    lines = []
    for number in range(options.rounds):
        base = os.path.join(options.out, f"known-{number}.json")
        cluster = Cluster(options)
        cluster.measure("min-wait", "cold", base)
        cluster.close()
        for policy in options.policies.split(","):
            cluster = Cluster(options)
            paths = [os.path.join(options.out, f"{policy}-{run}-{number}.json") for run in RUNS]
            try:
                for run, path in zip(RUNS, paths):
                    cluster.measure(policy, run, path)
            finally:
                cluster.close()
            for run, path, earlier in zip(RUNS, paths, [base, paths[0], None]):
                lines.append(reported(options, policy, run, number, path, earlier))
    return lines


def show(lines):
    print(f"{'policy':20} {'run':6} {'measured':>9} {'before':>8} {'replay':>8} {'fetched MB':>10} {'before':>8} {'replayed':>9} {'placed alike':>12}")
    for policy, run in dict.fromkeys((line["policy"], line["run"]) for line in lines):
        rounds = [line for line in lines if (line["policy"], line["run"]) == (policy, run)]
        median = lambda field: statistics.median(line[field] for line in rounds)
        known = "before_percent" in rounds[0]
        before = f"{median('before_percent'):+7.1f}%" if known else "-"
        moved = f"{median('before_bytes') / 1e6:8.1f}" if known else "-"
        print(f"{policy:20} {run:6} {median('measured_s'):8.2f}s {before:>8} {median('replay_percent'):+7.1f}% "
              f"{median('transferred_bytes') / 1e6:10.1f} {moved:>8} {median('replayed_bytes') / 1e6:9.1f} "
              f"{median('same_node'):7.0f}/{rounds[0]['tasks']}")
    for run in RUNS:
        some = [line for line in lines if line["run"] == run]
        for field in ("before_percent", "replay_percent"):
            errors = [abs(line[field]) for line in some if field in line]
            if errors:
                print(f"{run}, {field.split('_')[0]}: within 5 % {sum(e <= 5 for e in errors)} of {len(errors)}, within 10 % "
                      f"{sum(e <= 10 for e in errors)}, median {statistics.median(errors):.1f} %, worst {max(errors):.1f} %")
        same = sum(line["transferred_bytes"] == line["replayed_bytes"] for line in some)
        print(f"{run}, replay: the same bytes in {same} of {len(some)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--inputs", type=int, default=16)
    parser.add_argument("--mib", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", type=os.path.abspath, default=os.path.join(HERE, "../target/release/tidemill"))
    parser.add_argument("--out", type=os.path.abspath, default=os.path.join(HERE, "out/replay"))
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    lines = measure(options)
    with open(os.path.join(options.out, "replay.jsonl"), "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    show(lines)


if __name__ == "__main__":
    main()
