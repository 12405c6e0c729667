//! Tests of lost connections: all failures that the server's own handler did not report.
#![allow(clippy::unwrap_used, reason = "tests")]

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use hyper::http::{HeaderMap, Response};
use prost::Message;
use std::time::Duration;
use tidemill_client::{Endpoint, Error, Server};
use tidemill_wire::{PROTOCOL_VERSION, v1};
use tokio::net::{UnixListener, UnixStream};

/// Behaviour of a server in the second call on a connection.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// The server's process is killed before it sends a byte.
    Dies,
    /// The server's process is killed after it has sent headers.
    DiesAfterHeaders,
    /// The server's process is killed in the middle of the answer.
    DiesInAnswer,
    /// The server's process is killed after the answer, before it sends the success trailers.
    DiesBeforeTrailers,
    /// The server resets the stream.
    Resets(Reason),
    /// The server closes the connection in an orderly way before the call has begun.
    GoesAway,
    /// The server ends the stream without an answer.
    SaysNothing,
    /// The server refuses the call itself.
    Refuses(tonic::Code),
}

fn frame(message: &impl Message) -> Bytes {
    let body = message.encode_to_vec();
    let length = u32::try_from(body.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), &body].concat().into()
}

fn head() -> Response<()> {
    let head = Response::builder().header("content-type", "application/grpc");
    head.body(()).unwrap()
}

fn well() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", 0.into());
    trailers
}

fn answer(mut respond: SendResponse<Bytes>) {
    let status = v1::StatusReply {
        version: PROTOCOL_VERSION,
        ..v1::StatusReply::default()
    };
    let mut body = respond.send_response(head(), false).unwrap();
    body.send_data(frame(&status), false).unwrap();
    body.send_trailers(well()).unwrap();
}

/// Misbehaves in a call as `does` says. Returns whether the connection is kept.
fn misbehave(mut respond: SendResponse<Bytes>, does: Does) -> bool {
    match does {
        Does::Dies | Does::GoesAway => return false,
        Does::DiesAfterHeaders => {
            respond.send_response(head(), false).unwrap();
            return false;
        }
        Does::DiesInAnswer => {
            let mut body = respond.send_response(head(), false).unwrap();
            let begun = Bytes::from_static(&[0, 0, 0, 0, 99, 1]);
            body.send_data(begun, false).unwrap();
            return false;
        }
        Does::DiesBeforeTrailers => {
            let mut body = respond.send_response(head(), false).unwrap();
            let all = frame(&v1::StatusReply::default());
            body.send_data(all, false).unwrap();
            return false;
        }
        Does::Resets(reason) => respond.send_reset(reason),
        Does::SaysNothing => {
            let mut body = respond.send_response(head(), false).unwrap();
            body.send_trailers(well()).unwrap();
        }
        Does::Refuses(code) => {
            let mut response = head();
            let headers = response.headers_mut();
            headers.insert("grpc-status", (code as i32).into());
            headers.insert("grpc-message", "no".parse().unwrap());
            respond.send_response(response, true).unwrap();
        }
    }
    true
}

/// Serves one connection: answers the first call and misbehaves in the second call.
async fn serve(stream: UnixStream, does: Does) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let (_, first) = connection.accept().await.unwrap().unwrap();
    answer(first);
    let (_request, second) = connection.accept().await.unwrap().unwrap();
    if misbehave(second, does) {
        while connection.accept().await.is_some() {}
        return;
    }
    if matches!(does, Does::GoesAway) {
        connection.abrupt_shutdown(Reason::NO_ERROR);
    }
    // Sends the bytes written so far; then the process ends.
    let _ = tokio::time::timeout(Duration::from_millis(50), connection.accept()).await;
}

async fn outcome(does: Does) -> Error {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("server.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // No process listens any more when the connection has ended.
        drop(listener);
        serve(stream, does).await;
    });
    let server = Server::connect(&Endpoint::Unix(path), None).await.unwrap();
    let error = server.status().await.unwrap_err();
    drop(server);
    // After a reset, the connection may stay although its client has closed it.
    served.abort();
    if let Err(end) = served.await {
        assert!(end.is_cancelled(), "{end}");
    }
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_cut_by_killed_server_is_lost_connection_error() {
    let lost = [
        Does::Dies,
        Does::DiesAfterHeaders,
        Does::DiesInAnswer,
        Does::DiesBeforeTrailers,
        Does::Resets(Reason::CANCEL),
        Does::Resets(Reason::INTERNAL_ERROR),
        Does::Resets(Reason::REFUSED_STREAM),
        Does::Resets(Reason::NO_ERROR),
        Does::GoesAway,
        Does::SaysNothing,
        Does::Refuses(tonic::Code::Unavailable),
    ];
    for does in lost {
        let error = outcome(does).await;
        assert!(error.is_lost(), "{does:?}: {error:?}");
        let comm = rustix::io::Errno::COMM.raw_os_error();
        assert_eq!(error.errno(), comm, "{does:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_by_server_is_not_lost_connection_error() {
    use tonic::Code;
    let own = [
        Code::Unknown,
        Code::Cancelled,
        Code::Internal,
        Code::DeadlineExceeded,
        Code::NotFound,
    ];
    for code in own {
        let error = outcome(Does::Refuses(code)).await;
        assert!(!error.is_lost(), "{code:?}: {error:?}");
        assert_eq!(error.to_string(), "the server refused: no");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_server_is_lost_connection_error() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = Endpoint::Unix(dir.path().join("server.sock"));
    assert!(Server::connect(&nobody, None).await.unwrap_err().is_lost());
    let closing = dir.path().join("closing");
    let unauthenticated = std::os::unix::net::UnixListener::bind(&closing).unwrap();
    let closes = std::thread::spawn(move || drop(unauthenticated.accept()));
    let unauthenticated = Server::connect(&Endpoint::Unix(closing), None).await;
    assert!(unauthenticated.unwrap_err().is_lost());
    closes.join().unwrap();
}
