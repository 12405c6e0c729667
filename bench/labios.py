#!/usr/bin/env python3
"""Experiments of LABIOS (§4.2): a client and elements, each on a host and a link of its own.

  cargo build --release -p tidemill-cli -p tidemill-label && bench/labios.py [cm1] [insitu] [background] [--elements 4] [--rounds 3] [--out FOLDER]

`cm1` (Fig. 14): steps that compute (--compute seconds) and then put out --step-mib MiB in writes of 1 MiB: by labels that nobody waits for, by system calls through
the mount, and to ext4 beside the client. It is the pattern of CM1, not CM1. `seen_s` is the time for which the program did not compute, `total_s` ends when all is in closed files.
`insitu` (Fig. 17): statistics of integers, words of a text, and what lies above the third quartile of doubles of a gamma distribution, on files of --file-mib MiB, one an
element: as a job, against the same kernels on the client that reads through its mount. `background` (Fig. 18): a client that sorts, encrypts or packs --file-mib MiB and
writes the result, against one that writes what it has, and has the element do the rest: `exit_s` is when the program may end, `done_s` when the result is there.

Each element has 0.25 cores and a link of 1 Gbit/s, the client --client-cores and such a link. Rounds alternate, each with cold mounts. Prints JSON lines with medians
(`ratio` above 1: ours is faster); with --out writes fig14.svg, fig17.svg, fig18.svg. Needs root.
"""
import array as numbers
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from dscal import MIB, carried, figures, parser_of, testbed

APPLICATION = """
import os, sys, time
how, folder, steps, step_mib, compute = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
piece, begun, seen = os.urandom(1 << 20), time.perf_counter(), 0.0
if how == 'labels':
    from tidemill_label import App
    app = App('cm1', os.environ['TIDEMILL_MOUNT'], capacity=(steps * step_mib + 64) << 20)
for step in range(steps):
    end = time.perf_counter() + compute
    while time.perf_counter() < end:
        sum(range(10000))
    start = time.perf_counter()
    if how == 'labels':
        for at in range(step_mib):
            app.write(f'tidemill:/out/{step}', at << 20, piece)
    else:
        with open(os.path.join(folder, str(step)), 'wb', buffering=0) as file:
            for _ in range(step_mib):
                file.write(piece)
    seen += time.perf_counter() - start
if how == 'labels':
    app.flush()
else:
    os.sync() if how == 'plain' else None
print(seen, time.perf_counter() - begun)
"""

INSITU = {"statistics": ("stats", "dtype=i32 of=min,max,mean"), "words": ("wordcount", ""), "third quartile": ("quantile", "q=0.75")}
BACKGROUND = {"sort": ("sort", "dtype=i32"), "encrypt": ("encrypt", "key=key"), "bzip2": ("bzip2", ""), "lz4": ("lz4", "")}


def show(**line):
    print(json.dumps(line), flush=True)


def middle(rows):
    return [round(statistics.median(values), 3) for values in zip(*rows)]


def fresh(array):
    """A round's begin: nothing cached, nothing left to write back."""
    os.sync()
    array.mount()


def of(array, *path):
    return os.path.join(array.mount_point, *path)


def cm1(options, array, folder):
    program = os.path.join(folder, "application.py")
    with open(program, "w") as file:
        file.write(APPLICATION)
    target = os.path.dirname(options.binary)
    labels = f"/dev/shm/tidemill-bench-{os.getpid()}"
    os.mkdir(labels, 0o700)
    env = dict(os.environ, TIDEMILL=options.binary, TIDEMILL_LABELS=labels, TIDEMILL_MOUNT=array.mount_point,
               TIDEMILL_LABEL_LIBRARY=os.path.join(target, "libtidemill_label.so"),
               PYTHONPATH=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../examples/labels"))
    places = {"labels": of(array, "out"), "mount": of(array, "out"), "plain": os.path.join(folder, "plain")}
    found = {how: [] for how in places}
    try:
        for _ in range(options.rounds):
            for how, place in places.items():
                fresh(array)
                array.client.call("mkdir", place)
                process = array.client.popen(sys.executable, program, how, place, str(options.steps), str(options.step_mib),
                                             str(options.compute), env=env, stdout=subprocess.PIPE, text=True)
                said = process.communicate()[0]
                if process.returncode:
                    raise SystemExit(f"{how}: the program ended with {process.returncode}")
                found[how].append([float(number) for number in said.split()])
                sizes = [os.path.getsize(os.path.join(place, str(step))) for step in range(options.steps)]
                if sizes != [options.step_mib * MIB] * options.steps:
                    raise SystemExit(f"{how}: files have {sizes} bytes")
                array.client.call("rm", "-rf", place)
                # The agent has files open below the mount until it ends.
                agent = os.path.join(labels, "agent.lock")
                if how == "labels" and os.path.exists(agent):
                    subprocess.run(["kill", open(agent).read().strip()], check=False)
                    time.sleep(1)
                array.unmount()
    finally:
        subprocess.run(["rm", "-rf", labels], check=False)
    found = {how: middle(rows) for how, rows in found.items()}
    show(what=f"cm1: {options.steps} steps of {options.compute} s and {options.step_mib} MiB", goal=0.1,
         seen_of_mount=round(found["labels"][0] / found["mount"][0], 3),
         **{f"{how}_{name}_s": value for how, pair in found.items() for name, value in zip(("seen", "total"), pair)})
    compute = options.steps * options.compute
    return "fig14.svg", "CM1's pattern", [(how, [[("compute", compute), ("I/O", pair[0])]]) for how, pair in found.items()]


def make(folder, bytes_each):
    """Files of integers, of words, of doubles, and a key."""
    def fill(name, block):
        with open(os.path.join(folder, name), "wb") as file:
            for _ in range(bytes_each // MIB):
                file.write(block())

    fill("statistics", lambda: os.urandom(MIB))
    gamma = numbers.array("d", (random.gammavariate(2.0, 1.0) for _ in range(MIB // 8)))
    fill("third quartile", gamma.tobytes)
    words = ["".join(random.choices("abcdefghij", k=random.randint(2, 9))) for _ in range(20000)]
    text = " ".join(random.choices(words, k=bytes_each // 7))[:bytes_each - 1] + "\n"
    with open(os.path.join(folder, "words"), "w") as file:
        file.write(text)
    with open(os.path.join(folder, "key"), "wb") as file:
        file.write(bytes(range(32)))
    # Of as much order as measured values have.
    steps = itertools.accumulate(random.choices(range(-9, 10), k=MIB // 4))
    walk = numbers.array("i", steps)
    fill("sort", walk.tobytes)
    os.link(os.path.join(folder, "sort"), os.path.join(folder, "encrypt"))
    os.link(os.path.join(folder, "words"), os.path.join(folder, "bzip2"))
    os.link(os.path.join(folder, "words"), os.path.join(folder, "lz4"))


def job(array, folder, workdir, tasks):
    path = os.path.join(folder, "job.conf")
    with open(path, "w") as file:
        file.write(f'name = "labios"; workdir = "{workdir}"; tasks = ( {", ".join(tasks)} );')
    return str(array.ask("submit", "--no-cache", path)["job"])


def task(name, kernel, args, inputs, output):
    quoted = ", ".join(f'"{word}"' for word in args.split())
    names = ", ".join(f'"{one}"' for one in inputs)
    return f'{{ name = "{name}"; kernel = "{kernel}"; args = [{quoted}]; input = [{names}]; output = ["{output}"]; stdout = "{output}"; }}'


def local(array, kernel, args, paths, keep=None):
    """The same kernel on the client; its output as `out` in the folder `keep`."""
    command = [*array.program, "kernel", "test", kernel, *paths]
    command += ["--output", "out", "--keep", keep] if keep else []
    array.client.call(*command, "--", *args.split())


def insitu(options, array, folder, data):
    groups = []
    for what, (kernel, args) in INSITU.items():
        fresh(array)
        files = [f"{what}-{number}" for number in range(options.elements)]
        for number, name in enumerate(files):
            array.client.call("mkdir", "-p", of(array, f"e{number}"))
            array.client.call("setfattr", "-n", "user.tidemill.element", "-v", str(number), of(array, f"e{number}"))
            array.client.call("cp", os.path.join(data, what), of(array, f"e{number}", name))
        array.unmount()
        places = [f"e{number}/{name}" for number, name in enumerate(files)]
        found = {"ours": [], "client": []}
        for number in range(options.rounds):
            array.mount()
            before, begun = carried(array.elements), time.perf_counter()
            tasks = [task(f"t{at}", kernel, args, [place], f"{place}.out{number}") for at, place in enumerate(places)]
            array.tidemill("watch", job(array, folder, "/", tasks))
            links = sum(carried(array.elements).values()) - sum(before.values())
            found["ours"].append((time.perf_counter() - begun, links))
            array.unmount()
            array.mount()
            before, begun = carried(array.elements), time.perf_counter()
            for place in places:
                local(array, kernel, args, [of(array, place)])
            links = sum(carried(array.elements).values()) - sum(before.values())
            found["client"].append((time.perf_counter() - begun, links))
            array.unmount()
        ours, client = middle(found["ours"]), middle(found["client"])
        size = options.elements * options.file_mib
        show(what=f"insitu: {what} of {size} MiB", seconds=ours[0], client_seconds=client[0], ratio=round(client[0] / ours[0], 3),
             link_bytes=int(ours[1]), client_link_bytes=int(client[1]))
        groups += [(f"{what}", [[("slowest", client[0])], [("compute", ours[0])]])]
    return "fig17.svg", "In place (right) against the client", groups


def background(options, array, folder, data):
    groups = []
    for what, (kernel, args) in BACKGROUND.items():
        found = {"ours": [], "client": []}
        source = os.path.join(data, what)
        for number in range(options.rounds):
            fresh(array)
            root = of(array, f"b-{what}-{number}")
            array.client.call("mkdir", root)
            array.client.call("cp", os.path.join(data, "key"), os.path.join(root, "key"))
            begun = time.perf_counter()
            array.client.call("cp", source, os.path.join(root, "raw"))
            inputs = ["raw", "key"] if kernel == "encrypt" else ["raw"]
            number_of_job = job(array, folder, "/" + os.path.basename(root), [task("t", kernel, args, inputs, "packed")])
            left = time.perf_counter() - begun
            array.tidemill("watch", number_of_job)
            found["ours"].append((left, time.perf_counter() - begun))
            begun = time.perf_counter()
            keep = os.path.join(folder, "keep")
            local(array, kernel, args, [source, os.path.join(data, "key")] if "key" in inputs else [source], keep)
            array.client.call("cp", os.path.join(keep, "out"), os.path.join(root, "client"))
            found["client"].append((time.perf_counter() - begun,))
            shutil.rmtree(keep)
            # What is encrypted twice is not the same.
            if kernel != "encrypt":
                array.client.call("cmp", os.path.join(root, "packed"), os.path.join(root, "client"))
            array.client.call("rm", "-rf", root)
            array.unmount()
        ours, client = middle(found["ours"]), middle(found["client"])
        show(what=f"background: {what} of {options.file_mib} MiB", exit_s=ours[0], done_s=ours[1], client_s=client[0], ratio=round(client[0] / ours[0], 3))
        groups += [(what, [[("slowest", client[0])], [("compute", ours[0])]])]
    return "fig18.svg", "Time to exit: client, and in the background (right)", groups


def main():
    parser = parser_of(__doc__, 3)
    parser.set_defaults(elements="4")
    parser.add_argument("what", nargs="*", default=["cm1", "insitu", "background"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--compute", type=float, default=1.0)
    parser.add_argument("--step-mib", type=int, default=256)
    parser.add_argument("--file-mib", type=int, default=128)
    options = parser.parse_args()
    options.elements = int(options.elements)
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.folder) as folder:
        os.chmod(folder, 0o755)  # kernels are other users
        data = os.path.join(folder, "data")
        os.mkdir(data)
        if {"insitu", "background"} & set(options.what):
            make(data, options.file_mib * MIB)
        array = testbed.Array(options, f"{folder}/array")
        try:
            for what in options.what:
                if what == "cm1":
                    name, title, groups = cm1(options, array, folder)
                else:
                    name, title, groups = {"insitu": insitu, "background": background}[what](options, array, folder, data)
                if options.out:
                    os.makedirs(options.out, exist_ok=True)
                    with open(os.path.join(options.out, name), "w") as file:
                        file.write(figures.bars(title, "s", groups))
        finally:
            array.remove()


if __name__ == "__main__":
    main()
