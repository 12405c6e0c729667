//! Tests of labels in NATS JetStream, with real NATS servers that are killed, hang, start late and lose their data.
#![cfg(feature = "nats")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod broker;
#[path = "server/cluster/mod.rs"]
mod cluster;
#[path = "../../../tests/require.rs"]
mod require;

use async_nats::jetstream::{self, stream::Config};
use broker::{Broker, PASSWORD};
use cluster::{Running, ended, stat, submit, write_file};
use require::tell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tidemill_model::id::{LabelId, NodeId, ObjectId};
use tidemill_model::label::{Label, Operation, Owner};
use tidemill_server::queue::{LabelQueue, Nats, QueueLocation, Unavailable};
use tidemill_wire::v1::{self, State};

const CLUSTER: u64 = 0xa11a;
const STREAM: &str = "TIDEMILL-000000000000a11a";
const KEY: [u8; 32] = [7; 32];
const HERE: NodeId = NodeId(1);
const OFFLINE: NodeId = NodeId(2);

fn label(id: u64) -> Label {
    let objects = (0..8).map(|object| ObjectId(8 * id + object)).collect();
    Label {
        id: LabelId(id),
        owner: Owner { uid: 7, gid: 8 },
        after: Vec::new(),
        operation: Operation::Remove { objects },
    }
}

fn labels(ids: std::ops::Range<u64>) -> Vec<Label> {
    ids.map(label).collect()
}

fn ids(labels: &[Label]) -> Vec<u64> {
    labels.iter().map(|label| label.id.0).collect()
}

fn known(ids: &[u64]) -> BTreeSet<LabelId> {
    ids.iter().copied().map(LabelId).collect()
}

fn queue(broker: &Broker, replicas: usize) -> Nats {
    let address = format!("{}?replicas={replicas}", broker.url())
        .parse()
        .unwrap();
    Nats::start(address, CLUSTER, &KEY).unwrap()
}

/// Repeats `what` until the call succeeds.
fn patiently<T>(mut what: impl FnMut() -> Result<T, Unavailable>) -> T {
    let began = Instant::now();
    loop {
        match what() {
            Ok(done) => return done,
            Err(error) => {
                assert!(!error.to_string().contains("hush"), "{error}");
                assert!(began.elapsed() < Duration::from_secs(60), "{error}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// A fake dispatcher that creates labels and stores them until their outcome is known, as the server does.
struct Dispatcher {
    queue: Nats,
    outbox: BTreeMap<LabelId, Label>,
    next: u64,
    behind: bool,
    failures: u64,
}

impl Dispatcher {
    fn new(queue: Nats) -> Self {
        Self {
            queue,
            outbox: BTreeMap::new(),
            next: 1,
            behind: true,
            failures: 0,
        }
    }

    /// Creates `count` labels, and ends the labels that the queue delivers.
    fn turn(&mut self, count: u64) {
        let new = labels(self.next..self.next + count);
        self.next += count;
        self.outbox
            .extend(new.iter().map(|label| (label.id, label.clone())));
        self.behind = match self.deliver(new) {
            Ok(()) => false,
            Err(error) => {
                assert!(!error.to_string().contains("hush"), "{error}");
                self.failures += 1;
                std::thread::sleep(Duration::from_millis(50));
                true
            }
        };
    }

    fn deliver(&mut self, new: Vec<Label>) -> Result<(), Unavailable> {
        if self.behind {
            self.queue
                .enqueue(HERE, self.outbox.values().cloned().collect())?;
            self.queue.redeliver(HERE, &known(&[]))?;
        } else {
            self.queue.enqueue(HERE, new)?;
        }
        let given = self.queue.fetch(HERE)?;
        for label in &given {
            let kept = self.outbox.remove(&label.id);
            assert!(kept.is_none_or(|kept| kept == *label), "{label:?}");
        }
        let given: Vec<LabelId> = given.iter().map(|label| label.id).collect();
        self.queue.acknowledge(HERE, &given)
    }

    /// Delivers and ends labels until no labels are left.
    fn rest(&mut self) {
        let began = Instant::now();
        while self.behind || !self.outbox.is_empty() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{} are left",
                self.outbox.len()
            );
            self.turn(0);
        }
    }
}

/// Connection of an administrator to NATS, or of anybody else with the password of the NATS servers.
struct Admin {
    runtime: tokio::runtime::Runtime,
    context: jetstream::Context,
}

impl Admin {
    fn new(broker: &Broker) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = async {
            let urls: Vec<String> = broker.url().split(',').map(str::to_owned).collect();
            let options = async_nats::ConnectOptions::new();
            let options = options.user_and_password("mill".into(), PASSWORD.into());
            options.connect(urls).await.unwrap()
        };
        let client = runtime.block_on(client);
        let context = runtime.block_on(async { jetstream::new(client) });
        Self { runtime, context }
    }

    fn stream(&self) -> jetstream::stream::Stream {
        self.runtime
            .block_on(self.context.get_stream(STREAM))
            .unwrap()
    }

    fn config(&self) -> Config {
        self.stream().cached_info().config.clone()
    }

    fn messages(&self) -> u64 {
        self.stream().cached_info().state.messages
    }

    fn purge(&self) {
        let stream = self.stream();
        self.runtime
            .block_on(async { stream.purge().await })
            .unwrap();
    }

    fn remove(&self) {
        self.runtime
            .block_on(self.context.delete_stream(STREAM))
            .unwrap();
    }

    fn publish(&self, subject: &str, message: &[u8]) {
        let message = message.to_vec().into();
        let subject = format!("tidemill.{CLUSTER:016x}.{subject}");
        let publish = async { self.context.publish(subject, message).await.unwrap().await };
        self.runtime.block_on(publish).unwrap();
    }

    /// Returns the payload of the oldest message in the stream.
    fn first(&self) -> Vec<u8> {
        let stream = self.stream();
        let first = stream.cached_info().state.first_sequence;
        let message = self
            .runtime
            .block_on(stream.get_raw_message(first))
            .unwrap();
        message.payload.to_vec()
    }
}

#[test]
fn nats_labels_outlive_producer_until_acknowledged() {
    let Some(broker) = Broker::start(1, tell) else {
        return;
    };
    let first = queue(&broker, 1);
    patiently(|| first.enqueue(HERE, labels(1..1201)));
    patiently(|| first.enqueue(OFFLINE, labels(2000..2003)));
    let admin = Admin::new(&broker);
    assert_eq!(admin.messages(), 1203);
    assert_eq!(first.fetch(HERE).unwrap(), labels(1..1201));
    first
        .acknowledge(HERE, &(1..=1190).map(LabelId).collect::<Vec<_>>())
        .unwrap();
    assert_eq!(admin.messages(), 13);
    // The first server dies. The next server's queue has the unacknowledged labels, although the node's answers to them are unknown.
    drop(first);
    let second = queue(&broker, 1);
    patiently(|| second.enqueue(HERE, labels(1195..1203)));
    assert_eq!(admin.messages(), 15, "existing labels are not stored again");
    second.redeliver(HERE, &known(&[1191, 1202])).unwrap();
    assert_eq!(
        ids(&second.fetch(HERE).unwrap()),
        (1192..1202).collect::<Vec<_>>()
    );
    second
        .acknowledge(HERE, &(1191..=1202).map(LabelId).collect::<Vec<_>>())
        .unwrap();
    // A label that was not fetched can be acknowledged, and so can a label that does not exist.
    second
        .acknowledge(OFFLINE, &[LabelId(2001), LabelId(9)])
        .unwrap();
    assert_eq!(ids(&second.fetch(OFFLINE).unwrap()), [2000, 2002]);
    assert_eq!(admin.messages(), 2);
}

#[test]
fn nats_messages_without_valid_key_are_removed_and_never_delivered() {
    let Some(broker) = Broker::start(1, tell) else {
        return;
    };
    let ours = queue(&broker, 1);
    patiently(|| ours.enqueue(HERE, labels(1..3)));
    let admin = Admin::new(&broker);
    let sealed = admin.first();
    assert_eq!(ours.fetch(HERE).unwrap(), labels(1..3));
    drop(ours);
    let other = Nats::start(broker.url().parse().unwrap(), CLUSTER, &[8; 32]).unwrap();
    // A sender without the cluster's key can't create a valid label.
    patiently(|| other.enqueue(HERE, labels(5..6)));
    assert_eq!(other.fetch(HERE).unwrap(), labels(5..6));
    let forged = admin.first();
    drop(other);
    for (subject, message) in [
        ("1", &b""[..]),
        ("1", b"garbage"),
        ("1", &[1; 33]),
        ("1", &[255; 4096]),
        ("no-number", &sealed),
        ("99999999999", &sealed),
        // This label is sealed for another node.
        ("2", &sealed),
        ("1", &forged),
        ("1", &sealed[..sealed.len() - 1]),
        // This label is valid, and its repetition changes nothing.
        ("1", &sealed),
    ] {
        admin.publish(subject, message);
    }
    let again = queue(&broker, 1);
    patiently(|| again.enqueue(HERE, labels(1..3)));
    assert_eq!(again.fetch(HERE).unwrap(), labels(1..3));
    assert_eq!(again.fetch(OFFLINE).unwrap(), []);
    again.acknowledge(HERE, &[LabelId(1), LabelId(2)]).unwrap();
    assert_eq!(admin.messages(), 0);
}

#[test]
fn nats_oversized_label_does_not_block_other_labels() {
    let Some(broker) = Broker::start(1, tell) else {
        return;
    };
    let queue = queue(&broker, 1);
    let mut large = label(2);
    let objects = (0..1_000_000)
        .map(|object| ObjectId(object << 20))
        .collect();
    large.operation = Operation::Remove { objects };
    let all = vec![label(1), large, label(3)];
    patiently(|| queue.enqueue(HERE, all.clone()));
    assert_eq!(queue.fetch(HERE).unwrap(), all);
    queue.redeliver(HERE, &known(&[1])).unwrap();
    assert_eq!(queue.fetch(HERE).unwrap(), all[1..]);
    queue
        .acknowledge(HERE, &[LabelId(1), LabelId(2), LabelId(3)])
        .unwrap();
    assert_eq!(Admin::new(&broker).messages(), 0);
}

#[test]
fn nats_server_crash_hang_or_data_loss_loses_no_label() {
    let Some(mut broker) = Broker::new(1, tell) else {
        return;
    };
    let mut dispatcher = Dispatcher::new(queue(&broker, 1));
    // The queue is down at the start.
    dispatcher.turn(10);
    assert_eq!(dispatcher.failures, 1);
    broker.begin(0);
    dispatcher.rest();
    let admin = Admin::new(&broker);
    // The stream is purged and deleted, with labels in it and without.
    for harm in [Admin::purge, Admin::remove] {
        for count in [0, 50] {
            let new = labels(dispatcher.next..dispatcher.next + count);
            dispatcher.next += count;
            dispatcher
                .outbox
                .extend(new.iter().map(|label| (label.id, label.clone())));
            dispatcher.queue.enqueue(HERE, new).unwrap();
            harm(&admin);
            dispatcher.turn(50);
            dispatcher.rest();
        }
    }
    assert_eq!(admin.messages(), 0);
    // The server is killed, or made to hang, in the middle.
    for round in 0..4 {
        let failures = dispatcher.failures;
        dispatcher.turn(700);
        let hangs = round % 2 == 0;
        if hangs {
            broker.stop(0);
        } else {
            broker.kill(0);
        }
        for _ in 0..4 {
            dispatcher.turn(5);
        }
        assert!(dispatcher.failures > failures && !dispatcher.outbox.is_empty());
        if hangs {
            broker.go_on(0);
        } else {
            broker.begin(0);
        }
        dispatcher.rest();
    }
    drop(dispatcher.queue);
    let next = queue(&broker, 1);
    assert_eq!(
        patiently(|| next.fetch(HERE)),
        [],
        "acknowledged labels are removed"
    );
    assert_eq!(Admin::new(&broker).messages(), 0);
}

#[test]
fn three_nats_servers_lose_no_label_if_one_is_killed() {
    let Some(mut broker) = Broker::start(3, tell) else {
        return;
    };
    let mut dispatcher = Dispatcher::new(queue(&broker, 3));
    dispatcher.turn(100);
    dispatcher.rest();
    assert_eq!(Admin::new(&broker).config().num_replicas, 3);
    for victim in 0..3 {
        for turn in 0..20 {
            dispatcher.turn(50);
            if turn == 5 {
                broker.kill(victim);
            }
        }
        // Two servers are enough.
        dispatcher.rest();
        dispatcher.turn(200);
        dispatcher.rest();
        broker.begin(victim);
        caught_up(&broker);
    }
    let messages = || Admin::new(&broker).messages();
    drop(dispatcher.queue);
    let next = queue(&broker, 3);
    patiently(|| {
        next.fetch(HERE)
            .map(|given| next.acknowledge(HERE, &ids_of(&given)))
    })
    .unwrap();
    assert_eq!(messages(), 0);
}

fn ids_of(labels: &[Label]) -> Vec<LabelId> {
    labels.iter().map(|label| label.id).collect()
}

/// Waits until a restarted NATS server has caught up with the others. Otherwise there is no majority when the next server is killed.
fn caught_up(broker: &Broker) {
    let admin = Admin::new(broker);
    let all = || {
        let stream = admin.runtime.block_on(admin.context.get_stream(STREAM));
        let stream = stream.ok();
        let cluster = stream.and_then(|stream| stream.cached_info().cluster.clone());
        cluster.is_some_and(|cluster| {
            cluster.leader.is_some()
                && cluster.replicas.len() == 2
                && cluster
                    .replicas
                    .iter()
                    .all(|one| one.current && !one.offline)
        })
    };
    let began = Instant::now();
    while !all() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "a server does not catch up"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn nats_stream_replicas_are_changed_and_foreign_stream_is_kept() {
    let Some(broker) = Broker::start(1, tell) else {
        return;
    };
    let admin = Admin::new(&broker);
    let config = Config {
        name: STREAM.into(),
        subjects: vec!["theirs.>".into()],
        ..Config::default()
    };
    admin
        .runtime
        .block_on(admin.context.create_stream(config))
        .unwrap();
    let ours = queue(&broker, 1);
    let error = ours.enqueue(HERE, labels(1..2)).unwrap_err().to_string();
    assert!(
        error.contains(STREAM) && error.contains("remove it"),
        "{error}"
    );
    admin.remove();
    patiently(|| ours.enqueue(HERE, labels(1..2)));
    drop(ours);
    let more = queue(&broker, 3);
    let error = more.fetch(HERE).unwrap_err().to_string();
    assert!(error.contains("replicas"), "{error}");
    let shown = format!("{more:?} {error}");
    assert!(!shown.contains("hush"), "{shown}");
    drop(more);
    let wrong = broker.url().replace("hush", "hash").parse().unwrap();
    let wrong = Nats::start(wrong, CLUSTER, &KEY).unwrap();
    let error = wrong.fetch(HERE).unwrap_err().to_string();
    assert!(
        error.contains("uthorization") && !error.contains("hash"),
        "{error}"
    );
    assert_eq!(admin.messages(), 1);
}

async fn trouble(client: &tidemill_client::Server) -> String {
    client.status().await.unwrap().trouble
}

/// Waits until the server reports that it can't add labels to the queue.
async fn in_trouble(client: &tidemill_client::Server) {
    let began = Instant::now();
    loop {
        let reported = trouble(client).await;
        assert!(!reported.contains("hush"), "{reported}");
        if reported.contains("queue") {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{reported}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_works_without_nats_and_jobs_run_when_nats_returns() {
    let Some(mut broker) = Broker::new(1, tell) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let start = async |url: String| {
        let mut config = tidemill_server::ServeConfig::new(dir.path());
        config.tls = false;
        config.queue = QueueLocation::Nats(url.parse().unwrap());
        Running::start_with(config).await
    };
    let running = start(broker.url()).await;
    let node = running.node(0).await;
    let client = running.client().await;
    write_file(&client, "/in", 100, 1000).await;
    let worker = node.serve();
    let script = r#"name = "one"; workdir = "/"; tasks = ( { name = "t"; kernel = "max"; input = ["/in"]; output = ["/out"]; } );"#;
    let reply = submit(&client, 0, script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    in_trouble(&client).await;
    write_file(&client, "/meanwhile", 5, 1000).await;
    assert!(stat(&client, "/out").await.is_none());
    // The server is killed, too, and only its database knows the label.
    worker.abort();
    running.crash().await;
    broker.begin(0);
    let running = start(broker.url()).await;
    let client = running.client().await;
    let worker = running.node(0).await.serve();
    let done = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done));
    assert_eq!(stat(&client, "/out").await.unwrap().size, 5);
    assert_eq!(trouble(&client).await, "");
    // The queue hangs, but the namespace continues.
    broker.stop(0);
    let script = script.replace("/out", "/more");
    let reply = submit(&client, 0, &script).await;
    assert_eq!(reply.errors, Vec::<String>::new());
    write_file(&client, "/then", 5, 1000).await;
    in_trouble(&client).await;
    broker.go_on(0);
    let done: v1::Job = ended(&client, reply.job).await;
    assert_eq!(done.state, i32::from(State::Done));
    worker.abort();
    running.stop().await;
}
