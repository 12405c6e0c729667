//! A server in a temporary folder and elements that only speak the protocol.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::Path;
use tidemill_client::{Endpoint, Server as Client};
use tidemill_server::{Config, Server};
use tidemill_wire::v1::{self, from_element::Message as From, name_op::Op, to_element::Message as To};
use tokio::sync::mpsc;
use tonic::Streaming;

/// A running server.
pub struct Running {
    server: Server,
}

/// Root, who needs no checks.
pub fn root() -> v1::Credentials {
    v1::Credentials { uid: 0, gid: 0, groups: Vec::new(), checked: true }
}

/// An ordinary user whose permissions the server must check.
pub fn user(uid: u32) -> v1::Credentials {
    v1::Credentials { uid, gid: uid, groups: Vec::new(), checked: false }
}

/// Makes an empty file in the root directory.
pub fn file_op(name: &str) -> Op {
    Op::Create(v1::Create {
        parent: 1,
        name: name.as_bytes().to_vec(),
        kind: v1::Kind::File.into(),
        mode: 0o644,
        ..v1::Create::default()
    })
}

impl Running {
    pub async fn start(dir: &Path) -> Self {
        Self::start_with(Config { element_timeout: std::time::Duration::from_millis(300), ..Config::new(dir) }).await
    }

    pub async fn start_with(config: Config) -> Self {
        Self { server: Server::start(config).await.unwrap() }
    }

    pub fn server(&self) -> &Server {
        &self.server
    }

    pub async fn client(&self) -> Client {
        Client::connect(&Endpoint::Unix(self.server.socket().into()), None).await.unwrap()
    }

    /// Ends without any of the goodbyes of a shutdown.
    pub async fn crash(self) {
        drop(self.server);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }

    pub async fn stop(self) {
        self.server.shutdown().await;
    }

    /// A new storage element that knows no labels.
    pub async fn element(&self, id: u32) -> FakeElement {
        FakeElement::attach(&self.client().await, id, Vec::new()).await
    }
}

/// An element that does what the test says.
pub struct FakeElement {
    pub id: u32,
    pub out: mpsc::Sender<v1::FromElement>,
    pub stream: Streaming<v1::ToElement>,
}

/// The status of an idle element with much room.
pub fn status(id: u32) -> v1::Element {
    v1::Element {
        element: id,
        role: "store".into(),
        url: format!("http://127.0.0.1:{}", 40_000 + id),
        host: "test".into(),
        folder: format!("/none/{id}"),
        cores: 2,
        capacity_bytes: 1 << 40,
        free_bytes: 1 << 39,
        ..v1::Element::default()
    }
}

impl FakeElement {
    pub async fn attach(client: &Client, id: u32, labels: Vec<u64>) -> Self {
        let (out, receiver) = mpsc::channel(10_000);
        let hello = v1::Hello {
            version: tidemill_wire::PROTOCOL_VERSION,
            element: Some(status(id)),
            array_id: 0,
            labels,
            free_space_epoch: 0,
        };
        out.send(v1::FromElement { message: Some(From::Hello(hello)) }).await.unwrap();
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut stream = client.array().attach(stream).await.unwrap().into_inner();
        let first = stream.message().await.unwrap().unwrap().message;
        assert!(matches!(first, Some(To::Welcome(_))), "{first:?}");
        Self { id, out, stream }
    }

    /// The next message that is not about other elements.
    pub async fn next(&mut self) -> To {
        loop {
            match self.stream.message().await.unwrap().expect("the server ended the stream").message {
                Some(To::Peers(_)) => {}
                Some(message) => return message,
                None => panic!("an empty message"),
            }
        }
    }

    pub async fn send(&self, message: From) {
        self.out.send(v1::FromElement { message: Some(message) }).await.unwrap();
    }
}
