//! Tests labels by gRPC, for programs in any language. Semantics: docs/labels.md.

use crate::apps::{Labels, USER};
use crate::cluster::{Cluster, Options, wait};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::labels::label::Type;
use tidemill_wire::labels::labels_client::LabelsClient;
use tidemill_wire::labels::{
    Batch, Event, GetRequest, Label, LabelsRequest, Nothing, Outcome, RegisterRequest, Registered,
    SubscribeRequest, WaitRequest,
};
use tokio::sync::Semaphore;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

type Client = LabelsClient<Channel>;

const KEY: &str = "simulation-1";

async fn try_connect(labels: &Labels) -> Option<Client> {
    let socket = format!("unix:{}", labels.directory.join("agent.sock").display());
    let channel = Endpoint::from_shared(socket)
        .unwrap()
        .connect()
        .await
        .ok()?;
    Some(LabelsClient::new(channel).max_encoding_message_size(64 << 20))
}

/// Returns a connection to an agent, which is started if none runs.
async fn connect(labels: &Labels) -> Client {
    for attempt in 0..1000 {
        if let Some(client) = try_connect(labels).await {
            return client;
        }
        if attempt % 100 == 0 {
            labels.start_agent();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no agent comes up");
}

async fn register(
    client: &mut Client,
    key: &str,
) -> Result<(Registered, Streaming<Registered>), Status> {
    let request = RegisterRequest {
        name: "grpc".into(),
        key: key.into(),
        buffer_quota: 1 << 20,
        ..RegisterRequest::default()
    };
    let mut stream = client.register(request).await?.into_inner();
    let first = stream.message().await?;
    Ok((first.unwrap(), stream))
}

/// Publishes one batch; returns the last number that is kept.
async fn publish(client: &mut Client, labels: Vec<Label>) -> Result<u64, Status> {
    let batch = Batch {
        key: KEY.into(),
        labels,
        nowait: true,
    };
    let mut stream = client
        .publish(tokio_stream::once(batch))
        .await?
        .into_inner();
    Ok(stream.message().await?.unwrap().published)
}

async fn outcomes(client: &mut Client, labels: &[u64]) -> BTreeMap<u64, Outcome> {
    let request = WaitRequest {
        key: KEY.into(),
        labels: labels.to_vec(),
        any: false,
        wait_ns: 30_000_000_000,
    };
    let reply = client.wait(request).await.unwrap().into_inner();
    let outcomes = reply.outcomes.into_iter();
    outcomes.map(|outcome| (outcome.label, outcome)).collect()
}

fn named(labels: &[u64]) -> LabelsRequest {
    LabelsRequest {
        key: KEY.into(),
        labels: labels.to_vec(),
    }
}

fn label(number: u64, r#type: Type, path: &str) -> Label {
    Label {
        number,
        r#type: r#type.into(),
        path: path.into(),
        ..Label::default()
    }
}

fn write(number: u64, path: &str, data: &[u8]) -> Label {
    Label {
        data: data.to_vec(),
        ..label(number, Type::Write, path)
    }
}

fn append(number: u64) -> Label {
    Label {
        data: format!("{number:09}\n").into_bytes(),
        forget: true,
        ..label(number, Type::Append, "tidemill:/w/log")
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

fn cluster() -> Option<Cluster> {
    let cluster = Cluster::with(Options::default())?;
    cluster.sh("mkdir w own && chmod 777 w && chmod 700 own");
    Some(cluster)
}

/// The calls of the library, and calls that are invalid. Labels of other users and labels beyond the limits change
/// nothing.
#[test]
fn grpc_labels_are_awaited_and_invalid_labels_refused() {
    let Some(cluster) = cluster() else { return };
    let labels = Labels::of(&cluster, USER);
    runtime().block_on(async {
        let mut client = connect(&labels).await;
        for key in ["short", "with spaces", "../../etc/passwd"] {
            let refused = register(&mut client, key).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{key}");
        }
        let unknown = publish(&mut client, vec![append(1)]).await.unwrap_err();
        assert_eq!(unknown.code(), Code::NotFound);
        let (registered, _stream) = register(&mut client, KEY).await.unwrap();
        assert_eq!(registered.published, 0);
        let read = Label {
            size: 100,
            ..label(2, Type::Read, "tidemill:/w/f")
        };
        let follows = |number, after, if_done| Label {
            after,
            if_done,
            if_failed: !if_done,
            ..write(number, &format!("tidemill:/w/{number}"), b"x")
        };
        let gone = label(3, Type::Delete, "tidemill:/w/none");
        let all = vec![
            write(1, "tidemill:/w/f", b"hello"),
            read,
            gone,
            follows(4, 3, true),
            follows(5, 3, false),
            label(6, Type::Await, "tidemill:/w/come-*"),
            label(7, Type::Await, "tidemill:/w/never"),
            write(8, "tidemill:/own/f", b"x"),
        ];
        assert_eq!(publish(&mut client, all.clone()).await.unwrap(), 8);
        // A label that is kept is not published again.
        assert_eq!(publish(&mut client, all).await.unwrap(), 8);
        let ended = outcomes(&mut client, &[1, 2, 3, 4, 5, 8]).await;
        let errnos: Vec<i32> = ended.values().map(|outcome| outcome.errno).collect();
        assert_eq!(errnos, [0, 0, 2, 125, 0, 13], "{ended:?}");
        assert_eq!(ended[&2].data, b"hello");
        assert!(ended[&8].error.contains("/own/f: Permission denied"));
        let again = client.test(named(&[1])).await.unwrap_err();
        assert_eq!(again.code(), Code::NotFound);
        let tested = client.test(named(&[6, 7])).await.unwrap().into_inner();
        assert_eq!(tested.yes, [false, false]);
        let cancelled = client.cancel(named(&[7])).await.unwrap().into_inner();
        assert_eq!(cancelled.yes, [true]);
        cluster.sh("echo > w/come-1");
        let ended = outcomes(&mut client, &[6, 7]).await;
        assert_eq!(ended[&6].data, b"tidemill:/w/come-1");
        assert_eq!(ended[&7].errno, 125);
        refused_or_full(&mut client).await;
    });
    unauthenticated_clients(&labels);
    assert!(!cluster.at("w/4").exists() && cluster.at("w/5").exists());
}

/// Checks labels that cannot be published, although all before them were; and results that are kept until a client requests them.
async fn refused_or_full(client: &mut Client) {
    for (wrong, code) in [
        (write(11, "tidemill:/w/x", b"x"), Code::InvalidArgument),
        (write(9, "/etc/passwd", b"x"), Code::InvalidArgument),
        (
            write(9, "tidemill:/w/x", &vec![0; 5 << 20]),
            Code::InvalidArgument,
        ),
        (
            write(9, "tidemill:/w/x", &vec![0; 20 << 20]),
            Code::OutOfRange,
        ),
        (
            Label {
                if_done: true,
                ..write(9, "tidemill:/w/x", b"x")
            },
            Code::InvalidArgument,
        ),
    ] {
        let refused = publish(client, vec![wrong]).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
    }
    // Results that no client requests fill the buffer, until a client requests them.
    let mut number = 9;
    let full = loop {
        match publish(client, vec![write(number, "tidemill:/w/x", &[7; 100_000])]).await {
            Ok(_) => number += 1,
            Err(status) => break status,
        }
    };
    assert_eq!((full.code(), number > 12), (Code::ResourceExhausted, true));
    let left: Vec<u64> = (9..number).collect();
    client.forget(named(&left)).await.unwrap();
    wait_until("there is space again", async || {
        publish(
            &mut client.clone(),
            vec![write(number, "tidemill:/w/x", &[7; 100_000])],
        )
        .await
        .is_ok()
    })
    .await;
    let known = client.applications(Nothing {}).await.unwrap().into_inner();
    assert_eq!(
        (
            known.applications.len(),
            known.applications[0].name.as_str()
        ),
        (1, "grpc")
    );
}

async fn get(client: &mut Client, key: &str, path: &str, wait_ns: u64) -> Result<Vec<u8>, Status> {
    let request = GetRequest {
        key: key.into(),
        path: path.into(),
        wait_ns,
    };
    let mut blocks = client.get(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(block) = blocks.message().await? {
        all.extend(block.data);
    }
    Ok(all)
}

/// A client gets the complete bytes of another client's put before they are stored, whatever their size. It waits for a
/// later put, also while the server is down. A user without read permission gets no bytes.
#[test]
fn grpc_get_returns_put_of_another_client() {
    let Some(mut cluster) = cluster() else { return };
    cluster.sh("echo secret > own/f");
    let labels = Labels::of(&cluster, USER);
    let other = "simulation-2";
    runtime().block_on(async {
        let mut client = connect(&labels).await;
        let (_, _stream) = register(&mut client, KEY).await.unwrap();
        let (_, _other) = register(&mut client, other).await.unwrap();
        let put = |number, path: &str, data: &[u8]| Label {
            data: data.to_vec(),
            ..label(number, Type::Put, path)
        };
        let mut waits = client.clone();
        let later = tokio::spawn(async move {
            get(&mut waits, other, "tidemill:/w/later", 30_000_000_000).await
        });
        let none = get(&mut client, other, "tidemill:/w/none", 1_000_000).await;
        assert_eq!(none.unwrap_err().code(), Code::NotFound);
        for (path, code) in [
            ("tidemill:/own/f", Code::Unavailable),
            ("/etc/hostname", Code::InvalidArgument),
        ] {
            let refused = get(&mut client, other, path, 0).await.unwrap_err();
            assert_eq!(refused.code(), code, "{refused:?}");
        }
        publish(&mut client, vec![put(1, "tidemill:/w/first", b"first")])
            .await
            .unwrap();
        outcomes(&mut client, &[1]).await;
        cluster.kill_server();
        let all = vec![
            put(2, "tidemill:/w/f", b"one"),
            put(3, "tidemill:/w/empty", b""),
        ];
        publish(&mut client, all).await.unwrap();
        assert_eq!(
            get(&mut client, other, "tidemill:/w/f", 0).await.unwrap(),
            b"one"
        );
        publish(&mut client, vec![put(4, "tidemill:/w/later", b"now")])
            .await
            .unwrap();
        assert_eq!(later.await.unwrap().unwrap(), b"now");
        cluster.start_server();
        outcomes(&mut client, &[2, 3, 4]).await;
        // The content is read from a file, in several blocks.
        cluster.sh("head -c 3000000 /dev/urandom > w/large");
        let large = std::fs::read(cluster.at("w/large")).unwrap();
        let got = get(&mut client, other, "tidemill:/w/large", 0)
            .await
            .unwrap();
        assert!(got == large, "{} bytes", got.len());
        cluster.sh("truncate -s 65M w/huge");
        let huge = get(&mut client, other, "tidemill:/w/huge", 0).await;
        assert_eq!(huge.unwrap_err().code(), Code::OutOfRange);
        assert_eq!(
            get(&mut client, other, "tidemill:/w/empty", 0)
                .await
                .unwrap(),
            b""
        );
    });
    assert_eq!(cluster.run(&["cat", "/w/f"]).out, "one");
}

async fn wait_until(what: &str, ready: impl AsyncFn() -> bool) {
    for _ in 0..1000 {
        if ready().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

/// Checks another user at the socket, although directory and socket were opened to all; and bytes that are no message.
fn unauthenticated_clients(labels: &Labels) {
    let socket = labels.directory.join("agent.sock");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&labels.directory), mode(&socket)), (0o700, 0o600));
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 70_000]] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(garbage);
    }
    let open =
        |path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    open(&labels.directory, 0o711);
    open(&socket, 0o666);
    let reported = std::thread::scope(|scope| {
        let other_user = scope.spawn(|| {
            let user = rustix::process::Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let own = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            own.block_on(async {
                let mut client = try_connect(labels).await.unwrap();
                client.applications(Nothing {}).await.unwrap_err()
            })
        });
        other_user.join().unwrap()
    });
    assert_eq!(reported.code(), Code::PermissionDenied);
    open(&labels.directory, 0o700);
}

/// The agent is killed repeatedly, and the client disconnects in the middle of a stream. The last kept label is
/// reported, and each label runs once.
#[test]
fn grpc_label_runs_once_despite_kills_and_disconnects() {
    const LABELS: u64 = 4000;
    let Some(cluster) = cluster() else { return };
    let labels = Labels::of(&cluster, USER);
    let log = || std::fs::read_to_string(cluster.at("w/log")).unwrap_or_default();
    runtime().block_on(async {
        let (mut published, mut ends) = (0, 0);
        while published < LABELS {
            let mut client = connect(&labels).await;
            let Ok((registered, stream)) = register(&mut client, KEY).await else {
                continue;
            };
            assert!(
                registered.published >= published,
                "{registered:?} < {published}"
            );
            published = registered.published;
            let (sends, receives) = tokio::sync::mpsc::channel(4);
            let from = published + 1;
            // At most this number of batches is unanswered at a time.
            let window = Arc::new(Semaphore::new(4));
            let unanswered = window.clone();
            let sending = tokio::spawn(async move {
                for first in (from..=LABELS).step_by(20) {
                    let batch = Batch {
                        key: KEY.into(),
                        labels: (first..=LABELS.min(first + 19)).map(append).collect(),
                        nowait: false,
                    };
                    unanswered.acquire().await.unwrap().forget();
                    if sends.send(batch).await.is_err() {
                        return;
                    }
                }
            });
            let answers = client.publish(ReceiverStream::new(receives)).await;
            let Ok(answers) = answers else { continue };
            let mut answers = answers.into_inner();
            let mut batches = 0;
            while let Ok(Some(answer)) = answers.message().await {
                published = answer.published;
                window.add_permits(1);
                batches += 1;
                if batches == 30 {
                    match ends % 2 {
                        0 => labels.kill_agent(),
                        _ => break,
                    }
                }
            }
            ends += 1;
            // The client receives no answer that is still in transit.
            sending.abort();
            drop((answers, stream, client));
        }
        assert!(ends >= 5, "clients have disconnected too seldom: {ends}");
    });
    labels.start_agent();
    wait("all is done", || log().len() as u64 == LABELS * 10);
    let expected: String = (1..=LABELS)
        .map(|number| format!("{number:09}\n"))
        .collect();
    assert_eq!(log(), expected);
}

async fn subscribe(
    client: &mut Client,
    pattern: &str,
    since: &str,
) -> Result<Streaming<Event>, Status> {
    let request = SubscribeRequest {
        key: KEY.into(),
        pattern: pattern.into(),
        since: since.into(),
    };
    Ok(client.subscribe(request).await?.into_inner())
}

/// Each new file is reported once, although the agent is killed and nobody listens for a while. Files without read
/// permission are not reported.
#[test]
fn grpc_events_arrive_once_despite_kills_and_disconnects() {
    const FILES: usize = 60;
    let Some(cluster) = cluster() else { return };
    let labels = Labels::of(&cluster, USER);
    let mut made: Vec<_> = (0..FILES).map(|n| format!("tidemill:/w/s-{n}")).collect();
    runtime().block_on(async {
        let mut client = connect(&labels).await;
        let unknown = subscribe(&mut client, "tidemill:/w/*", "").await;
        assert_eq!(unknown.unwrap_err().code(), Code::NotFound);
        let (_, held) = register(&mut client, KEY).await.unwrap();
        for (pattern, since) in [
            ("tidemill:/w/[", ""),
            ("/etc/*", ""),
            ("tidemill:/w/*", "x"),
        ] {
            let refused = match subscribe(&mut client, pattern, since).await {
                Err(status) => status,
                Ok(mut stream) => loop {
                    match stream.message().await {
                        Err(status) => break status,
                        Ok(reported) => {
                            assert!(reported.is_some_and(|reported| reported.path.is_empty()))
                        }
                    }
                },
            };
            assert_eq!(refused.code(), Code::InvalidArgument, "{pattern} {since}");
        }
        let mut stream = subscribe(&mut client, "tidemill:/w/s-*", "").await.unwrap();
        let first = stream.message().await.unwrap().unwrap();
        assert_eq!(first.path, "");
        cluster.sh(&format!(
            "for n in $(seq 0 {}); do echo > w/s-$n; echo > own/s-$n; echo > w/other-$n; done",
            FILES - 1
        ));
        let (mut events, mut since) = (Vec::new(), first.cursor);
        let mut held = Some((client, held, stream));
        while events.len() < FILES {
            let (client, registered, mut stream) = match held.take() {
                Some(held) => held,
                None => {
                    let mut client = connect(&labels).await;
                    let Ok((_, registered)) = register(&mut client, KEY).await else {
                        continue;
                    };
                    let stream = subscribe(&mut client, "tidemill:/w/s-*", &since).await;
                    (client, registered, stream.unwrap())
                }
            };
            for number in 0.. {
                let Ok(Some(reported)) = stream.message().await else {
                    break;
                };
                since = reported.cursor;
                assert!(!reported.missed);
                events.extend(Some(reported.path).filter(|path| !path.is_empty()));
                match (events.len() / 20 % 2, number) {
                    _ if events.len() == FILES => break,
                    (0, 15) => labels.kill_agent(),
                    (1, 15) => break,
                    _ => {}
                }
            }
            drop((client, registered));
        }
        // Files arrive in the order in which they were stored. Files that are closed at the same time have no fixed order.
        events.sort();
        made.sort();
        assert_eq!(events, made);
    });
}

/// The agent serves a port of the host to holders of the token, and no other address.
#[test]
fn agent_port_needs_the_token_and_a_loopback_address() {
    let Some(cluster) = cluster() else { return };
    let labels = Labels::of(&cluster, USER);
    let agent = |address: &str| {
        let mut command = labels.command(env!("CARGO_BIN_EXE_tidemill"));
        command.args(["async", "agent", "--listen", address]);
        command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut agent = agent(&format!("127.0.0.1:{port}"));
    runtime().block_on(async {
        let url = format!("http://127.0.0.1:{port}");
        wait_until("it listens", async || {
            let endpoint = Endpoint::from_shared(url.clone()).unwrap();
            endpoint.connect().await.is_ok()
        })
        .await;
        let channel = Endpoint::from_shared(url.clone())
            .unwrap()
            .connect()
            .await
            .unwrap();
        let mut client = LabelsClient::new(channel);
        let file = labels.directory.join("agent.token");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let token = std::fs::read_to_string(file).unwrap();
        for (printed, code) in [
            (None, Code::Unauthenticated),
            (Some("Bearer x".to_owned()), Code::Unauthenticated),
            (Some(format!("Bearer {token}")), Code::Ok),
        ] {
            let mut request = Request::new(Nothing {});
            if let Some(printed) = printed {
                request
                    .metadata_mut()
                    .insert("authorization", printed.parse().unwrap());
            }
            let reported = client
                .applications(request)
                .await
                .map_or_else(|status| status.code(), |_| Code::Ok);
            assert_eq!(reported, code);
        }
    });
    agent.kill().unwrap();
    agent.wait().unwrap();
    let mut command = labels.command(env!("CARGO_BIN_EXE_tidemill"));
    let refused = command
        .args(["async", "agent", "--listen", "0.0.0.0:7070"])
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && why.contains("this host only"),
        "{why}"
    );
}
