//! A server with its real sockets, and a node whose protocol messages the test sends.
#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "tests")]

use crate::cluster::{Running, file_op, receipt, root};
use tidemill_client::{Credential, Endpoint, Error, Server as Client, Trust};
use tidemill_server::ServeConfig;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

fn lookup(name: &str) -> Op {
    Op::Lookup(v1::Lookup {
        parent: 1,
        name: name.as_bytes().to_vec(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn sealed_file_exists_after_server_crash() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let node = running.node(0).await;
    let client = running.client().await;
    let (ino, object) = client.reserve(1, 1).await.unwrap();
    let create = v1::Create {
        parent: 1,
        name: b"a".to_vec(),
        kind: v1::Kind::File.into(),
        mode: 0o644,
        ino: ino.0,
        object: object.0,
        ..v1::Create::default()
    };
    let Answer::Opened(opened) = client
        .one(&root(), Op::Create(create.clone()))
        .await
        .unwrap()
    else {
        panic!("not opened")
    };
    assert_eq!((opened.node, opened.object), (0, object.0));
    assert!(!opened.capability.is_empty());
    let seal = v1::Seal {
        ino: ino.0,
        object: object.0,
        size: 12,
        mtime: 5,
        receipts: vec![receipt(&client, 0, object.0, 12)],
        ..v1::Seal::default()
    };
    // A size that the node did not confirm would stay with the file for ever.
    let with = |size, receipts| v1::Seal {
        size,
        receipts,
        ..seal.clone()
    };
    let of = |node, object, size| vec![receipt(&client, node, object, size)];
    let false_seals = [
        with(1 << 63, of(0, object.0, 1 << 63)),
        with(u64::MAX, of(0, object.0, u64::MAX)),
        with(13, of(0, object.0, 12)),
        with(12, of(1, object.0, 12)),
        with(12, of(0, object.0 + 1, 12)),
        with(12, Vec::new()),
        with(12, vec![vec![0; 32]]),
    ];
    for false_seal in false_seals {
        let refused = client.one(&root(), Op::Seal(false_seal)).await.unwrap_err();
        let errnos = [rustix::io::Errno::INVAL, rustix::io::Errno::BADMSG];
        assert!(errnos.iter().any(|errno| refused.is(*errno)), "{refused}");
    }
    client.one(&root(), Op::Seal(seal.clone())).await.unwrap();
    // The same requests again do nothing new: the client may not have heard the answer.
    client.one(&root(), Op::Seal(seal)).await.unwrap();
    drop(node);
    running.crash().await;

    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let Answer::Entry(entry) = client.one(&root(), lookup("a")).await.unwrap() else {
        panic!("no entry")
    };
    let attr = entry.attr.unwrap();
    assert_eq!(
        (attr.size, attr.version, attr.object, attr.mtime),
        (12, 1, object.0, 5)
    );
    let (later, _) = client.reserve(1, 1).await.unwrap();
    assert!(later.0 > ino.0, "ids are never issued twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_request_without_token_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for tls in [true, false] {
        let config = ServeConfig {
            tls,
            ..ServeConfig::new(dir.path())
        };
        let running = Running::start_with(config).await;
        let scheme = if tls { "https" } else { "http" };
        let address = running.server().address();
        let endpoint: Endpoint = format!("{scheme}://{address}").parse().unwrap();
        let credential = Credential::read(running.server().token_file()).unwrap();
        let client = Client::connect(&endpoint, Some(&credential)).await.unwrap();
        assert_eq!(
            client.trust().map(Trust::ca),
            Some(credential.ca.as_slice())
        );

        let wrong = Credential {
            token: "wrong".into(),
            ..credential
        };
        let error = Client::connect(&endpoint, Some(&wrong)).await.unwrap_err();
        assert!(error.to_string().contains("cluster token"), "{error}");
        assert!(Client::connect(&endpoint, None).await.is_err());
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_refuses_server_with_other_certificate() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = Running::start_with(ServeConfig::new(dir.path())).await;
    let other_server = Running::start_with(ServeConfig::new(other.path())).await;
    let address = running.server().address();
    let endpoint: Endpoint = format!("https://{address}").parse().unwrap();

    let credential = Credential::read(other_server.server().token_file()).unwrap();
    let error = Client::connect(&endpoint, Some(&credential))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Untrusted { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");

    // Without a credential, the client cannot recognise the server.
    let error = Client::connect(&endpoint, None).await.unwrap_err();
    assert!(matches!(error, Error::NoCa(_)), "{error}");
    let own = Credential::read(running.server().token_file()).unwrap();

    // Without TLS the token never gets through, and the error says what to do.
    let plain: Endpoint = format!("http://{address}").parse().unwrap();
    let error = Client::connect(&plain, Some(&own)).await.unwrap_err();
    assert!(error.to_string().contains("by https://"), "{error}");
    other_server.stop().await;

    let unsecured = Running::start(other.path()).await;
    let address = unsecured.server().address();
    let secure: Endpoint = format!("https://{address}").parse().unwrap();
    let error = Client::connect(&secure, Some(&own)).await.unwrap_err();
    assert!(error.to_string().contains("without TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ca_and_token_are_same_after_server_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let running = Running::start_with(ServeConfig::new(dir.path())).await;
        seen.push(Credential::read(running.server().token_file()).unwrap());
        let endpoint: Endpoint = format!("https://{}", running.server().address())
            .parse()
            .unwrap();
        Client::connect(&endpoint, seen.first()).await.unwrap();
        running.stop().await;
    }
    assert_eq!(seen[0], seen[1]);
}

/// Returns the error with which the server rejects node 3, which serves without TLS.
async fn refused(client: &Client, version: u32) -> tonic::Status {
    let hello = v1::Hello {
        version,
        node: Some(crate::cluster::status(3)),
        ..v1::Hello::default()
    };
    let hello = v1::FromNode {
        message: Some(v1::from_node::Message::Hello(hello)),
    };
    let stream = tokio_stream::iter([hello]);
    client.cluster().attach(stream).await.unwrap_err()
}

/// A node of a release without needs, runtime environment and directories would silently ignore these fields, so the server rejects it.
#[tokio::test(flavor = "multi_thread")]
async fn node_of_another_release_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    for version in [5, tidemill_wire::PROTOCOL_VERSION + 1] {
        let refused = refused(&client, version).await;
        let reported = format!("protocol version {version}");
        assert!(refused.message().contains(&reported), "{refused}");
    }
}

/// Attaches node 3, which has stored these ids, to the cluster.
async fn attach_with_used_ids(
    client: &Client,
    cluster: u64,
    used: v1::UsedIds,
) -> Result<(), tonic::Status> {
    let hello = v1::Hello {
        version: tidemill_wire::PROTOCOL_VERSION,
        node: Some(crate::cluster::status(3)),
        cluster_id: cluster,
        used: Some(used),
        ..v1::Hello::default()
    };
    let message = Some(v1::from_node::Message::Hello(hello));
    let stream = tokio_stream::iter([v1::FromNode { message }]);
    client.cluster().attach(stream).await.map(|_| ())
}

/// A server whose database is older than the data of its nodes must not give new files the ids of this data.
#[tokio::test(flavor = "multi_thread")]
async fn ids_stored_by_a_node_are_not_issued_again_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let cluster = client.status().await.unwrap().cluster_id;
    let reserved = async |client: &Client| {
        let request = v1::ReserveRequest {
            inodes: 1,
            objects: 1,
        };
        let reply = client.names().reserve(request).await.unwrap().into_inner();
        (reply.first_inode, reply.first_object)
    };
    let used = |object| v1::UsedIds {
        object,
        task: 9,
        label: 9,
    };
    let lying = attach_with_used_ids(&client, cluster, used(u64::MAX)).await;
    assert!(lying.unwrap_err().message().contains("no server issues"));
    attach_with_used_ids(&client, cluster + 1, used(1 << 50))
        .await
        .unwrap_err();
    let (inode, object) = reserved(&client).await;
    assert!(inode < 1000 && object < 1000, "{inode} {object}");
    attach_with_used_ids(&client, cluster, used(7000))
        .await
        .unwrap();
    attach_with_used_ids(&client, cluster, used(50))
        .await
        .unwrap();
    // Nodes do not know all inodes that were issued.
    let after = reserved(&client).await;
    assert_eq!(after.1, 7001);
    assert!(after.0 > inode + (1 << 32), "{after:?}");
    drop(client);
    running.crash().await;
    let running = Running::start(dir.path()).await;
    let next = reserved(&running.client().await).await;
    assert!(next.0 > after.0 && next.1 > after.1, "{next:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_with_tls_rejects_node_without_tls() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start_with(ServeConfig::new(dir.path())).await;
    let client = running.client().await;
    let refused = refused(&client, tidemill_wire::PROTOCOL_VERSION).await;
    assert!(
        refused.message().contains("node 3 serves without TLS"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn mount_receives_changes_of_other_mounts_only() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let mut watch = client
        .names()
        .watch(v1::WatchRequest::default())
        .await
        .unwrap()
        .into_inner();
    let session = watch.message().await.unwrap().unwrap().session;
    assert_ne!(session, 0);
    for (session, name) in [(session, "mine"), (0, "theirs")] {
        let request = v1::NameRequest {
            credentials: Some(root()),
            ops: vec![v1::NameOp {
                op: Some(file_op(name)),
            }],
            session,
            durable: true,
        };
        client.apply(request).await.unwrap();
    }
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(
        (first.parent, first.name.as_slice()),
        (1, b"theirs".as_slice())
    );
}

/// The attributes of a file that a mount writes are those of the last close, as the mount reports them.
#[tokio::test(flavor = "multi_thread")]
async fn stat_of_file_being_written_waits_for_its_mount() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let _node = running.node(0).await;
    let client = running.client().await;
    let mut names = client.names();
    let watch = names.watch(v1::WatchRequest::default());
    let mut stream = watch.await.unwrap().into_inner();
    let session = stream.message().await.unwrap().unwrap().session;
    let mount = async |op| {
        let request = v1::NameRequest {
            credentials: Some(root()),
            ops: vec![v1::NameOp { op: Some(op) }],
            session,
            durable: false,
        };
        client.apply(request).await.unwrap().remove(0)
    };
    let (ino, object) = client.reserve(1, 1).await.unwrap();
    let Op::Create(create) = file_op("a") else {
        panic!("no create")
    };
    let create = v1::Create {
        ino: ino.0,
        object: object.0,
        ..create
    };
    mount(Op::Create(create)).await;
    // Questions of the mount itself are answered at once.
    assert!(matches!(mount(lookup("a")).await, Answer::Entry(_)));

    let ask = |op| {
        let client = client.clone();
        tokio::spawn(async move { client.one(&root(), op).await })
    };
    let content = Op::GetAttr(v1::GetAttr {
        ino: ino.0,
        content: true,
    });
    let sizes = [content.clone(), lookup("a")];
    for (op, open) in sizes.into_iter().zip([true, false]) {
        let asked = ask(op);
        let question = stream.message().await.unwrap().unwrap();
        assert_eq!(question.ino, ino.0);
        assert!(question.question != 0 && !asked.is_finished());
        if open {
            let question = question.question;
            mount(Op::Answer(v1::Answer { question, open })).await;
        } else {
            let seal = v1::Seal {
                ino: ino.0,
                object: object.0,
                size: 12,
                mtime: 5,
                receipts: vec![receipt(&client, 0, object.0, 12)],
                ..v1::Seal::default()
            };
            mount(Op::Seal(seal)).await;
        }
        let size = match asked.await.unwrap().unwrap() {
            Answer::Attr(attr) => attr.size,
            Answer::Entry(entry) => entry.attr.unwrap().size,
            other => panic!("{other:?}"),
        };
        assert_eq!(size, if open { 0 } else { 12 });
    }

    // After a mount has disconnected without an answer, the query waits until the mount's version is abandoned.
    let (_, object) = client.reserve(1, 1).await.unwrap();
    let new = v1::NewVersion {
        ino: ino.0,
        object: object.0,
        ..v1::NewVersion::default()
    };
    assert!(matches!(
        mount(Op::NewVersion(new)).await,
        Answer::Opened(_)
    ));
    let asked = ask(content);
    assert!(stream.message().await.unwrap().unwrap().question != 0);
    drop(stream);
    let abandon = v1::Abandon {
        ino: ino.0,
        object: object.0,
    };
    assert!(!asked.is_finished());
    mount(Op::Abandon(abandon)).await;
    assert!(matches!(asked.await.unwrap(), Ok(Answer::Attr(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn client_request_waits_for_restarting_server() {
    let dir = tempfile::tempdir().unwrap();
    drop(Running::start(dir.path()).await);
    let held = std::fs::File::open(dir.path().join("server.lock")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(held);
    });
    drop(Running::start(dir.path()).await);
    ends.join().unwrap();
}

#[tokio::test]
async fn second_server_in_same_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _running = Running::start(dir.path()).await;
    let second =
        tidemill_server::RunningServer::start(tidemill_server::ServeConfig::new(dir.path())).await;
    assert!(matches!(second, Err(tidemill_server::StartError::InUse(_))));
}

/// The server reports a node of another release and a node with a wrong clock as conditions.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_node_is_reported_as_condition() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path()).await;
    let client = running.client().await;
    let (out, receiver) = tokio::sync::mpsc::channel(1);
    let hello = v1::Hello {
        version: tidemill_wire::PROTOCOL_VERSION + 1,
        node: Some(crate::cluster::status(4)),
        ..v1::Hello::default()
    };
    let message = Some(v1::from_node::Message::Hello(hello));
    out.send(v1::FromNode { message }).await.unwrap();
    let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let refused = match client.cluster().attach(stream).await {
        Ok(answers) => answers.into_inner().message().await.unwrap_err(),
        Err(refused) => refused,
    };
    assert!(refused.message().contains("protocol version"), "{refused}");
    let clock = v1::Condition {
        name: "node-clock".into(),
        cause: "its clock is 90 s behind the server's\n".into(),
        // The server takes remedy and exit code from its own catalogue.
        remedy: "rm -rf /".into(),
        exit: 0,
        ..v1::Condition::default()
    };
    let unknown = v1::Condition {
        name: "of-no-release".into(),
        ..v1::Condition::default()
    };
    let late = v1::Node {
        conditions: vec![clock, unknown],
        ..crate::cluster::status(5)
    };
    let _late = crate::cluster::FakeNode::attach_as(&client, late, Vec::new()).await;
    let states = client.status().await.unwrap().conditions;
    let reported = |name: &str| states.iter().find(|one| one.name == name).cloned();
    let version = reported("node-version").unwrap();
    assert_eq!((version.node, version.exit), (Some(4), 3));
    let clock = reported("node-clock").unwrap();
    assert_eq!((clock.node, clock.exit), (Some(5), 3));
    assert!(clock.remedy.contains("clocks"), "{clock:?}");
    assert!(!clock.cause.contains('\n'), "{clock:?}");
    assert_eq!(reported("of-no-release"), None);
}
