//! Tests of the driver against nodes that fail in different ways, in async code and on a thread that blocks.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use tidemill_model::id::ObjectId;
use tidemill_model::layout::{Extent, Extents, Part, PartPosition, StripedLayout};
use tidemill_wire::route::{self, CAPABILITY_HEADER};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const SIZE: u64 = 100_000;
const PATIENCE: Duration = Duration::from_millis(300);

/// Behaviour of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Answers,
    /// Closes the connection in the middle of the body.
    Dies,
    /// Returns a complete answer with too few bytes.
    IsShort,
    /// Returns a complete answer with too many bytes.
    IsLong,
    /// Accepts only the renewed capability.
    Expects(&'static str),
    Lacks,
    /// Answers after a pause.
    IsSlow(Duration),
    Refuses(u16),
}

#[derive(Debug)]
struct FakeNode {
    url: Arc<str>,
    asked: Arc<AtomicUsize>,
}

fn byte(at: u64) -> u8 {
    u8::try_from(at * 7 % 251).unwrap()
}

fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(byte).collect()
}

/// Returns the value of a header of a request.
fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let mut lines = head.lines();
    let line = lines.find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    });
    line.unwrap_or_default()
}

async fn head_of(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// Answers one request. Returns whether the connection is kept.
async fn answer(stream: &mut TcpStream, head: &str, does: Does) -> bool {
    let range = header(head, "range").strip_prefix("bytes=");
    let (start, last) = range
        .and_then(|range| range.split_once('-'))
        .unwrap_or(("0", "99999"));
    let start: u64 = start.parse().unwrap();
    let mut end = SIZE.min(last.parse::<u64>().unwrap() + 1);
    let status = match does {
        Does::Lacks => 404,
        _ if start >= SIZE => 416,
        Does::Refuses(status) => status,
        Does::Expects(right) if header(head, CAPABILITY_HEADER) != route::hex(right.as_bytes()) => {
            403
        }
        _ => 206,
    };
    match does {
        Does::IsShort => end -= 1,
        Does::IsLong => end += 1,
        Does::IsSlow(pause) => tokio::time::sleep(pause).await,
        _ => {}
    }
    let body = if status == 206 {
        bytes(start..end)
    } else {
        Vec::new()
    };
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let sent = if does == Does::Dies {
        body.len() / 2
    } else {
        body.len()
    };
    let answer = [head.as_bytes(), &body[..sent]].concat();
    stream.write_all(&answer).await.is_ok() && sent == body.len()
}

async fn node(does: Does) -> FakeNode {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).into();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                while let Some(head) = head_of(&mut stream).await {
                    count.fetch_add(1, Ordering::Relaxed);
                    if !answer(&mut stream, &head, does).await {
                        break;
                    }
                }
            });
        }
    });
    FakeNode { url, asked }
}

/// Nodes in the order in which they are asked, with a right that can be renewed.
struct Nodes {
    nodes: Vec<FakeNode>,
    renewed: AtomicBool,
    rounds: u32,
}

impl Nodes {
    async fn new(does: &[Does]) -> Self {
        let mut nodes = Vec::new();
        for &does in does {
            nodes.push(node(does).await);
        }
        Self {
            nodes,
            renewed: AtomicBool::new(false),
            rounds: 1,
        }
    }

    fn asked(&self) -> Vec<usize> {
        let asked = |node: &FakeNode| node.asked.load(Ordering::Relaxed);
        self.nodes.iter().map(asked).collect()
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, Error> {
        read(self, &Objects::new(None), range).await
    }
}

impl Grant for Nodes {
    async fn next(&self, turn: &Turn) -> Result<Option<NodeId>, Error> {
        let mut nodes = (0..).take(self.nodes.len()).map(NodeId);
        Ok(nodes.find(|node| !turn.tried().contains(node)))
    }

    async fn address(&self, node: NodeId) -> Result<ObjectAddress, Error> {
        let renewed = self.renewed.load(Ordering::Relaxed);
        Ok(ObjectAddress {
            node,
            url: self.nodes[node.0 as usize].url.clone(),
            object: ObjectId(7),
            capability: if renewed { "new" } else { "old" }.into(),
        })
    }

    fn patience(&self, _node: NodeId, turn: &Turn) -> Option<Duration> {
        (turn.round() == 0).then_some(PATIENCE)
    }

    async fn renew(&self) -> Result<bool, Error> {
        self.renewed.store(true, Ordering::Relaxed);
        Ok(true)
    }

    async fn again(&self, turn: &Turn) -> bool {
        turn.round() + 1 < self.rounds
    }
}

#[tokio::test]
async fn reader_asks_next_replica_after_each_failure() {
    let hangs = Does::IsSlow(Duration::from_secs(60));
    for fails in [Does::Dies, Does::IsShort, Does::IsLong, Does::Lacks, hangs] {
        let nodes = Nodes::new(&[fails, Does::Answers]).await;
        let read = nodes.read(10..SIZE).await;
        assert_eq!(read.unwrap(), bytes(10..SIZE), "{fails:?}");
        assert_eq!(nodes.asked()[1], 1, "{fails:?}");
    }
}

#[tokio::test]
async fn reader_renews_expired_right_once() {
    let nodes = Nodes::new(&[Does::Expects("new")]).await;
    assert_eq!(nodes.read(0..9).await.unwrap(), bytes(0..9));
    assert_eq!(nodes.asked(), [2]);
    let nodes = Nodes::new(&[Does::Expects("other"), Does::Answers]).await;
    assert!(nodes.read(0..9).await.unwrap_err().is_no_right());
    assert_eq!(nodes.asked(), [2, 0]);
}

#[tokio::test]
async fn reader_reports_each_node_that_failed_and_why() {
    let nodes = Nodes::new(&[
        Does::IsShort,
        Does::Lacks,
        Does::IsSlow(Duration::from_secs(60)),
    ])
    .await;
    let error = nodes.read(0..9).await.unwrap_err();
    let Error::NoReplica(failures) = &error else {
        panic!("{error}");
    };
    let tried: Vec<u32> = failures.iter().map(|(node, _)| node.0).collect();
    assert_eq!(tried, [0, 1, 2]);
    let text = error.to_string();
    for part in [
        "node 0: can't reach node at",
        "is shorter there",
        "node 1: ",
        "404",
        "node 2: ",
        "has not answered",
    ] {
        assert!(text.contains(part), "{text}: {part}");
    }
    assert!(error.is_lost() && !error.is_elsewhere());
    // The error of a single node stays the same.
    let nodes = Nodes::new(&[Does::Lacks]).await;
    assert!(nodes.read(0..9).await.unwrap_err().is_elsewhere());
    // Another node cannot correct this error.
    let nodes = Nodes::new(&[Does::Refuses(400), Does::Answers]).await;
    let error = nodes.read(0..9).await.unwrap_err();
    assert!(matches!(error, Error::NodeRefused { status: 400, .. }));
    assert_eq!(nodes.asked(), [1, 0]);
}

#[tokio::test]
async fn reader_is_patient_and_bounded_in_later_rounds() {
    let mut nodes = Nodes::new(&[Does::IsSlow(3 * PATIENCE)]).await;
    nodes.rounds = 2;
    assert_eq!(nodes.read(0..9).await.unwrap(), bytes(0..9));
    assert_eq!(nodes.asked(), [2]);
    let mut nodes = Nodes::new(&[Does::Lacks, Does::Dies]).await;
    nodes.rounds = 3;
    assert!(nodes.read(0..9).await.is_err());
    assert_eq!(nodes.asked()[0], 3);
}

#[test]
fn reader_on_blocking_thread_fails_over_and_ends_when_cancelled() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cancelled = AtomicBool::new(false);
    let stop = async {
        while !cancelled.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Error::Answer("cancelled")
    };
    let does = [Does::Dies, Does::IsShort, Does::Answers];
    let nodes = runtime.block_on(Nodes::new(&does));
    let read = block_on(runtime.handle(), nodes.read(5..SIZE), stop);
    assert_eq!(read.unwrap(), bytes(5..SIZE));
    let mut nodes = runtime.block_on(Nodes::new(&[Does::IsSlow(Duration::from_secs(60))]));
    nodes.rounds = u32::MAX;
    let begun = Instant::now();
    let stop = async {
        tokio::time::sleep(2 * PATIENCE).await;
        Error::Answer("cancelled")
    };
    let read = block_on(runtime.handle(), nodes.read(0..9), stop);
    assert!(matches!(read, Err(Error::Answer("cancelled"))));
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn stream_continues_at_next_replica_with_each_byte_once() {
    let hangs = Does::IsSlow(Duration::from_secs(60));
    for fails in [Does::Dies, Does::IsShort, Does::Lacks, hangs] {
        for (from, last) in [
            (0, Does::Answers),
            (10, Does::Answers),
            (0, Does::Expects("new")),
        ] {
            let nodes = Nodes::new(&[fails, last]).await;
            let mut all = Vec::new();
            let objects = Objects::new(None);
            let read = stream(&nodes, &objects, (from, Some(SIZE)), |bytes| {
                all.extend_from_slice(&bytes);
                Ok(())
            });
            assert_eq!(read.await.unwrap(), SIZE, "{fails:?} {last:?}");
            assert_eq!(all, bytes(from..SIZE), "{fails:?} {last:?}");
        }
    }
    // A whole object is one request, and an object of the wrong length is an error.
    let nodes = Nodes::new(&[Does::Answers]).await;
    let read = async |size| stream(&nodes, &Objects::new(None), (0, size), |_| Ok(())).await;
    assert_eq!(read(None).await.unwrap(), SIZE);
    assert_eq!(nodes.asked(), [1]);
    for (size, difference) in [(SIZE + 1, "shorter"), (SIZE - 1, "longer")] {
        let error = read(Some(size)).await.unwrap_err().to_string();
        assert!(error.contains(difference), "{error}");
    }
    // An error of the receiver is no error of the node.
    let nodes = Nodes::new(&[Does::Answers, Does::Answers]).await;
    let full = |_| Err(Error::Answer("full"));
    let read = stream(&nodes, &Objects::new(None), (0, Some(SIZE)), full).await;
    assert!(matches!(read, Err(Error::Answer("full"))));
    assert_eq!(nodes.asked()[1], 0);
}

fn part(object: u64, size: u64) -> Part {
    Part::on(ObjectId(object), size, NodeId(0))
}

/// Returns the test byte at an offset of a part.
fn part_byte(part: usize, offset: u64) -> u8 {
    u8::try_from((part as u64 * 101 + offset * 7) % 251).unwrap()
}

#[tokio::test]
async fn window_returns_bytes_for_any_layout() {
    let mut extents = Extents::with_parts(vec![part(1, 60), part(2, 30)]);
    for (offset, length, part, within) in [(10, 40, 0, 0), (90, 20, 0, 40), (30, 30, 1, 0)] {
        let at = PartPosition {
            part,
            offset: within,
        };
        extents.put(Extent { offset, length, at }).unwrap();
    }
    extents.set_size(130);
    // The second part is shorter than its place: its end was never written.
    let parts = vec![part(1, 8192), part(2, 100), part(3, 4096)];
    let layouts = [
        Layout::Whole(part(1, 1000)),
        Layout::Extents(extents),
        Layout::Striped(StripedLayout {
            unit: 4096,
            size: 4 * 4096,
            parts,
        }),
    ];
    for layout in layouts {
        let byte = |at: u64| {
            let found = layout.segments(at..at + 1).next().unwrap().at;
            let stored = found.filter(|found| found.offset < layout.parts()[found.part].size);
            stored.map_or(0, |found| part_byte(found.part, found.offset))
        };
        let fetch = |fetch: Fetch| async move {
            let bytes = fetch.bytes.map(|at| part_byte(fetch.part, at));
            Ok::<Bytes, Error>(bytes.collect::<Vec<u8>>().into())
        };
        let step = layout.size() / 13 + 1;
        for start in (0..layout.size()).step_by(usize::try_from(step).unwrap()) {
            for end in [start, start + 1, start + step, layout.size()] {
                let end = end.min(layout.size());
                let read = window(&layout, start..end, |_| (), fetch).await.unwrap();
                let expected: Vec<u8> = (start..end).map(byte).collect();
                assert_eq!(read, expected, "{start}..{end}");
            }
        }
    }
}
