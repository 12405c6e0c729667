//! Every call of the protocol with requests that are as large, or have as many elements, as a user can send: each ends,
//! with an error or a bounded answer. Calls come from the definition of the protocol, so a new call is tested by itself.
#![allow(clippy::unwrap_used, reason = "tests")]

mod array;

use array::Running;
use futures_util::{StreamExt, stream};
use std::time::Duration;
use tidemill_client::Credential;
use tidemill_wire::shape::{self, Field, Kind};
use tidemill_wire::v1;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// More elements than any request may have.
const FLOOD: usize = 250_000;
/// Bytes of one long string.
const LONG: usize = 1 << 20;
/// Bytes of an answer that are still bounded.
const ANSWER_MAX: usize = 24 << 20;
/// Messages within each other.
const DEPTH_MAX: usize = 3;
const PATIENCE: Duration = Duration::from_secs(300);

/// Messages as their bytes.
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

/// Tells how long the answer is.
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

/// Requests with these fields that ask for too much in some way.
fn hostile(fields: &[Field], depth: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for &field in fields {
        match field.kind {
            Kind::Message(of) => {
                all.push(delimited(field, &[]).repeat(FLOOD));
                if depth < DEPTH_MAX {
                    let inner = hostile(shape::fields_at(of), depth + 1);
                    all.extend(inner.iter().map(|inner| delimited(field, inner)));
                }
            }
            Kind::Bytes => {
                all.push(delimited(field, &[]).repeat(FLOOD));
                all.push(delimited(field, &b"/a/.."[..].repeat(LONG / 6)));
            }
            Kind::Number => {
                let mut one = Vec::new();
                varint(u64::from(field.number) << 3, &mut one);
                one.push(1);
                all.push(one.repeat(FLOOD));
            }
            Kind::Numbers => all.push(delimited(field, &vec![1; FLOOD])),
        }
    }
    all
}

/// Asks, and gives the bytes of all answers.
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

#[tokio::test(flavor = "multi_thread")]
async fn every_call_ends_hostile_requests_of_a_user() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let operator = running.client().await;
    let request = v1::CreateTokenRequest {
        uid: Some(61_007),
        ..v1::CreateTokenRequest::default()
    };
    let made = operator.tokens().create(request).await.unwrap();
    let credential = Credential::parse(&made.into_inner().credential).unwrap();
    let address = format!("http://{}", running.server().address());
    let endpoint = Endpoint::from_shared(address).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let mut asked = 0;
    for call in shape::methods() {
        let fields = shape::fields(call.request).unwrap();
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
    operator.status().await.unwrap();
}
