//! The server's edge with an adversary at it: what is refused before it is read, what one user may have at once, and
//! whom a token lets act as whom.
#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "tests")]

mod array;
#[path = "../../../tests/require.rs"]
mod require;

use array::{Running, file_op, root, user, write_file};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tidemill_client::{Credential, Endpoint, Server as Client};
use tidemill_server::Config;
use tidemill_wire::bounded::OPS_MAX;
use tidemill_wire::v1::{self, name_op::Op};
use tidemill_wire::{USER_MESSAGE_BYTES_MAX, USER_SCRIPT_BYTES_MAX, local};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Status};

const ALICE: u32 = 4_000_001;
const BOB: u32 = 4_000_002;

/// Bytes as they are, in place of messages.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        use prost::bytes::BufMut;
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        use prost::bytes::Buf;
        Ok(Some(buffer.copy_to_bytes(buffer.remaining()).to_vec()))
    }
}

/// Sends bytes in place of a request to the namespace; gives what was said to them.
async fn send_raw(server: &Running, token: Option<&str>, bytes: Vec<u8>) -> Status {
    let url = format!("http://{}", server.server().address());
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let mut request = tonic::Request::new(bytes);
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    let path = "/tidemill.v1.Names/Apply".parse().unwrap();
    client.unary(request, path, Raw).await.unwrap_err()
}

async fn plain(dir: &Path) -> Running {
    let config = Config {
        tls: false,
        ..Config::new(dir)
    };
    Running::start_with(config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_of_a_request_before_it_is_known_whose_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let nonsense = vec![0xff; 1 << 20];
    // Whoever had looked at the bytes would say that they are no request.
    let stranger = send_raw(&server, None, nonsense.clone()).await;
    assert_eq!(stranger.code(), Code::Unauthenticated, "{stranger}");
    let wrong = send_raw(&server, Some("0123"), nonsense.clone()).await;
    assert_eq!(wrong.code(), Code::Unauthenticated, "{wrong}");
    let token = Credential::read(server.server().token_file())
        .unwrap()
        .token;
    let known = send_raw(&server, Some(&token), nonsense).await;
    assert_eq!(known.code(), Code::InvalidArgument, "{known}");
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_are_counted_before_they_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let token = Credential::read(server.server().token_file())
        .unwrap()
        .token;
    let many = b"\x12\x00".repeat(OPS_MAX + 1);
    let refused = send_raw(&server, Some(&token), many.clone()).await;
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("operations"), "{refused}");
    // And by the plain socket of this host.
    let mut stream =
        std::os::unix::net::UnixStream::connect(dir.path().join("names.sock")).unwrap();
    local::send_bytes(&mut stream, &[], &local::greeting()).unwrap();
    assert_eq!(local::receive(&mut stream).unwrap().unwrap()[0], local::OK);
    local::send_bytes(&mut stream, &[], &many).unwrap();
    let refused = local::receive(&mut stream).unwrap().unwrap();
    assert_eq!(i32::from(refused[0]), Code::InvalidArgument as i32);
}

/// Runs something as another user of this host, on a thread that gives up all other rights.
fn as_user<T: Send + 'static>(uid: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let (id, group) = (
            rustix::process::Uid::from_raw(uid),
            rustix::process::Gid::from_raw(uid),
        );
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(id, id, id).unwrap();
        work()
    });
    thread.join().unwrap()
}

/// A folder that all users may pass through; `None` where users can't be switched.
fn open_folder() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        require::skip("this test switches users, which needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    Some(dir)
}

/// A client that connects as a user of this host.
async fn client_of(socket: &Path, uid: u32) -> Client {
    let endpoint = Endpoint::Unix(socket.to_owned());
    tokio::task::spawn_blocking(move || {
        as_user(uid, move || {
            // The connection is made on this thread, by a runtime of its own that goes on.
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let client = runtime.block_on(Client::connect(&endpoint, None)).unwrap();
            std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
            client
        })
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_silent_connections_take_nobodys_place() {
    let Some(dir) = open_folder() else { return };
    let server = Running::start(dir.path()).await;
    let (socket, names) = (
        server.server().socket().to_owned(),
        dir.path().join("names.sock"),
    );
    // More than the server has places for, on both sockets.
    let held = tokio::task::spawn_blocking(move || {
        as_user(ALICE, move || {
            let connect = |path: &Path| std::os::unix::net::UnixStream::connect(path).unwrap();
            let mut held: Vec<_> = (0..300).map(|_| connect(&socket)).collect();
            for _ in 0..300 {
                let mut stream = connect(&names);
                let _ = local::send_bytes(&mut stream, &[], &local::greeting());
                held.push(stream);
            }
            held
        })
    });
    let held = held.await.unwrap();
    let bob = client_of(server.server().socket(), BOB).await;
    bob.status().await.unwrap();
    // A mount finds its places on the plain socket, too.
    let mount = tidemill_client::LocalNames::new(&Endpoint::Unix(server.server().socket().into()));
    let request = v1::NameRequest {
        credentials: Some(root()),
        ops: vec![v1::NameOp {
            op: Some(file_op("a")),
        }],
        ..v1::NameRequest::default()
    };
    let asked = tokio::task::spawn_blocking(move || {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        mount
            .unwrap()
            .apply(&request, until)
            .map(|answers| answers.len())
    });
    assert_eq!(asked.await.unwrap().unwrap(), 1);
    // Those that were too many are closed.
    let closed = tokio::task::spawn_blocking(move || held.into_iter().filter(is_closed).count());
    assert!(closed.await.unwrap() >= 500);
}

/// Whether the server closes a connection within a while.
fn is_closed(mut stream: &std::os::unix::net::UnixStream) -> bool {
    use std::io::Read;
    stream
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer) {
            Ok(1..) => {}
            Ok(0) => return true,
            // A connection that is closed with something unread is reset.
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_users_message_is_no_larger_than_a_script_and_what_is_around_it() {
    let Some(dir) = open_folder() else { return };
    let server = Running::start(dir.path()).await;
    let alice = client_of(server.server().socket(), ALICE).await;
    let request = |bytes| v1::SubmitRequest {
        script: "#".repeat(bytes),
        ..v1::SubmitRequest::default()
    };
    let large = alice.jobs().submit(request(USER_MESSAGE_BYTES_MAX)).await;
    large.unwrap_err();
    for (bytes, is_taken) in [
        (USER_SCRIPT_BYTES_MAX, true),
        (USER_SCRIPT_BYTES_MAX + 1, false),
    ] {
        let read = alice.jobs().submit(request(bytes)).await.unwrap();
        let errors = read.into_inner().errors;
        assert_eq!(!errors[0].contains("split the job"), is_taken, "{errors:?}");
    }
}

/// A token, made by the array's operator.
async fn token(server: &Running, request: v1::CreateTokenRequest) -> (u64, Credential) {
    let operator = server.client().await;
    let made = operator
        .tokens()
        .create(request)
        .await
        .unwrap()
        .into_inner();
    let credential = Credential::parse(&made.credential).unwrap();
    (made.token.unwrap().token, credential)
}

fn of(uid: u32) -> v1::CreateTokenRequest {
    v1::CreateTokenRequest {
        uid: Some(uid),
        ..v1::CreateTokenRequest::default()
    }
}

/// Connects over the network.
async fn bearer(
    server: &Running,
    credential: &Credential,
) -> Result<Client, tidemill_client::Error> {
    let endpoint = format!("http://{}", server.server().address());
    Client::connect(&endpoint.parse().unwrap(), Some(credential)).await
}

fn resolve(path: &str) -> Op {
    Op::Resolve(v1::Resolve {
        path: path.as_bytes().to_vec(),
        follow: true,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bearer_of_a_users_token_acts_as_that_user_and_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let _element = server.element(0).await;
    let (_, credential) = token(&server, of(ALICE)).await;
    let client = bearer(&server, &credential).await.unwrap();
    write_file(&server.client().await, "/of-alice", 5, ALICE).await;
    let of_bob = write_file(&server.client().await, "/of-bob", 5, BOB).await;

    let own = client
        .one(&user(ALICE), resolve("/of-alice"))
        .await
        .unwrap();
    let v1::name_result::Result::Entry(own) = own else {
        panic!("{own:?}")
    };
    let open = |ino| Op::Open(v1::Open { ino, version: 0 });
    let ino = own.attr.unwrap().ino;
    client.one(&user(ALICE), open(ino)).await.unwrap();
    // Nobody else, however it is claimed.
    for claimed in [root(), user(0), user(BOB)] {
        client.one(&claimed, resolve("/")).await.unwrap_err();
        let submit = v1::SubmitRequest {
            credentials: Some(claimed.clone()),
            script: "name = \"a\"; tasks = ();".into(),
            ..v1::SubmitRequest::default()
        };
        let refused = client.jobs().submit(submit).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
    let forged = v1::Credentials {
        groups: vec![BOB, 0],
        checked: true,
        ..user(ALICE)
    };
    let ino = array::stat(&server.client().await, "/of-bob")
        .await
        .unwrap()
        .ino;
    client.one(&forged, open(ino)).await.unwrap_err();
    // What only parts of the array may do.
    let watch = v1::WatchRequest::default();
    let refused = client.names().watch(watch).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let refused = client.array().check(v1::CheckRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    let nothing = tokio_stream::empty::<v1::FromElement>();
    let refused = client.array().attach(nothing).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let question = v1::LineageRequest {
        object: of_bob,
        up: true,
        ..v1::LineageRequest::default()
    };
    client.lineage().query(question).await.unwrap_err();
    // A token makes no tokens, and knows of its own only.
    let more = client.tokens().create(of(ALICE)).await.unwrap_err();
    assert_eq!(more.code(), Code::PermissionDenied);
    token(&server, of(BOB)).await;
    let listed = client.tokens().list(v1::ListTokensRequest::default()).await;
    let listed = listed.unwrap().into_inner().tokens;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].uid, Some(ALICE));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_only_reads_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let reading = v1::CreateTokenRequest {
        read_only: true,
        ..of(ALICE)
    };
    let (number, credential) = token(&server, reading).await;
    let client = bearer(&server, &credential).await.unwrap();
    client.one(&user(ALICE), resolve("/")).await.unwrap();
    client
        .jobs()
        .list(v1::ListJobsRequest::default())
        .await
        .unwrap();
    let denied = |code: Code| assert_eq!(code, Code::PermissionDenied);
    client.one(&user(ALICE), file_op("new")).await.unwrap_err();
    assert!(array::stat(&server.client().await, "/new").await.is_none());
    client.reserve(1, 1).await.unwrap_err();
    let job = v1::GetJobRequest::default();
    denied(client.jobs().cancel(job).await.unwrap_err().code());
    let submit = v1::SubmitRequest::default();
    denied(client.jobs().submit(submit).await.unwrap_err().code());
    let revoke = v1::RevokeTokenRequest { token: number };
    denied(client.tokens().revoke(revoke).await.unwrap_err().code());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_is_revoked_and_what_goes_on_with_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let trusted = v1::CreateTokenRequest::default();
    let (host, credential) = token(&server, trusted).await;
    let mount = bearer(&server, &credential).await.unwrap();
    let changes = mount.names().watch(v1::WatchRequest::default()).await;
    let mut changes = changes.unwrap().into_inner();
    changes.message().await.unwrap().unwrap();
    let (_, kept) = token(&server, of(ALICE)).await;
    let (gone, lost) = token(&server, of(ALICE)).await;
    let (kept, lost) = (
        bearer(&server, &kept).await.unwrap(),
        bearer(&server, &lost).await.unwrap(),
    );

    let operator = server.client().await;
    for token in [host, gone] {
        let revoke = v1::RevokeTokenRequest { token };
        operator.tokens().revoke(revoke).await.unwrap();
        operator.tokens().revoke(revoke).await.unwrap_err();
    }
    // The stream ends by itself, and nothing is answered from the next request on.
    assert!(!matches!(changes.message().await, Ok(Some(_))));
    assert!(mount.status().await.is_err());
    assert!(bearer(&server, &credential).await.is_err());
    assert!(lost.status().await.is_err());
    kept.status().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_the_servers_host_makes_tokens_for_nobody_else() {
    let Some(dir) = open_folder() else { return };
    let server = plain(dir.path()).await;
    let alice = client_of(server.server().socket(), ALICE).await;
    let made = alice.tokens().create(of(ALICE)).await.unwrap().into_inner();
    let credential = Credential::parse(&made.credential).unwrap();
    let from_afar = bearer(&server, &credential).await.unwrap();
    from_afar.one(&user(ALICE), resolve("/")).await.unwrap();
    for others in [of(BOB), of(0), v1::CreateTokenRequest::default()] {
        let refused = alice.tokens().create(others).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
    let (of_bob, _) = token(&server, of(BOB)).await;
    let revoke = v1::RevokeTokenRequest { token: of_bob };
    let refused = alice.tokens().revoke(revoke).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    let others = v1::ListTokensRequest { uid: Some(BOB) };
    let refused = alice.tokens().list(others).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}
