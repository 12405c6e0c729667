//! Attacks on the server's network interface: requests that are refused before they are read, limits on each user's requests, and the users
//! for which a token may act.
#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "tests")]

use crate::cluster::{FakeNode, Running, file_op, root, status, user, write_file};
use futures_util::FutureExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidemill_client::{Credential, Endpoint, Server as Client};
use tidemill_model::id::{NodeId, ObjectId};
use tidemill_server::ServeConfig;
use tidemill_wire::capability::{CapabilityKey, CapabilityRefusal, rights};
use tidemill_wire::size_limits::OPS_MAX;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer, to_node::Message as To};
use tidemill_wire::{USER_MESSAGE_BYTES_MAX, USER_SCRIPT_BYTES_MAX, local};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Status};

const ALICE: u32 = 4_000_001;
const BOB: u32 = 4_000_002;

/// gRPC codec that sends raw bytes in place of messages.
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

/// Sends raw bytes as a request to the namespace. Returns the status of the answer.
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
    let config = ServeConfig {
        tls: false,
        ..ServeConfig::new(dir)
    };
    Running::start_with(config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn server_authenticates_caller_before_parsing_request() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let nonsense = vec![0xff; 1 << 20];
    // A server that reads the bytes would report that they are no request.
    let unauthenticated = send_raw(&server, None, nonsense.clone()).await;
    assert_eq!(
        unauthenticated.code(),
        Code::Unauthenticated,
        "{unauthenticated}"
    );
    let wrong = send_raw(&server, Some("0123"), nonsense.clone()).await;
    assert_eq!(wrong.code(), Code::Unauthenticated, "{wrong}");
    let token = Credential::read(server.server().token_file())
        .unwrap()
        .token;
    let known = send_raw(&server, Some(&token), nonsense).await;
    assert_eq!(known.code(), Code::InvalidArgument, "{known}");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_with_too_many_operations_is_refused_before_execution() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let token = Credential::read(server.server().token_file())
        .unwrap()
        .token;
    let many = b"\x12\x00".repeat(OPS_MAX + 1);
    let refused = send_raw(&server, Some(&token), many.clone()).await;
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("operations"), "{refused}");
    // The same limit holds on the plain socket of this host.
    let mut stream =
        std::os::unix::net::UnixStream::connect(dir.path().join("names.sock")).unwrap();
    local::send_bytes(&mut stream, &[], &local::greeting()).unwrap();
    assert_eq!(local::receive(&mut stream).unwrap().unwrap()[0], local::OK);
    local::send_bytes(&mut stream, &[], &many).unwrap();
    let refused = local::receive(&mut stream).unwrap().unwrap();
    assert_eq!(i32::from(refused[0]), Code::InvalidArgument as i32);
}

/// Runs `work` as another user of this host, on a thread that drops all rights except those of the user.
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

/// Creates a directory that all users may search. Returns `None` if the test may not switch users.
fn open_directory() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        crate::require::skip("this test switches users, which needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    Some(dir)
}

/// Returns a client that connects as the user `uid` of this host.
async fn client_of(socket: &Path, uid: u32) -> Client {
    let endpoint = Endpoint::Unix(socket.to_owned());
    tokio::task::spawn_blocking(move || {
        as_user(uid, move || {
            // The connection is made on this thread, by a runtime of its own that continues.
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
async fn silent_connections_of_one_user_do_not_block_others() {
    let Some(dir) = open_directory() else { return };
    let server = Running::start(dir.path()).await;
    let (socket, names) = (
        server.server().socket().to_owned(),
        dir.path().join("names.sock"),
    );
    // These are more connections than the server accepts, on both sockets.
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
    // The excess connections are closed.
    let closed = tokio::task::spawn_blocking(move || held.into_iter().filter(is_closed).count());
    assert!(closed.await.unwrap() >= 500);
}

/// Whether the server closes a connection within a time limit.
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
            // A connection that is closed with unread bytes is reset.
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn job_script_of_user_above_size_limit_is_refused() {
    let Some(dir) = open_directory() else { return };
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

/// Creates a token with the rights of an administrator. Returns the token's number and the token.
async fn token(server: &Running, request: v1::CreateTokenRequest) -> (u64, Credential) {
    let administrator = server.client().await;
    let made = administrator
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

/// Connects over TCP with a token.
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
        advise: false,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn user_token_cannot_act_for_another_user() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let _node = server.node(0).await;
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
    let open = |ino| {
        Op::Open(v1::Open {
            ino,
            ..v1::Open::default()
        })
    };
    let ino = own.attr.unwrap().ino;
    client.one(&user(ALICE), open(ino)).await.unwrap();
    // No other user is accepted, in any form of the claim.
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
    let ino = crate::cluster::stat(&server.client().await, "/of-bob")
        .await
        .unwrap()
        .ino;
    client.one(&forged, open(ino)).await.unwrap_err();
    // These calls are allowed only to daemons of the cluster.
    let watch = v1::WatchRequest::default();
    let refused = client.names().watch(watch).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let refused = client.cluster().check(v1::CheckRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    let nothing = tokio_stream::empty::<v1::FromNode>();
    let refused = client.cluster().attach(nothing).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let question = v1::LineageRequest {
        object: of_bob,
        up: true,
        ..v1::LineageRequest::default()
    };
    client.lineage().query(question).await.unwrap_err();
    // A token makes no tokens, and lists only its own user's tokens.
    let more = client.tokens().create(of(ALICE)).await.unwrap_err();
    assert_eq!(more.code(), Code::PermissionDenied);
    token(&server, of(BOB)).await;
    let listed = client.tokens().list(v1::ListTokensRequest::default()).await;
    let listed = listed.unwrap().into_inner().tokens;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].uid, Some(ALICE));
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_token_is_refused_for_all_changes() {
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
    let health = v1::HealthRequest::default();
    client.health().show(health).await.unwrap();
    let scrub = v1::ScrubRequest::default();
    denied(client.health().scrub(scrub).await.unwrap_err().code());
    client.one(&user(ALICE), file_op("new")).await.unwrap_err();
    assert!(
        crate::cluster::stat(&server.client().await, "/new")
            .await
            .is_none()
    );
    client.reserve(1, 1).await.unwrap_err();
    let job = v1::GetJobRequest::default();
    denied(client.jobs().cancel(job).await.unwrap_err().code());
    let submit = v1::SubmitRequest::default();
    denied(client.jobs().submit(submit).await.unwrap_err().code());
    let revoke = v1::RevokeTokenRequest { token: number };
    denied(client.tokens().revoke(revoke).await.unwrap_err().code());
}

#[tokio::test(flavor = "multi_thread")]
async fn token_revocation_ends_streams_and_requests_of_bearer() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let daemon = v1::CreateTokenRequest::default();
    let (host, credential) = token(&server, daemon).await;
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

    let administrator = server.client().await;
    for token in [host, gone] {
        let revoke = v1::RevokeTokenRequest { token };
        administrator.tokens().revoke(revoke).await.unwrap();
        administrator.tokens().revoke(revoke).await.unwrap_err();
    }
    // The stream ends by itself, and no request is answered from now on.
    assert!(!matches!(changes.message().await, Ok(Some(_))));
    assert!(mount.status().await.is_err());
    assert!(bearer(&server, &credential).await.is_err());
    assert!(lost.status().await.is_err());
    kept.status().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn local_user_cannot_create_token_for_another_user() {
    let Some(dir) = open_directory() else { return };
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

/// Returns the next capabilities that the server orders a node to revoke.
async fn revoked(node: &mut FakeNode) -> Vec<v1::Revoked> {
    loop {
        if let To::Revoke(revoke) = node.next().await {
            return revoke.revoked;
        }
    }
}

/// Returns a user's capability for a file, which contains its expiry; `None` if the server refuses it.
async fn right(client: &Client, uid: u32, ino: u64) -> Option<Vec<u8>> {
    let open = Op::Open(v1::Open {
        ino,
        ..v1::Open::default()
    });
    match client.one(&user(uid), open).await {
        Ok(Answer::Opened(opened)) => Some(opened.capability),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn capability_is_revoked_by_owner_change_even_if_node_is_offline() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let mut node = server.node(3).await;
    let administrator = server.client().await;
    let object = write_file(&administrator, "/file", 5, ALICE).await;
    let ino = crate::cluster::stat(&administrator, "/file")
        .await
        .unwrap()
        .ino;
    let change = async |mode: u32, owner: u32| {
        let change = v1::SetAttr {
            ino,
            mode: Some(mode),
            uid: Some(owner),
            ..v1::SetAttr::default()
        };
        administrator
            .one(&root(), Op::SetAttr(change))
            .await
            .unwrap();
    };
    let (_, credential) = token(&server, of(ALICE)).await;
    let alice = bearer(&server, &credential).await.unwrap();
    let key = CapabilityKey::from_slice(&node.key).unwrap();
    let good_at = |right: &[u8], now_ns: u64| {
        let reported = key.read(right)?;
        let allows = reported.allows(NodeId(3), ObjectId(object), rights::READ, now_ns);
        allows.map(|()| reported)
    };
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        u64::try_from(now.unwrap().as_nanos()).unwrap()
    };

    // The owner changes. The connected node is notified at once of the end of this right and every one before it.
    let given = right(&alice, ALICE, ino).await.unwrap();
    let ends = good_at(&given, now()).unwrap().expires_at_ns;
    change(0o600, BOB).await;
    assert!(right(&alice, ALICE, ino).await.is_none());
    let reported = revoked(&mut node).await;
    assert_eq!((reported.len(), reported[0].object), (1, object));
    assert!(reported[0].until_ns >= ends);

    // Without the node, the right ends by itself. The node is notified when it reconnects.
    change(0o600, ALICE).await;
    let given = right(&alice, ALICE, ino).await.unwrap();
    let ends = good_at(&given, now()).unwrap().expires_at_ns;
    assert!(ends <= now() + 300 * 1_000_000_000, "{ends}");
    assert_eq!(
        good_at(&given, ends).unwrap_err(),
        CapabilityRefusal::Expired
    );
    drop(node);
    change(0o600, BOB).await;
    assert!(right(&alice, ALICE, ino).await.is_none());
    let mut node = server.node(3).await;
    let reported = revoked(&mut node).await;
    assert_eq!((reported.len(), reported[0].object), (1, object));
    assert!(reported[0].until_ns >= ends);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_users_limit_wait_and_other_users_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let administrator = server.client().await;
    let directory = v1::Create {
        name: b"/w".to_vec(),
        kind: v1::Kind::Directory.into(),
        mode: 0o700,
        uid: ALICE,
        gid: ALICE,
        ..v1::Create::default()
    };
    administrator
        .one(&root(), Op::Create(directory))
        .await
        .unwrap();
    let script = "name = \"waits\"; workdir = \"/w\"; \
                  tasks = ( { name = \"t\"; kernel = \"max\"; input = [\"never\"]; output = [\"o\"]; } );";
    let submitted = crate::cluster::submit(&administrator, ALICE, script).await;
    assert_eq!(submitted.errors, Vec::<String>::new());
    let (_, of_alice) = token(&server, of(ALICE)).await;
    let (_, of_bob) = token(&server, of(BOB)).await;
    let alice = bearer(&server, &of_alice).await.unwrap();
    let bob = bearer(&server, &of_bob).await.unwrap();
    let mut watched = Vec::new();
    for _ in 0..32 {
        let get = v1::GetJobRequest {
            credentials: None,
            job: submitted.job,
        };
        let mut events = alice.jobs().watch(get).await.unwrap().into_inner();
        events.message().await.unwrap().unwrap();
        watched.push(events);
    }
    // The limit also holds over another connection.
    let again = tokio::spawn(async move { bearer(&server, &of_alice).await.map(|_| server) });
    for _ in 0..20 {
        bob.status().await.unwrap();
    }
    assert!(!again.is_finished());
    let mut more = Box::pin(alice.status());
    assert!((&mut more).now_or_never().is_none());
    for _ in 0..20 {
        bob.status().await.unwrap();
    }
    assert!((&mut more).now_or_never().is_none());
    // Each request has its turn when another one has ended.
    watched.truncate(30);
    more.await.unwrap();
    let _server = again.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_private_kernels_are_hidden_from_other_users() {
    let dir = tempfile::tempdir().unwrap();
    let server = plain(dir.path()).await;
    let history = [
        "max",
        "/tidemill-kernels/4000002/secret@1.so",
        "secret-pipeline",
    ];
    let history = history.map(|name| (name.to_owned(), v1::KernelHistory::default()));
    let known = v1::Node {
        history: history.into_iter().collect(),
        ..status(0)
    };
    let _node = FakeNode::attach_as(&server.client().await, known, Vec::new()).await;
    let kernels = async |client: &Client| -> Vec<String> {
        let mut status = client.status().await.unwrap();
        status.nodes.remove(0).history.into_keys().collect()
    };
    assert_eq!(kernels(&server.client().await).await.len(), 3);
    let (_, credential) = token(&server, of(ALICE)).await;
    let alice = bearer(&server, &credential).await.unwrap();
    assert_eq!(kernels(&alice).await, ["max"]);
}

/// Forwards bytes between a client and the server, and changes the byte at position `at` of the server's bytes.
async fn changing(mut client: TcpStream, mut server: TcpStream, at: usize) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let answers = async {
        let (mut passed, mut buffer) = (0, vec![0; 64 << 10]);
        loop {
            let count = from_server.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            if let Some(byte) = at.checked_sub(passed).filter(|byte| *byte < count) {
                buffer[byte] ^= 1;
            }
            passed += count;
            to_client.write_all(&buffer[..count]).await?;
        }
    };
    // Either side may end the connection.
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        ended = answers => { let _: std::io::Result<()> = ended; }
    }
}

/// Lists the root directory through an attacker who changes a byte of the server's answer.
async fn asked_through(server: &Running, at: usize) -> Result<Vec<String>, tidemill_client::Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    let address = server.server().address();
    let between = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(address).await.unwrap();
            tokio::spawn(changing(client, server, at));
        }
    });
    let credential = Credential::read(server.server().token_file()).unwrap();
    let asked = async {
        let client = Client::connect(&endpoint.parse().unwrap(), Some(&credential)).await?;
        let read = v1::ReadDir {
            ino: 1,
            ..v1::ReadDir::default()
        };
        let Answer::Entries(found) = client.one(&root(), Op::ReadDir(read)).await? else {
            panic!("no entries")
        };
        let names = found.entries.into_iter();
        Ok(names
            .map(|entry| String::from_utf8(entry.name).unwrap())
            .collect())
    };
    let asked = asked.await;
    between.abort();
    asked
}

/// Changes each byte of the answer in turn, as an attacker on the network could. Each request then ends with an error, never with a wrong
/// answer.
#[tokio::test(flavor = "multi_thread")]
async fn answer_with_any_byte_changed_on_network_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(ServeConfig::new(dir.path())).await;
    let administrator = server.client().await;
    administrator.one(&root(), file_op("honest")).await.unwrap();
    let right = asked_through(&server, usize::MAX).await.unwrap();
    assert!(right.contains(&"honest".to_owned()), "{right:?}");
    let mut refused = 0;
    for at in (0..1500).step_by(97) {
        match asked_through(&server, at).await {
            Ok(answer) => assert_eq!(answer, right, "byte {at}"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 5, "{refused}");
}

/// Counts the log entries that the network and local peers cause in a server.
struct Lines([AtomicUsize; 2]);

static LINES: Lines = Lines([AtomicUsize::new(0), AtomicUsize::new(0)]);

impl tracing::Subscriber for &'static Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let of = ["tidemill_client::tls", "tidemill_server::local_names"];
        for (target, count) in of.into_iter().zip(&self.0) {
            if event.metadata().target().starts_with(target) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn log_lines_of_refused_connections_are_bounded() {
    tracing::subscriber::set_global_default(&LINES).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start_with(ServeConfig::new(dir.path())).await;
    let mut heard = Vec::new();
    for _ in 0..100 {
        // This connection uses no TLS, though the server requires it.
        let mut unauthenticated = TcpStream::connect(server.server().address()).await.unwrap();
        let _ = unauthenticated.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
        let _ = unauthenticated.read_to_end(&mut heard).await;
    }
    let names = dir.path().join("names.sock");
    let local = tokio::task::spawn_blocking(move || {
        for round in 0..100 {
            let mut peer = std::os::unix::net::UnixStream::connect(&names).unwrap();
            // The peer has another version, or sends bytes without a version.
            let hello = if round % 2 == 0 {
                b"TMLN\0\0\0\0"
            } else {
                b"nonsense"
            };
            let _ = local::send_bytes(&mut peer, &[], hello);
            while matches!(local::receive(&mut peer), Ok(Some(_))) {}
        }
    });
    local.await.unwrap();
    for count in &LINES.0 {
        let lines = count.load(Ordering::Relaxed);
        assert!((1..=21).contains(&lines), "{lines}");
    }
}
