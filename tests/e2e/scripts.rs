//! Checks job scripts that are refused, each with an error that says what, where and what to do.

use crate::cluster::Cluster;

#[test]
fn invalid_job_scripts_are_refused_with_file_line_and_task() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w; echo x > w/in; echo x > w/exists");
    let task = |body: &str| {
        format!("name = \"j\";\nworkdir = \"/w\";\nstrict = true;\ntasks = (\n{body}\n);\n")
    };
    let cases: &[(&str, String, &[&str])] = &[
        ("malformed", "name = ;".into(), &["job.conf:1:"]),
        (
            "unknown setting",
            "name = \"j\"; wrkdir = \"/w\"; tasks = ();".into(),
            &["wrkdir", "workdir"],
        ),
        (
            "unknown kernel",
            task(r#"{ name = "a"; kernel = "no-such-kernel"; input = ["in"]; output = ["o"]; }"#),
            &["job.conf:5", "a", "no-such-kernel"],
        ),
        (
            "missing input under strict",
            task(r#"{ name = "a"; kernel = "/bin/true"; input = ["nope"]; output = ["o"]; }"#),
            &["job.conf:5", "nope"],
        ),
        (
            "cycle",
            task(
                "{ name = \"a\"; kernel = \"/bin/true\"; input = [\"y\"]; output = [\"x\"]; },\n\
                 { name = \"b\"; kernel = \"/bin/true\"; input = [\"x\"]; output = [\"y\"]; }",
            ),
            &["cycle", "a", "b"],
        ),
        (
            "same output twice",
            task(
                "{ name = \"a\"; kernel = \"/bin/true\"; input = [\"in\"]; output = [\"x\"]; },\n\
                 { name = \"b\"; kernel = \"/bin/true\"; input = [\"in\"]; output = [\"x\"]; }",
            ),
            &["job.conf:6", "x", "b"],
        ),
        (
            "output that exists",
            task(r#"{ name = "a"; kernel = "/bin/true"; input = ["in"]; output = ["exists"]; }"#),
            &["job.conf:5", "exists"],
        ),
        (
            "path escape",
            task(
                r#"{ name = "a"; kernel = "/bin/true"; input = ["../etc/passwd"]; output = ["o"]; }"#,
            ),
            &["job.conf:5", ".."],
        ),
    ];
    for (what, script, parts) in cases {
        let printed = cluster.try_submit(script);
        assert!(!printed.ok, "{what} was accepted");
        let text = format!("{}{}", printed.out, printed.err);
        for part in *parts {
            assert!(text.contains(part), "{what}: no {part:?} in: {text}");
        }
        assert!(
            !text.contains("panicked") && !text.contains("RUST_BACKTRACE"),
            "{what}: {text}"
        );
    }
    let left = cluster.sh("ls w");
    assert_eq!(left, "exists\nin\n", "a refused script leaves files");
    let printed = cluster.try_sh("echo /no/such/script > .tidemill/root/submit");
    assert!(!printed.ok);
}
