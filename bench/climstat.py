#!/usr/bin/env python3
"""ClimStat of Active Storage (§5.2, Fig. 5): the mean of one of many interleaved record variables, on the nodes with its bytes or on a client.

  cargo build --release && bench/climstat.py [--nodes 1,2,4,8] [--variables 96] [--scale 2] [--rounds 5] [--python PYTHON] [--out DIRECTORY]

The netCDF-3 file is like that of the paper: 5 records of 21 × 256/SCALE × 512/SCALE values of each variable. Each node has 0.25 cores and a link of 1 Gbit/s; the client has one core and
such a link (--node-cores, --client-cores, --rate-mbit). Ours is `tidemill reduce mean`; the client runs it with --local through its mount. Rounds alternate, each with cold mounts, and both
means must agree. Bytes are those on the nodes' links. Prints JSON lines with medians (`ratio` above 1: the cluster is faster; `linear`: compared with its own run on the fewest nodes). With
--out it writes fig5a.svg (time) and fig5b.svg (bytes). PYTHON needs netCDF4. Needs root.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from dscal import carried, figures, parser_of, testbed

MAKE = """
import sys, numpy as np
from netCDF4 import Dataset
path, count, scale = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
file = Dataset(path, 'w', format='NETCDF3_64BIT_OFFSET')
file.set_fill_off()
for name, size in (('time', None), ('lev', 21), ('lat', 256 // scale), ('lon', 512 // scale)):
    file.createDimension(name, size)
variables = [file.createVariable(f'v{index:02}', 'f4', ('time', 'lev', 'lat', 'lon')) for index in range(count)]
rng = np.random.default_rng(1)
for record in range(5):
    base = rng.standard_normal((21, 256 // scale, 512 // scale), dtype='f4')
    for index, variable in enumerate(variables):
        variable[record] = base + index
file.close()
"""


def measure(options, count, source):
    options.nodes = count
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory:
        os.chmod(directory, 0o755)  # kernels run as other users
        cluster = testbed.Cluster(options, f"{directory}/cluster", tls="on")
        try:
            cluster.mount()
            root = os.path.join(cluster.mount_point, "clim")
            cluster.client.call("mkdir", root)
            cluster.tidemill("set", "/clim", "stripe=1MiB")
            cluster.client.call("cp", source, os.path.join(root, "file.nc"))
            cluster.unmount()
            name = f"v{options.variables // 2:02}"
            where = {"ours": ["/clim/file.nc"], "peer": ["--local", os.path.join(root, "file.nc")]}
            found = {who: [] for who in where}
            for number in range(options.rounds + 1):
                means = set()
                for who, place in where.items():
                    cluster.mount()
                    before, begun = carried(cluster.nodes), time.perf_counter()
                    printed = cluster.ask("reduce", "mean", *place[:-1], f"{place[-1]}:{name}")
                    seconds = time.perf_counter() - begun
                    links = sum(carried(cluster.nodes).values()) - sum(before.values())
                    cluster.unmount()
                    means.add(round(printed["values"]["mean"], 5))
                    if number:
                        found[who].append((seconds, links))
                if len(means) != 1:
                    raise SystemExit(f"means differ: {means}")
            return {who: [statistics.median(values) for values in zip(*all_of)] for who, all_of in found.items()}
        finally:
            cluster.remove()


def main():
    parser = parser_of(__doc__, 5)
    parser.add_argument("--variables", type=int, default=96)
    parser.add_argument("--scale", type=int, default=2)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        source = os.path.join(directory, "file.nc")
        subprocess.run([options.python, "-c", MAKE, source, str(options.variables), str(options.scale)], check=True)
        for count in [int(count) for count in options.nodes.split(",")]:
            found = measure(options, count, source)
            (ours, moved), (peer, by_peer) = found["ours"], found["peer"]
            rows.append((count, ours, peer, moved, by_peer))
            linear = rows[0][1] / ours / (count / rows[0][0])
            print(json.dumps({"what": f"ClimStat, {count} nodes of {options.node_cores} cores, client of {options.client_cores}",
                              "file_mib": os.path.getsize(source) >> 20, "seconds": round(ours, 4), "client_seconds": round(peer, 4),
                              "ratio": round(peer / ours, 3), "linear": round(linear, 3), "goal_linear": 0.85,
                              "link_bytes": moved, "client_link_bytes": by_peer}), flush=True)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        for name, title, unit, place, scale in (("fig5a.svg", "ClimStat: time in the cluster, and on a client", "s", 1, 1),
                                                ("fig5b.svg", "ClimStat: bytes over nodes' links, cluster and client", "MB", 3, 1e-6)):
            groups = [(f"{row[0]}", [[("compute", row[place] * scale)], [("I/O", row[place + 1] * scale)]]) for row in rows]
            with open(os.path.join(options.out, name), "w") as file:
                file.write(figures.bars(title, unit, groups))


if __name__ == "__main__":
    sys.exit(main())
