//! Runs the First Provenance Challenge (2006): a workflow that averages brain images, run twice, and its nine questions, each one
//! command.

use crate::cluster::{Cluster, OtherMount, wait};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

/// Replacement for the five programs: it writes its inputs and its arguments to every output.
const PROGRAM: &str = r#"#!/bin/sh
# PROGRAM OUTPUT[,OUTPUT] INPUT... [-OPTION VALUE]...
outputs=$1; shift
for output in $(echo "$outputs" | tr , ' '); do
  { echo "NAME $*"; for input; do if [ -f "$input" ]; then cat "$input"; fi; done; } > "$output"
done
"#;

fn task(name: &str, kernel: &str, inputs: &[String], outputs: &[String], options: &str) -> String {
    let last = |path: &String| path.rsplit('/').next().unwrap().to_owned();
    let args: Vec<String> = inputs.iter().map(last).collect();
    let quoted = |names: &[String]| format!("[\"{}\"]", names.join("\", \""));
    let words = format!("{} {} {options}", outputs.join(","), args.join(" "));
    let args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    format!(
        "{{ name = \"{name}\"; kernel = \"{kernel}\"; args = {}; input = {}; output = {}; }}",
        quoted(&args),
        quoted(inputs),
        quoted(outputs)
    )
}

/// Returns the workflow: four images are aligned to a reference, resliced, averaged, cut in three planes and converted to graphics.
fn workflow(
    directory: &str,
    images: &str,
    model: &str,
    convert: impl Fn(&str) -> Vec<String>,
) -> String {
    let mut tasks = Vec::new();
    let both = |name: &str| [format!("{name}.img"), format!("{name}.hdr")];
    for at in 1..=4 {
        let read: Vec<String> = both(&format!("{images}/anatomy{at}"))
            .into_iter()
            .chain(both(&format!("{images}/reference")))
            .collect();
        let warp = [format!("warp{at}.warp")];
        tasks.push(task(
            &format!("align{at}"),
            "align_warp",
            &read,
            &warp,
            model,
        ));
        let resliced = both(&format!("resliced{at}"));
        tasks.push(task(
            &format!("reslice{at}"),
            "reslice",
            &warp,
            &resliced,
            "",
        ));
    }
    let resliced: Vec<String> = (1..=4)
        .flat_map(|at| both(&format!("resliced{at}")))
        .collect();
    tasks.push(task(
        "softmean",
        "softmean",
        &resliced,
        &both("atlas"),
        "-y null",
    ));
    for plane in ["x", "y", "z"] {
        let cut = [format!("atlas-{plane}.pgm")];
        let options = format!("-{plane} .5");
        tasks.push(task(
            &format!("slicer-{plane}"),
            "slicer",
            &both("atlas"),
            &cut,
            &options,
        ));
        tasks.extend(convert(plane));
    }
    format!(
        "name = \"fmri{model}\"; workdir = \"{directory}\"; tasks = ({});",
        tasks.join(",\n")
    )
}

fn one(name: &str) -> [String; 1] {
    [name.to_owned()]
}

/// Runs the workflow in `/run1` with `-m 12`, and in `/run2` with `-m 13` and two steps in place of `convert`.
fn challenge() -> Option<Cluster> {
    let cluster = Cluster::start()?;
    for program in [
        "align_warp",
        "reslice",
        "softmean",
        "slicer",
        "convert",
        "pgmtoppm",
        "pnmtojpeg",
    ] {
        let file = cluster.path(program);
        std::fs::write(&file, PROGRAM.replace("NAME", program)).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let added = cluster.run(&["kernel", "add", file.to_str().unwrap()]);
        assert!(added.ok, "{}{}", added.out, added.err);
    }
    cluster.sh("mkdir run1 run2 images1 images2
         for f in images1 images2; do for n in anatomy1 anatomy2 anatomy3 anatomy4 reference; do
           echo $f $n > $f/$n.img; echo $f $n header > $f/$n.hdr; done; done
         setfattr -n user.globalmaximum -v 4095 images1/anatomy2.hdr
         setfattr -n user.globalmaximum -v 4096 images2/anatomy2.hdr
         for n in images1/anatomy1 images1/anatomy2 images2/anatomy3; do
           setfattr -n user.center -v UChicago $n.img; done
         setfattr -n user.center -v IIT images1/anatomy3.img");
    let gif = |plane: &str| {
        vec![task(
            &format!("convert-{plane}"),
            "convert",
            &one(&format!("atlas-{plane}.pgm")),
            &one(&format!("atlas-{plane}.gif")),
            "",
        )]
    };
    let jpeg = |plane: &str| {
        let ppm = one(&format!("atlas-{plane}.ppm"));
        let (pgm, jpg) = (
            one(&format!("atlas-{plane}.pgm")),
            one(&format!("atlas-{plane}.jpg")),
        );
        vec![
            task(&format!("pgmtoppm-{plane}"), "pgmtoppm", &pgm, &ppm, ""),
            task(&format!("pnmtojpeg-{plane}"), "pnmtojpeg", &ppm, &jpg, ""),
        ]
    };
    let first = cluster.submit(&workflow("/run1", "/images1", "-m 12", gif));
    let second = cluster.submit(&workflow("/run2", "/images2", "-m 13", jpeg));
    cluster.done(first);
    cluster.done(second);
    cluster.sh("setfattr -n user.studyModality -v speech run1/atlas-x.gif
         setfattr -n user.reviewer -v Ada run1/atlas-x.gif
         setfattr -n user.studyModality -v visual run1/atlas-y.gif
         setfattr -n user.studyModality -v touch run1/atlas-z.gif
         setfattr -n user.studyModality -v audio run2/atlas-x.jpg");
    Some(cluster)
}

/// Returns the names of the tasks of an answer, job by job.
fn names(answer: &Value) -> Vec<String> {
    let runs = answer["runs"].as_array().unwrap().iter();
    runs.map(|run| run["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the paths of the found files.
fn files(answer: &Value) -> BTreeSet<String> {
    let found = answer["found"]["objects"].as_array().unwrap();
    let versions = answer["versions"].as_array().unwrap().iter();
    let versions = versions.filter(|version| found.contains(&version["object"]));
    versions
        .map(|version| version["current_path"].as_str().unwrap().to_owned())
        .collect()
}

fn paths<const N: usize>(paths: [&str; N]) -> BTreeSet<String> {
    paths.map(str::to_owned).into()
}

fn weekday(run: &Value) -> usize {
    let days = run["start"].as_i64().unwrap() / 86_400_000_000_000;
    // 1 January 1970 was a Thursday.
    usize::try_from((days + 3) % 7).unwrap()
}

const DAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

/// Asks a question about lineage.
fn ask(cluster: &Cluster, args: &[&str]) -> Value {
    cluster.json(&[&["lineage"], args].concat())
}

const GRAPHICS: [&str; 6] = [
    "search",
    "--down",
    "--annotation",
    "globalmaximum=4095",
    "--only",
    "atlas-*.gif",
];

#[test]
fn nine_provenance_challenge_questions_are_one_command_each() {
    let Some(cluster) = challenge() else { return };
    processes(&cluster);
    files_by_what_led_to_them(&cluster);
    difference(&cluster);
    files_by_annotations(&cluster);
    annotations_belong_to_the_version(&cluster);
    kernels_go_by_their_names(&cluster);
}

fn processes(cluster: &Cluster) {
    let ask = |args: &[&str]| ask(cluster, args);
    // 1. The process that led to Atlas X Graphic: everything.
    let whole = ask(&["show", "/run1/atlas-x.gif"]);
    assert_eq!(
        whole["runs"].as_array().unwrap().len(),
        4 + 4 + 1 + 1 + 1,
        "{whole:#}"
    );
    // 2. The same without the steps before the averaging.
    let late = ask(&["show", "/run1/atlas-x.gif", "--stop", "softmean"]);
    assert_eq!(names(&late), ["softmean", "slicer-x", "convert-x"]);
    // 3. Stages 3, 4 and 5: the last three.
    let stages = ask(&["show", "/run1/atlas-x.gif", "--depth", "3"]);
    assert_eq!(names(&stages), ["softmean", "slicer-x", "convert-x"]);
    // 4. All runs of align_warp with -m 12 on a Monday; the test uses the present day. A run may begin a moment before midnight, and
    // another after it.
    let aligned = whole["runs"].as_array().unwrap().iter();
    let aligned = aligned.filter(|run| run["name"].as_str().unwrap().starts_with("align"));
    let days: Vec<usize> = aligned.map(weekday).collect();
    for (day, name) in DAYS.iter().enumerate() {
        let found = ask(&[
            "search",
            "--kernel",
            "align_warp",
            "--arg",
            "-m 12",
            "--on",
            name,
        ]);
        let ran = days.iter().filter(|one| **one == day).count();
        assert_eq!(
            found["found"]["tasks"].as_array().unwrap().len(),
            ran,
            "{name}"
        );
    }
    assert_eq!(days.len(), 4);
}

/// Returns the files that question 5 asks for.
fn of_run1() -> BTreeSet<String> {
    paths([
        "/run1/atlas-x.gif",
        "/run1/atlas-y.gif",
        "/run1/atlas-z.gif",
    ])
}

fn files_by_what_led_to_them(cluster: &Cluster) {
    // 5. Atlas graphics of workflows with an input header that says global maximum=4095.
    assert_eq!(files(&ask(cluster, &GRAPHICS)), of_run1());
    // 6. Outputs of softmean from images that were aligned with -m 12.
    let averaged = ask(
        cluster,
        &[
            "search",
            "--down",
            "--kernel",
            "align_warp",
            "--arg",
            "-m 12",
            "--outputs-of",
            "softmean",
        ],
    );
    assert_eq!(
        files(&averaged),
        paths(["/run1/atlas.hdr", "/run1/atlas.img"])
    );
}

fn difference(cluster: &Cluster) {
    // 7. The difference of two runs.
    let differs = cluster.run(&["lineage", "diff", "/run1/atlas-x.gif", "/run2/atlas-x.jpg"]);
    let lines: Vec<&str> = differs.out.lines().collect();
    for line in [
        "- convert-x: convert@1 atlas-x.gif atlas-x.pgm",
        "+ pgmtoppm-x: pgmtoppm@1 atlas-x.ppm atlas-x.pgm",
    ] {
        assert!(
            lines.contains(&line),
            "{line}\n{}{}",
            differs.out,
            differs.err
        );
    }
    let model = lines
        .iter()
        .find(|line| line.starts_with("~ align1: arguments"))
        .unwrap();
    assert!(
        model.contains("-m 12 \u{2192} ") && model.ends_with("-m 13"),
        "{model}"
    );
    assert!(!differs.out.contains("softmean: code"), "{}", differs.out);
}

fn files_by_annotations(cluster: &Cluster) {
    // 8. Outputs of align_warp whose inputs are annotated with center=UChicago.
    let chicago = ask(
        cluster,
        &[
            "search",
            "--kernel",
            "align_warp",
            "--annotation",
            "center=UChicago",
            "--outputs-of",
            "align_warp",
        ],
    );
    assert_eq!(
        files(&chicago),
        paths(["/run1/warp1.warp", "/run1/warp2.warp", "/run2/warp3.warp"])
    );
    // 9. Graphics with a study modality of speech, visual or audio, and all their annotations.
    let modality = [
        "lineage",
        "search",
        "--annotation",
        "studyModality=speech,visual,audio",
    ];
    let sets = cluster.json(&modality);
    assert_eq!(
        files(&sets),
        paths([
            "/run1/atlas-x.gif",
            "/run1/atlas-y.gif",
            "/run2/atlas-x.jpg"
        ])
    );
    let printed = cluster.run(&modality).out;
    assert!(
        printed.contains("{reviewer=Ada, studyModality=speech}"),
        "{printed}"
    );
}

/// Checks that annotations of a file's next version do not apply to the previous version, nor to outputs that were made from it.
fn annotations_belong_to_the_version(cluster: &Cluster) {
    cluster.sh(
        "echo anew > images1/anatomy2.hdr; setfattr -n user.globalmaximum -v 1 images1/anatomy2.hdr
         rm images1/anatomy1.img",
    );
    let ask = |args: &[&str]| ask(cluster, args);
    assert_eq!(files(&ask(&GRAPHICS)), of_run1());
    let versions = ask(&["versions", "/images1/anatomy2.hdr"]);
    let values = versions["versions"].as_array().unwrap().iter();
    let values: Vec<&Value> = values
        .map(|version| &version["annotations"]["globalmaximum"])
        .collect();
    assert_eq!(values, ["4095", "1"], "{versions:#}");
    let gone = ask(&["versions", "/images1/anatomy1.img"]);
    assert_eq!(gone["versions"][0]["annotations"]["center"], "UChicago");
    let prov = cluster.run(&[
        "lineage",
        "show",
        "/run1/warp2.warp",
        "--format",
        "prov-json",
    ]);
    assert!(
        prov.out.contains("4095") && prov.out.contains("UChicago"),
        "{}",
        prov.out
    );
}

/// Neither a version in progress nor a second reader moves an annotation to another version.
#[test]
fn annotations_of_other_mount_belong_to_next_version() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let other = OtherMount::start(&cluster, "other");
    cluster.sh(&format!(
        "echo one > f; setfattr -n user.note -v first f
         exec 9>f; echo two >&9
         setfattr -n user.note -v second {0}/f; setfattr -n user.more -v yes {0}/f
         exec 9>&-; setfattr -n user.seen -v both f",
        other.path.display()
    ));
    let versions = || ask(&cluster, &["versions", "/f"])["versions"].clone();
    wait("both versions exist", || {
        versions().as_array().unwrap().len() == 2
    });
    let all = versions();
    assert_eq!(all[0]["annotations"], serde_json::json!({"note": "first"}));
    assert_eq!(
        all[1]["annotations"],
        serde_json::json!({"note": "second", "more": "yes", "seen": "both"})
    );
    // An aborted version leaves its annotations with the version that stays.
    cluster.sh(&format!(
        "exec 9>>f; setfattr -n user.note -v third {}/f; exec 9>&-",
        other.path.display()
    ));
    let note = cluster.sh("getfattr --only-values -n user.note f");
    assert_eq!(note, "third");
}

fn kernels_go_by_their_names(cluster: &Cluster) {
    let ask = |args: &[&str]| cluster.run(&[&["lineage"], args].concat()).out;
    // This also works after they are deleted.
    let gone = cluster.run(&["kernel", "delete", "convert"]);
    assert!(gone.ok, "{}{}", gone.out, gone.err);
    for format in ["text", "json", "svg", "dot", "prov-json"] {
        let printed = ask(&["show", "/run1/atlas-x.gif", "--format", format]);
        assert!(
            !printed.contains(".new-") && printed.contains("convert@1"),
            "{format}: {printed}"
        );
    }
}

#[test]
fn reused_result_shows_run_that_made_it() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; seq 1000 > w/in");
    let mut jobs = Vec::new();
    for output in ["a", "b", "c"] {
        // The output has the same name: otherwise it would be another task.
        let job = format!(
            "name = \"{output}\"; workdir = \"/w\"; replace = true; tasks = ({{ name = \"{output}\"; \
             kernel = \"wordcount\"; input = [\"in\"]; output = [\"out\"]; }});"
        );
        jobs.push(cluster.done(cluster.submit(&job)));
        cluster.sh(&format!("mv w/out w/{output}"));
    }
    let run = |path: &str| cluster.json(&["lineage", "show", path])["runs"][0].clone();
    let (first, second, third) = (run("/w/a"), run("/w/b"), run("/w/c"));
    assert_eq!(first["reused_task"], Value::Null);
    for reused in [&second, &third] {
        assert_eq!(reused["reused_task"], first["task"], "{reused:#}");
        for what in ["start", "end", "node", "kernel_hash"] {
            assert_eq!(reused[what], first[what], "{what}");
        }
    }
    // By the id of a task, too.
    let asked = cluster.json(&["lineage", "show", "--task", &third["task"].to_string()]);
    assert_eq!(asked["runs"][0], third);
    let text = cluster.run(&["lineage", "show", "/w/c"]).out;
    assert!(
        text.contains(&format!("of task {}", first["task"])),
        "{text}"
    );
    let prov = cluster.json(&["lineage", "show", "/w/c", "--format", "prov-json"]);
    assert_eq!(
        prov["wasInformedBy"].as_object().unwrap().len(),
        1,
        "{prov:#}"
    );
}
