//! Lineage answers which versions, kernel, arguments, node and times produced a file.

use crate::cluster::Cluster;

#[test]
fn lineage_survives_renames_and_rewrites() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; echo one > w/in");
    let job = r#"name = "lin"; workdir = "/w"; tasks = (
        { name = "copy"; kernel = "/bin/cp"; args = ["in", "mid"]; input = ["in"]; output = ["mid"]; },
        { name = "count"; kernel = "wordcount"; input = ["mid"]; output = ["out"]; } );"#;
    cluster.done(cluster.submit(job));
    let before = cluster.json(&["lineage", "show", "/w/out"]);
    cluster.sh("mv w/out w/result; mv w/in w/renamed; echo changed > w/renamed");
    let after = cluster.json(&["lineage", "show", "/w/result"]);
    let runs = after["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "{after:#}");
    let inputs = |lineage: &serde_json::Value| {
        let mut all: Vec<u64> = lineage["runs"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|run| run["inputs"].as_array().unwrap())
            .map(|input| input["object"].as_u64().unwrap())
            .collect();
        all.sort_unstable();
        all
    };
    assert_eq!(
        inputs(&before),
        inputs(&after),
        "the exact versions stay known"
    );
    for run in runs {
        assert!(!run["kernel_hash"].as_str().unwrap().is_empty());
        assert!(run["end"].as_i64().unwrap() >= run["start"].as_i64().unwrap());
    }
    let down = cluster.run(&["lineage", "show", "/w/renamed", "--down"]);
    assert!(down.ok, "{}", down.err);
    for format in ["text", "dot", "svg", "prov-json"] {
        let printed = cluster.run(&["lineage", "show", "/w/result", "--format", format]);
        assert!(
            printed.ok && printed.out.contains("count"),
            "{format}: {}{}",
            printed.out,
            printed.err
        );
    }
    let through_mount = cluster.sh("cat .tidemill/lineage/w/result");
    assert!(through_mount.contains("copy"), "{through_mount}");
    let xattr = cluster.sh("getfattr --only-values -n user.tidemill.lineage w/result");
    assert!(xattr.contains("count"), "{xattr}");
}
