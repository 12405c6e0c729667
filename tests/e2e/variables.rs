//! Tests the variables of scientific files and the locations of their bytes, in a cluster of real processes.

use crate::cluster::{Cluster, Options};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../format/tests/fixtures")
        .join(name)
}

fn variable<'a>(shown: &'a Value, name: &str) -> &'a Value {
    let all = shown["variables"].as_array().unwrap();
    all.iter()
        .find(|one| one["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {shown}"))
}

fn put(cluster: &Cluster, name: &str, flags: &[&str]) {
    let local = fixture(name);
    let printed = cluster.run(
        &[
            &["put"],
            flags,
            &[local.to_str().unwrap(), &format!("/{name}")],
        ]
        .concat(),
    );
    assert!(printed.ok, "{}", printed.err);
}

fn sum(of: &Value, what: &str) -> u64 {
    of["where"]
        .as_array()
        .unwrap()
        .iter()
        .map(|place| place[what].as_u64().unwrap())
        .sum()
}

/// Checks that record variables of classic files, which are interleaved, are counted.
fn records_are_counted(cluster: &Cluster) {
    put(cluster, "cdf1.nc", &[]);
    let shown = cluster.json(&["inspect", "/cdf1.nc", "packed"]);
    let packed = variable(&shown, "packed");
    assert_eq!(
        (&packed["storage"], sum(packed, "bytes")),
        (&"records".into(), 4 * 5 * 2)
    );
    assert_eq!(
        packed["attributes"]["valid_range"],
        serde_json::json!([-300, 300])
    );
}

#[test]
fn inspect_shows_variables_with_parts_and_nodes() {
    for remote in [false, true] {
        let Some(cluster) = Cluster::with(Options {
            nodes: 3,
            remote,
            ..Options::default()
        }) else {
            return;
        };
        put(&cluster, "netcdf4.nc", &["--stripe", "4096,3"]);
        let shown = cluster.json(&["inspect", "/netcdf4.nc"]);
        assert_eq!(
            (&shown["format"], &shown["attributes"]["title"]),
            (&"netCDF-4".into(), &"groups and dimensions".into())
        );
        let big = variable(&shown, "deflated");
        assert_eq!(
            big["dimensions"][0],
            serde_json::json!({ "name": "time", "size": 5, "unlimited": true })
        );
        assert_eq!(
            (&big["type"], &big["chunk_shape"]),
            (&"float32".into(), &serde_json::json!([2, 4, 3]))
        );
        // The places are those of the layout, and all bytes of the chunks are on some node.
        let layout = cluster.json(&["stat", "/netcdf4.nc"]);
        let nodes: Vec<&Value> = layout["parts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| &part["replicas"][0]["node"])
            .collect();
        for place in big["where"].as_array().unwrap() {
            let part = usize::try_from(place["part"].as_u64().unwrap()).unwrap();
            assert_eq!(&place["node"], nodes[part]);
        }
        let whole = cluster.json(&[
            "inspect",
            "--local",
            fixture("netcdf4.nc").to_str().unwrap(),
        ]);
        for one in whole["variables"].as_array().unwrap() {
            let name = one["name"].as_str().unwrap();
            assert_eq!(
                sum(variable(&shown, name), "bytes"),
                sum(one, "bytes"),
                "{name}"
            );
        }
        let all = shown["variables"].as_array().unwrap().iter();
        let places = all.flat_map(|one| one["where"].as_array().unwrap());
        let parts: BTreeSet<u64> = places
            .map(|place| place["part"].as_u64().unwrap())
            .collect();
        assert_eq!(parts.len(), 3, "{shown}");
        let printed = cluster.run(&["inspect", "/netcdf4.nc", "deflated"]);
        assert!(
            printed.out.contains("deflated:note_03 = text 3")
                && printed.out.contains("chunks 2×4×3, shuffle+deflate"),
            "{}",
            printed.out
        );
        records_are_counted(&cluster);
    }
}

#[test]
fn directory_of_cluster_may_be_zarr() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh(&format!(
        "cp -r {} three.zarr",
        fixture("three.zarr").display()
    ));
    let shown = cluster.json(&["inspect", "/three.zarr"]);
    let local = cluster.json(&[
        "inspect",
        "--local",
        fixture("three.zarr").to_str().unwrap(),
    ]);
    assert_eq!(shown["attributes"], local["attributes"]);
    for one in local["variables"].as_array().unwrap() {
        let name = one["name"].as_str().unwrap();
        let found = variable(&shown, name);
        assert_eq!(
            (sum(found, "bytes"), sum(found, "chunks")),
            (sum(one, "bytes"), sum(one, "chunks")),
            "{name}"
        );
        assert!(
            found["where"]
                .as_array()
                .unwrap()
                .iter()
                .all(|place| place["node"].is_u64()),
            "{found}"
        );
    }
}

#[test]
fn inspect_refuses_unscientific_file_with_reason() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    put(&cluster, "cdf1.nc", &[]);
    cluster.sh("echo hello > text; head -c 300 cdf1.nc > cut.nc; mkdir directory");
    for (arguments, why) in [
        (
            &["/text"][..],
            "neither netCDF, HDF5, FITS nor a zip file with a Zarr in it",
        ),
        (&["/cut.nc"], "the file ends at 300"),
        (&["/cdf1.nc", "tas"], "no variable tas; there are i1_3t"),
        (&["/directory"], "this directory is no Zarr"),
        (&["/nothing"], "nothing"),
    ] {
        let printed = cluster.run(&[&["inspect"], arguments].concat());
        assert!(
            !printed.ok && printed.err.contains(why),
            "{arguments:?}: {}",
            printed.err
        );
    }
}
