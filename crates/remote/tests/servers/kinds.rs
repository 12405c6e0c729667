//! Starts of one server of each kind. A start returns `None` and prints a message if the server is not installed.

use super::{Able, Gate, Running, Server, installed, port, start, start_listening, wait};
use crate::require::{skip, tell};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Properties of a store that a server provides from a directory.
const ABLE: Able = Able {
    tells_all: false,
    name_bytes_max: 255,
    never_in_names: &[],
    directories: true,
    many: 250,
    large: 40 << 20,
};

/// Returns the description of a running server of a directory that has neither wrong keys nor visible files.
fn server(uri: String, keys: String, gate: Gate, running: Running, directory: TempDir) -> Server {
    Server {
        able: ABLE,
        gate,
        uri,
        keys,
        wrong: None,
        files: None,
        running,
        directory,
    }
}

/// Returns the output of a program; fails the test if the program fails.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn sshd() -> Option<PathBuf> {
    let paths = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].map(PathBuf::from);
    paths.into_iter().find(|path| path.exists())
}

/// Creates a pair of SSH keys at a path.
fn pair(path: &Path) {
    let make = ["-q", "-t", "ed25519", "-N", "", "-f"];
    printed(Command::new("ssh-keygen").args(make).arg(path));
}

fn user() -> String {
    printed(Command::new("id").arg("-un")).trim().to_owned()
}

/// Starts OpenSSH's server, as the user who runs the tests.
pub(crate) fn sftp() -> Option<Server> {
    let Some(program) = sshd() else {
        skip("no sshd: install openssh-server");
        return None;
    };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["host", "user", "other"] {
        pair(&at(name));
    }
    std::fs::copy(at("user.pub"), at("authorized")).unwrap();
    let listening = port();
    let settings = format!(
        "ListenAddress 127.0.0.1:{listening}\nHostKey {0}/host\nAuthorizedKeysFile {0}/authorized\n\
         PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n\
         PasswordAuthentication no\nMaxStartups 100\nSubsystem sftp internal-sftp\n",
        directory.path().display()
    );
    std::fs::write(at("settings"), settings).unwrap();
    // As root, sshd needs this directory, which Debian creates at the start of the system.
    let _ = std::fs::create_dir_all("/run/sshd");
    let command = &mut Command::new(program);
    command.args(["-D", "-e", "-f"]).arg(at("settings"));
    let running = start_listening(command, listening, &at("log"));
    let gate = Gate::before(listening);
    let public = std::fs::read_to_string(at("host.pub")).unwrap();
    let known = format!("[127.0.0.1]:{} {public}", gate.port());
    std::fs::write(at("known"), known).unwrap();
    let files = at("files");
    std::fs::create_dir(&files).unwrap();
    let lines = |identity: &str| {
        format!(
            "username = \"{}\"\nidentity = \"{}\"\nknown_hosts = \"{}\"\n",
            user(),
            at(identity).display(),
            at("known").display()
        )
    };
    let uri = format!("sftp://127.0.0.1:{}{}", gate.port(), files.display());
    Some(Server {
        wrong: Some(lines("other")),
        files: Some(files),
        ..server(uri, lines("user"), gate, running, directory)
    })
}

/// Starts a name node and a data node of Hadoop in one process. Returns the process and the ports of both protocols.
fn hadoop(directory: &Path) -> Option<(Running, [u16; 2])> {
    let jars = installed("Hadoop", "hadoop/jars")?;
    let (names, web) = (port(), port());
    let command = &mut Command::new("java");
    command
        .current_dir(directory)
        .args(["-Xmx512m", "-cp"])
        .arg(jars.join("*"))
        .arg("org.apache.hadoop.test.MiniDFSClusterManager")
        .args(["-format", "-datanodes", "1", "-writeDetails", "up"])
        .args(["-nnport", &names.to_string(), "-httpport", &web.to_string()])
        .args(["-D", "dfs.ls.limit=100"]);
    let (log, up) = (directory.join("log"), directory.join("up"));
    let running = start(command, &log);
    wait("Hadoop is up", &log, || up.exists());
    printed(Command::new("curl").args(["-sf", "-X", "PUT"]).arg(format!(
        "http://127.0.0.1:{web}/webhdfs/v1/data/run?op=MKDIRS&permission=755&user.name={}",
        user()
    )));
    Some((running, [names, web]))
}

fn of_hadoop(web: bool) -> Option<Server> {
    let directory = tempfile::tempdir().unwrap();
    let (running, ports) = hadoop(directory.path())?;
    let gate = Gate::before(ports[usize::from(web)]);
    let scheme = if web { "webhdfs" } else { "hdfs" };
    let uri = format!("{scheme}://127.0.0.1:{}/data/run", gate.port());
    let keys = format!("username = \"{}\"\n", user());
    Some(Server {
        able: Able {
            tells_all: true,
            ..ABLE
        },
        ..server(uri, keys, gate, running, directory)
    })
}

pub(crate) fn webhdfs() -> Option<Server> {
    of_hadoop(true)
}

pub(crate) fn hdfs() -> Option<Server> {
    of_hadoop(false)
}

/// Public test key of Azurite.
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Program that creates a container in Azurite, which OpenDAL does not do.
const MAKE_CONTAINER: &str = r#"
import base64, datetime, hashlib, hmac, sys, urllib.request
port, key = sys.argv[1], base64.b64decode(sys.argv[2])
date = datetime.datetime.utcnow().strftime("%a, %d %b %Y %H:%M:%S GMT")
to_sign = "PUT" + 12 * "\n" + f"x-ms-date:{date}\nx-ms-version:2021-08-06\n/devstoreaccount1/devstoreaccount1/data\nrestype:container"
signature = base64.b64encode(hmac.new(key, to_sign.encode(), hashlib.sha256).digest()).decode()
headers = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Authorization": f"SharedKey devstoreaccount1:{signature}"}
url = f"http://127.0.0.1:{port}/devstoreaccount1/data?restype=container"
urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))
"#;

/// Starts Azurite, Microsoft's emulator of Azure Blob Storage.
pub(crate) fn azblob() -> Option<Server> {
    let program = installed("Azurite", "npm/node_modules/.bin/azurite-blob")?;
    let directory = tempfile::tempdir().unwrap();
    let (listening, log) = (port(), directory.path().join("log"));
    let command = &mut Command::new(program);
    command
        .args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"])
        .args(["--blobHost", "127.0.0.1", "--blobPort"])
        .args([&listening.to_string(), "--location"])
        .arg(directory.path().join("data"));
    let running = start_listening(command, listening, &log);
    let make = ["-c", MAKE_CONTAINER, &listening.to_string(), AZURITE_KEY];
    printed(Command::new("python3").args(make));
    let gate = Gate::before(listening);
    let lines =
        |key: &str| format!("account_name = \"devstoreaccount1\"\naccount_key = \"{key}\"\n");
    let uri = format!(
        "azblob://data/run?endpoint=http://127.0.0.1:{}/devstoreaccount1",
        gate.port()
    );
    Some(Server {
        able: Able {
            tells_all: true,
            directories: false,
            many: 5100,
            ..ABLE
        },
        wrong: Some(lines("aHVzaC1odXNo")),
        ..server(uri, lines(AZURITE_KEY), gate, running, directory)
    })
}

/// Starts an emulator of Google Cloud Storage, which has no keys.
pub(crate) fn gcs() -> Option<Server> {
    let program = installed("fake-gcs-server", "bin/fake-gcs-server")?;
    let directory = tempfile::tempdir().unwrap();
    let (listening, log) = (port(), directory.path().join("log"));
    let gate = Gate::before(listening);
    let outside = format!("http://127.0.0.1:{}", gate.port());
    let command = &mut Command::new(program);
    command
        .args([
            "-scheme",
            "http",
            "-host",
            "127.0.0.1",
            "-backend",
            "memory",
        ])
        .args(["-public-host", "127.0.0.1", "-external-url", &outside])
        .args(["-port", &listening.to_string(), "-log-level", "warn"]);
    let running = start_listening(command, listening, &log);
    printed(
        Command::new("curl")
            .args(["-sf", "-H", "content-type: application/json"])
            .args(["-d", "{\"name\":\"data\"}"])
            .arg(format!(
                "http://127.0.0.1:{listening}/storage/v1/b?project=p"
            )),
    );
    let uri = format!("gs://data/run?endpoint={outside}");
    Some(Server {
        able: Able {
            tells_all: true,
            directories: false,
            many: 1100,
            ..ABLE
        },
        ..server(uri, String::new(), gate, running, directory)
    })
}

/// Returns the description of a WebDAV server that listens on a port and has one user.
fn of_webdav(listening: u16, running: Running, files: PathBuf, directory: TempDir) -> Server {
    let gate = Gate::before(listening);
    let lines = |password: &str| format!("username = \"me\"\npassword = \"{password}\"\n");
    let uri = format!("webdav://127.0.0.1:{}/", gate.port());
    Server {
        wrong: Some(lines("hush-hush")),
        files: Some(files),
        ..server(uri, lines("good-good"), gate, running, directory)
    }
}

/// Starts a WebDAV server written in Python.
pub(crate) fn webdav() -> Option<Server> {
    let program = installed("wsgidav", "venv/bin/wsgidav")?;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let files = at("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::set_permissions(&files, PermissionsExt::from_mode(0o755)).unwrap();
    let listening = port();
    let settings = format!(
        "host: 127.0.0.1\nport: {listening}\nprovider_mapping:\n  /: {}\n\
         http_authenticator:\n  accept_basic: true\n  accept_digest: false\n  default_to_digest: false\n\
         simple_dc:\n  user_mapping:\n    '*':\n      me:\n        password: good-good\n",
        files.display()
    );
    std::fs::write(at("settings.yaml"), settings).unwrap();
    let command = &mut Command::new(program);
    command.arg("-c").arg(at("settings.yaml"));
    let running = start_listening(command, listening, &at("log"));
    Some(Server {
        able: Able {
            never_in_names: &[';', '#', '?'],
            ..ABLE
        },
        ..of_webdav(listening, running, files, directory)
    })
}

/// Starts Apache's WebDAV server, which has one user.
pub(crate) fn apache() -> Option<Server> {
    let program = Path::new("/usr/sbin/apache2");
    let root = rustix::process::geteuid().is_root();
    if !program.exists() || !root {
        tell("no apache2, or not root: install apache2-bin");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let files = at("files");
    for path in [&files, &at("locks")] {
        std::fs::create_dir(path).unwrap();
        printed(Command::new("chown").arg("www-data").arg(path));
    }
    // This is the output of `htpasswd` for good-good.
    let hash = printed(Command::new("openssl").args(["passwd", "-apr1", "good-good"]));
    std::fs::write(at("users"), format!("me:{hash}")).unwrap();
    let (listening, modules) = (port(), "/usr/lib/apache2/modules");
    let load = [
        "mpm_event",
        "authn_core",
        "authn_file",
        "authz_core",
        "authz_user",
        "auth_basic",
        "dav",
        "dav_fs",
    ];
    let load = load.map(|name| format!("LoadModule {name}_module {modules}/mod_{name}.so\n"));
    let settings = format!(
        "{}ServerName 127.0.0.1\nListen 127.0.0.1:{listening}\nUser www-data\nGroup www-data\n\
         PidFile {1}/pid\nErrorLog {1}/errors\nDocumentRoot {1}/files\nDAVLockDB {1}/locks/db\n\
         <Directory {1}/files>\nDav On\nAuthType Basic\nAuthName x\nAuthUserFile {1}/users\n\
         Require valid-user\nAllowOverride None\n</Directory>\n",
        load.concat(),
        directory.path().display()
    );
    std::fs::write(at("settings"), settings).unwrap();
    let command = &mut Command::new(program);
    command.args(["-D", "FOREGROUND", "-f"]).arg(at("settings"));
    let running = start_listening(command, listening, &at("log"));
    Some(of_webdav(listening, running, files, directory))
}
