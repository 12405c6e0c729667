//! The namespace over its Unix socket on this host without gRPC, and attacks by invalid peers.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cluster::{Running, file_op, root};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tidemill_client::local::LocalError;
use tidemill_client::{Endpoint, Error, LocalNames};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tidemill_wire::{MESSAGE_BYTES_MAX, local};

/// Number of connections to the socket that a server serves at once.
const CONNECTIONS_MAX: usize = 256;

fn request(ops: Vec<Op>) -> v1::NameRequest {
    v1::NameRequest {
        credentials: Some(root()),
        ops: ops
            .into_iter()
            .map(|op| v1::NameOp { op: Some(op) })
            .collect(),
        session: 0,
        durable: false,
    }
}

fn lookup(name: &str) -> Op {
    Op::Lookup(v1::Lookup {
        parent: 1,
        name: name.as_bytes().to_vec(),
    })
}

/// Client of the namespace's socket that sends requests as a mount does.
struct Local(LocalNames);

impl Local {
    fn apply(&self, request: &v1::NameRequest) -> Result<Vec<Answer>, LocalError> {
        self.0
            .apply(request, Instant::now() + Duration::from_secs(60))
    }
}

fn names(running: &Running) -> Local {
    Local(LocalNames::new(&Endpoint::Unix(running.server().socket().into())).unwrap())
}

fn greeted(dir: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(dir.join("names.sock")).unwrap();
    local::send_bytes(&mut stream, &[], &local::greeting()).unwrap();
    let answer = local::receive(&mut stream).unwrap().unwrap();
    assert_eq!(answer[0], local::OK);
    stream
}

/// Whether the server has closed the connection.
fn ended(stream: &mut UnixStream) -> bool {
    matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_))
}

#[tokio::test(flavor = "multi_thread")]
async fn local_socket_and_network_requests_share_one_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let names = names(&running);
    let made = names
        .apply(&request(vec![
            file_op("a"),
            lookup("a"),
            lookup("none"),
            lookup("a"),
        ]))
        .unwrap();
    // The third operation fails and ends the request.
    assert_eq!(made.len(), 3);
    assert!(matches!(&made[1], Answer::Entry(_)), "{made:?}");
    assert!(matches!(&made[2], Answer::Error(error) if error.errno == 2));
    client.one(&root(), lookup("a")).await.unwrap();
    client.one(&root(), file_op("b")).await.unwrap();
    assert_eq!(names.apply(&request(vec![lookup("b")])).unwrap().len(), 1);
    let too_many = names.apply(&request(vec![lookup("a"); 10_001]));
    assert!(matches!(
        too_many,
        Err(LocalError::Refused(Error::Refused(_)))
    ));
    // Answered changes exist after a crash, and a connection from before the crash is not used again.
    running.crash().await;
    assert!(matches!(
        names.apply(&request(vec![lookup("a")])),
        Err(LocalError::Absent(_))
    ));
    let running = Running::start(dir.path()).await;
    let found = names.apply(&request(vec![lookup("a")])).unwrap();
    assert!(matches!(&found[0], Answer::Entry(_)));
    running.stop().await;
    assert!(!dir.path().join("names.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_local_and_network_requests_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let shared = std::sync::Arc::new(names(&running));
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let names = shared.clone();
            std::thread::spawn(move || {
                for file in 0..50 {
                    let made = names.apply(&request(vec![file_op(&format!("{thread}-{file}"))]));
                    assert!(matches!(made.unwrap()[0], Answer::Entry(_)));
                }
            })
        })
        .collect();
    for file in 0..50 {
        let op = file_op(&format!("grpc-{file}"));
        client.one(&root(), op).await.unwrap();
    }
    for thread in threads {
        tokio::task::spawn_blocking(|| thread.join().unwrap())
            .await
            .unwrap();
    }
    let op = Op::ReadDir(v1::ReadDir {
        ino: 1,
        after: Vec::new(),
        limit: 10_000,
    });
    let Answer::Entries(all) = client.one(&root(), op).await.unwrap() else {
        panic!("no listing")
    };
    let files = all.entries.iter().filter(|entry| entry.name != b"kernels");
    assert_eq!(files.count(), 9 * 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_message_on_local_socket_ends_only_its_connection() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let names = names(&running);
    names.apply(&request(vec![file_op("a")])).unwrap();
    let socket = dir.path().join("names.sock");

    // The peer sends another protocol in place of a greeting.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"\x04\0\0\0GET ").unwrap();
    assert!(ended(&mut stream));
    // The peer sends half a request, then the end.
    let mut stream = greeted(dir.path());
    let mut frame = Vec::new();
    local::send(&mut frame, &[], &request(vec![file_op("half")])).unwrap();
    stream.write_all(&frame[..frame.len() / 2]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(ended(&mut stream));
    // The peer sends bytes that are no request.
    let mut stream = greeted(dir.path());
    local::send_bytes(&mut stream, &[], &[0xff; 100]).unwrap();
    assert!(ended(&mut stream));
    // The peer sends a length that no message may have.
    let mut stream = greeted(dir.path());
    let length = u32::try_from(MESSAGE_BYTES_MAX + 1).unwrap();
    stream.write_all(&length.to_le_bytes()).unwrap();
    assert!(ended(&mut stream));

    let found = names
        .apply(&request(vec![lookup("a"), lookup("half")]))
        .unwrap();
    assert!(matches!(&found[0], Answer::Entry(_)));
    assert!(matches!(&found[1], Answer::Error(error) if error.errno == 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn local_socket_refuses_greeting_of_other_version() {
    let dir = tempfile::tempdir().unwrap();
    let _running = Running::start(dir.path()).await;
    let mut stream = UnixStream::connect(dir.path().join("names.sock")).unwrap();
    let mut greeting = local::greeting();
    greeting[4] ^= 0x40;
    local::send_bytes(&mut stream, &[], &greeting).unwrap();
    let answer = local::receive(&mut stream).unwrap().unwrap();
    assert_eq!(answer[0], local::WRONG_VERSION);
    assert!(ended(&mut stream));
}

#[tokio::test(flavor = "multi_thread")]
async fn local_socket_refuses_connections_over_limit_until_one_ends() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let mut held: Vec<_> = (0..CONNECTIONS_MAX).map(|_| greeted(dir.path())).collect();
    let names = names(&running);
    assert!(matches!(
        names.apply(&request(vec![lookup("a")])),
        Err(LocalError::Absent(_))
    ));
    held.pop();
    // The server notices the end a moment later.
    while names.apply(&request(vec![lookup("a")])).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
