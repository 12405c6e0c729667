#!/usr/bin/env python3
"""Experiments of LABIOS (§4.2): a client and nodes, each with its own host and link.

  cargo build --release -p tidemill-cli -p tidemill-label && bench/labios.py [cm1] [insitu] [background] [montage] [anatomy] [hacc] [kmeans] [--nodes 4] [--rounds 3] [--out DIRECTORY]

`cm1` (Fig. 14): each step computes for --compute seconds and then writes --step-mib MiB in writes of 1 MiB. The ways are labels without a wait, system calls through the mount, and ext4
of the client. The script imitates the pattern of CM1. `seen_s` is the time in which the program did not compute; `total_s` ends when all data is in closed files.
`insitu` (Fig. 17): statistics of integers, words of a text, and the values above the third quartile of doubles with a gamma distribution, on files of --file-mib MiB, one per node.
Ours is a job; the peer runs the same kernels on the client, which reads through its mount.
`background` (Fig. 18): the peer is a client that sorts, encrypts or packs --file-mib MiB and then writes the result. Ours writes the raw data, and the node does the work. `exit_s` is
the time until the program may end, `done_s` the time until the result exists.

`montage` (Fig. 16): the mosaic of examples/montage, all on this machine. Its 36 commands start as they become ready, --cores at once: in a directory of the mount on --nodes nodes on
disks (`mount`), in a workspace in memory (`workspace`) and in a directory of ext4 (`ext4`). `job` is a job of the same cluster with intermediate files in memory. `seconds` end when mosaic.png exists
and was read once; the picture is compared with that of ext4. Ratios are times: below 1 the first way is faster. The other experiments don't run together with this one.

`anatomy` (Fig. 11): the stages of one label at a time, each for a new file, of an application with the intent of low latency, on this machine: published (the copy), taken (by the
agent), executed (system calls on the mount), stored (closed, visible for all).
`hacc` (Fig. 15): the checkpoints of HACC-IO, 9 variables of --ranks processes in --steps steps, each version in place of the previous version. The writers are tasks on two nodes of
0.5 cores and two of 0.125 cores with declared rates, under each policy.
`kmeans` (Fig. 19): the kernel on the nodes with the points, against the same kernel on the client, over links of 1 Gbit/s and of 100 Mbit/s. A second comparison has the points in an
object store on its own host: its directories are attached, one per node, and the client reads there by /remotes.

In the other experiments each node has 0.25 cores and a link of 1 Gbit/s; the client has --client-cores and such a link. Rounds alternate, each with cold mounts. Prints JSON lines with
medians (`ratio` above 1: ours is faster). With --out it writes fig14.svg and so on. Needs root.
"""
import array as numbers
import itertools
import json
import mmap
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import local_cluster
from dscal import HERE, MIB, carried, figures, parser_of, testbed

APPLICATION = """
import os, sys, time
how, directory, steps, step_mib, compute = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
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
        with open(os.path.join(directory, str(step)), 'wb', buffering=0) as file:
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
# Microseconds of one label with its wait in LABIOS 2, with batches of one, measured separately on a similar machine.
LABIOS_2 = {("write", 1024): 3400, ("read", 1024): 1500, ("write", MIB): 13100, ("read", MIB): 14000}
BACKGROUND = {"sort": ("sort", "dtype=i32"), "encrypt": ("encrypt", "key=key"), "bzip2": ("bzip2", ""), "lz4": ("lz4", "")}


def show(**line):
    print(json.dumps(line), flush=True)


def middle(rows):
    return [round(statistics.median(values), 3) for values in zip(*rows)]


def fresh(cluster):
    """Begins a round: empties the caches, and writes dirty pages back."""
    os.sync()
    cluster.mount()


def of(cluster, *path):
    return os.path.join(cluster.mount_point, *path)


def cm1(options, cluster, directory):
    program = os.path.join(directory, "application.py")
    with open(program, "w") as file:
        file.write(APPLICATION)
    target = os.path.dirname(options.binary)
    labels = f"/dev/shm/tidemill-bench-{os.getpid()}"
    os.mkdir(labels, 0o700)
    env = dict(os.environ, TIDEMILL=options.binary, TIDEMILL_LABELS=labels, TIDEMILL_MOUNT=cluster.mount_point,
               TIDEMILL_LABEL_LIBRARY=os.path.join(target, "libtidemill_label.so"),
               PYTHONPATH=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../examples/labels"))
    places = {"labels": of(cluster, "out"), "mount": of(cluster, "out"), "plain": os.path.join(directory, "plain")}
    found = {how: [] for how in places}
    try:
        for _ in range(options.rounds):
            for how, place in places.items():
                fresh(cluster)
                cluster.client.call("mkdir", place)
                process = cluster.client.popen(sys.executable, program, how, place, str(options.steps), str(options.step_mib),
                                             str(options.compute), env=env, stdout=subprocess.PIPE, text=True)
                printed = process.communicate()[0]
                if process.returncode:
                    raise SystemExit(f"{how}: the program ended with {process.returncode}")
                found[how].append([float(number) for number in printed.split()])
                sizes = [os.path.getsize(os.path.join(place, str(step))) for step in range(options.steps)]
                if sizes != [options.step_mib * MIB] * options.steps:
                    raise SystemExit(f"{how}: files have {sizes} bytes")
                cluster.client.call("rm", "-rf", place)
                # The agent keeps files open below the mount until it ends.
                agent = os.path.join(labels, "agent.lock")
                if how == "labels" and os.path.exists(agent):
                    subprocess.run(["kill", open(agent).read().strip()], check=False)
                    time.sleep(1)
                cluster.unmount()
    finally:
        subprocess.run(["rm", "-rf", labels], check=False)
    found = {how: middle(rows) for how, rows in found.items()}
    show(what=f"cm1: {options.steps} steps of {options.compute} s and {options.step_mib} MiB", goal=0.1,
         seen_of_mount=round(found["labels"][0] / found["mount"][0], 3),
         **{f"{how}_{name}_s": value for how, pair in found.items() for name, value in zip(("seen", "total"), pair)})
    compute = options.steps * options.compute
    return "fig14.svg", "CM1's pattern", [(how, [[("compute", compute), ("I/O", pair[0])]]) for how, pair in found.items()]


def make(directory, bytes_each):
    """Makes files of integers, of words and of doubles, and a key."""
    def fill(name, block):
        with open(os.path.join(directory, name), "wb") as file:
            for _ in range(bytes_each // MIB):
                file.write(block())

    fill("statistics", lambda: os.urandom(MIB))
    gamma = numbers.array("d", (random.gammavariate(2.0, 1.0) for _ in range(MIB // 8)))
    fill("third quartile", gamma.tobytes)
    words = ["".join(random.choices("abcdefghij", k=random.randint(2, 9))) for _ in range(20000)]
    text = " ".join(random.choices(words, k=bytes_each // 7))[:bytes_each - 1] + "\n"
    with open(os.path.join(directory, "words"), "w") as file:
        file.write(text)
    with open(os.path.join(directory, "key"), "wb") as file:
        file.write(bytes(range(32)))
    # The values have as much order as measured values.
    steps = itertools.accumulate(random.choices(range(-9, 10), k=MIB // 4))
    walk = numbers.array("i", steps)
    fill("sort", walk.tobytes)
    os.link(os.path.join(directory, "sort"), os.path.join(directory, "encrypt"))
    os.link(os.path.join(directory, "words"), os.path.join(directory, "bzip2"))
    os.link(os.path.join(directory, "words"), os.path.join(directory, "lz4"))


def job(cluster, directory, workdir, tasks):
    path = os.path.join(directory, "job.conf")
    with open(path, "w") as file:
        file.write(f'name = "labios"; workdir = "{workdir}"; tasks = ( {", ".join(tasks)} );')
    return str(cluster.ask("submit", "--no-cache", path)["job"])


def task(name, kernel, args, inputs, output):
    quoted = ", ".join(f'"{word}"' for word in args.split())
    names = ", ".join(f'"{one}"' for one in inputs)
    return f'{{ name = "{name}"; kernel = "{kernel}"; args = [{quoted}]; input = [{names}]; output = ["{output}"]; stdout = "{output}"; }}'


def local(cluster, kernel, args, paths, keep=None):
    """Runs the same kernel on the client; the output is `out` in the directory `keep`."""
    command = [*cluster.program, "kernel", "test", kernel, *paths]
    command += ["--output", "out", "--keep", keep] if keep else []
    cluster.client.call(*command, "--", *args.split())


def insitu(options, cluster, directory, data):
    groups = []
    for what, (kernel, args) in INSITU.items():
        fresh(cluster)
        files = [f"{what}-{number}" for number in range(options.nodes)]
        for number, name in enumerate(files):
            cluster.client.call("mkdir", "-p", of(cluster, f"e{number}"))
            cluster.client.call("setfattr", "-n", "user.tidemill.node", "-v", str(number), of(cluster, f"e{number}"))
            cluster.client.call("cp", os.path.join(data, what), of(cluster, f"e{number}", name))
        cluster.unmount()
        places = [f"e{number}/{name}" for number, name in enumerate(files)]
        found = {"ours": [], "client": []}
        for number in range(options.rounds):
            cluster.mount()
            before, begun = carried(cluster.nodes), time.perf_counter()
            tasks = [task(f"t{at}", kernel, args, [place], f"{place}.out{number}") for at, place in enumerate(places)]
            cluster.tidemill("job", "watch", job(cluster, directory, "/", tasks))
            links = sum(carried(cluster.nodes).values()) - sum(before.values())
            found["ours"].append((time.perf_counter() - begun, links))
            cluster.unmount()
            cluster.mount()
            before, begun = carried(cluster.nodes), time.perf_counter()
            for place in places:
                local(cluster, kernel, args, [of(cluster, place)])
            links = sum(carried(cluster.nodes).values()) - sum(before.values())
            found["client"].append((time.perf_counter() - begun, links))
            cluster.unmount()
        ours, client = middle(found["ours"]), middle(found["client"])
        size = options.nodes * options.file_mib
        show(what=f"insitu: {what} of {size} MiB", seconds=ours[0], client_seconds=client[0], ratio=round(client[0] / ours[0], 3),
             link_bytes=int(ours[1]), client_link_bytes=int(client[1]))
        groups += [(f"{what}", [[("slowest", client[0])], [("compute", ours[0])]])]
    return "fig17.svg", "In place (right) against the client", groups


def background(options, cluster, directory, data):
    groups = []
    for what, (kernel, args) in BACKGROUND.items():
        found = {"ours": [], "client": []}
        source = os.path.join(data, what)
        for number in range(options.rounds):
            fresh(cluster)
            root = of(cluster, f"b-{what}-{number}")
            cluster.client.call("mkdir", root)
            cluster.client.call("cp", os.path.join(data, "key"), os.path.join(root, "key"))
            begun = time.perf_counter()
            cluster.client.call("cp", source, os.path.join(root, "raw"))
            inputs = ["raw", "key"] if kernel == "encrypt" else ["raw"]
            number_of_job = job(cluster, directory, "/" + os.path.basename(root), [task("t", kernel, args, inputs, "packed")])
            left = time.perf_counter() - begun
            cluster.tidemill("job", "watch", number_of_job)
            found["ours"].append((left, time.perf_counter() - begun))
            begun = time.perf_counter()
            keep = os.path.join(directory, "keep")
            local(cluster, kernel, args, [source, os.path.join(data, "key")] if "key" in inputs else [source], keep)
            cluster.client.call("cp", os.path.join(keep, "out"), os.path.join(root, "client"))
            found["client"].append((time.perf_counter() - begun,))
            shutil.rmtree(keep)
            # Two encryptions of the same bytes differ.
            if kernel != "encrypt":
                cluster.client.call("cmp", os.path.join(root, "packed"), os.path.join(root, "client"))
            cluster.client.call("rm", "-rf", root)
            cluster.unmount()
        ours, client = middle(found["ours"]), middle(found["client"])
        show(what=f"background: {what} of {options.file_mib} MiB", exit_s=ours[0], done_s=ours[1], client_s=client[0], ratio=round(client[0] / ours[0], 3))
        groups += [(what, [[("slowest", client[0])], [("compute", ours[0])]])]
    return "fig18.svg", "Time to exit: client, and in the background (right)", groups


def steps(data):
    """Returns the commands of a mosaic, with their inputs and outputs."""
    with open(os.path.join(data, "commands.tsv")) as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [(inputs.split(), outputs.split(), command.split()) for _, inputs, outputs, command in rows]


def run_steps(data, where, cores):
    """Runs the commands in a directory with their inputs, each as soon as its inputs exist."""
    left, running, made = steps(data), [], set()
    all_made = {name for _, outputs, _ in left for name in outputs}
    while left or running:
        ready = [step for step in left if all(name in made or name not in all_made for name in step[0])]
        for step in ready[:cores - len(running)]:
            left.remove(step)
            running.append((subprocess.Popen(step[2], cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT), step[1]))
        process, outputs = running[0]
        while not any(one.poll() is not None for one, _ in running):
            time.sleep(0.001)
        for process, outputs in [one for one in running if one[0].poll() is not None]:
            printed = process.stdout.read()
            assert process.returncode == 0 and b'stat="ERROR"' not in printed, printed
            running.remove((process, outputs))
            made.update(outputs)


def montage(options):
    example = os.path.join(HERE, "../examples/montage")
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory:
        os.chmod(directory, 0o755)
        data = os.path.join(directory, "data")
        subprocess.run([f"{example}/get-data.sh", data], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([f"{example}/make-job.py", data, "/job"], check=True, stdout=subprocess.DEVNULL)
        inputs = [os.path.join(data, part, name) for part in ("images", "plan") for name in os.listdir(os.path.join(data, part))]
        os.environ["TIDEMILL_NODE_INTERMEDIATE_MEMORY"] = "1GiB"
        with local_cluster.Cluster(nodes=options.nodes, cores=options.cores, directory=directory, binary=options.binary) as cluster:
            os.chmod(cluster.directory, 0o755)  # kernels run as other users, which must search this directory
            memory = f"{cluster.directory}/memory"
            try:
                cluster._start("memory", "node", "run", "--id", "9", "--data-dir", memory, "--listen", "127.0.0.1:0", "--tier", "memory", "--capacity", "2GiB")
                local_cluster.wait("memory", lambda: sum(e["up"] for e in cluster.json("status")["nodes"]) == options.nodes + 1)
                os.mkdir(cluster.mount_point)
                cluster._start("mnt", "mount", "--path", cluster.mount_point)
                local_cluster.wait("the mount", lambda: os.path.exists(os.path.join(cluster.mount_point, ".tidemill")))
                show_montage(options, cluster, (directory, data, inputs))
            finally:
                for number in range(options.nodes):
                    subprocess.run(["umount", "-l", f"{cluster.directory}/node{number}/intermediates"], capture_output=True)
                subprocess.run(["umount", "-l", memory], capture_output=True)


def show_montage(options, cluster, source):
    directory, data, inputs = source
    script = open(os.path.join(data, "montage.toml")).read().replace("workdir =", 'intermediate = "memory"\nworkdir =', 1)
    times, first = {way: [] for way in ("ext4", "mount", "workspace", "job")}, None
    for _ in range(options.rounds):
        for way in times:
            if way == "workspace":
                cluster.json("workspace", "create", "m")
            where = {"ext4": f"{directory}/ext4", "mount": f"{cluster.mount_point}/mount", "workspace": f"{cluster.mount_point}/workspaces/m", "job": f"{cluster.mount_point}/job"}[way]
            os.makedirs(where, exist_ok=True)
            for path in inputs:
                shutil.copy(path, where)
            begun = time.perf_counter()
            if way == "job":
                job = cluster.submit(script)
                assert job["state"] == "done", job
            else:
                run_steps(data, where, options.cores)
            with open(f"{where}/mosaic.png", "rb") as file:
                mosaic = file.read()
            times[way].append(time.perf_counter() - begun)
            first = first or mosaic
            assert mosaic == first, way
            if way == "job":
                report = cluster.json("job", "report", str(job["job"]))["total"]
            if way == "workspace":
                cluster.json("workspace", "delete", "m")
            else:
                shutil.rmtree(where)
    seconds = {way: statistics.median(all) for way, all in times.items()}
    line = {"bench": "montage", "nodes": options.nodes, "cores": options.cores, "seconds": {way: round(one, 2) for way, one in seconds.items()},
            "in_memory_mib": round(report["in_memory_bytes"] / MIB, 1)}
    for way in ("workspace", "job"):
        line[f"{way}_to_mount"] = round(seconds[way] / seconds["mount"], 3)
        line[f"{way}_to_ext4"] = round(seconds[way] / seconds["ext4"], 3)
    show(**line)


def anatomy(options):
    """Reads the application's log, which is memory shared with the agent (crates/label/src/log.rs)."""
    import local_cluster
    sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../examples/labels"))
    with local_cluster.Cluster(nodes=1, mount=True, directory=options.dir, binary=options.binary) as cluster:
        labels = f"/dev/shm/tidemill-bench-{os.getpid()}"
        os.mkdir(labels, 0o700)
        os.environ.update(TIDEMILL=options.binary, TIDEMILL_LABELS=labels, TIDEMILL_MOUNT=cluster.mount_point,
                          TIDEMILL_LABEL_LIBRARY=os.path.join(os.path.dirname(options.binary), "libtidemill_label.so"))
        try:
            from tidemill_label import App, LOW_LATENCY
            app = App("anatomy", intent=LOW_LATENCY)
            log = next(name for name in os.listdir(labels) if name.endswith(".labels"))
            with open(os.path.join(labels, log), "r+b") as file:
                view = mmap.mmap(file.fileno(), 0)
            groups = []
            for size, count in (1024, 1000), (MIB, 200):
                for what in "write", "read":
                    rows = [stages(view, app, what, size, number) for number in range(count * options.rounds)]
                    found = dict(zip(("published", "taken", "executed", "stored"), [statistics.median(row) * 1e6 for row in zip(*rows)]))
                    whole = statistics.median(map(sum, rows)) * 1e6
                    show(what=f"anatomy: {what} of {size >> 10} KiB", whole_us=round(whole, 1), labios_2_us=LABIOS_2[what, size],
                         **{f"{name}_us": round(us, 1) for name, us in found.items()})
                    share = 100 / sum(found.values())
                    groups.append((f"{what} {size >> 10} KiB", [[(name, us * share) for name, us in found.items()]]))
            del app
        finally:
            agent = os.path.join(labels, "agent.lock")
            if os.path.exists(agent):
                subprocess.run(["kill", open(agent).read().strip()], check=False)
                time.sleep(1)
            shutil.rmtree(labels)
    return "fig11.svg", "Stages of a label", "%", groups


def stages(view, app, what, size, number):
    """Returns the seconds of each stage of one label. A read is stored when it is executed."""
    data, path = bytes(size), f"tidemill:/{number}-{size}"
    now, word, status_of = time.perf_counter, struct.Struct("<Q").unpack_from, struct.Struct("<I").unpack_from
    begun = now()
    label = app.write(path, 0, data) if what == "write" else app.read(path, 0, size)
    published = now()
    length = -(-(64 + -(-(len(path) - len("tidemill:/")) // 8) * 8 + size) // 64) * 64
    place = 4096 + (word(view, 16)[0] - length) % word(view, 8)[0]
    if status_of(view, place)[0] != int.from_bytes(b"labl", "little"):
        raise SystemExit("no record at the place of the label")
    mine = word(view, place + 16)[0]
    while status_of(view, place + 52)[0] == 0:
        pass
    taken = now()
    while status_of(view, place + 52)[0] == 1:
        pass
    executed = now()
    while what == "write" and word(view, 32)[0] < mine:
        pass
    stored = now()
    label.wait()
    return published - begun, taken - published, executed - taken, stored - executed


def hacc(options, directory):
    policies = ["random:all", "round-robin", "constraint:bandwidth", "minmax"]
    kinds = [(0.5, ("--device-rate", "400M"))] * 2 + [(0.125, ("--device-rate", "100M"))] * 2
    cluster = testbed.Cluster(options, f"{directory}/hacc", kinds=kinds)
    found = {policy: [] for policy in policies}
    # A particle has 38 bytes: seven floats, a number of 8 bytes, a mask of 2 bytes.
    sizes = [4 * options.particles] * 7 + [8 * options.particles, 2 * options.particles]
    variables = " ".join(str(size) for size in sizes)
    write = f"for size in {variables}; do head -c $size /dev/zero; done"
    try:
        for number in range(options.rounds):
            for policy in policies:
                cluster.mount()
                cluster.client.call("mkdir", "-p", of(cluster, policy.replace(":", "-")))
                cluster.unmount()
                begun = time.perf_counter()
                for _ in range(options.steps):
                    tasks = [f'{{ name = "rank{rank}"; kernel = "sh"; args = ["-c", "{write}"]; output = ["{rank}"]; stdout = "{rank}"; }}'
                             for rank in range(options.ranks)]
                    path = os.path.join(directory, "job.conf")
                    with open(path, "w") as file:
                        file.write(f'name = "hacc"; workdir = "/{policy.replace(":", "-")}"; replace = true; policy = "{policy}"; tasks = ( {", ".join(tasks)} );')
                    cluster.tidemill("job", "watch", str(cluster.ask("submit", "--no-cache", path)["job"]))
                found[policy].append((time.perf_counter() - begun,))
    finally:
        cluster.remove()
    found = {policy: middle(rows)[0] for policy, rows in found.items()}
    size = options.steps * options.ranks * sum(sizes) / MIB
    for policy, seconds in found.items():
        show(what=f"hacc: {options.steps} checkpoints of {options.ranks} ranks, {size:.0f} MiB, {policy}", seconds=seconds,
             ratio=round(found["random:all"] / seconds, 3))
    return "fig15.svg", "HACC-IO's checkpoints on fast and slow nodes", "s", [(policy, [[("I/O", seconds)]]) for policy, seconds in found.items()]


def kmeans(options, directory):
    groups = []
    objects = os.path.join(directory, "objects")
    data = os.path.join(directory, "points")
    centres = [[random.uniform(-100, 100) for _ in range(16)] for _ in range(16)]
    with open(data, "wb") as file:
        for _ in range(options.file_mib):
            file.write(numbers.array("f", (random.gauss(value, 5) for _ in range(MIB // 1024) for value in random.choice(centres))).tobytes() * 16)
    for number in range(options.nodes):
        os.makedirs(os.path.join(objects, f"e{number}"))
        os.link(data, os.path.join(objects, f"e{number}", "points"))
    for where, rate in itertools.product(("the cluster", "an object store"), (1000, 100)):
        options.rate_mbit = rate
        kinds = [(options.node_cores, ("--backend", f"s3://bucket/e{number}?endpoint={{store}}", "--backend-cache", "1MiB")) for number in range(options.nodes)]
        cluster = testbed.Cluster(options, f"{directory}/kmeans", **({} if where == "the cluster" else {"kinds": kinds, "objects": objects}))
        try:
            # Inputs of the tasks and of the client; the client reads a store directly, by its remote in the mount.
            places = here(cluster, options, data) if where == "the cluster" else attached(cluster, options)
            found = {"ours": [], "client": []}
            for number in range(options.rounds):
                rounds(cluster, directory, (places, number), found)
        finally:
            cluster.remove()
        ours, client = middle(found["ours"]), middle(found["client"])
        show(what=f"kmeans: {options.nodes} files of {options.file_mib} MiB in {where}, links of {rate} Mbit/s", seconds=ours[0], client_seconds=client[0],
             ratio=round(client[0] / ours[0], 3), link_bytes=int(ours[1]), client_link_bytes=int(client[1]))
        groups.append((f"{where}, {rate} Mbit/s", [[("client", client[0])], [("in place", ours[0])]]))
    return "fig19.svg", "k-means on the nodes with the points, and on the client", "s", groups


def here(cluster, options, data):
    """Puts the points into a directory of each node."""
    cluster.mount()
    for number in range(options.nodes):
        cluster.client.call("mkdir", of(cluster, f"e{number}"))
        cluster.client.call("setfattr", "-n", "user.tidemill.node", "-v", str(number), of(cluster, f"e{number}"))
        cluster.client.call("cp", data, of(cluster, f"e{number}", "points"))
    cluster.unmount()
    return [(f"/e{number}/points", f"e{number}/points") for number in range(options.nodes)]


def attached(cluster, options):
    """Puts the points into a store; each node has a directory of it."""
    for number in range(options.nodes):
        cluster.tidemill("remote", "add", f"e{number}", f"s3://bucket/e{number}?endpoint={cluster.store}")
        cluster.tidemill("remote", "attach", f"e{number}", f"/e{number}", "--every", "0s")
    return [(f"/remotes/e{number}/points", f"remotes/e{number}/points") for number in range(options.nodes)]


def rounds(cluster, directory, step, found):
    """Runs one round of each way."""
    places, number = step
    args = "columns=16 k=16 dtype=f32 iterations=10 tolerance=0"
    cluster.mount()
    before, begun = carried(cluster.nodes), time.perf_counter()
    tasks = [task(f"t{at}", "kmeans", args, [place], f"/out{at}.{number}") for at, (place, _) in enumerate(places)]
    cluster.tidemill("job", "watch", job(cluster, directory, "/", tasks))
    links = sum(carried(cluster.nodes).values()) - sum(before.values())
    found["ours"].append((time.perf_counter() - begun, links))
    cluster.unmount()
    cluster.mount()
    before, begun = carried([cluster.client]), time.perf_counter()
    keep = os.path.join(directory, "keep")
    for _, place in places:
        local(cluster, "kmeans", args, [of(cluster, place)], keep if place == places[-1][1] else None)
    links = sum(carried([cluster.client]).values()) - sum(before.values())
    found["client"].append((time.perf_counter() - begun, links))
    cluster.client.call("cmp", os.path.join(keep, "out"), of(cluster, f"out{len(places) - 1}.{number}"))
    shutil.rmtree(keep)
    cluster.unmount()


def draw(options, name, title, unit, groups):
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, name), "w") as file:
            file.write(figures.bars(title, unit, groups))


def main():
    parser = parser_of(__doc__, 3)
    parser.set_defaults(nodes="4")
    parser.add_argument("what", nargs="*", default=["cm1", "insitu", "background"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--compute", type=float, default=1.0)
    parser.add_argument("--step-mib", type=int, default=256)
    parser.add_argument("--file-mib", type=int, default=128)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--particles", type=int, default=200_000, help="particles of a rank of hacc")
    options = parser.parse_args()
    options.nodes = int(options.nodes)
    if "montage" in options.what:
        return montage(options)
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory:
        os.chmod(directory, 0o755)  # kernels run as other users
        data = os.path.join(directory, "data")
        os.mkdir(data)
        if {"insitu", "background"} & set(options.what):
            make(data, options.file_mib * MIB)
        alone = {"anatomy": lambda: anatomy(options), "hacc": lambda: hacc(options, directory), "kmeans": lambda: kmeans(options, directory)}
        for what in options.what:
            if what in alone:
                draw(options, *alone[what]())
        rest = [what for what in options.what if what not in alone]
        cluster = testbed.Cluster(options, f"{directory}/cluster") if rest else None
        try:
            for what in rest:
                if what == "cm1":
                    name, title, groups = cm1(options, cluster, directory)
                else:
                    name, title, groups = {"insitu": insitu, "background": background}[what](options, cluster, directory, data)
                draw(options, name, title, "s", groups)
        finally:
            if cluster:
                cluster.remove()


if __name__ == "__main__":
    main()
