//! Tests of inputs that a kernel reads only in part.

#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]
#![allow(clippy::single_range_in_vec_init, reason = "one range is meant")]

use crate::cluster::*;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tidemill_model::id::ObjectId;
use tidemill_model::layout::StripedLayout;
use tidemill_node::RunningNode;
use tidemill_wire::capability::rights;
use tidemill_wire::v1;

/// Nodes 1 to 3, which know each other's addresses.
struct Three {
    directories: Vec<tempfile::TempDir>,
    nodes: Vec<RunningNode>,
    connections: Vec<Connection>,
    server: FakeServer,
}

async fn three(in_place: bool) -> Three {
    let directories: Vec<_> = (0..3).map(|_| directory()).collect();
    let mut server = FakeServer::start().await;
    let mut nodes = Vec::new();
    let mut connections = Vec::new();
    for (id, directory) in (1..).zip(&directories) {
        let mut config = config(id, directory.path(), &server);
        config.in_place = in_place;
        nodes.push(RunningNode::start(config).await.unwrap());
        connections.push(server.welcomed().await);
    }
    let three = Three {
        directories,
        nodes,
        connections,
        server,
    };
    three.introduce();
    three
}

impl Three {
    fn introduce(&self) {
        let known = |connection: &Connection| connection.hello.node.clone().unwrap();
        let known: Vec<v1::Node> = self.connections.iter().map(known).collect();
        for connection in &self.connections {
            connection.peers(known.clone());
        }
    }

    /// Runs a label on a node. Returns the bytes of the label's output, and its outcome.
    async fn run(&mut self, node: u32, label: v1::Label) -> (Vec<u8>, v1::LabelOutcome) {
        let at = node as usize - 1;
        let connection = &mut self.connections[at];
        let id = label.id;
        connection.labels(&[label]);
        let outcome = connection.finished(id).await;
        let (object, _) = sealed(&outcome)[0];
        (get(&self.nodes[at], object).await, outcome)
    }

    async fn fail(&mut self, node: u32, label: v1::Label) -> v1::FailureReport {
        let connection = &mut self.connections[node as usize - 1];
        let id = label.id;
        connection.labels(&[label]);
        failure(&connection.finished(id).await).clone()
    }

    fn fetched(&self, node: u32) -> usize {
        let directory = self.directories[node as usize - 1]
            .path()
            .join("input-cache");
        std::fs::read_dir(directory).unwrap().count()
    }

    async fn stop(self) {
        for node in self.nodes {
            node.stop().await;
        }
    }
}

const UNIT: u64 = 4096;
const SIZE: u64 = 10 * UNIT + 100;
/// Object of the striped file, whose parts are on nodes 1 to 3.
const FILE: u64 = 70;
const PARTS: [u64; 3] = [71, 72, 73];

fn bytes() -> Vec<u8> {
    (0..SIZE)
        .map(|at| u8::try_from(at * 7 % 251).unwrap())
        .collect()
}

fn of_part(index: usize) -> Vec<u8> {
    let unit = usize::try_from(UNIT).unwrap();
    let file = bytes();
    let stripes = file.chunks(unit).skip(index).step_by(3);
    stripes.flatten().copied().collect()
}

/// Writes a striped file to the nodes. `lacks` is the number of missing bytes at the end of the first part, which read as zeros.
async fn put_striped(three: &Three, lacks: usize) -> v1::Layout {
    let mut parts: Vec<_> = (0..3).map(of_part).collect();
    let has = parts[0].len() - lacks;
    parts[0].truncate(has);
    put_parts(three, parts).await
}

async fn put_parts(three: &Three, bytes: Vec<Vec<u8>>) -> v1::Layout {
    let mut parts = Vec::new();
    for (((on, object), node), own) in (1..).zip(PARTS).zip(&three.nodes).zip(bytes) {
        put(node, object, &own).await;
        parts.push(v1::LayoutPart {
            object,
            node: on,
            size: own.len() as u64,
            capability: capability(on, object, rights::READ),
        });
    }
    v1::Layout {
        unit: UNIT,
        parts,
        extents: Vec::new(),
    }
}

fn selection(part: Option<u32>, ranges: &[Range<u64>]) -> Option<v1::Selection> {
    let range = |range: &Range<u64>| v1::ByteRange {
        start: range.start,
        end: range.end,
    };
    let ranges = ranges.iter().map(range).collect();
    Some(v1::Selection {
        part,
        ranges,
        records: None,
        values: String::new(),
    })
}

/// Returns a label that copies the selected bytes of the striped file.
fn reader(id: u64, layout: &v1::Layout, selection: Option<v1::Selection>) -> v1::Label {
    let mut label = program_label(id, "cp", &["in", "out"])
        .input("in", FILE, 1)
        .output("out", 1000 + id);
    let input = &mut analyse(&mut label).inputs[0];
    (input.size, input.layout, input.selection) = (SIZE, Some(layout.clone()), selection);
    label
}

async fn parts_and_ranges(in_place: bool) {
    let mut three = three(in_place).await;
    let layout = put_striped(&three, 0).await;
    // The node of a part reads it in place.
    for (index, node) in [(0, 1), (1, 2), (2, 3)] {
        let label = reader(10 + u64::from(node), &layout, selection(Some(index), &[]));
        let (read, outcome) = three.run(node, label).await;
        assert!(read == of_part(index as usize), "part {index}");
        assert_eq!(outcome.transferred_bytes, 0);
        assert_eq!(outcome.read_bytes, read.len() as u64);
        assert_eq!(three.fetched(node), 0, "nothing was copied");
    }
    // Other nodes fetch the part once, for all labels.
    let part = of_part(1);
    for (id, moved) in [(20, part.len() as u64), (21, 0)] {
        let (read, outcome) = three
            .run(1, reader(id, &layout, selection(Some(1), &[])))
            .await;
        assert!(read == part);
        assert_eq!(outcome.transferred_bytes, moved);
    }
    // For ranges, only their bytes are fetched: the first is on node 1, the second on 2 and 3, the third on 1.
    let ranges = [10..20, UNIT + 5..2 * UNIT + 5, 9 * UNIT..9 * UNIT + 1];
    let expected: Vec<u8> = ranges
        .iter()
        .cloned()
        .flatten()
        .map(|at| bytes()[usize::try_from(at).unwrap()])
        .collect();
    for (id, node, moved) in [(30, 2, 16), (31, 2, 0), (32, 3, 10 + UNIT - 5 + 1)] {
        let label = reader(id, &layout, selection(None, &ranges));
        let (read, outcome) = three.run(node, label).await;
        assert!(read == expected);
        assert_eq!(outcome.transferred_bytes, moved, "{id}");
    }
    // A part that a node has fetched is not fetched again.
    let label = reader(33, &layout, selection(Some(1), &[0..1, 4000..5000]));
    let (read, outcome) = three.run(1, label).await;
    assert!(read == [&part[..1], &part[4000..5000]].concat());
    assert_eq!(outcome.transferred_bytes, 0);
    // A file that was assembled as a whole is not fetched again either.
    let (read, _) = three.run(3, reader(34, &layout, None)).await;
    assert!(read == bytes());
    let label = reader(35, &layout, selection(None, &[100..SIZE - 100]));
    let (read, outcome) = three.run(3, label).await;
    assert!(read == bytes()[100..usize::try_from(SIZE).unwrap() - 100]);
    assert_eq!(outcome.transferred_bytes, 0);
    // The hash of a whole file is not recorded for a part.
    assert!(outcome.contents.iter().all(String::is_empty));
    three.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fetch_over_http_transfers_only_selected_bytes() {
    parts_and_ranges(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fetch_on_one_host_transfers_only_selected_bytes() {
    parts_and_ranges(true).await;
}

/// The file has more stripes than one request contains. Lines are shorter, longer and much longer than a stripe.
#[tokio::test(flavor = "multi_thread")]
async fn selected_records_belong_to_part_where_they_begin() {
    let mut three = three(false).await;
    let unit = usize::try_from(UNIT).unwrap();
    let mut text = Vec::new();
    for (line, letter) in (b'a'..=b'z').cycle().enumerate() {
        let length = [20, 300, 5_000, 1_000, 40_000][line % 5] + line % 97;
        text.extend(std::iter::repeat_n(letter, length));
        text.push(b'\n');
        if text.len() > 1000 * unit {
            break;
        }
    }
    let part = |index| text.chunks(unit).skip(index).step_by(3).flatten();
    let parts = (0..3).map(|index| part(index).copied().collect());
    let layout = put_parts(&three, parts.collect()).await;
    for index in 0..3 {
        let mut at = 0;
        let lines = text.split_inclusive(|&byte| byte == b'\n').filter(|line| {
            let stripe = at / unit;
            at += line.len();
            stripe % 3 == index
        });
        let expected: Vec<u8> = lines.flatten().copied().collect();
        let records = Some(v1::selection::Records::Until(b"\n".into()));
        let select = Some(v1::Selection {
            part: Some(u32::try_from(index).unwrap()),
            ranges: Vec::new(),
            records,
            values: String::new(),
        });
        let mut label = reader(1 + index as u64, &layout, select);
        analyse(&mut label).inputs[0].size = text.len() as u64;
        let (read, _) = three.run(1 + u32::try_from(index).unwrap(), label).await;
        assert!(read == expected, "part {index}");
    }
    three.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_end_of_part_is_read_as_zeros() {
    let mut three = three(false).await;
    // The last stripe of the first part is incomplete: its writer was lost.
    let layout = put_striped(&three, 150).await;
    let mut part = of_part(0);
    let has = part.len() - 150;
    part[has..].fill(0);
    for (id, node, moved) in [(1, 1, 0), (2, 2, has as u64)] {
        let label = reader(id, &layout, selection(Some(0), &[]));
        let (read, outcome) = three.run(node, label).await;
        assert!(read == part);
        assert_eq!(outcome.transferred_bytes, moved);
    }
    let end = part.len() as u64;
    let label = reader(3, &layout, selection(Some(0), &[end - 151..end]));
    let (read, outcome) = three.run(3, label).await;
    assert!(read == part[part.len() - 151..]);
    assert_eq!(outcome.transferred_bytes, 1);
    let length = StripedLayout::part_size(UNIT, 3, SIZE, 0);
    assert_eq!(length, end);
    three.stop().await;
}

/// The object is on this node or on another node, or is still to be created by an earlier label.
#[tokio::test(flavor = "multi_thread")]
async fn fetch_reads_selected_ranges_of_one_object() {
    let mut three = three(false).await;
    put(&three.nodes[0], 5, b"0123456789").await;
    let select = |id, object, size, selection| {
        let mut label = program_label(id, "cp", &["in", "out"])
            .input("in", object, 1)
            .output("out", 1000 + id);
        let input = &mut analyse(&mut label).inputs[0];
        (input.size, input.selection) = (size, selection);
        label
    };
    let ends = [0..2, 9..10];
    for (id, node, moved) in [(1, 1, 0), (2, 2, 3), (3, 2, 0)] {
        let (read, outcome) = three
            .run(node, select(id, 5, 10, selection(None, &ends)))
            .await;
        assert_eq!(
            (read.as_slice(), outcome.transferred_bytes),
            (&b"019"[..], moved)
        );
    }
    // A whole file has one part.
    let (read, outcome) = three
        .run(1, select(4, 5, 10, selection(Some(0), &[])))
        .await;
    assert_eq!(
        (read.as_slice(), outcome.transferred_bytes),
        (&b"0123456789"[..], 0)
    );
    // The length of an earlier label's output is unknown when both labels are sent.
    let made = program_label(5, "sh", &["-c", "echo made by another > out"]).output("out", 55);
    let connection = &mut three.connections[0];
    connection.labels(&[made, select(6, 55, 0, selection(None, &[5..7])).after(&[5])]);
    connection.finished(5).await;
    let outcome = connection.finished(6).await;
    assert_eq!(sealed(&outcome), [(1006, 2)]);
    assert_eq!(get(&three.nodes[0], 1006).await, b"by");
    three.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn label_with_malformed_or_too_long_selection_is_refused() {
    let mut three = three(false).await;
    let layout = put_striped(&three, 0).await;
    type Hostile = (Option<u32>, Vec<Range<u64>>, &'static str);
    #[expect(clippy::reversed_empty_ranges, reason = "somebody may send it")]
    let hostile: [Hostile; 10] = [
        (Some(3), vec![], "no part 3"),
        (Some(u32::MAX), vec![], "no part 4294967295"),
        (None, vec![0..SIZE + 1], "it has 41060"),
        (None, vec![u64::MAX - 1..u64::MAX], "it has 41060"),
        (Some(1), vec![0..u64::MAX], "that part has"),
        (None, vec![5..5], "input.selection"),
        (None, vec![9..5], "input.selection"),
        (None, vec![0..10, 9..20], "input.selection"),
        (None, vec![10..20, 0..5], "input.selection"),
        (
            None,
            (0..2000).map(|at| 2 * at..2 * at + 1).collect(),
            "input.selection",
        ),
    ];
    for (id, (part, ranges, reported)) in (1..).zip(hostile) {
        let failed = three
            .fail(2, reader(id, &layout, selection(part, &ranges)))
            .await;
        // Neither another attempt nor another node would succeed.
        assert_eq!(failed.kind, "kernel", "{failed:?}");
        assert!(failed.message.contains(reported), "{failed:?}");
    }
    // The layout is invalid.
    let broken = v1::Layout {
        unit: 1,
        ..layout.clone()
    };
    let failed = three
        .fail(2, reader(20, &broken, selection(Some(0), &[])))
        .await;
    assert_eq!(failed.kind, "input", "{failed:?}");
    // The first label has no right for the part; then the part is removed from its node.
    let mut other = layout.clone();
    other.parts[0].capability = capability(1, 5, rights::READ);
    let failed = three
        .fail(2, reader(21, &other, selection(None, &[0..5])))
        .await;
    assert!(failed.message.contains("403"), "{failed:?}");
    three.connections[0].remove(&[PARTS[0]]).await;
    for (id, node) in [(22, 1), (23, 2)] {
        for (part, ranges) in [(Some(0), vec![]), (None, vec![0..5])] {
            let label = reader(
                id * 10 + u64::from(part.is_none()),
                &layout,
                selection(part, &ranges),
            );
            let failed = three.fail(node, label).await;
            assert_eq!(failed.kind, "input", "{failed:?}");
        }
    }
    assert_eq!(three.fetched(2), 0, "no data of failed fetches remains");
    // A replica of the part on another node is used, also if the label names another node.
    put(&three.nodes[1], PARTS[0], &of_part(0)).await;
    let (read, outcome) = three
        .run(2, reader(30, &layout, selection(Some(0), &[])))
        .await;
    assert!(read == of_part(0));
    assert_eq!(outcome.transferred_bytes, 0);
    let mut copied = layout;
    copied.parts[0].node = 2;
    copied.parts[0].capability = capability(2, PARTS[0], rights::READ);
    let label = reader(31, &copied, selection(None, &[0..5]));
    let (read, outcome) = three.run(3, label).await;
    assert_eq!(
        (read.as_slice(), outcome.transferred_bytes),
        (&bytes()[..5], 5)
    );
    three.stop().await;
}

/// Process of a node, which dropping this value kills.
struct Process(Child);

impl Process {
    fn spawn(directory: &Path, server: &FakeServer) -> Self {
        let args = ["4".as_ref(), directory.as_os_str(), server.url.as_ref()];
        let mut command = Command::new(program());
        command.args(args).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The fetched ranges are lost with the killed node. The restarted node fetches them again.
#[tokio::test(flavor = "multi_thread")]
async fn killed_node_fetches_selected_ranges_again() {
    let mut three = three(false).await;
    let layout = put_striped(&three, 0).await;
    let directory = directory();
    let process = Process::spawn(directory.path(), &three.server);
    three.connections.push(three.server.welcomed().await);
    three.introduce();
    let ranges = [0..7, SIZE - 7..SIZE];
    let mut label = reader(1, &layout, selection(None, &ranges));
    let mut slow = program_label(1, "sh", &["-c", "cat in > out; sleep 1"]);
    let slow = analyse(&mut slow);
    analyse(&mut label).kernel = slow.kernel.take();
    analyse(&mut label).args = std::mem::take(&mut slow.args);
    three.connections[3].labels(&[label]);
    three.connections[3].running(1).await;
    let fetched = directory.path().join("input-cache");
    assert_eq!(std::fs::read_dir(&fetched).unwrap().count(), 1);
    drop(process);
    let _process = Process::spawn(directory.path(), &three.server);
    three.connections[3] = three.server.welcomed().await;
    assert_eq!(three.connections[3].hello.labels, [1]);
    three.introduce();
    // The label runs again as soon as the node starts, possibly before the node knows another one; or it ended before the kill.
    let first = three.connections[3].finished(1).await;
    let failure = first.failure.as_ref();
    assert!(
        failure.is_none_or(|failure| failure.kind == "input"),
        "{first:?}"
    );
    three.connections[3].labels(&[reader(2, &layout, selection(None, &ranges))]);
    let outcome = three.connections[3].finished(2).await;
    assert_eq!(sealed(&outcome), [(1002, 14)]);
    let made = std::fs::read(directory.path().join(ObjectId(1002).relative_path())).unwrap();
    let file = bytes();
    assert!(made == [&file[..7], &file[file.len() - 7..]].concat());
    three.stop().await;
}
