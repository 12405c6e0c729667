//! A connection to the server that loses answers: the server executes the request, and its answer does not arrive at the mount.

use super::MountCluster;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tempfile::TempDir;
use tidemill_client::Endpoint;
use tidemill_wire::local;

/// Sockets that stand in front of the server's sockets and can lose answers.
pub struct Lossy {
    directory: TempDir,
    /// Number of answers that pass before an answer is lost; below 0: no answer is lost.
    lose: Arc<AtomicI64>,
}

impl Lossy {
    /// Creates the sockets. With `local` namespace requests use a separate socket; otherwise all requests use gRPC.
    pub fn new(cluster: &MountCluster, local: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let lose = Arc::new(AtomicI64::new(-1));
        let real = cluster.directory().join("server");
        let lossy = Self { directory, lose };
        let control = if local { never } else { any };
        lossy.stand_for(&real, "server.sock", control);
        if local {
            lossy.stand_for(&real, "names.sock", any);
        }
        lossy
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.directory.path().join("server.sock"))
    }

    /// Loses an answer, and its connection, after `others` other answers.
    pub fn lose_after(&self, others: i64) {
        self.lose.store(others, Ordering::Release);
    }

    /// Whether an answer was lost since the last [`Self::lose_after`].
    pub fn lost(&self) -> bool {
        self.lose.load(Ordering::Acquire) < 0
    }

    fn stand_for(&self, real: &Path, name: &str, may: fn(&AtomicI64) -> bool) {
        let listener = UnixListener::bind(self.directory.path().join(name)).unwrap();
        let real = real.join(name);
        let lose = self.lose.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = UnixStream::connect(&real) else {
                    continue;
                };
                let (asked, asks) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || pass(asks, asked));
                let lose = lose.clone();
                std::thread::spawn(move || answer(server, client, &lose, may));
            }
        });
    }
}

fn any(lose: &AtomicI64) -> bool {
    lose.fetch_sub(1, Ordering::AcqRel) == 0
}

fn never(_: &AtomicI64) -> bool {
    false
}

/// Passes requests on to the server, until either side ends.
fn pass(mut from: UnixStream, mut to: UnixStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// Passes answers on to the mount, except the answer to lose.
fn answer(mut from: UnixStream, mut to: UnixStream, lose: &AtomicI64, may: fn(&AtomicI64) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        // A greeting is no answer.
        let greeting = buffer[..count].ends_with(&local::greeting());
        if (!greeting && may(lose)) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
