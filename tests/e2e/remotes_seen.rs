//! Tests `/remotes` in the mount: programs see the objects of stores outside of the cluster, if their user may.

use crate::cluster::{Cluster, Options, Printed, wait};
use crate::stand_in::StandIn;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;

const OTHER_USER: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";
const SECRET: &str = "hush-hush-hush";
/// Three blocks of the mount.
const BYTES: usize = (9 << 20) + 3;
/// Names of the three stores with the same object and file.
const PLACES: [&str; 3] = ["dir", "cloud", "web"];

struct Seen {
    cluster: Cluster,
    store: StandIn,
    /// Configuration of the mount's user, with the keys.
    config: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

fn noise(mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_be_bytes()[0]
    };
    (0..BYTES).map(|_| next()).collect()
}

impl Seen {
    /// Starts a cluster with a directory, S3 and HTTP as remotes `dir`, `cloud` and `web`; the mount has the keys of `cloud`. `timeout`: time
    /// limit for stores, in seconds.
    fn start(timeout: &str) -> Option<Self> {
        let config = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = runtime.block_on(StandIn::start());
        let cluster = Cluster::with(Options {
            mount_env: vec![
                ("XDG_CONFIG_HOME", config.path().display().to_string()),
                ("TIDEMILL_MOUNT_REMOTE_TIMEOUT", timeout.into()),
            ],
            ..Options::default()
        })?;
        cluster.sh("test ! -e remotes");
        store.state().key = Some("me".into());
        let seen = Self {
            cluster,
            store,
            config,
            _runtime: runtime,
        };
        seen.keys("me");
        std::fs::create_dir_all(seen.directory().join("run/deep")).unwrap();
        for (name, uri) in [
            ("dir", format!("file://{}", seen.directory().display())),
            ("cloud", seen.store.s3()),
            ("web", format!("http://{}/open", seen.store.address)),
        ] {
            seen.cluster.json(&["remote", "add", name, &uri]);
        }
        wait("remotes are seen", || {
            seen.cluster.at("remotes/web").exists()
        });
        Some(seen)
    }

    fn directory(&self) -> PathBuf {
        self.cluster.path("directory")
    }

    fn keys_file(&self) -> PathBuf {
        self.config.path().join("tidemill/remotes/cloud")
    }

    fn keys(&self, id: &str) {
        let path = self.keys_file();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = format!("access_key_id = \"{id}\"\nsecret_access_key = \"{SECRET}\"\n");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    }

    /// Puts a file into all three stores, and replaces an existing one.
    fn put(&self, name: &str, content: &[u8]) {
        let (path, part) = (self.directory().join(name), self.directory().join("part"));
        std::fs::write(&part, content).unwrap();
        std::fs::rename(&part, path).unwrap();
        self.store.put(name, content.to_vec());
        self.store.put(&format!("open/{name}"), content.to_vec());
    }

    fn refused(&self, script: &str, why: &str) {
        let printed: Printed = self.cluster.try_sh(script);
        assert!(
            !printed.ok && printed.err.contains(why),
            "{script}: {}{}",
            printed.out,
            printed.err
        );
    }
}

#[test]
fn remote_store_is_readable_in_mount_by_its_user_only() {
    let Some(seen) = Seen::start("60s") else {
        return;
    };
    let cluster = &seen.cluster;
    let content = noise(1);
    seen.put("run/a.bin", &content);
    seen.put("run/deep/b", b"bb");
    std::fs::write(cluster.path("whole"), &content).unwrap();
    for odd in ["run//x", "run/../y", "run/deep/..", "run/nul\0"] {
        seen.store.put(odd, b"odd".to_vec());
    }
    symlink("/etc/passwd", seen.directory().join("run/link")).unwrap();
    symlink("/etc", seen.directory().join("run/away")).unwrap();
    cluster.sh("mkfifo ../directory/run/pipe");
    assert_eq!(cluster.sh("ls remotes"), "cloud\ndir\nweb\n");
    // A copy of the cluster does not include the stores.
    assert_eq!(cluster.sh("ls -A"), "kernels\n");
    for place in PLACES {
        let path = format!("remotes/{place}/run/a.bin");
        cluster.sh(&format!(
            "cmp {path} ../whole; cp {path} {place}; cmp {place} ../whole"
        ));
        cluster.sh(&format!(
            "test $(stat -c %s {path}) = {BYTES}; test -s remotes/{place}/run/deep/b"
        ));
        cluster.sh(&format!(
            "test $(md5sum < {path} | cut -c-32) = $(md5sum < ../whole | cut -c-32)"
        ));
        let mapped = "import mmap,sys; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),0,flags=mmap.MAP_PRIVATE,prot=mmap.PROT_READ|mmap.PROT_WRITE); w=open('../whole','rb').read(); assert m[:]==w; m[0:2]=b'xx'; assert open(sys.argv[1],'rb').read()==w";
        cluster.sh(&format!("python3 -c \"{mapped}\" {path}"));
        seen.refused(&format!("cat remotes/{place}/none"), "No such file");
    }
    let all = "run\nrun/a.bin\nrun/deep\nrun/deep/b\n";
    assert_eq!(cluster.sh("cd remotes/dir; find * | sort"), all);
    assert_eq!(cluster.sh("cd remotes/cloud; find run | sort"), all);
    assert_eq!(
        cluster.sh("ls remotes/web remotes/web/run"),
        "remotes/web:\n\nremotes/web/run:\n"
    );
    assert_eq!(
        cluster.sh("stat -c %Y remotes/cloud/run/a.bin"),
        "1767225600\n"
    );
    for name in ["link", "away/passwd", "pipe"] {
        seen.refused(&format!("cat remotes/dir/run/{name}"), "No such file");
    }
    nothing_is_written(&seen);
    // The user does not even see entries that the Linux kernel has cached for root.
    cluster.sh("ls -lR remotes > /dev/null");
    for ask in [
        "ls remotes",
        "ls remotes/dir",
        "cat remotes/dir/run/deep/b",
        "cat remotes/cloud/run/deep/b",
        "stat remotes/web/run/a.bin",
    ] {
        seen.refused(&format!("{OTHER_USER} {ask}"), "Permission denied");
    }
    cluster.sh(&format!(
        "{OTHER_USER} find . > /dev/null; {OTHER_USER} stat remotes"
    ));
}

fn nothing_is_written(seen: &Seen) {
    for change in [
        "touch {}/new",
        "mkdir {}/new",
        "rm {}/a.bin",
        "rmdir {}/deep",
        "mv {}/a.bin {}/b.bin",
        "mv {}/a.bin here",
        "mv cloud {}/c",
        "ln -s x {}/l",
        "ln {}/a.bin {}/l",
        "chmod 600 {}/a.bin",
        "truncate -s 0 {}/a.bin",
        "sh -c 'echo x >> {}/a.bin'",
    ] {
        for place in ["dir", "cloud"] {
            let run = format!("remotes/{place}/run");
            seen.refused(&change.replace("{}", &run), "Read-only file system");
        }
    }
}

#[test]
fn remote_directory_tolerates_failing_changing_and_large_stores() {
    let Some(mut seen) = Seen::start("6s") else {
        return;
    };
    changed_while_open(&seen);
    large(&seen);
    gone_and_back(&seen);
    wrong_keys(&seen);
    directories_of_that_name(&seen);
    // A mount with all these open requests ends, too.
    seen.cluster.kill_mount();
    seen.cluster.start_mount();
    seen.cluster.sh("ls remotes/dir");
}

/// A reader with an open file reads that version, or gets an error; a reader that opens the file after the change reads the new one.
fn changed_while_open(seen: &Seen) {
    let (old, new) = (noise(1), noise(2));
    seen.put("run/a.bin", &old);
    let open = PLACES.map(|place| seen.cluster.at(&format!("remotes/{place}/run/a.bin")));
    let before = open.each_ref().map(|path| {
        let (file, mut bytes) = (File::open(path).unwrap(), [0; 100]);
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, old[..100]);
        file
    });
    seen.put("run/a.bin", &new);
    for (path, before) in open.iter().zip(&before) {
        let now = std::fs::read(path).unwrap();
        assert!(now == new, "{path:?}: not what is there now");
        let mut bytes = [0; 100];
        let error = before.read_at(&mut bytes, 6 << 20).unwrap_err();
        let errno = error
            .raw_os_error()
            .map(rustix::io::Errno::from_raw_os_error);
        let reported = [rustix::io::Errno::IO, rustix::io::Errno::STALE];
        assert!(
            errno.is_some_and(|errno| reported.contains(&errno)),
            "{path:?}: {error}"
        );
        if before.read_exact_at(&mut bytes, 0).is_ok() {
            assert_eq!(bytes, old[..100]);
        }
    }
}

/// A directory of many keys is listed in pages, with the known attributes; all readers of one file request each block once.
fn large(seen: &Seen) {
    for number in 0..10_000 {
        let key = format!("many/{number:05}");
        seen.store.put(&key, vec![0; number % 7]);
    }
    seen.store.put("many/5/x", vec![0; 1]);
    let before = seen.store.state().lists;
    assert_eq!(
        seen.cluster.sh("ls remotes/cloud/many | wc -l").trim(),
        "10001"
    );
    assert_eq!(
        seen.cluster
            .sh("find remotes/cloud/many -size +0c -type f | wc -l")
            .trim(),
        "8572"
    );
    let lists = seen.store.state().lists - before;
    assert!(
        lists < 100,
        "asked {lists} times for two listings of 11 pages"
    );
    seen.store.put("run/once", noise(3));
    std::fs::write(seen.cluster.path("once"), noise(3)).unwrap();
    seen.cluster.sh("for i in 1 2 3 4; do cmp remotes/cloud/run/once ../once & p[i]=$!; done; for i in 1 2 3 4; do wait ${p[i]}; done");
    assert_eq!(seen.store.state().reads["run/once"], 3);
}

/// A store does not answer: its readers get an error after a while, all other operations continue.
fn gone_and_back(seen: &Seen) {
    seen.put("run/deep/b", b"bb");
    seen.store.state().silent = true;
    let asking: Vec<_> = (0..16)
        .map(|number| {
            let path = seen.cluster.at(&format!("remotes/cloud/asked-{number}"));
            std::thread::spawn(move || std::fs::read(path))
        })
        .collect();
    seen.cluster
        .sh("echo x > other; cat other remotes/dir/run/deep/b; rm other; ls remotes");
    for asked in asking {
        let error = asked.join().unwrap().unwrap_err();
        let errno = error
            .raw_os_error()
            .map(rustix::io::Errno::from_raw_os_error);
        assert_eq!(errno, Some(rustix::io::Errno::IO), "{error}");
    }
    let log = seen.cluster.log("mount.log");
    assert!(
        log.contains("remote cloud") && log.contains("no answer"),
        "{log}"
    );
    seen.store.state().silent = false;
    wait("the store is back", || {
        seen.cluster.try_sh("cat remotes/cloud/run/deep/b").out == "bb"
    });
}

fn wrong_keys(seen: &Seen) {
    let read = || seen.cluster.try_sh("cat remotes/cloud/run/deep/b");
    let denied = || {
        let printed = read();
        !printed.ok && printed.err.contains("Permission denied")
    };
    seen.keys("somebody");
    wait("wrong keys are refused", denied);
    std::fs::set_permissions(seen.keys_file(), Permissions::from_mode(0o644)).unwrap();
    wait("keys that others can read are refused", || {
        denied() && seen.cluster.log("mount.log").contains("chmod 600")
    });
    seen.keys("me");
    wait("the right keys are taken", || read().out == "bb");
    assert!(!seen.cluster.log("mount.log").contains(SECRET));
}

/// A directory of the cluster with this name takes precedence, and none of its files is lost; a remote that leads into the mount ends there.
fn directories_of_that_name(seen: &Seen) {
    let cluster = &seen.cluster;
    assert!(cluster.run(&["mkdir", "/remotes"]).ok);
    wait("the cluster's own directory exists", || {
        cluster.try_sh("echo mine > remotes/f").ok
    });
    assert_eq!(
        cluster.sh("ls remotes; cat remotes/f; ls"),
        "f\nmine\nkernels\nremotes\n"
    );
    cluster.sh("rm -r remotes");
    wait("remotes are seen again", || {
        cluster.at("remotes/dir").exists()
    });
    let uri = format!("file://{}", cluster.path("mnt").display());
    cluster.json(&["remote", "add", "circle", &uri]);
    wait("it is seen", || cluster.at("remotes/circle").exists());
    cluster.sh("echo x > f; test $(cat remotes/circle/f) = x");
    let printed = cluster.try_sh("ls remotes/circle/remotes/circle");
    assert!(!printed.ok, "{}", printed.out);
    cluster.json(&["remote", "delete", "circle"]);
    wait("it is deleted", || !cluster.at("remotes/circle").exists());
}
