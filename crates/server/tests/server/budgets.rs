//! Calls of the protocol with requests that are as large, or have as many items, as a user can send: each call ends with an error or a
//! bounded answer. The tests read the calls from the definition of the protocol, so a new call is tested without a change here.
#![allow(clippy::unwrap_used, reason = "tests")]

use crate::cluster::Running;
use futures_util::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidemill_client::Credential;
use tidemill_wire::descriptors::{self, Field, FieldKind};
use tidemill_wire::v1;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Number of items that is larger than any request may have.
const FLOOD: usize = 250_000;
/// Length of one long string in bytes.
const LONG: usize = 1 << 20;
/// Maximum number of bytes of an answer.
const ANSWER_MAX: usize = 24 << 20;
/// Maximum depth of nested messages.
const DEPTH_MAX: usize = 3;
const PATIENCE: Duration = Duration::from_secs(300);

/// gRPC codec that sends messages as raw bytes.
#[derive(Clone, Copy, Debug)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = usize;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(buffer, &item);
        Ok(())
    }
}

/// Returns the length of the received answer.
impl Decoder for Raw {
    type Item = usize;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<usize>, Status> {
        let length = bytes::Buf::remaining(buffer);
        bytes::Buf::advance(buffer, length);
        Ok(Some(length))
    }
}

fn varint(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    into.push(u8::try_from(value).unwrap());
}

fn delimited(field: Field, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len() + 16);
    varint(u64::from(field.number) << 3 | 2, &mut bytes);
    varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// Returns encoded requests with these fields; each request asks for too much in some way.
fn hostile(fields: &[Field], depth: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for &field in fields {
        match field.kind {
            FieldKind::Message(of) => {
                all.push(delimited(field, &[]).repeat(FLOOD));
                if depth < DEPTH_MAX {
                    let inner = hostile(descriptors::fields_at(of), depth + 1);
                    all.extend(inner.iter().map(|inner| delimited(field, inner)));
                }
            }
            FieldKind::Bytes => {
                all.push(delimited(field, &[]).repeat(FLOOD));
                all.push(delimited(field, &b"/a/.."[..].repeat(LONG / 6)));
            }
            FieldKind::Number => {
                let mut one = Vec::new();
                varint(u64::from(field.number) << 3, &mut one);
                one.push(1);
                all.push(one.repeat(FLOOD));
            }
            FieldKind::Numbers => all.push(delimited(field, &vec![1; FLOOD])),
        }
    }
    all
}

/// Sends a request to a call. Returns the total number of bytes of all answers.
async fn ask(
    channel: Channel,
    credential: &Credential,
    path: &'static str,
    message: Vec<u8>,
) -> Result<usize, Status> {
    let mut grpc = tonic::client::Grpc::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    grpc.ready().await.unwrap();
    let mut request = tonic::Request::new(message);
    let token = format!("Bearer {}", credential.token).parse().unwrap();
    request.metadata_mut().insert("authorization", token);
    let path = PathAndQuery::from_static(path);
    let mut answers = grpc
        .server_streaming(request, path, Raw)
        .await?
        .into_inner();
    let mut bytes = 0;
    while let Some(length) = answers.message().await? {
        bytes += length;
    }
    Ok(bytes)
}

/// Creates a token for a user. Returns a connection to the server and the token.
async fn user(running: &Running) -> (Channel, Credential) {
    let administrator = running.client().await;
    let request = v1::CreateTokenRequest {
        uid: Some(61_007),
        ..v1::CreateTokenRequest::default()
    };
    let made = administrator.tokens().create(request).await.unwrap();
    let credential = Credential::parse(&made.into_inner().credential).unwrap();
    let address = format!("http://{}", running.server().address());
    let endpoint = Endpoint::from_shared(address).unwrap();
    (endpoint.connect().await.unwrap(), credential)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_grpc_call_ends_oversized_requests_of_user() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let administrator = running.client().await;
    let (channel, credential) = user(&running).await;
    let mut asked = 0;
    for call in descriptors::methods() {
        let fields = descriptors::fields(call.request).unwrap();
        let mut messages = hostile(fields, 0);
        messages.push(Vec::new());
        asked += messages.len();
        let answers = stream::iter(messages).map(|message| {
            let asked = ask(channel.clone(), &credential, call.path, message);
            tokio::time::timeout(PATIENCE, asked)
        });
        let answers: Vec<_> = answers.buffer_unordered(8).collect().await;
        for answer in answers {
            match answer.unwrap_or_else(|_| panic!("{} does not end", call.path)) {
                Ok(bytes) => assert!(bytes <= ANSWER_MAX, "{}: {bytes} bytes", call.path),
                Err(status) => {
                    let broken = [Code::Unknown, Code::DataLoss].contains(&status.code());
                    assert!(!broken, "{}: {status}", call.path);
                }
            }
        }
    }
    assert!(asked > 200, "{asked}");
    administrator.status().await.unwrap();
}

/// Generator of random requests. The same seed always generates the same requests.
struct Draw(StdRng);

/// Paths, patterns, settings and scripts that calls understand, and malformed texts.
const TEXTS: [&[u8]; 34] = [
    b"", b"/", b"a", b"/a", b"/a/b", b"/d/f", b"..", b"/../..", b"/a//b/.", b"*", b"/d/*.nc", b"[a-", b"\0", b"\xff\xfe", b"-1", b"0",
    b"18446744073709551616", b"1e309", b"NaN", b"user.tidemill.replicas", b"user.tidemill.rule", b"trusted.x", b"2,now", b"root", b"file:///",
    b"s3://bucket/key", b"http://127.0.0.1:1/", b"\xe2\x80\xae", b"name = \"j\"; tasks = ();", b"{\"a\":[1]}", b"size > 5",
    b"name = \"j\"; workdir = \"/\"; tasks = ( { name = \"t\"; kernel = \"cat\"; input = [ \"/d/f\" ]; output = [ \"o\" ]; } );",
    b"time=1990-01..1999-12", b"\x08\x01\x12\x00",
];

const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    3,
    7,
    64,
    4096,
    1 << 31,
    u32::MAX as u64,
    1 << 62,
    1 << 63,
    u64::MAX,
];

impl Draw {
    fn number(&mut self) -> u64 {
        match self.0.random_range(0..4) {
            0 => self.0.random(),
            1 => self.0.random_range(0..1000),
            _ => NUMBERS[self.0.random_range(0..NUMBERS.len())],
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = TEXTS[self.0.random_range(0..TEXTS.len())].to_vec();
        match self.0.random_range(0..8) {
            0 => bytes = bytes.repeat(self.0.random_range(0..300)),
            1 => bytes.extend(self.number().to_le_bytes()),
            2 if !bytes.is_empty() => {
                let at = self.0.random_range(0..bytes.len());
                bytes[at] = self.0.random();
            }
            _ => {}
        }
        bytes
    }

    /// Encodes a message with a random choice of these fields, in any order; fields may repeat.
    fn message(&mut self, fields: &[Field], depth: usize) -> Vec<u8> {
        let mut message = Vec::new();
        if fields.is_empty() {
            return message;
        }
        for _ in 0..self.0.random_range(0..=(fields.len() + 1).min(8)) {
            let field = fields[self.0.random_range(0..fields.len())];
            let content = match field.kind {
                FieldKind::Number => {
                    varint(u64::from(field.number) << 3, &mut message);
                    varint(self.number(), &mut message);
                    continue;
                }
                FieldKind::Message(of) if depth < 2 * DEPTH_MAX => {
                    self.message(descriptors::fields_at(of), depth + 1)
                }
                FieldKind::Message(_) => Vec::new(),
                FieldKind::Bytes => self.bytes(),
                FieldKind::Numbers => {
                    let mut numbers = Vec::new();
                    for _ in 0..self.0.random_range(0..5) {
                        varint(self.number(), &mut numbers);
                    }
                    numbers
                }
            };
            message.extend(delimited(field, &content));
        }
        // Some messages are truncated or have a byte changed.
        if depth == 0 && !message.is_empty() && self.0.random_ratio(1, 16) {
            let at = self.0.random_range(0..message.len());
            match self.0.random() {
                true => message.truncate(at),
                false => message[at] = self.0.random(),
            }
        }
        message
    }
}

/// Sends random requests with the fields of each call, as a user and as an administrator: the server never panics and answers afterwards.
/// `TIDEMILL_TEST_CASES` sets the number of requests for each call, and `TIDEMILL_TEST_SEED` sets the seed.
#[tokio::test(flavor = "multi_thread")]
async fn server_answers_after_random_requests_of_every_grpc_call() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let cases = variable("TIDEMILL_TEST_CASES").unwrap_or(60);
    let mut draw = Draw(StdRng::seed_from_u64(
        variable("TIDEMILL_TEST_SEED").unwrap_or(1),
    ));
    let panics = Arc::new(Mutex::new(Vec::new()));
    let (seen, before) = (panics.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        seen.lock().unwrap().push(panic.to_string());
        before(panic);
    }));
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let _node = running.node(0).await;
    let administrator = running.client().await;
    let (channel, credential) = user(&running).await;
    let own = Credential::read(running.server().token_file()).unwrap();
    for round in 0..cases {
        let calls = descriptors::methods().iter().map(|call| {
            let fields = descriptors::fields(call.request).unwrap();
            let who = if round % 4 == 0 { &own } else { &credential };
            let asked = ask(channel.clone(), who, call.path, draw.message(fields, 0));
            // The caller cancels calls that wait.
            tokio::time::timeout(Duration::from_millis(200), asked)
        });
        let calls: Vec<_> = calls.collect();
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(64).collect().await;
        for bytes in answers.into_iter().flatten().flatten() {
            assert!(bytes <= ANSWER_MAX, "{bytes} bytes");
        }
        let panics = panics.lock().unwrap();
        assert!(panics.is_empty(), "in round {round}: {panics:?}");
    }
    let answered = tokio::time::timeout(PATIENCE, administrator.status()).await;
    answered.unwrap().unwrap();
}
