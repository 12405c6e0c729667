//! Ordinary users and their adversaries: on a client host with tokens of their own, and at the control directory.

use crate::cluster::{Cluster, Options, Printed, copy_program, printed, wait};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use tidemill_client::objects::{ObjectAddress, Objects};
use tidemill_client::{Credential, Error, Server};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_wire::route::SealBody;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

const ALICE: u32 = 4_000_001;
const BOB: u32 = 4_000_002;
const GROUP: u32 = 4_005_050;

/// Client host with a home for each user, and no data of the cluster except the tokens of its users.
struct ClientHost {
    directory: tempfile::TempDir,
    server: String,
}

impl ClientHost {
    fn of(cluster: &Cluster) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        // Users can't search the directory of the build.
        copy_program(&directory.path().join("tidemill"));
        let host = Self {
            directory,
            server: cluster.address(),
        };
        for uid in [ALICE, BOB] {
            std::fs::create_dir(host.home(uid)).unwrap();
            std::os::unix::fs::chown(host.home(uid), Some(uid), Some(uid)).unwrap();
        }
        host
    }

    fn home(&self, uid: u32) -> PathBuf {
        self.directory.path().join(uid.to_string())
    }

    fn token(&self, uid: u32) -> PathBuf {
        self.home(uid).join(".config/tidemill/token")
    }

    /// Runs `tidemill ARGS` there as a user.
    fn run(&self, uid: u32, args: &[&str]) -> Printed {
        let mut command = Command::new(self.directory.path().join("tidemill"));
        for name in ["XDG_CONFIG_HOME", "TIDEMILL_TOKEN_FILE", "TIDEMILL_CONFIG"] {
            command.env_remove(name);
        }
        command.env("HOME", self.home(uid)).uid(uid).gid(uid);
        command.current_dir(self.home(uid)).arg("--server");
        printed(command.arg(&self.server).args(args).output().unwrap())
    }

    /// Runs a command as [`Self::run`] does, requires success, and returns the standard output.
    fn done(&self, uid: u32, args: &[&str]) -> String {
        let printed = self.run(uid, args);
        assert!(printed.ok, "{args:?}\n{}{}", printed.out, printed.err);
        printed.out
    }
}

fn remote() -> Options {
    Options {
        remote: true,
        ..Options::default()
    }
}

/// Makes a token of a user at the place where the command line looks for it.
fn give_token(cluster: &Cluster, host: &ClientHost, uid: u32) -> u64 {
    let (user, path) = (uid.to_string(), host.token(uid));
    let path = path.to_str().unwrap();
    let made = cluster.json(&["token", "create", "--user", &user, "--output", path]);
    made["token"]["token"].as_u64().unwrap()
}

#[test]
fn variables_and_reduce_refuse_files_of_other_users() {
    let Some(cluster) = Cluster::with(remote()) else {
        return;
    };
    let host = ClientHost::of(&cluster);
    for uid in [ALICE, BOB] {
        give_token(&cluster, &host, uid);
    }
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../format/tests/fixtures/climate.nc"
    );
    cluster.sh(&format!(
        "chmod 755 .; cp {file} f.nc; chown {ALICE} f.nc; chmod 600 f.nc; sync f.nc"
    ));
    for args in [
        &["reduce", "mean", "/f.nc:tas"][..],
        &["reduce", "count", "/*.nc:tas"],
        &["inspect", "/f.nc"],
    ] {
        host.done(ALICE, args);
        let printed = host.run(BOB, args);
        let denied = printed.err.contains("/f.nc") && printed.err.contains("permission denied");
        assert!(!printed.ok && denied, "{}{}", printed.out, printed.err);
    }
}

#[test]
fn zarr_with_unreadable_chunk_is_refused_as_input() {
    let Some(cluster) = Cluster::with(remote()) else {
        return;
    };
    let host = ClientHost::of(&cluster);
    give_token(&cluster, &host, ALICE);
    let zarr = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../format/tests/fixtures/three.zarr"
    );
    cluster.sh(&format!(
        "chmod 755 .; mkdir w; cp -r {zarr} z; chmod -R go+rX z; chown -R {ALICE} w z; chown {BOB} z/tas/c/0/1; chmod 600 z/tas/c/0/1; \
         find . -name .tidemill -prune -o -type f -exec sync {{}} +"
    ));
    let submit = |variable: &str, dtype: &str| {
        let script = format!(
            r#"name = "z"; workdir = "/w"; tasks = ( {{ name = "n"; kernel = "stats"; args = [ "of=count", "dtype={dtype}" ]; per = "stripe-object"; variable = "zarr:{variable}"; input = [ "/z" ]; output = [ "n" ]; }} );"#
        );
        std::fs::write(host.home(ALICE).join("z.conf"), script).unwrap();
        host.run(ALICE, &["submit", "--watch", "z.conf"])
    };
    let printed = submit("tas", "f32");
    assert!(
        !printed.ok && printed.err.contains("/z/tas/c/0/1: you may not read it"),
        "{}",
        printed.err
    );
    let printed = submit("first", "i16");
    assert!(printed.ok, "{}", printed.err);
}

#[test]
fn token_gives_command_line_rights_of_its_user_only() {
    let Some(cluster) = Cluster::with(remote()) else {
        return;
    };
    let host = ClientHost::of(&cluster);
    cluster.sh(&format!(
        "mkdir w b; chown {ALICE} w; chown {BOB} b; chmod 700 w b; echo secret > of-root; chmod 600 of-root"
    ));
    let nobody = host.run(ALICE, &["ls"]);
    assert!(
        !nobody.ok && nobody.err.contains("tidemill token create"),
        "{}",
        nobody.err
    );
    let token = give_token(&cluster, &host, ALICE);
    hosts_token(&cluster, &host);
    give_token(&cluster, &host, BOB);

    std::fs::write(host.home(ALICE).join("in"), "3 1 2\n".repeat(1000)).unwrap();
    std::fs::write(
        host.home(ALICE).join("job.conf"),
        r#"name = "own"; workdir = "/w"; tasks = ( { name = "count"; kernel = "/bin/sh";
           args = ["-c", "wc -l < in; id -u >&2"]; input = ["in"]; output = ["n"]; stdout = "n"; } );"#,
    )
    .unwrap();
    host.done(ALICE, &["put", "in", "/w/in"]);
    host.done(ALICE, &["mkdir", "/w/sub"]);
    host.done(ALICE, &["submit", "--watch", "job.conf"]);
    host.done(ALICE, &["get", "/w/n", "n"]);
    // Errors suggest names only to users who may list them.
    let own = host.run(ALICE, &["cat", "/w/inn"]);
    assert!(own.err.contains("did you mean /w/in?"), "{}", own.err);
    // The error for Bob is the same for existing and missing files.
    for (there, missing) in [("/ww/in", "/ww/zz"), ("/w/inn", "/w/zzz")] {
        let [there, missing] = [there, missing].map(|path| host.run(BOB, &["cat", path]).err);
        let missing = missing.replace("/zzz", "/inn").replace("/zz", "/in");
        assert_eq!(there, missing);
        assert!(!there.is_empty());
    }
    let count = std::fs::read_to_string(host.home(ALICE).join("n")).unwrap();
    assert_eq!(count.trim(), "1000");
    assert!(
        host.done(ALICE, &["lineage", "show", "/w/n"])
            .contains("count")
    );
    assert!(
        host.done(ALICE, &["job", "logs", "1"])
            .contains(&ALICE.to_string())
    );
    for args in [
        &["status"][..],
        &["job", "list"],
        &["job", "explain", "1"],
        &["ls", "-lR", "/w"],
        &["mv", "/w/n", "/w/sub/m"],
        &["rm", "/w/sub/m"],
        &["token", "list"],
    ] {
        host.done(ALICE, args);
    }

    nobody_else(&host);
    revoked(&cluster, &host, token);
}

/// The configuration names the host's token, for its mount. A user's own token takes precedence; without one, the error
/// explains how to get a token. A corrupt token file is reported to all users.
fn hosts_token(cluster: &Cluster, host: &ClientHost) {
    let (token, config) = (
        host.directory.path().join("host-token"),
        host.directory.path().join("host.toml"),
    );
    std::fs::copy(cluster.token_file(), &token).unwrap();
    let text = format!("[client]\ntoken-file = \"{}\"\n", token.display());
    std::fs::write(&config, text).unwrap();
    let ls = ["--config", config.to_str().unwrap(), "ls"];
    host.done(ALICE, &ls);
    let refused = host.run(BOB, &ls);
    assert!(!refused.ok, "{}", refused.out);
    for reported in [token.to_str().unwrap(), "tidemill token create"] {
        assert!(refused.err.contains(reported), "{}", refused.err);
    }
    std::fs::write(&token, "tidemill credential 1\n").unwrap();
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let broken = host.run(ALICE, &ls);
    assert!(
        !broken.ok && broken.err.contains("bad token file"),
        "{}",
        broken.err
    );
}

/// A user can't act as root, as another user, or as a daemon of the cluster.
fn nobody_else(host: &ClientHost) {
    for args in [
        &["cat", "/of-root"][..],
        &["rm", "/of-root"],
        &["put", "in", "/b/in"],
        &["ls", "/b"],
        &["cluster", "fsck"],
        &["job", "list", "--all"],
        &["token", "create", "--output", "another"],
        &["token", "create", "--daemon", "--output", "another"],
    ] {
        assert!(!host.run(ALICE, args).ok, "{args:?}");
    }
    assert!(!host.run(BOB, &["job", "logs", "1"]).ok && !host.run(BOB, &["job", "cancel", "1"]).ok);
    // A copy of another user's token file is refused, even if it is readable.
    std::fs::copy(host.token(ALICE), host.home(BOB).join("stolen")).unwrap();
    std::fs::set_permissions(
        host.home(BOB).join("stolen"),
        PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    let stolen = host.run(BOB, &["--token-file", "stolen", "ls", "/b"]);
    assert!(!stolen.ok, "{}", stolen.out);
}

fn revoked(cluster: &Cluster, host: &ClientHost, token: u64) {
    std::fs::set_permissions(host.token(ALICE), PermissionsExt::from_mode(0o644)).unwrap();
    let public = host.run(ALICE, &["ls"]);
    assert!(
        !public.ok && public.err.contains("other users may read"),
        "{}",
        public.err
    );
    std::fs::set_permissions(host.token(ALICE), PermissionsExt::from_mode(0o600)).unwrap();
    cluster.json(&["token", "revoke", &token.to_string()]);
    let revoked = host.run(ALICE, &["ls"]);
    assert!(
        !revoked.ok && revoked.err.contains("revoked"),
        "{}",
        revoked.err
    );
    host.done(BOB, &["ls"]);
}

#[test]
fn chmod_revokes_granted_capability() {
    let Some(cluster) = Cluster::with(remote()) else {
        return;
    };
    let host = ClientHost::of(&cluster);
    cluster.sh("echo open to all > file; chmod 644 file");
    give_token(&cluster, &host, BOB);
    let credential = Credential::read(&host.token(BOB)).unwrap();
    let bob = v1::Credentials {
        uid: BOB,
        gid: BOB,
        ..v1::Credentials::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let endpoint = host.server.parse().unwrap();
    let server = runtime.block_on(Server::connect(&endpoint, Some(&credential)));
    let server = server.unwrap();
    let open = || -> Result<ObjectAddress, Error> {
        let resolve = Op::Resolve(v1::Resolve {
            path: b"/file".to_vec(),
            follow: true,
            advise: false,
        });
        let found = runtime.block_on(server.one(&bob, resolve))?;
        let Answer::Entry(entry) = found else {
            panic!("{found:?}")
        };
        let ino = entry.attr.unwrap().ino;
        let open = Op::Open(v1::Open {
            ino,
            ..v1::Open::default()
        });
        let opened = runtime.block_on(server.one(&bob, open))?;
        let Answer::Opened(opened) = opened else {
            panic!("{opened:?}")
        };
        let status = runtime.block_on(server.status())?;
        let node = status.nodes.iter().find(|one| one.node == opened.node);
        Ok(ObjectAddress {
            node: NodeId(opened.node),
            url: node.unwrap().url.as_str().into(),
            object: ObjectId(opened.object),
            capability: opened.capability,
        })
    };
    let objects: Objects = server.objects();
    let read = |remote: &ObjectAddress| runtime.block_on(objects.read(remote, 0, 100));
    wait("the file is sealed", || {
        open().is_ok_and(|file| read(&file).is_ok())
    });
    let given = open().unwrap();
    assert_eq!(read(&given).unwrap(), "open to all\n");
    cluster.sh("chmod 600 file");
    wait("the node has received the change", || {
        matches!(read(&given), Err(Error::NodeRefused { status: 403, .. }))
    });
    assert!(open().is_err());
    cluster.sh("chmod 644 file");
    assert!(read(&given).is_err(), "a revoked right stays revoked");
    assert_eq!(read(&open().unwrap()).unwrap(), "open to all\n");
}

/// A submission has the rights of its process at the open of the file. Later changes of the process, or another holder of
/// the descriptor, add no rights.
#[test]
fn job_submission_uses_groups_of_opening_process() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh(&format!(
        "mkdir b; chown {BOB}:{BOB} b; echo secret > of-group; chown 0:{GROUP} of-group; chmod 640 of-group"
    ));
    let script = |name: &str| {
        let text = format!(
            r#"name = "{name}"; workdir = "/b"; tasks = ( {{ name = "t"; kernel = "cat"; args = ["of-group"];
               input = ["/of-group"]; output = ["{name}"]; stdout = "{name}"; }} );"#
        );
        let path = cluster.at(&format!("b/{name}.conf"));
        std::fs::write(&path, text).unwrap();
        path
    };
    let submit = |path: PathBuf, before: &[u32], after: &[u32]| {
        let control = std::fs::File::open(cluster.at(".tidemill")).unwrap();
        let groups = |of: &[u32]| -> Vec<rustix::process::Gid> {
            let of = of.iter().copied();
            of.map(rustix::process::Gid::from_raw).collect()
        };
        let (before, after) = (groups(before), groups(after));
        let thread = std::thread::spawn(move || {
            let uid = rustix::process::Uid::from_raw;
            let gid = rustix::process::Gid::from_raw;
            rustix::thread::set_thread_groups(&before).unwrap();
            rustix::thread::set_thread_res_gid(gid(BOB), gid(BOB), gid(0)).unwrap();
            rustix::thread::set_thread_res_uid(uid(BOB), uid(BOB), uid(0)).unwrap();
            let opened = rustix::fs::openat(
                &control,
                format!("{BOB}/submit"),
                rustix::fs::OFlags::WRONLY,
                rustix::fs::Mode::empty(),
            );
            rustix::thread::set_thread_res_uid(uid(0), uid(0), uid(0)).unwrap();
            rustix::thread::set_thread_groups(&after).unwrap();
            let mut submit = std::fs::File::from(opened.unwrap());
            writeln!(submit, "{}", path.display())
        });
        thread.join().unwrap()
    };
    let refused = submit(script("gained"), &[], &[GROUP]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(22), "{refused}");
    submit(script("honest"), &[GROUP], &[]).unwrap();
    wait("the honest job has its result", || {
        cluster.try_sh("cat b/honest").out == "secret\n"
    });
    assert!(!cluster.at("b/gained").exists());
}

/// Control characters in names and messages of other users do not reach the reader's terminal.
#[test]
fn terminal_escapes_in_names_are_not_printed() {
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh(r"mkdir w; touch $'w/a\e]0;title\ab\nforged'");
    let job = cluster.submit(
        "name = \"escape\"; workdir = \"/w\"; retries = 0; tasks = ( { name = \"t\"; kernel = \"/bin/sh\"; \
         args = [\"-c\", \"printf '\\\\033[2Jgone\\\\n' >&2; exit 3\"]; output = [\"never\"]; } );",
    );
    cluster.ended(job);
    let job = job.to_string();
    for args in [
        &["ls", "/w"][..],
        &["ls", "-l", "/w"],
        &["job", "logs", &job],
        &["job", "show", &job],
        &["--json", "ls", "/w"],
        &["--json", "job", "logs", &job],
    ] {
        let printed = cluster.run(args);
        assert!(printed.ok, "{}", printed.err);
        let obeyed = |text: &str| text.contains(|c: char| c.is_control() && c != '\n');
        assert!(!obeyed(&printed.out), "{args:?}: {:?}", printed.out);
    }
    assert_eq!(cluster.run(&["ls", "/w"]).out.lines().count(), 1);
    assert!(cluster.run(&["job", "logs", &job]).out.contains("[2Jgone"));
}

/// Sealed objects belong to a user of their own, so `nobody` has kernels like everybody; objects that were sealed when
/// they were `nobody`'s can be read by them and not changed.
#[test]
fn jobs_of_user_nobody_run() {
    const NOBODY: u32 = 65534;
    let Some(cluster) = Cluster::start() else {
        return;
    };
    cluster.sh("mkdir n; chmod 777 n; seq 1000 > n/new; seq 2000 > n/former");
    let nodes = cluster.node_directory(0);
    let find = format!(
        "find {} -path '*/objects/*' -size 8893c -perm 444",
        nodes.parent().unwrap().display()
    );
    wait("the file is sealed", || !cluster.sh(&find).is_empty());
    let former = PathBuf::from(cluster.sh(&find).trim());
    let script = r#"name = "of-nobody"; workdir = "/n"; tasks = ( { name = "t"; kernel = "/bin/sh";
        args = ["-c", "chmod 666 former; (echo more >> former); cat new former | wc -l; id -u"];
        input = ["new", "former"]; output = ["lines"]; stdout = "lines"; } );"#;
    std::fs::write(cluster.at("n/job.conf"), script).unwrap();
    let submit = cluster.at(&format!(".tidemill/{NOBODY}/submit"));
    cluster.sh(&format!(
        "setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sh -c 'echo {} > {}'",
        cluster.at("n/job.conf").display(),
        submit.display()
    ));
    wait("the job of nobody has its result", || {
        cluster.try_sh("cat n/lines").out == "3000\n65534\n"
    });
    let owner = std::fs::metadata(&former).unwrap();
    assert_ne!(owner.uid(), NOBODY);
    assert_eq!(owner.mode() & 0o777, 0o444);
    assert_eq!(cluster.sh("wc -l < n/former"), "2000\n");
}

/// `reduce --to cluster:` reads and writes with the rights of its caller.
#[test]
fn reduce_to_cluster_uses_rights_of_caller() {
    let Some(cluster) = Cluster::with(remote()) else {
        return;
    };
    let host = ClientHost::of(&cluster);
    for uid in [ALICE, BOB] {
        give_token(&cluster, &host, uid);
    }
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../format/tests/fixtures/climate.nc"
    );
    cluster.sh(&format!(
        "chmod 755 .; mkdir a b open; cp {file} a/f.nc; cp {file} b/f.nc; cp {file} open/f.nc; echo of root > open/of-root.nc; \
         chown -R {ALICE} a; chown -R {BOB} b; chmod 700 a b; chmod 777 open; chmod +t open; sync a/f.nc b/f.nc open/f.nc open/of-root.nc"
    ));
    let reduce = |uid: u32, file: &str, to: &str| {
        let file = format!("{file}:tas");
        host.run(
            uid,
            &["reduce", "mean", &file, "--over", "time", "--to", to],
        )
    };
    for (file, to) in [("/a/f.nc", "/a/mean.nc"), ("/open/f.nc", "/open/alice.nc")] {
        let printed = reduce(ALICE, file, to);
        assert!(printed.ok, "{to}: {}", printed.err);
        let made = std::fs::metadata(cluster.at(&to[1..])).unwrap();
        assert_eq!(made.uid(), ALICE, "{to}");
        assert!(
            host.done(ALICE, &["lineage", "show", to]).contains(file),
            "{to}"
        );
    }
    let kept = cluster.sh("cat open/alice.nc | sha256sum; cat open/of-root.nc");
    for (file, to) in [
        // The destination, then the source, belongs to another user.
        ("/a/f.nc", "/b/of-alice.nc"),
        ("/open/f.nc", "/a/of-bob.nc"),
        // Another user's file exists under that name in a shared directory.
        ("/open/f.nc", "/open/alice.nc"),
        ("/open/f.nc", "/open/of-root.nc"),
    ] {
        let printed = reduce(BOB, file, to);
        assert!(
            !printed.ok,
            "{file} to {to}: {}{}",
            printed.out, printed.err
        );
    }
    assert_eq!(cluster.sh("ls a b"), "a:\nf.nc\nmean.nc\n\nb:\nf.nc\n");
    assert_eq!(
        cluster.sh("cat open/alice.nc | sha256sum; cat open/of-root.nc"),
        kept
    );
    let printed = host.run(BOB, &["lineage", "show", "/a/mean.nc"]);
    assert!(
        !printed.ok && printed.err.contains("permission denied"),
        "{}{}",
        printed.out,
        printed.err
    );
}

/// A hostile client declares a length that its node did not confirm: the file is not sealed, and other files are unchanged.
#[test]
fn seal_with_false_length_is_refused() {
    let Some(cluster) = Cluster::with(remote()) else {
        return;
    };
    let host = ClientHost::of(&cluster);
    cluster.sh(&format!(
        "chmod 755 .; mkdir b; chown {BOB} b; echo honest > honest; sync honest"
    ));
    give_token(&cluster, &host, BOB);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = Liar::of(&host, &runtime);
    for (name, size) in [("longer", 1 << 40), ("shorter", 2), ("most", u64::MAX)] {
        for shown in [Shown::Nothing, Shown::Own, Shown::Invented] {
            let refused = client.seal_as(&format!("{name}-{shown:?}"), size, shown);
            let refused = refused.expect_err(name);
            // No file has as many bytes as the last length.
            let errnos = [rustix::io::Errno::BADMSG, rustix::io::Errno::INVAL];
            assert!(
                errnos.iter().any(|errno| refused.is(*errno)),
                "{name}: {refused}"
            );
        }
        let read = cluster.try_sh(&format!("cat b/{name}-*"));
        assert_eq!(read.out, "", "{name}");
    }
    client.seal_as("true", 5, Shown::Own).unwrap();
    assert_eq!(cluster.sh("cat b/true"), "bytes");
    assert_eq!(cluster.sh("cat honest"), "honest\n");
    cluster.sh("rm -r b");
    wait("all is well when they are deleted", || {
        cluster.run(&["cluster", "health"]).code == Some(0)
    });
}

/// Receipt that a hostile client shows to the server.
#[derive(Clone, Copy, Debug)]
enum Shown {
    Nothing,
    /// The receipt of the node, for the true length.
    Own,
    Invented,
}

/// A client of a user that violates the protocol.
struct Liar<'a> {
    runtime: &'a tokio::runtime::Runtime,
    server: Server,
    credentials: v1::Credentials,
}

impl<'a> Liar<'a> {
    fn of(host: &ClientHost, runtime: &'a tokio::runtime::Runtime) -> Self {
        let credential = Credential::read(&host.token(BOB)).unwrap();
        let endpoint = host.server.parse().unwrap();
        let server = runtime.block_on(Server::connect(&endpoint, Some(&credential)));
        let credentials = v1::Credentials {
            uid: BOB,
            gid: BOB,
            ..v1::Credentials::default()
        };
        Self {
            runtime,
            server: server.unwrap(),
            credentials,
        }
    }

    /// Writes five bytes, seals them at the node, and seals them as `size` at the server.
    fn seal_as(&self, name: &str, size: u64, shown: Shown) -> Result<(), Error> {
        self.runtime.block_on(async {
            let (ino, object) = self.server.reserve(1, 1).await?;
            let create = Op::Create(v1::Create {
                name: format!("/b/{name}").into(),
                kind: v1::Kind::File.into(),
                mode: 0o644,
                ino: ino.0,
                object: object.0,
                uid: BOB,
                gid: BOB,
                ..v1::Create::default()
            });
            let Answer::Opened(opened) = self.server.one(&self.credentials, create).await? else {
                panic!("it is not opened");
            };
            let remote = ObjectAddress {
                node: NodeId(opened.node),
                url: opened.url.as_str().into(),
                object: ObjectId(opened.object),
                capability: opened.capability,
            };
            let objects = self.server.objects();
            objects.write(&remote, 0, "bytes".into()).await?;
            let sealed = objects.seal(&remote, &SealBody::default()).await?;
            let seal = Op::Seal(v1::Seal {
                ino: ino.0,
                object: object.0,
                size,
                receipts: match shown {
                    Shown::Nothing => Vec::new(),
                    Shown::Own => vec![sealed.receipt],
                    Shown::Invented => vec![vec![7; 32]],
                },
                ..v1::Seal::default()
            });
            self.server.one(&self.credentials, seal).await?;
            Ok(())
        })
    }
}
