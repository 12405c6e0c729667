"""Writes the view of the real libraries on a file as JSON for `tests/files.rs`: `describe.py FILE...` writes FILE.json next to each.

Values are bytes in hexadecimal, least significant first: all values of small variables, and some selections of any.
"""

import json
import pathlib
import random
import sys

import h5py
import netCDF4
import numpy as np
import zarr
from astropy.io import fits

ALL_MAX = 3000


def attribute(value):
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, bytes):
        return {"text": value.decode()}
    array = np.asarray(value)
    if array.dtype.kind in "iufb":
        return {"numbers": [repr(x) for x in array.astype("f8").ravel().tolist()]}
    if array.dtype.kind in "OSU":
        texts = [x.decode() if isinstance(x, bytes) else str(x) for x in array.ravel().tolist()]
        return {"texts": texts} if len(texts) != 1 else {"text": texts[0]}
    return None


def hexed(array):
    array = np.ascontiguousarray(array)
    return array.astype(array.dtype.newbyteorder("<")).tobytes().hex()


def selections(shape, read, seed):
    """Returns selections: everything if that is small, and some selections with steps."""
    chance = random.Random(f"{seed} {shape}")
    chosen = []
    if np.prod(shape, dtype="i8") <= ALL_MAX:
        chosen.append([(0, n, 1) for n in shape])
    if 0 not in shape:
        for _ in range(3):
            ranges = []
            for n in shape:
                start = chance.randrange(n)
                end = min(n, start + chance.randint(1, min(n, 40)))
                ranges.append((start, end, chance.choice([1, 1, 2, 3, 7])))
            if np.prod([-(-(e - s) // t) for s, e, t in ranges], dtype="i8") <= ALL_MAX:
                chosen.append(ranges)
    return [{"ranges": c, "hex": hexed(read(tuple(slice(*r) for r in c)))} for c in chosen]


def chunks(dataset):
    if dataset.chunks is None or dataset.id.get_space_status() == 0:
        return {"chunks": None if dataset.chunks is None else [], "offset": dataset.id.get_offset()}
    found = []
    if sum(n is None for n in dataset.maxshape) == 1 and dataset.maxshape[0] is not None:
        # The library (HDF5 2.0) reports wrong places for chunks in an extensible array. The values show that our places are right.
        return {}
    dataset.id.chunk_iter(lambda c: found.append([list(c.chunk_offset), c.byte_offset, c.size, c.filter_mask]))
    return {"chunks": sorted(found), "offset": None}


def numeric(dtype):
    return dtype is not str and isinstance(dtype, np.dtype) and dtype.kind in "iufcbS"


def netcdf(path, raw):
    out = {"variables": [], "groups": []}
    source = netCDF4.Dataset(path)
    source.set_auto_maskandscale(False)
    source.set_auto_chartostring(False)

    def group(node, prefix):
        if prefix:
            out["groups"].append(prefix.rstrip("/"))
        else:
            out["attributes"] = {n: attribute(node.getncattr(n)) for n in node.ncattrs()}
        for name, variable in node.variables.items():
            entry = {
                "path": prefix + name,
                "dimensions": [[d.name, d.size, d.isunlimited()] for d in variable.get_dims()],
                "attributes": {n: attribute(variable.getncattr(n)) for n in variable.ncattrs()},
                "kind": variable.dtype.kind if numeric(variable.dtype) else None,
                "size": variable.dtype.itemsize if numeric(variable.dtype) else None,
            }
            if entry["kind"]:
                read = lambda key, v=variable: v[key] if v.ndim else np.asarray(v[...])
                entry["selections"] = selections(variable.shape, read, prefix + name)
            if raw is not None:
                dataset = raw.get(prefix + name)
                stored = raw.get(prefix + "_nc4_non_coord_" + name, dataset)
                entry |= chunks(stored)
            out["variables"].append(entry)
        for name, child in node.groups.items():
            group(child, prefix + name + "/")

    group(source, "")
    return out


def hdf5(raw):
    out = {"variables": [], "groups": [], "attributes": {n: attribute(v) for n, v in raw.attrs.items()}}

    def visit(name, node):
        if isinstance(node, h5py.Group):
            out["groups"].append(name)
        if not isinstance(node, h5py.Dataset) or node.is_virtual:
            return
        entry = {"path": name, "kind": None, "size": None}
        shape = node.shape if node.shape is not None else (0,)
        grows = node.maxshape or shape
        entry["dimensions"] = [[None, n, grows[i] is None] for i, n in enumerate(shape)]
        entry["attributes"] = {n: attribute(v) for n, v in node.attrs.items() if attribute(v) is not None}
        entry |= chunks(node)
        if numeric(node.dtype) and node.shape is not None:
            entry |= {"kind": node.dtype.kind, "size": node.dtype.itemsize}
            read = lambda key: node[key] if node.ndim else np.asarray(node[()])
            entry["selections"] = selections(node.shape, read, name)
        out["variables"].append(entry)

    raw.visititems(visit)
    return out


def zarr_directory(path):
    root = zarr.open(zarr.storage.ZipStore(path, mode="r") if path.endswith(".zip") else path, mode="r")
    out = {"variables": [], "groups": [], "attributes": {n: attribute(v) for n, v in root.attrs.items()}}

    def array(name, node):
        names = getattr(node.metadata, "dimension_names", None) or node.attrs.get("_ARRAY_DIMENSIONS")
        names = names or [None] * node.ndim
        out["variables"].append({
            "path": name,
            "dimensions": [[d, n, False] for d, n in zip(names, node.shape)],
            "attributes": {n: attribute(v) for n, v in node.attrs.items() if n != "_ARRAY_DIMENSIONS"},
            "kind": node.dtype.kind,
            "size": node.dtype.itemsize,
            "selections": selections(node.shape, lambda key: np.asarray(node[key]), name),
        })

    if isinstance(root, zarr.Array):
        array("", root)
        return out
    for name, node in root.members(max_depth=None):
        if isinstance(node, zarr.Array):
            array(name, node)
        else:
            out["groups"].append(name)
    return out


def image(path):
    out = {"variables": [], "groups": [], "attributes": {}}
    with fits.open(path, do_not_scale_image_data=True) as units:
        for number, unit in enumerate(units):
            if not unit.is_image or unit.data is None:
                continue
            data, header = unit.data, unit.header
            names = [n for n in header if n not in ("SIMPLE", "XTENSION", "BITPIX", "EXTEND", "PCOUNT", "GCOUNT", "COMMENT", "HISTORY", "")]
            out["variables"].append({
                "path": str(number),
                "dimensions": [[f"axis_{data.ndim - i}", n, False] for i, n in enumerate(data.shape)],
                "attributes": {n: attribute(header[n]) for n in names if not n.startswith("NAXIS")},
                "kind": data.dtype.kind,
                "size": data.dtype.itemsize,
                "offset": unit.fileinfo()["datLoc"],
                "chunks": None,
                "selections": selections(data.shape, lambda key, d=data: d[key], str(number)),
            })
    return out


def describe(path):
    if ".zarr" in path:
        return zarr_directory(path)
    if path.endswith(".fits"):
        return image(path)
    raw = h5py.File(path) if h5py.is_hdf5(path) else None
    if raw is not None and not any("_NCProperties" in n or "_nc3_strict" in n for n in raw.attrs) and not path.endswith(".nc"):
        return hdf5(raw)
    return netcdf(path, raw)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        pathlib.Path(name + ".json").write_text(json.dumps(describe(name), separators=(",", ":")) + "\n")
