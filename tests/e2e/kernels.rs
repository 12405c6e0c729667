//! Tests users' kernels: created, built, tested, stored in the cluster, run by name.

use crate::cluster::{Cluster, Printed, copy_program, printed};
use crate::require;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Id of a user other than root.
pub(crate) const OTHER: u32 = 1234;

fn tidemill(args: &[&str]) -> Printed {
    let output = Command::new(env!("CARGO_BIN_EXE_tidemill"))
        .args(args)
        .output();
    printed(output.unwrap())
}

fn good(args: &[&str]) -> String {
    let printed = tidemill(args);
    assert!(printed.ok, "{args:?}: {}{}", printed.out, printed.err);
    printed.out
}

#[test]
fn kernel_new_builds_in_all_languages_and_passes_test() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    for language in ["c", "c++", "rust"] {
        let name = format!("first-{}", language.len());
        let kernel = path(&name);
        good(&["kernel", "new", &kernel, "--language", language]);
        assert!(
            !tidemill(&["kernel", "new", &kernel]).ok,
            "nothing is overwritten"
        );
        let built: Value =
            serde_json::from_str(&good(&["--json", "kernel", "build", &kernel])).unwrap();
        let values = format!("{kernel}/test.f64");
        for made in built["made"].as_array().unwrap() {
            let made = made.as_str().unwrap();
            if made.ends_with(".wasm") && !cfg!(feature = "wasm") {
                let refused = tidemill(&["kernel", "test", made, &values]);
                assert!(
                    !refused.ok && refused.err.contains("built without WASM"),
                    "{}",
                    refused.err
                );
                continue;
            }
            let invariance = good(&["kernel", "test", made, &values, "--merge-invariance"]);
            assert!(
                invariance.contains("merge invariance holds"),
                "{invariance}"
            );
            let keep = path("out");
            good(&[
                "kernel",
                "test",
                made,
                &values,
                "--result",
                "range",
                "--output-dir",
                &keep,
            ]);
            let range = std::fs::read(Path::new(&keep).join("range")).unwrap();
            assert_eq!(
                range,
                [(-2.5_f64).to_le_bytes(), 40.0_f64.to_le_bytes()].concat()
            );
        }
        assert_eq!(built["made"][0], format!("{kernel}/{name}.so"));
        let modules = usize::from(can_make_modules(language));
        assert_eq!(
            built["made"].as_array().unwrap().len(),
            1 + modules,
            "{built:#}"
        );
    }
}

/// Returns whether this machine can compile sources of this language to modules.
fn can_make_modules(language: &str) -> bool {
    let can = if language == "rust" {
        let mut rustc = Command::new("rustc");
        let target = rustc.args(["--print", "sysroot"]).output().unwrap();
        let sysroot = String::from_utf8(target.stdout).unwrap();
        Path::new(sysroot.trim())
            .join("lib/rustlib/wasm32-unknown-unknown")
            .exists()
    } else {
        ["clang", "clang++", "wasm-ld"]
            .iter()
            .all(|tool| Path::new("/usr/bin").join(tool).exists())
    };
    if !can && language == "rust" {
        require::tell("the target wasm32-unknown-unknown of rustc is missing");
    } else if !can {
        require::skip("clang and lld are missing");
    }
    can
}

#[test]
fn kernel_build_reads_only_its_source_and_shows_errors() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let secret = write("secret", "#define SECRET 1\n");
    let nosy = write(
        "nosy.c",
        &format!("#include \"{secret}\"\nint x = SECRET;\n"),
    );
    let printed = tidemill(&["kernel", "build", &nosy]);
    assert!(
        !printed.ok && printed.err.contains("Permission denied"),
        "{}",
        printed.err
    );
    let wrong = write("wrong.c", "int start_kernel(void) { return nothing; }\n");
    let printed = tidemill(&["kernel", "build", &wrong]);
    assert!(
        !printed.ok && printed.err.contains("wrong.c:1:"),
        "{}",
        printed.err
    );
    let script = write("script.py", "print()\n");
    assert!(
        tidemill(&["kernel", "build", &script])
            .err
            .contains("not a source file")
    );
    // A sum of floats depends on the order in which parts are added.
    let sum = "#include <tidemill_kernel.h>
        TIDEMILL_KERNEL;
        struct sum { double sum; };
        TIDEMILL_PLAIN_STATE(struct sum);
        static struct sum all;
        void *tidemill_fold_init(const struct tidemill_task *task) { (void)task; return &all; }
        int tidemill_fold_update(void *s, size_t i, uint64_t o, const void *data, size_t size) {
            for (size_t at = 0; at < size / 8; at++) all.sum += ((const double *)data)[at];
            return 0;
        }
        int tidemill_fold_merge(void *s, const void *p, size_t n) { return tidemill_fold_update(s, 0, 0, p, n); }
        int tidemill_fold_finish(void *s, const struct tidemill_task *task) { return tidemill_fold_state(s, task); }";
    let sum = write("sum.c", sum);
    good(&["kernel", "build", &sum]);
    let values: Vec<u8> = (0..20_000_u32)
        .flat_map(|i| (f64::from(i) * 1e-3 + 1e15 * f64::from(i % 3)).to_le_bytes())
        .collect();
    let data = directory.path().join("data");
    std::fs::write(&data, values).unwrap();
    let library = sum.replace(".c", ".so");
    let invariance = tidemill(&[
        "kernel",
        "test",
        &library,
        data.to_str().unwrap(),
        "--merge-invariance",
    ]);
    assert!(
        !invariance.ok && invariance.out.contains("merge invariance is violated"),
        "{}{}",
        invariance.out,
        invariance.err
    );
}

/// Stores a script that prints `text`.
fn script(cluster: &Cluster, text: &str) -> String {
    let path = cluster.path("say.sh");
    std::fs::write(&path, format!("#!/bin/sh\necho {text} > out\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn job(kernel: &str) -> String {
    format!(
        "name = \"own\"; workdir = \"/w\"; tasks = ( {{ name = \"say\"; kernel = \"{kernel}\"; output = [ \"out\" ]; }} );"
    )
}

/// Runs a kernel by its name; returns its output, and the hash of its code in the lineage of the output.
fn run(cluster: &Cluster, kernel: &str) -> (String, String) {
    cluster.done(cluster.submit(&job(kernel)));
    let lineage = cluster.json(&["lineage", "show", "/w/out"]);
    let hash = lineage["runs"][0]["kernel_hash"]
        .as_str()
        .unwrap()
        .to_owned();
    (cluster.sh("cat w/out; rm w/out").trim().to_owned(), hash)
}

/// Returns the whole output of a command.
fn all(printed: &Printed) -> String {
    format!("{}{}", printed.out, printed.err)
}

/// Directories of objects are closed to users, and programs that only root may read are closed to kernels.
#[test]
fn kernel_names_run_only_code_of_their_own_user() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let object = cluster.path("probe.so");
    let source = "#include <unistd.h>
        #include <stdio.h>
        #include <string.h>
        #include <tidemill_kernel.h>
        TIDEMILL_KERNEL;
        int start_kernel(const struct tidemill_task *task) {
            char text[64];
            snprintf(text, sizeof text, \"user %d\\n\", (int)getuid());
            return task->write(task, 0, text, strlen(text));
        }";
    let path = cluster.path("probe.c");
    std::fs::write(&path, source).unwrap();
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../sandbox/include");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-I", header, "-o"])
        .args([&object, &path]);
    assert!(compiler.status().unwrap().success());
    let secret = cluster.path("secret");
    std::fs::create_dir(&secret).unwrap();
    let backup = secret.join("backup.sh");
    std::fs::write(&backup, "#!/bin/sh\necho of root\n").unwrap();
    for path in [&secret, &backup] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    cluster.sh(&format!(
        "mkdir w; chown {OTHER}:{OTHER} w; cp {} w/probe.so; chmod 755 w/probe.so",
        object.display()
    ));
    let task = |name: &str, kernel: &str| {
        let text = format!(
            "name = \"{name}\"; workdir = \"/w\"; tasks = ( {{ name = \"{name}\"; kernel = \"{kernel}\"; output = [ \"{name}.out\" ]; }} );"
        );
        let script = cluster.path(&format!("{name}.conf"));
        std::fs::write(&script, text).unwrap();
        other(&cluster, &["submit", "--watch", script.to_str().unwrap()])
    };
    let printed = task("probe", "probe.so");
    assert!(printed.ok, "{}", all(&printed));
    assert_eq!(cluster.sh("cat w/probe.out"), format!("user {OTHER}\n"));
    let printed = task("backup", backup.to_str().unwrap());
    assert!(
        !printed.ok && !all(&printed).contains("of root"),
        "{}",
        all(&printed)
    );
    assert!(!cluster.at("w/backup.out").exists());
}

/// Runs `tidemill ARGS` as another user.
pub(crate) fn other(cluster: &Cluster, args: &[&str]) -> Printed {
    let program = cluster.path("tidemill");
    if !program.exists() {
        copy_program(&program);
        let open = |path: &Path| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        open(&program);
        open(&cluster.path(""));
        open(&cluster.path("server"));
    }
    let server = format!("unix:{}", cluster.path("server/server.sock").display());
    let mut command = Command::new(program);
    command.args(["--server", &server, "--json"]).args(args);
    command
        .env("HOME", "/tmp")
        .current_dir("/")
        .uid(OTHER)
        .gid(OTHER);
    printed(command.output().unwrap())
}

#[test]
fn kernel_versions_are_kept_and_run_by_name() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir w");
    let add = |text: &str, more: &[&str]| {
        let file = script(&cluster, text);
        let mut args = vec!["kernel", "add", &file, "--name", "say"];
        args.extend(more);
        cluster.json(&args)
    };
    let first = add("one", &[]);
    assert_eq!(first["path"], "/kernels/0/say@1");
    let (printed, hash) = run(&cluster, "say");
    assert_eq!(
        (printed.as_str(), hash.as_str()),
        ("one", first["hash"].as_str().unwrap())
    );
    let again = add("one", &[]);
    assert_eq!(
        (&again["path"], &again["new"]),
        (&first["path"], &Value::Bool(false))
    );
    let second = add("two", &[]);
    assert_eq!(second["path"], "/kernels/0/say@2");
    assert_eq!(run(&cluster, "say").0, "two");
    assert_eq!(run(&cluster, "say@1"), ("one".to_owned(), hash));
    assert_eq!(run(&cluster, "say@2").0, "two");
    // A file of the working directory takes precedence.
    cluster.sh("printf '#!/bin/sh\\necho here > out\\n' > w/say; chmod +x w/say");
    assert_eq!(run(&cluster, "say").0, "here");
    cluster.sh("rm w/say");

    let list = cluster.json(&["kernel", "list"]);
    let own = list["own"].as_array().unwrap();
    let files: Vec<_> = own
        .iter()
        .map(|one| one["file"].as_str().unwrap())
        .collect();
    assert_eq!(files, ["say@1", "say@2"]);
    assert_eq!(own[1]["hash"], second["hash"]);
    assert_eq!(
        (&own[1]["shared"], &own[1]["uid"]),
        (&Value::Bool(false), &Value::from(0))
    );

    others_cannot_have_it_unless_allowed(&cluster);

    cluster.json(&["kernel", "delete", "say@2"]);
    assert_eq!(run(&cluster, "say").0, "one");
    cluster.json(&["kernel", "delete", "say"]);
    let gone = cluster.try_submit(&job("say"));
    assert!(
        !gone.ok && all(&gone).contains("/kernels/0"),
        "{}",
        all(&gone)
    );
    assert!(!cluster.run(&["kernel", "delete", "say"]).ok);
}

fn others_cannot_have_it_unless_allowed(cluster: &Cluster) {
    for script in [
        "cat kernels/0/say@2",
        "echo x > kernels/0/say@2",
        "rm -f kernels/0/say@2",
        "mv kernels/0/say@1 kernels/0/say@2",
        "echo x > kernels/0/say@3",
        "mv kernels/0 kernels/old",
        "chmod 777 kernels/0",
    ] {
        let theirs =
            format!("setpriv --reuid {OTHER} --regid {OTHER} --clear-groups bash -c '{script}'");
        assert!(!cluster.try_sh(&theirs).ok, "{script}");
    }
    let home = cluster.path("say.conf");
    let theirs = |kernel: &str| {
        cluster.sh(&format!(
            "mkdir -p w/theirs; chown {OTHER}:{OTHER} w/theirs"
        ));
        let text = job(kernel).replace("\"/w\"", "\"/w/theirs\"");
        std::fs::write(&home, text).unwrap();
        other(cluster, &["submit", home.to_str().unwrap()])
    };
    let private = theirs("/kernels/0/say");
    assert!(
        !private.ok && all(&private).contains("may not read"),
        "{}{}",
        private.out,
        private.err
    );
    assert!(
        all(&theirs("say")).contains("was not found"),
        "names are looked up among one's own"
    );
    cluster.json(&[
        "kernel",
        "add",
        &script(cluster, "two"),
        "--name",
        "say",
        "--shared",
    ]);
    let shared = theirs("/kernels/0/say");
    assert!(shared.ok, "{}{}", shared.out, shared.err);
    let accepted: Value = serde_json::from_str(&shared.out).unwrap();
    cluster.done(accepted["job"].as_u64().unwrap());
    assert_eq!(cluster.sh("cat w/theirs/out; rm w/theirs/out"), "two\n");
    // A kernel with the same name of another user is used only by that user.
    let added = other(cluster, &["kernel", "add", "/bin/true", "--name", "say"]);
    assert!(added.ok, "{}{}", added.out, added.err);
    assert!(added.out.contains(&format!("/kernels/{OTHER}/say@1")));
    assert_eq!(run(cluster, "say").0, "two");
    // A directory that others can write to is ignored, and so is a directory that one user made for another.
    cluster.sh(&format!("chmod 777 kernels/{OTHER}"));
    assert!(all(&theirs("say")).contains("was not found"));
    assert!(
        other(cluster, &["kernel", "add", "/bin/false"])
            .err
            .contains("only you can write to")
    );
    cluster.sh("mkdir kernels/77; cp kernels/0/say@1 kernels/77/");
    assert!(all(&theirs("/kernels/77/say")).contains("was not found"));
}

#[test]
fn wasm_modules_run_by_name_and_compile_once() {
    if !cfg!(feature = "wasm") {
        require::skip("this is built without the feature wasm");
        return;
    }
    let Some(cluster) = Cluster::start() else {
        return;
    };
    let module = cluster.path("five.wasm");
    std::fs::write(&module, wat::parse_str(FIVE).unwrap()).unwrap();
    let module = module.to_str().unwrap();
    assert_eq!(
        cluster.json(&["kernel", "add", module])["path"],
        "/kernels/0/five@1.wasm"
    );
    cluster.sh("mkdir w; echo some > w/in");
    let task = |name: &str, kernel: &str| {
        format!(
            "{{ name = \"{name}\"; kernel = \"{kernel}\"; input = [ \"in\" ]; output = [ \"{name}.out\" ]; node = 0; }}"
        )
    };
    let tasks = [
        task("a", "five"),
        task("b", "five@1"),
        task("c", "/kernels/0/five.wasm"),
    ];
    cluster.done(cluster.submit(&format!(
        "name = \"w\"; workdir = \"/w\"; tasks = ( {} );",
        tasks.join(", ")
    )));
    assert_eq!(
        cluster.sh("cat w/a.out w/b.out w/c.out"),
        "five\nfive\nfive\n"
    );
    let hash = &cluster.json(&["lineage", "show", "/w/b.out"])["runs"][0]["kernel_hash"];
    assert_eq!(*hash, cluster.json(&["kernel", "list"])["own"][0]["hash"]);
    let kept = std::fs::read_dir(cluster.node_directory(0).join("wasm")).unwrap();
    assert_eq!(kept.count(), 1);
}

/// A module whose `start_kernel` writes `five` to output 0.
const FIVE: &str = include_str!("five.wat");
