//! Tests the search for files by their attributes, in a cluster of real processes.

use crate::cluster::{Cluster, Options, wait};
use std::path::Path;
use tidemill_client::{Credential, Server};
use tidemill_wire::v1;

const ALICE: u32 = 4_000_001;
const BOB: u32 = 4_000_002;

fn fixture(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/fixtures");
    fixtures.join(name).display().to_string()
}

/// Returns the paths of the found files, after all headers have been read.
fn find(cluster: &Cluster, args: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    wait("headers are read", || {
        let printed = cluster.run(&[&["find"], args].concat());
        assert!(printed.ok, "{args:?}: {}", printed.err);
        found = printed.out.lines().map(str::to_owned).collect();
        !printed.err.contains("have not been read")
    });
    found.sort();
    found
}

/// Searches as a user who is no administrator.
fn find_as(
    cluster: &Cluster,
    uid: u32,
    expression: &str,
    under: &str,
) -> Result<Vec<String>, String> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let credential = Credential::read(&cluster.token_file()).unwrap();
        let endpoint = cluster.address().parse().unwrap();
        let server = Server::connect(&endpoint, Some(&credential)).await.unwrap();
        let credentials = v1::Credentials {
            uid,
            gid: uid,
            ..v1::Credentials::default()
        };
        let request = v1::FindRequest {
            credentials: Some(credentials),
            expression: expression.to_owned(),
            under: under.as_bytes().to_vec(),
            ..v1::FindRequest::default()
        };
        let reply = server.finder().query(request).await;
        let reply = reply.map_err(|status| status.message().to_owned())?;
        let files = reply.into_inner().files.into_iter();
        let paths = files.map(|file| String::from_utf8(file.path).unwrap());
        Ok(paths.collect())
    })
}

/// Waits until all written files are sealed.
fn sealed(cluster: &Cluster) {
    cluster.sh("find . -name .tidemill -prune -o -type f -exec sync {} +");
}

/// Stores two climate files, one of them in three parts, other scientific files, and some files of other formats.
fn fill(cluster: &Cluster) {
    cluster.sh(&format!(
        "mkdir cmip6 raw; cp {} cmip6/tas.nc; cp {} cmip6/pr.part; mv cmip6/pr.part cmip6/pr.nc; cp {} raw/a.h5; cp {} raw/sky.FITS; \
         echo hello > raw/text; head -c 3000 cmip6/tas.nc > raw/cut.nc; : > raw/empty.nc; setfattr -n user.project -v x raw/text; \
         setfattr -n user.level -v 12 raw/a.h5; chown {ALICE} raw/a.h5; touch -d 2001-02-03T04:05 raw/text; cp raw/text 'raw/odd \"name'",
        fixture("climate.nc"), fixture("climate-classic.nc"), fixture("new.h5"), fixture("images.fits"),
    ));
    sealed(cluster);
    let local = fixture("climate.nc");
    let printed = cluster.run(&["put", "--stripe", "4096,3", &local, "/raw/striped.nc"]);
    assert!(printed.ok, "{}", printed.err);
}

const TAS: [&str; 2] = ["/cmip6/tas.nc", "/raw/striped.nc"];
const PR: &str = "/cmip6/pr.nc";

fn by_headers(cluster: &Cluster) {
    let find = |expression| find(cluster, &[expression]);
    let both = [PR, TAS[0], TAS[1]];
    for (expression, expected) in [
        // A file that was moved into place is found like a file that was written there, in any layout.
        ("var = tas", &TAS[..]),
        ("var = pr", &[PR]),
        ("standard_name ~ '^(air|precip)'", &both),
        ("units = K and not var = pr", &TAS),
        ("dim.lat >= 18 and dim.lat < 19", &both),
        ("dim.lat > 18", &[]),
        ("attr.institution ~ \"NC.*\"", &both),
        ("attr.realization = 3", &both),
        ("attr.realization > 3", &[]),
        ("format = netcdf4 and var = tas", &TAS),
        ("format = fits", &["/raw/sky.FITS"]),
        // The coordinates are packed, in two calendars: 1990 and 1991, 2015 and 2016.
        ("time >= 1992", &[PR]),
        ("time = 1990-12", &TAS),
        ("time <= 2015-01 and time >= 1991-12-15", &both),
        ("time < 1990-01-16", &[]),
        ("time = 1989-12", &[]),
        ("lat < 10 and var = tas", &TAS),
        ("latitude > 61 and lon = 330", &both),
        ("lat > 62", &[]),
        ("lat < 4.9", &[]),
    ] {
        assert_eq!(find(expression), expected, "{expression}");
    }
}

fn by_the_rest(cluster: &Cluster) {
    let find = |args: &[&str]| find(cluster, args);
    for (args, expected) in [
        (
            &["name = *.h5 or name ~ ^te.t$"][..],
            &["/raw/a.h5", "/raw/text"][..],
        ),
        (&["user.project = x"], &["/raw/text"]),
        (&["user.project ~ ^X"], &[]),
        (&["user.level > 11.5 and user.level = 12"], &["/raw/a.h5"]),
        (&["owner = 4000001"], &["/raw/a.h5"]),
        (
            &["mtime = 2001-02-03 and mtime < 2001-02-04"],
            &["/raw/text"],
        ),
        (&["size = 6 and not name = text"], &["/raw/odd \"name"]),
        (&["size < 10 and name = *.nc"], &["/raw/empty.nc"]),
        (&["var = tas", "--under", "/raw"], &["/raw/striped.nc"]),
        (&["var = tas", "--under", "cmip6/"], &["/cmip6/tas.nc"]),
    ] {
        assert_eq!(find(args), expected, "{args:?}");
    }
    // The path below the mount.
    let under = cluster.at("cmip6").display().to_string();
    let expected = [cluster.at("cmip6/tas.nc").display().to_string()];
    assert_eq!(find(&["var = tas", "--under", &under]), expected);
    let shown = cluster.json(&["find", "var = tas and name = tas.nc", "--header"]);
    assert_eq!(
        (&shown["path"], &shown["header"]["attributes"]["experiment"]),
        (&"/cmip6/tas.nc".into(), &"historical".into())
    );
    let coordinates = shown["header"]["coordinates"].as_array().unwrap();
    let time = coordinates
        .iter()
        .find(|one| one["name"] == "time")
        .unwrap();
    assert_eq!(
        (&time["from"], &time["to"]),
        (&"1990-01-16".into(), &"1991-12-16".into()),
        "{time}"
    );
}

#[test]
fn find_matches_headers_names_sizes_owners_and_times() {
    for remote in [false, true] {
        let Some(cluster) = Cluster::with(Options {
            nodes: 3,
            remote,
            ..Options::default()
        }) else {
            return;
        };
        fill(&cluster);
        by_headers(&cluster);
        by_the_rest(&cluster);
    }
}

#[test]
fn find_follows_changes_and_survives_recovered_database() {
    let Some(mut cluster) = Cluster::with(Options {
        nodes: 3,
        ..Options::default()
    }) else {
        return;
    };
    fill(&cluster);
    assert_eq!(find(&cluster, &["var = tas"]), TAS);
    // A new version has other variables; a deleted file has none.
    cluster.sh(&format!(
        "cp {} cmip6/tas.nc; rm raw/striped.nc",
        fixture("climate-classic.nc")
    ));
    sealed(&cluster);
    let none: [&str; 0] = [];
    assert_eq!(find(&cluster, &["var = tas"]), none);
    assert_eq!(find(&cluster, &["var = pr"]), [PR, "/cmip6/tas.nc"]);
    cluster.sh("mv cmip6/tas.nc cmip6/other.nc; ln cmip6/pr.nc raw/link");
    assert_eq!(
        find(&cluster, &["var = pr", "--under", "raw"]),
        ["/raw/link"]
    );
    cluster.kill_server();
    cluster.start_server();
    cluster.wait_for_nodes(3);
    assert_eq!(find(&cluster, &["time > 2015"]), ["/cmip6/other.nc", PR]);
    cluster.recover_database();
    assert_eq!(find(&cluster, &["time > 2015"]), ["/cmip6/other.nc", PR]);
}

/// Stores a Zarr of version 2: a variable and its times, which are not in its metadata but in a chunk.
fn write_zarr(cluster: &Cluster, directory: &str) {
    let put = |path: &str, bytes: &[u8]| {
        let path = cluster.at(&format!("{directory}/{path}"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let of = |shape: &str, dtype: &str| {
        format!(
            r#"{{"zarr_format": 2, "shape": {shape}, "chunks": {shape}, "dtype": "{dtype}", "compressor": null, "filters": null, "fill_value": 0, "order": "C"}}"#
        )
    };
    put(
        "time/0",
        &[15_f64.to_le_bytes(), 45_f64.to_le_bytes()].concat(),
    );
    cluster.sh(&format!("sync {directory}/time/0"));
    put(".zgroup", br#"{"zarr_format": 2}"#);
    put(".zattrs", br#"{"institution": "MILL"}"#);
    put("rain/.zarray", of("[2, 3]", "<f4").as_bytes());
    let printed = br#"{"_ARRAY_DIMENSIONS": ["time", "x"], "units": "mm"}"#;
    put("rain/.zattrs", printed);
    put("time/.zarray", of("[2]", "<f8").as_bytes());
    let printed = br#"{"_ARRAY_DIMENSIONS": ["time"], "units": "days since 1990-01-01"}"#;
    put("time/.zattrs", printed);
    put(
        "time/0",
        &[15_f64.to_le_bytes(), 45_f64.to_le_bytes()].concat(),
    );
}

#[test]
fn find_treats_zarr_directory_as_one_file() {
    let none: [&str; 0] = [];
    for remote in [false, true] {
        let Some(mut cluster) = Cluster::with(Options {
            nodes: 3,
            remote,
            ..Options::default()
        }) else {
            return;
        };
        let [two, three, all] = ["two.zarr", "three.zarr", "consolidated.zarr"].map(fixture);
        cluster.sh(&format!("mkdir z; cp -r {two} {three} {all} z"));
        write_zarr(&cluster, "z/own.zarr");
        sealed(&cluster);
        let found = |expression| find(&cluster, &[expression]);
        let tas = ["/z/consolidated.zarr", "/z/three.zarr", "/z/two.zarr"];
        assert_eq!(found("var = tas and format = zarr"), tas);
        assert_eq!(found("var = sharded"), tas[..2]);
        let own = ["/z/own.zarr"];
        for expression in [
            "attr.institution = MILL",
            "units = mm and dim.x = 3 and type = float32",
        ] {
            assert_eq!(found(expression), own, "{expression}");
        }
        // If the header was read while the coordinate's chunk was replaced, the server reads it again after a second.
        wait("the times are known", || {
            found("time = 1990-02 and time < 1990-02") == own
        });
        assert_eq!(found("time >= 1990-03"), none);
        assert_eq!(find(&cluster, &["var = rain", "--under", "z"]), own);
        // Arrays are added, deleted and renamed, and so is the directory itself.
        cluster.sh("cp -r z/three.zarr/tas z/three.zarr/late");
        sealed(&cluster);
        assert_eq!(found("var = late"), ["/z/three.zarr"]);
        cluster.sh("mv z/three.zarr/late z/three.zarr/later");
        assert_eq!(found("var = late"), none);
        assert_eq!(found("var = later and var = tas"), ["/z/three.zarr"]);
        cluster.sh("rm -r z/three.zarr/later; mv z/three.zarr z/moved.zarr; rm -r z/two.zarr");
        assert_eq!(found("var = later"), none);
        assert_eq!(found("var = tas"), [tas[0], "/z/moved.zarr"]);
        cluster.recover_database();
        assert_eq!(find(&cluster, &["time = 1990-02"]), own);
        assert_eq!(find(&cluster, &["var = tas"]), [tas[0], "/z/moved.zarr"]);
    }
}

#[test]
fn find_hides_parts_of_zarr_without_read_permission() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let three = fixture("three.zarr");
    cluster.sh(&format!(
        "chmod 755 .; cp -r {three} hidden.zarr; mv hidden.zarr/tas hidden.zarr/secret; chown -R {BOB} hidden.zarr; chmod 700 hidden.zarr; \
         mkdir -m 755 own.zarr; cp {three}/zarr.json own.zarr; cp -r {three}/tas own.zarr/private; cp -r {three}/tas own.zarr/open; \
         ln -s ../hidden.zarr/secret own.zarr/linked; chmod -R go+rX own.zarr; chmod 600 own.zarr/private/zarr.json; chown -hR {ALICE} own.zarr; \
         cp -r {three}/first own.zarr/others; chown -R {BOB} own.zarr/others; chmod 600 own.zarr/others/zarr.json"
    ));
    sealed(&cluster);
    let none: [&str; 0] = [];
    assert_eq!(find(&cluster, &["var = open"]), ["/own.zarr"]);
    assert_eq!(find(&cluster, &["var = secret"]), ["/hidden.zarr"]);
    let as_alice = |expression| find_as(&cluster, ALICE, expression, "").unwrap();
    assert_eq!(as_alice("var = open"), ["/own.zarr"]);
    for hidden in [
        "var = secret",
        "var = linked",
        "var = private",
        "var = others",
    ] {
        assert_eq!(as_alice(hidden), none, "{hidden}");
    }
    let as_bob = |expression| find_as(&cluster, BOB, expression, "").unwrap();
    assert_eq!(as_bob("var = open"), ["/own.zarr"]);
    assert_eq!(as_bob("var = secret"), ["/hidden.zarr"]);
    // A user's own directory above another user's Zarr does not hide that.
    cluster.sh(&format!("mkdir up; cp -r {three} up/below.zarr; mv up/below.zarr/tas up/below.zarr/mine; chown -R {BOB} up/below.zarr"));
    sealed(&cluster);
    assert_eq!(find(&cluster, &["var = mine"]), ["/up/below.zarr"]);
    cluster.sh(&format!(
        "cp {three}/zarr.json up; chown -R {ALICE} up/zarr.json"
    ));
    sealed(&cluster);
    let found = find(&cluster, &["var = mine"]);
    assert!(found.contains(&"/up/below.zarr".to_owned()), "{found:?}");
}

#[test]
fn find_matches_files_by_producing_job_and_kernel() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir raw; echo a b c > raw/text; echo d > raw/other");
    let job = cluster.submit(
        "workdir = \"/\"; name = \"counting\"; tasks = ({ name = \"words\"; kernel = \"wordcount\"; input = [ \"raw/text\" ]; output = [ \"n1\" ]; }, \
         { name = \"again\"; kernel = \"wordcount\"; input = [ \"n1\" ]; output = [ \"n2\" ]; });",
    );
    cluster.done(job);
    for (expression, expected) in [
        ("made-by = wordcount", &["/n1", "/n2"][..]),
        ("made-by = counting and not made-by = words", &["/n2"]),
        ("from = /raw/text", &["/n1", "/n2"]),
        ("from = /n1", &["/n2"]),
        ("from = /raw/other", &[]),
        ("made-by = nothing", &[]),
    ] {
        assert_eq!(find(&cluster, &[expression]), expected, "{expression}");
    }
    let refused = cluster.run(&["find", "from = /raw/texd"]);
    assert!(
        !refused.ok && refused.err.contains("/raw/text"),
        "{}",
        refused.err
    );
    // Other users do not see the job that made a file; they see only a built-in kernel.
    cluster.sh("chmod 755 .; chmod 644 n1 n2");
    let as_bob = |expression| find_as(&cluster, BOB, expression, "").unwrap();
    let none: [&str; 0] = [];
    assert_eq!(as_bob("made-by = counting"), none);
    assert_eq!(as_bob("made-by = wordcount"), ["/n1", "/n2"]);
}

#[test]
fn find_hides_files_without_read_or_list_permission() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh(&format!(
        "chmod 755 .; mkdir open closed passed; cp {0} open/mine.nc; cp {0} open/all.nc; cp {0} closed/all.nc; cp {0} passed/all.nc; \
         chmod 644 */all.nc; chmod 600 open/mine.nc; chown {ALICE} open/mine.nc; chmod 700 closed; mkdir passed/below; cp {0} passed/below/all.nc; \
         chmod 711 passed; chmod 755 passed/below; chmod 644 passed/below/all.nc",
        fixture("climate.nc")
    ));
    sealed(&cluster);
    assert_eq!(find(&cluster, &["var = tas"]).len(), 5);
    let found = |uid, under| find_as(&cluster, uid, "var = tas", under).unwrap();
    assert_eq!(found(ALICE, ""), ["/open/mine.nc", "/open/all.nc"]);
    assert_eq!(found(BOB, ""), ["/open/all.nc"]);
    // The user knows the name of a directory in a directory that may be entered but not listed.
    assert_eq!(found(BOB, "/passed/below"), ["/passed/below/all.nc"]);
    let none: [&str; 0] = [];
    assert_eq!(found(BOB, "/passed"), none);
    let denied = find_as(&cluster, BOB, "var = tas", "/closed/x").unwrap_err();
    assert!(denied.contains("denied"), "{denied}");
    let denied = find_as(&cluster, BOB, "from = /open/mine.nc", "").unwrap_err();
    assert!(denied.contains("denied"), "{denied}");
}

#[test]
fn find_errors_name_place_and_reason() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    for (args, part) in [
        (&["tas"][..], "after tas one of"),
        (&["lat < north"], "\n  lat < north\n        ^"),
        (&["owner = nobody-at-all"], "user nobody-at-all"),
        (
            &["var = tas", "--under", "/none"],
            "no such file or directory",
        ),
    ] {
        let printed = cluster.run(&[&["find"], args].concat());
        assert!(
            !printed.ok && printed.err.contains(part),
            "{args:?}: {}",
            printed.err
        );
    }
    let refused = find_as(&cluster, BOB, "(", "").unwrap_err();
    assert!(refused.contains("at character 2"), "{refused}");
}
