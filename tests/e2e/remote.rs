//! Tests a cluster whose processes communicate as if each were on another host: TCP inside TLS, authenticated by the token file.

use crate::cluster::{Cluster, Options, Printed, printed, wait};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tidemill_client::objects::{ObjectAddress, Objects};
use tidemill_client::{Credential, Error, Trust};
use tidemill_model::id::{NodeId, ObjectId};

fn remote() -> Options {
    Options {
        remote: true,
        ..Options::default()
    }
}

/// Returns the address of a node without its scheme, which must be that of TLS.
fn node_address(cluster: &Cluster, index: usize) -> String {
    let status = cluster.json(&["status"]);
    let url = status["nodes"][index]["url"].as_str().unwrap();
    url.strip_prefix("https://").unwrap().to_owned()
}

/// Returns a port without a listener.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Runs `tidemill ls /` with other flags than the cluster's own.
fn list(server: &str, token_file: &Path) -> Printed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    command.args(["--server", server, "--token-file"]);
    command.arg(token_file).args(["ls", "/"]);
    printed(command.output().unwrap())
}

/// Forwards connections to `target` and records all bytes; returns its port.
fn wiretap(target: u16, heard: &Arc<Mutex<Vec<u8>>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = heard.clone();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else {
                continue;
            };
            for (mut from, mut to) in [
                (near.try_clone().unwrap(), far.try_clone().unwrap()),
                (far, near),
            ] {
                let heard = heard.clone();
                std::thread::spawn(move || {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        heard.lock().unwrap().extend_from_slice(&buffer[..count]);
                        if to.write_all(&buffer[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    port
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[test]
fn files_cross_network_unchanged_and_encrypted() {
    let target = free_port();
    let heard = Arc::default();
    let port = wiretap(target, &heard);
    let options = Options {
        nodes: 1,
        node_listen: format!("127.0.0.1:{target}"),
        node_args: vec!["--url".into(), format!("https://127.0.0.1:{port}")],
        ..remote()
    };
    let Some(cluster) = Cluster::with(options) else {
        return;
    };
    let line = b"the tide comes in twice a day\n";
    let text = line.repeat(100_000);
    let local = cluster.path("text");
    std::fs::write(&local, &text).unwrap();

    std::fs::write(cluster.at("by-mount"), &text).unwrap();
    assert!(cluster.run(&["put", local.to_str().unwrap(), "/by-put"]).ok);
    let copy = cluster.path("copy");
    assert!(
        cluster
            .run(&["get", "/by-mount", copy.to_str().unwrap()])
            .ok
    );
    assert_eq!(std::fs::read(&copy).unwrap(), text);
    assert_eq!(std::fs::read(cluster.at("by-put")).unwrap(), text);

    let heard = heard.lock().unwrap();
    assert!(heard.len() > 4 * text.len(), "{} bytes only", heard.len());
    assert!(!contains(&heard, line));
    assert!(!contains(&heard, b"x-tidemill-capability"));
}

#[test]
fn task_fetches_inputs_from_another_node() {
    let Some(cluster) = Cluster::with(remote()) else {
        return;
    };
    cluster.sh("mkdir w");
    for index in 0..2 {
        let local = cluster.path(&format!("in{index}"));
        std::fs::write(&local, format!("{index}").repeat(1_000_000)).unwrap();
        let (to, on) = (format!("/w/in{index}"), index.to_string());
        assert!(
            cluster
                .run(&["put", "--node", &on, local.to_str().unwrap(), &to])
                .ok
        );
    }
    let job = cluster.submit(
        r#"name = "fetch"; workdir = "/w"; tasks = ( { name = "count"; kernel = "/bin/sh";
           args = ["-c", "cat in0 in1 | wc -c"]; input = ["in0", "in1"]; output = ["n"]; stdout = "n"; } );"#,
    );
    let done = cluster.done(job);
    assert_eq!(cluster.sh("cat w/n").trim(), "2000000");
    assert_eq!(done["transferred_bytes"], 1_000_000, "{done:#}");
}

#[test]
fn tls_requires_identity_of_client_and_server() {
    let Some(cluster) = Cluster::with(remote()) else {
        return;
    };
    let address = cluster.address();
    assert!(list(&address, &cluster.token_file()).ok);
    let credential = std::fs::read_to_string(cluster.token_file()).unwrap();
    let file = cluster.path("other-token");

    let missing = list(&address, &file);
    assert!(
        !missing.ok && missing.err.contains("other-token"),
        "{}",
        missing.err
    );

    std::fs::write(&file, credential.replacen("token: ", "token: 0", 1)).unwrap();
    let wrong = list(&address, &file);
    assert!(
        !wrong.ok && wrong.err.contains("wrong one"),
        "{}",
        wrong.err
    );

    std::fs::write(&file, "0123456789abcdef").unwrap();
    let old = list(&address, &file);
    assert!(
        !old.ok && old.err.contains("tidemill credential 1"),
        "{}",
        old.err
    );

    // Another cluster's token file: the right token alone is not enough.
    let other = Cluster::with(Options {
        nodes: 0,
        mount: false,
        ..remote()
    })
    .unwrap();
    let theirs = list(&address, &other.token_file());
    assert!(
        !theirs.ok && theirs.err.contains("not signed by this cluster"),
        "{}",
        theirs.err
    );
    let mut mount = Command::new(env!("CARGO_BIN_EXE_tidemill"));
    mount.args(["--server", &address, "--token-file"]);
    mount.arg(other.token_file()).args(["mount", "--path"]);
    let refused = printed(mount.arg(cluster.path("mnt2")).output().unwrap());
    assert!(
        !refused.ok && refused.err.contains("not signed by this cluster"),
        "{}",
        refused.err
    );

    let node = list(
        &format!("https://{}", node_address(&cluster, 0)),
        &cluster.token_file(),
    );
    assert!(
        !node.ok && node.err.contains("check address and port"),
        "{}",
        node.err
    );

    let plain = list(&address.replace("https", "http"), &cluster.token_file());
    assert!(
        !plain.ok && plain.err.contains("write https://"),
        "{}",
        plain.err
    );
    assert!(list(&address, &cluster.token_file()).ok);
}

#[test]
fn ports_answer_nothing_without_tls() {
    let Some(cluster) = Cluster::with(Options {
        mount: false,
        ..remote()
    }) else {
        return;
    };
    let server = cluster.address();
    for address in [
        server.strip_prefix("https://").unwrap(),
        &node_address(&cluster, 0),
    ] {
        let mut raw = TcpStream::connect(address).unwrap();
        raw.write_all(b"GET /status HTTP/1.1\r\nhost: a\r\n\r\n")
            .unwrap();
        let mut printed = Vec::new();
        // The connection may be cut before the whole request was read.
        let _ = raw.read_to_end(&mut printed);
        assert!(
            printed.is_empty() || printed[0] == 21,
            "no TLS alert: {printed:?}"
        );
    }
    wait("it is reported in the log", || {
        cluster.log("node-0.log").contains("without TLS")
    });
}

#[test]
fn restarted_daemons_keep_their_identity() {
    let Some(mut cluster) = Cluster::with(remote()) else {
        return;
    };
    let text = "a".repeat(3_000_000);
    std::fs::write(cluster.at("kept"), &text).unwrap();
    let before = std::fs::read(cluster.token_file()).unwrap();
    let copy = cluster.path("copy");
    assert!(cluster.run(&["get", "/kept", copy.to_str().unwrap()]).ok);

    cluster.kill_server();
    cluster.start_server();
    assert_eq!(std::fs::read(cluster.token_file()).unwrap(), before);
    cluster.wait_for_nodes(2);
    for index in 0..2 {
        cluster.kill_node(index);
        cluster.start_node(index);
    }
    cluster.wait_for_nodes(2);
    // The mount works through all of these changes.
    assert_eq!(std::fs::read_to_string(cluster.at("kept")).unwrap(), text);
    std::fs::write(cluster.at("new"), &text).unwrap();
    assert!(cluster.run(&["get", "/new", copy.to_str().unwrap()]).ok);
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), text);
}

#[test]
fn node_started_before_server_is_known() {
    let port = free_port();
    let Some(mut cluster) = Cluster::with(Options {
        nodes: 1,
        mount: false,
        node_listen: format!("127.0.0.1:{port}"),
        ..remote()
    }) else {
        return;
    };
    let credential = Credential::read(&cluster.token_file()).unwrap();
    let trust = Trust::new(&credential.ca).unwrap();
    cluster.kill_server();
    cluster.kill_node(0);
    cluster.start_node(0);
    let object = ObjectAddress {
        node: NodeId(0),
        url: format!("https://127.0.0.1:{port}").into(),
        object: ObjectId(1),
        capability: vec![1],
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let objects = Objects::new(Some(&trust));
    wait("the node answers", || {
        let answer = runtime.block_on(objects.read(&object, 0, 1));
        matches!(answer, Err(Error::NodeRefused { status: 400, .. }))
    });
}

#[test]
fn token_and_ca_can_be_replaced() {
    let Some(mut cluster) = Cluster::with(remote()) else {
        return;
    };
    let local = cluster.path("local");
    std::fs::write(&local, "bytes").unwrap();
    assert!(cluster.run(&["put", local.to_str().unwrap(), "/kept"]).ok);
    let old = cluster.path("old-token");
    std::fs::copy(cluster.token_file(), &old).unwrap();

    cluster.kill_server();
    std::fs::remove_file(cluster.token_file()).unwrap();
    std::fs::remove_file(cluster.path("server/ca.pem")).unwrap();
    cluster.start_server();
    let refused = list(&cluster.address(), &old);
    assert!(
        !refused.ok && refused.err.contains("not signed by this cluster"),
        "{}",
        refused.err
    );
    wait("the node reports why it does not return", || {
        cluster
            .log("node-0.log")
            .contains("copy `token` from the server's directory again")
    });

    for index in 0..2 {
        cluster.kill_node(index);
        cluster.start_node(index);
    }
    cluster.wait_for_nodes(2);
    cluster.kill_mount();
    cluster.start_mount();
    assert_eq!(
        std::fs::read_to_string(cluster.at("kept")).unwrap(),
        "bytes"
    );
}

#[test]
fn tls_can_be_switched_off_with_warning() {
    let Some(cluster) = Cluster::with(Options {
        flags: ["--tls", "off"].map(String::from).into(),
        ..remote()
    }) else {
        return;
    };
    let address = cluster.address();
    assert!(address.starts_with("http://"), "{address}");
    std::fs::write(cluster.at("a"), "bytes").unwrap();
    let copy = cluster.path("copy");
    assert!(cluster.run(&["get", "/a", copy.to_str().unwrap()]).ok);
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), "bytes");
    assert!(cluster.log("server.log").contains("TLS IS OFF"));

    let secure = list(&address.replace("http", "https"), &cluster.token_file());
    assert!(
        !secure.ok && secure.err.contains("without TLS"),
        "{}",
        secure.err
    );
}
