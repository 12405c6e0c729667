//! `tidemill reduce` in a cluster of real processes: nodes together find the same result as one program that reads the file.

use crate::cluster::{Cluster, Device, Options, Printed, wait};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tidemill_compute::reduction::{
    Column, Coordinate, ResultAxis, ResultField, ResultFormat, ResultTable,
};
use tidemill_format::{Attribute, Value as Attr};

/// Days from 1 January 1990 on, latitudes, longitudes.
const SHAPE: [u64; 3] = [730, 6, 8];

/// Whole numbers, so that sums are exact in whatever order they are made.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn value(cell: u64) -> f64 {
    (cell.wrapping_mul(2_654_435_761) >> 7 & 1023) as f64 - 300.0
}

/// A file of daily values, as a model writes it.
fn daily() -> Vec<u8> {
    let text = |name: &str, text: &str| Attribute {
        name: name.into(),
        value: Attr::Text(text.into()),
    };
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let axis = |name: &str, length: u64, first: f64, step: f64, units: &str| ResultAxis {
        name: name.into(),
        length,
        coordinate: Some(Coordinate {
            values: (0..length).map(|at| first + at as f64 * step).collect(),
            attributes: vec![text("units", units), text("calendar", "standard")],
            bounds: None,
        }),
        labels: None,
    };
    let cells = SHAPE.iter().product();
    let table = ResultTable {
        axes: vec![
            axis("time", SHAPE[0], 0.0, 1.0, "days since 1990-01-01"),
            axis("lat", SHAPE[1], -75.0, 30.0, "degrees_north"),
            axis("lon", SHAPE[2], 0.0, 45.0, "degrees_east"),
        ],
        fields: vec![ResultField {
            variable: "tas".into(),
            units: Some("K".into()),
            name: "mean".into(),
            values: Column::Real((0..cells).map(|cell| Some(value(cell))).collect()),
            attributes: Vec::new(),
            single: false,
        }],
        attributes: Vec::new(),
        notes: Vec::new(),
        scalars: Vec::new(),
    };
    let mut bytes = Vec::new();
    table.write(ResultFormat::Netcdf, &mut bytes).unwrap();
    bytes
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/fixtures")
}

fn reduced(cluster: &Cluster, args: &[&str]) -> Value {
    cluster.json(&[&["reduce"], args].concat())["values"].clone()
}

fn put(cluster: &Cluster, local: &Path, flags: &[&str], to: &str) {
    let printed = cluster.run(&[&["put"], flags, &[local.to_str().unwrap(), to]].concat());
    assert!(printed.ok, "{}", printed.err);
}

fn refused(cluster: &Cluster, args: &[&str]) -> String {
    let printed: Printed = cluster.run(&[&["reduce"], args].concat());
    assert!(!printed.ok, "{}", printed.out);
    printed.err
}

#[test]
fn striped_variable_is_reduced_on_nodes_of_its_stripes() {
    for remote in [false, true] {
        let options = Options {
            nodes: 3,
            remote,
            ..Options::default()
        };
        let Some(cluster) = Cluster::with(options) else {
            return;
        };
        let local = cluster.path("daily.nc");
        std::fs::write(&local, daily()).unwrap();
        put(
            &cluster,
            &local,
            &["--stripe", "4096,3", "--replicas", "2,now"],
            "/daily.nc",
        );
        let (there, here) = ("/daily.nc:tas", format!("{}:tas", local.display()));
        for args in [
            &["sum"][..],
            &["stats"],
            &["mean", "--weights", "lat"],
            &["mean", "--by", "month"],
            &["max", "--over", "time,lon"],
            &[
                "sum",
                "--by",
                "climatological-season",
                "--over",
                "time",
                "--where",
                "lon=::3",
            ],
            &[
                "range",
                "--where",
                "time=1990-02..1991-03,lat=-50:50,lon=[7]",
                "--over",
                "lat",
            ],
            &["sum", "--where", "time=[-1]", "--over", "time"],
            &["median"],
            &["quantile", "--over", "time", "--q", "0,0.1,0.99"],
            &["median", "--by", "month", "--over", "time,lat"],
            &["histogram", "--bins", "7", "--over", "time"],
            &["histogram", "--bins", "-100:500:12", "--by", "year"],
        ] {
            let of = |file: &str, more: &[&str]| {
                let (operation, rest) = args.split_first().unwrap();
                reduced(&cluster, &[&[operation, file], rest, more].concat())
            };
            assert_alike(&of(there, &[]), &of(&here, &["--local"]), args);
        }
        let mut values: Vec<f64> = (0..SHAPE.iter().product()).map(value).collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (values[0], values[values.len() - 1]);
        let ends = reduced(&cluster, &["quantile", there, "--q", "0,1"]);
        assert_eq!((&ends["q0"], &ends["q1"]), (&least.into(), &most.into()));
        counted(&cluster, there);
        let sum: f64 = (0..SHAPE.iter().product()).map(value).sum();
        assert_eq!(reduced(&cluster, &["sum", there])["sum"], sum);
        refusals(&cluster);
    }
}

/// The same but for what rounding may do to means and deviations.
fn assert_alike(one: &Value, other: &Value, what: &[&str]) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.iter()
                .for_each(|(key, one)| assert_alike(one, &other[key], what));
        }
        (Value::Array(one), Value::Array(other)) => {
            assert_eq!(one.len(), other.len(), "{what:?}");
            one.iter()
                .zip(other)
                .for_each(|(one, other)| assert_alike(one, other, what));
        }
        (Value::Number(one), Value::Number(other)) => {
            let (one, other) = (one.as_f64().unwrap(), other.as_f64().unwrap());
            assert!(
                (one - other).abs() <= 1e-12 * one.abs().max(1e-3),
                "{what:?}: {one} {other}"
            );
        }
        (one, other) => assert_eq!(one, other, "{what:?}"),
    }
}

/// A histogram of all values, those outside reported; and several variables as one result.
fn counted(cluster: &Cluster, file: &str) {
    let found = reduced(cluster, &["histogram", file, "--bins", "-100:500:12"]);
    let mut expected = [0; 14];
    for value in (0..SHAPE.iter().product()).map(value) {
        let place = match value {
            _ if value < -100.0 => 0,
            _ if value > 500.0 => 13,
            _ => (1..=12)
                .rfind(|bin| -150.0 + 50.0 * f64::from(*bin) <= value)
                .unwrap(),
        };
        expected[usize::try_from(place).unwrap()] += 1;
    }
    assert!(expected.iter().all(|count| *count > 0), "{expected:?}");
    assert_eq!(found["count"], serde_json::json!(expected));
    let both = cluster.json(&["reduce", "sum", "/daily.nc:tas,lat"]);
    let names = [0, 1].map(|place| both["variables"][place]["variable"].as_str());
    assert_eq!(names, [Some("tas"), Some("lat")]);
    let alone = reduced(cluster, &["sum", file]);
    assert_eq!(both["variables"][0]["values"], alone);
    assert_eq!(both["variables"][1]["values"]["sum"], 0.0);
}

fn refusals(cluster: &Cluster) {
    let of = |args: &[&str]| refused(cluster, args);
    let printed = of(&["mean", "/daily.nc:pr"]);
    assert!(
        printed.contains("no variable pr; there are time, lat, lon, tas"),
        "{printed}"
    );
    let printed = of(&["mean", "/daily.nc:tas", "--over", "level"]);
    assert!(
        printed.contains("no dimension level; there are time, lat, lon"),
        "{printed}"
    );
    let printed = of(&["mean", "/daily.nc:tas", "--where", "time=2040"]);
    assert!(
        printed.contains("from 1990-01-01 to 1991-12-31"),
        "{printed}"
    );
    let printed = of(&["mean", "/daily.nc:tas", "--where", "lat=[2:7]"]);
    assert!(printed.contains("outside: it has 6"), "{printed}");
    let printed = of(&["mode", "/daily.nc:tas"]);
    assert!(printed.contains("it is none of count, min"), "{printed}");
    let printed = of(&["histogram", "/daily.nc:tas", "--bins", "5:1:3"]);
    assert!(
        printed.contains("from 5 to 1 there are no 3 bins"),
        "{printed}"
    );
    let printed = of(&[
        "histogram",
        "/daily.nc:tas",
        "--bins",
        "1000000",
        "--over",
        "lat",
    ]);
    assert!(printed.contains("--bins LOW:HIGH:N"), "{printed}");
    let printed = of(&["mean", "/daily.nc:tas,lat", "--over", "lat"]);
    assert!(
        printed.contains("tas is over time (730), lon (8), lat is one value"),
        "{printed}"
    );
    let printed = of(&["quantile", "/daily.nc:tas", "--q", "0.5,2"]);
    assert!(printed.contains("numbers from 0 to 1"), "{printed}");
    assert!(of(&["mean", "/none.nc:tas"]).contains("none.nc"));
    assert!(of(&["mean", "/none-*.nc:tas"]).contains("no path matches"));
    assert!(of(&["mean", "/daily.nc"]).contains("no variable"));
}

#[test]
fn reduce_falls_back_to_another_replica() {
    let options = Options {
        nodes: 3,
        ..Options::default()
    };
    let Some(mut cluster) = Cluster::with(options) else {
        return;
    };
    let local = cluster.path("daily.nc");
    std::fs::write(&local, daily()).unwrap();
    put(
        &cluster,
        &local,
        &["--stripe", "4096,3", "--replicas", "2,now"],
        "/daily.nc",
    );
    let whole = reduced(&cluster, &["sum", "/daily.nc:tas", "--by", "month"]);
    cluster.kill_node(1);
    assert_eq!(
        reduced(&cluster, &["sum", "/daily.nc:tas", "--by", "month"]),
        whole
    );
}

/// Files of all formats, put whole and in stripes: each variable of numbers as in the local file.
#[test]
fn reduce_matches_local_result_for_all_formats() {
    let options = Options {
        nodes: 2,
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    let mut seen = 0;
    for name in [
        "cdf1.nc",
        "cdf5.nc",
        "netcdf4.nc",
        "new.h5",
        "images.fits",
        "three.zarr",
        "two.zarr",
        "three.zarr.zip",
    ] {
        let (local, path) = (fixtures().join(name), format!("/{name}"));
        let flags: &[&str] = if local.is_dir() {
            &["-r"]
        } else {
            &["--stripe", "4096,2"]
        };
        put(
            &cluster,
            &local,
            flags,
            if local.is_dir() { "/" } else { &path },
        );
        let shown = cluster.json(&["inspect", &path]);
        for variable in shown["variables"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            let of = |file: &str, more: &[&str]| {
                let file = format!("{file}:{name}");
                cluster.run(&[&["--json", "reduce", "stats", &file], more].concat())
            };
            let (there, here) = (of(&path, &[]), of(local.to_str().unwrap(), &["--local"]));
            assert_eq!(
                there.ok, here.ok,
                "{path}:{name}: {} {}",
                there.err, here.err
            );
            if here.ok {
                let read = |printed: &Printed| {
                    serde_json::from_str::<Value>(&printed.out).unwrap()["values"].clone()
                };
                assert_alike(&read(&there), &read(&here), &[&path, name]);
                seen += 1;
            }
        }
    }
    assert!(seen >= 30, "{seen}");
}

#[test]
fn reduce_names_undecodable_chunk() {
    let options = Options {
        nodes: 2,
        ..Options::default()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    let shown = cluster.json(&[
        "inspect",
        "--local",
        fixtures().join("netcdf4.nc").to_str().unwrap(),
        "deflated",
    ]);
    assert_eq!(shown["variables"][0]["name"], "deflated");
    let mut bytes = std::fs::read(fixtures().join("netcdf4.nc")).unwrap();
    // This overwrites the third to sixth byte of each zlib stream of the file.
    let heads: Vec<usize> = (0..bytes.len() - 8)
        .filter(|at| bytes[*at] == 0x78 && matches!(bytes[at + 1], 0x01 | 0x5e | 0x9c | 0xda))
        .collect();
    for at in heads {
        bytes[at + 2..at + 6].fill(0xff);
    }
    std::fs::write(cluster.path("corrupt.nc"), bytes).unwrap();
    put(&cluster, &cluster.path("corrupt.nc"), &[], "/corrupt.nc");
    let printed = refused(&cluster, &["sum", "/corrupt.nc:deflated"]);
    for word in ["/corrupt.nc", "deflated", "part 0", "node", "chunk", "zlib"] {
        assert!(printed.contains(word), "{word}: {printed}");
    }
}

#[test]
fn rule_makes_monthly_means_of_several_files() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let rule = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules/monthly.toml");
    cluster.sh("mkdir -p cmip/in");
    cluster.json(&["rule", "create", rule.to_str().unwrap()]);
    std::fs::write(cluster.path("daily.nc"), daily()).unwrap();
    cluster.sh(&format!(
        "cp {} cmip/in/tas_day_model_1990.nc",
        cluster.path("daily.nc").display()
    ));
    wait("the means exist", || {
        cluster
            .run(&["ls", "/cmip/monthly/tas_day_model_1990.nc"])
            .ok
    });
    let found = cluster.path("found.json");
    let printed = cluster.run(&[
        "reduce",
        "sum",
        "/cmip/monthly/tas_day_model_1990.nc:tas",
        "--over",
        "lon",
        "--output",
        found.to_str().unwrap(),
    ]);
    assert!(printed.ok, "{}", printed.err);
    let found: Value = serde_json::from_slice(&std::fs::read(&found).unwrap()).unwrap();
    assert_eq!(found["dimensions"][0]["length"], 24);
    let cell = |day: u64, lat: u64, lon: u64| value((day * SHAPE[1] + lat) * SHAPE[2] + lon);
    let january: f64 = (0..SHAPE[2])
        .map(|lon| (0..31).map(|day| cell(day, 0, lon)).sum::<f64>() / 31.0)
        .sum();
    let first = found["values"]["sum"][0].as_f64().unwrap();
    assert!((first - january).abs() < 1e-9, "{first} {january}");
    cluster.sh("cp cmip/in/tas_day_model_1990.nc cmip/in/other.nc; sync cmip/in/other.nc");
    let printed = refused(&cluster, &["count", "/cmip/in/*.nc:tas"]);
    assert!(
        printed.contains("coordinate time: both have 1990-01-01"),
        "{printed}"
    );
    let both = reduced(&cluster, &["count", "/cmip/in/*.nc:tas", "--ensemble"]);
    assert_eq!(
        both["count"].as_u64(),
        Some(2 * SHAPE.iter().product::<u64>())
    );
}

#[test]
fn reduce_to_cluster_records_lineage() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    std::fs::write(cluster.path("daily.nc"), daily()).unwrap();
    cluster.sh("mkdir d");
    put(&cluster, &cluster.path("daily.nc"), &[], "/d/daily.nc");
    let mean = ["mean", "/d/daily.nc:tas", "--by", "month", "--over", "time"];
    let to = |flag: &str, to: &str| cluster.run(&[&["reduce"], &mean[..], &[flag, to]].concat());
    let local = cluster.path("monthly.nc");
    let printed = to("--output", local.to_str().unwrap());
    assert!(printed.ok, "{}", printed.err);
    let printed = to("--to", "/results/monthly.nc");
    assert!(printed.ok, "{}", printed.err);
    let sum = |args: &[&str]| reduced(&cluster, &[&["sum"], args, &["--over", "lon"]].concat());
    assert_eq!(
        sum(&["/results/monthly.nc:tas"]),
        sum(&["--local", &format!("{}:tas", local.display())])
    );
    let lineage = cluster
        .json(&["lineage", "show", "/results/monthly.nc"])
        .to_string();
    for word in ["/d/daily.nc", "op=mean", "by=month"] {
        assert!(lineage.contains(word), "{word}: {lineage}");
    }
    // An existing result is not replaced, and local files can't be reduced into the cluster.
    let printed = to("--to", "/results/monthly.nc");
    assert!(
        !printed.ok && printed.err.contains("/results/monthly.nc"),
        "{}",
        printed.err
    );
    let file = format!("{}:tas", local.display());
    let printed = refused(&cluster, &["max", "--local", &file, "--to", "/x.nc"]);
    assert!(printed.contains("cannot be used with"), "{printed}");
}

/// Writes a Zarr with more cells than one slab; one of its six chunks exists.
fn sparse(directory: &Path) {
    std::fs::create_dir_all(directory.join("x")).unwrap();
    let cluster = serde_json::json!({
        "zarr_format": 2, "shape": [6, 2, 1800, 1600], "chunks": [1, 2, 1800, 1600], "dtype": "<f4",
        "compressor": null, "fill_value": -1.0, "order": "C", "filters": null,
    });
    let names = serde_json::json!({ "_ARRAY_DIMENSIONS": ["time", "k", "lat", "lon"] });
    std::fs::write(directory.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    std::fs::write(directory.join("x/.zarray"), cluster.to_string()).unwrap();
    std::fs::write(directory.join("x/.zattrs"), names.to_string()).unwrap();
    let values = (0..2 * 1800 * 1600_u32).map(|cell| cell.wrapping_mul(2_654_435_761) >> 20);
    #[expect(clippy::cast_precision_loss, reason = "they are below 2^12")]
    let bytes: Vec<u8> = values
        .flat_map(|value| (value as f32).to_le_bytes())
        .collect();
    std::fs::write(directory.join("x/3.0.0.0"), bytes).unwrap();
}

#[test]
fn reduce_writes_large_result_slab_by_slab() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let directory = cluster.path("cube.zarr");
    sparse(&directory);
    cluster.sh(&format!("cp -r {} cube.zarr; sync", directory.display()));
    let local = directory.display().to_string();
    for (place, flags) in [("here.nc", vec!["--local"]), ("there.nc", vec![])] {
        let to = cluster.path(place).display().to_string();
        let of = if flags.is_empty() {
            "/cube.zarr"
        } else {
            &local
        };
        let printed = refused(
            &cluster,
            &[&["max", &format!("{of}:x"), "--over", "k"], &flags[..]].concat(),
        );
        assert!(
            printed.contains("17280000 values") && printed.contains(".nc"),
            "{printed}"
        );
        let (file, args) = (format!("{of}:x"), ["--over", "k", "--output", &to]);
        let printed = cluster.run(&[&["reduce", "max", &file], &flags[..], &args].concat());
        assert!(printed.ok, "{}", printed.err);
        let found = reduced(
            &cluster,
            &["stats", "--local", &format!("{to}:x"), "--over", "lat,lon"],
        );
        assert_eq!(
            found["count"],
            serde_json::json!([0, 0, 0, 1800 * 1600, 0, 0])
        );
        let cell = |cell: u32| f64::from(cell.wrapping_mul(2_654_435_761) >> 20);
        let most = (0..1800 * 1600_u32).map(|at| cell(at).max(cell(at + 1800 * 1600)));
        assert_eq!(found["sum"][3].as_f64(), Some(most.sum::<f64>()));
    }
    let left = std::fs::read_dir(cluster.path("")).unwrap();
    let left = left.filter(|one| {
        let name = one.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with(".tidemill-")
    });
    assert_eq!(left.count(), 0);
}

/// A full disk fails `reduce --output` by name; the previous file stays, and no temporary file remains.
#[test]
fn reduce_to_full_disk_keeps_previous_file() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let directory = cluster.path("cube.zarr");
    sparse(&directory);
    let device = Device::new(cluster.path("small"), "8m");
    let file = format!("{}:x", directory.display());
    // A result larger than the disk, and a small result on a full disk.
    for (name, over, full) in [("cells.nc", "k", false), ("few.csv", "lat,lon", true)] {
        let to = cluster.path("small").join(name);
        std::fs::write(&to, "of yesterday\n").unwrap();
        if full {
            device.fill();
        }
        let to_text = to.display().to_string();
        let args = [
            "max", "--local", &file, "--over", over, "--output", &to_text,
        ];
        let printed = refused(&cluster, &args);
        assert!(printed.contains("No space left"), "{printed}");
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "of yesterday\n");
        let names = std::fs::read_dir(cluster.path("small")).unwrap();
        let names = names.map(|one| one.unwrap().file_name());
        assert!(
            names
                .into_iter()
                .all(|one| !one.to_string_lossy().starts_with('.'))
        );
    }
}
