//! Reductions of files of the cluster: each node folds its own pieces, and the network carries only the results. The module is the client of
//! `reduce.rs`.
//!
//! The client reads headers, indices of chunks and coordinates by ranges and decodes them. If a piece spans nodes, its bytes
//! are sent to the node with most of the piece. The client folds fill values that nobody wrote.

mod files;

pub use files::{ClusterDirectory, ClusterFile, ClusterInput};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use tidemill_client::ranged::RangedFile;
use tidemill_compute::array::ArrayError;
use tidemill_compute::reduction::{
    self, BoxFold, BoxState, FilePlan, PIECE_BYTES, Pass, ReductionBatch, ReductionInput,
    ReductionItem, ReductionPlan, ResultTable, STATE_BYTES_MAX, around, cut, item, local,
};
use tidemill_compute::work::{SENT_BYTES_MAX, STORED_BYTES_MAX, StoredBytes as Stored};
use tidemill_format::{Pieces, Storage, VariableExtent, pieces};
use tidemill_model::layout::Layout;
use tokio::task::block_in_place;

/// Maximum number of batches that are under way at once.
const AT_ONCE: usize = 16;
/// Limits of a batch: stored bytes, decoded bytes, and number of pieces.
const BATCH_BYTES: u64 = 64 << 20;
const RAW_BYTES: u64 = 512 << 20;
const ITEMS_MAX: usize = 4096;
/// Number of sent bytes with which a batch is full.
const SENT_BYTES: u64 = 16 << 20;
/// Maximum number of ranges on other nodes that are fetched at once.
const FETCHED_AT_ONCE: usize = 4;

/// Reason why a reduction failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterReductionError {
    /// The results of the files can't be merged.
    #[error(transparent)]
    Reduction(#[from] reduction::Error),
    /// The fill values of a file can't be folded.
    #[error("{0}")]
    Array(String, #[source] ArrayError),
    /// A file can't be decoded.
    #[error("{0}")]
    Format(String, #[source] tidemill_format::Error),
    /// The cluster does not return bytes of a file.
    #[error("{0}")]
    Client(String, #[source] tidemill_client::Error),
    /// A node can't fold its pieces, or a piece is too large.
    #[error("{0}")]
    Other(String),
}

type Result<T> = std::result::Result<T, ClusterReductionError>;

/// Carries out a plan: `opened` has the files of `inputs`. Calls `progress` with numbers of reduced bytes. Must be called on a multi-thread
/// runtime.
///
/// # Errors
/// A file can't be read or decoded, or no node can fold its pieces.
pub async fn reduce(
    plan: &ReductionPlan,
    (inputs, opened): (&[ReductionInput<'_>], &[&ClusterInput<'_>]),
    progress: &(dyn Fn(u64) + Sync),
) -> Result<ResultTable> {
    let mut pass = plan.pass()?;
    loop {
        let found = folded((plan, &pass), inputs, opened, progress).await?;
        if !pass.next(&found)? {
            return Ok(pass.table(&found));
        }
    }
}

async fn folded<'a>(
    (plan, pass): (&'a ReductionPlan, &'a Pass<'a>),
    inputs: &'a [ReductionInput<'a>],
    opened: &'a [&'a ClusterInput<'_>],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<BoxState> {
    let mut all = pass.state();
    let batches = plan.files.iter().flat_map(|file| {
        let batches = Batches::new((pass, file), inputs[file.input], opened[file.input]);
        let (batches, error) = match batches {
            Ok(batches) => (Some(batches), None),
            Err(error) => (None, Some(Err(error))),
        };
        error.into_iter().chain(batches.into_iter().flatten())
    });
    // In order, so that the result is the same to the last bit each time.
    let mut found = stream::iter(batches)
        .map(|ready| async move { ready?.found().await })
        .buffered(AT_ONCE);
    while let Some(one) = found.next().await {
        let (file, state, bytes) = one?;
        local::merge(file, &mut all, state)?;
        progress(bytes);
    }
    Ok(all)
}

/// File or directory that contains the pieces.
#[derive(Clone)]
enum RemoteInput<'a> {
    File(RangedFile<'a>),
    Directory(&'a ClusterDirectory<'a>),
}

/// Pieces that one node folds.
struct NodeReduction<'a> {
    pass: &'a Pass<'a>,
    file: &'a FilePlan,
    name: &'a str,
    of: RemoteInput<'a>,
    pending: PendingPart,
}

#[derive(Default)]
struct PendingPart {
    /// Path of the file, if the input is a directory.
    path: Option<String>,
    part: usize,
    items: Vec<ReductionItem>,
    cells: (Vec<u64>, Vec<u64>),
    bytes: u64,
    /// Number of bytes after decoding.
    raw: u64,
    /// Ranges of the file that are sent along.
    sent: Vec<Range<u64>>,
}

enum ReadyPart<'a> {
    Asked(NodeReduction<'a>),
    Known(&'a FilePlan, BoxState),
}

impl<'a> ReadyPart<'a> {
    async fn found(self) -> Result<(&'a FilePlan, BoxState, u64)> {
        match self {
            Self::Known(file, state) => Ok((file, state, 0)),
            Self::Asked(asked) => {
                let (file, bytes) = (asked.file, asked.pending.bytes);
                Ok((file, asked.ask().await?, bytes))
            }
        }
    }
}

impl NodeReduction<'_> {
    async fn ask(self) -> Result<BoxState> {
        let Self {
            pass,
            file,
            name,
            of,
            mut pending,
        } = self;
        let ranged = match (of, &pending.path) {
            (RemoteInput::File(ranged), _) => ranged,
            (RemoteInput::Directory(directory), path) => {
                let path = path.as_deref().unwrap_or_default();
                let ranged = directory.ranged(path).await;
                ranged.map_err(|error| ClusterReductionError::Client(name.to_owned(), error))?
            }
        };
        if pending.path.is_some() {
            // The node of a whole file is known only now.
            for item in &mut pending.items {
                let mut whole = item.bytes.iter().map(|held| match held {
                    Stored::Held { offset, length } => *offset..offset + length,
                    Stored::Sent(length) | Stored::Hole(length) => 0..*length,
                });
                let (part, places) = placed(ranged.layout(), whole.next_back().unwrap_or(0..0));
                (item.bytes, pending.sent) = split(places);
                pending.part = part;
            }
        }
        let sent: Vec<_> = pending
            .sent
            .iter()
            .map(|range| {
                let (ranged, range) = (ranged.clone(), range.clone());
                async move { ranged.read(range).await }
            })
            .collect();
        let sent: Vec<Bytes> = stream::iter(sent)
            .buffered(FETCHED_AT_ONCE)
            .try_collect()
            .await
            .map_err(|error| ClusterReductionError::Client(name.to_owned(), error))?;
        let batch = ReductionBatch {
            task: pass.task(file, &pending.cells),
            cells: pending.cells,
            items: pending.items,
        };
        let unsent = |why: &str| ClusterReductionError::Other(format!("a batch {why}"));
        let batch = postcard::to_allocvec(&batch).map_err(|_| unsent("can't be sent"))?;
        let length = u32::try_from(batch.len()).map_err(|_| unsent("is too large"))?;
        let body = Bytes::from([&length.to_le_bytes()[..], &batch, &sent.concat()].concat());
        let answer = ranged.fold(pending.part, body).await;
        let answer = answer.map_err(|(node, error)| {
            let place = match pending.path {
                Some(path) => format!("{name}/{path}"),
                None => name.to_owned(),
            };
            ClusterReductionError::Other(format!(
                "{place}: {} in part {} on node {}: {error}",
                file.variable.path, pending.part, node.0
            ))
        })?;
        postcard::from_bytes(&answer).map_err(|_| {
            ClusterReductionError::Other(format!("{name}: a node's answer does not fit"))
        })
    }
}

/// Bytes of a file, and how the node that folds them gets them.
type StoredRange = (Range<u64>, Stored);

/// Returns the part that has most of some bytes, and the locations of all of them.
fn placed(layout: &Layout, range: Range<u64>) -> (usize, Vec<StoredRange>) {
    let mut held = BTreeMap::<usize, u64>::new();
    for piece in layout.segments(range.clone()) {
        if let Some(at) = piece.at {
            *held.entry(at.part).or_default() += piece.length;
        }
    }
    let part = held
        .iter()
        .max_by_key(|(_, bytes)| **bytes)
        .map_or(0, |(part, _)| *part);
    let mut places: Vec<StoredRange> = Vec::new();
    for piece in layout.segments(range) {
        let bytes = piece.offset..piece.offset + piece.length;
        let here = piece.at.filter(|at| at.part == part);
        // Bytes after the end of a part are zeros.
        let there = here.map_or(0, |at| {
            layout.parts()[part]
                .size
                .saturating_sub(at.offset)
                .min(piece.length)
        });
        match (here, piece.at) {
            (Some(at), _) => {
                let middle = bytes.start + there;
                places.push((
                    bytes.start..middle,
                    Stored::Held {
                        offset: at.offset,
                        length: there,
                    },
                ));
                places.push((middle..bytes.end, Stored::Hole(piece.length - there)));
            }
            (None, Some(_)) => places.push((bytes, Stored::Sent(piece.length))),
            (None, None) => places.push((bytes, Stored::Hole(piece.length))),
        }
    }
    places.retain(|(range, _)| !range.is_empty());
    (part, places)
}

fn split(places: Vec<StoredRange>) -> (Vec<Stored>, Vec<Range<u64>>) {
    let sent = places
        .iter()
        .filter(|(_, stored)| matches!(stored, Stored::Sent(_)));
    let sent = sent.map(|(range, _)| range.clone()).collect();
    (places.into_iter().map(|(_, stored)| stored).collect(), sent)
}

/// The pieces of a file, grouped by the part that has them.
struct Batches<'a> {
    pass: &'a Pass<'a>,
    file: &'a FilePlan,
    name: &'a str,
    of: RemoteInput<'a>,
    layout: Option<Layout>,
    pieces: Pieces<'a>,
    pending: BTreeMap<usize, PendingPart>,
    ready: VecDeque<ReadyPart<'a>>,
    ended: bool,
}

impl<'a> Batches<'a> {
    fn new(
        (pass, file): (&'a Pass<'a>, &'a FilePlan),
        input: ReductionInput<'a>,
        opened: &'a ClusterInput<'_>,
    ) -> Result<Self> {
        let found =
            block_in_place(|| pieces(&file.variable, &file.selection, input.store, PIECE_BYTES));
        let (of, layout) = match opened {
            ClusterInput::File(cluster) => {
                let ranged = cluster.ranged();
                let layout = ranged.layout().clone();
                (RemoteInput::File(ranged), Some(layout))
            }
            ClusterInput::Directory(directory) => (RemoteInput::Directory(directory), None),
        };
        Ok(Self {
            pass,
            file,
            name: input.name,
            of,
            layout,
            pieces: found
                .map_err(|error| ClusterReductionError::Format(input.name.to_owned(), error))?,
            pending: BTreeMap::new(),
            ready: VecDeque::new(),
            ended: false,
        })
    }

    fn add(&mut self, piece: &VariableExtent) -> Result<()> {
        let Some(span) = &piece.span else {
            return self.fill(piece);
        };
        if span.size > STORED_BYTES_MAX {
            return Err(ClusterReductionError::Other(format!(
                "{}: a chunk of {} bytes is larger than the maximum",
                self.name, span.size
            )));
        }
        let range = span.offset..span.offset + span.size;
        let Some(layout) = &self.layout else {
            let held = Stored::Held {
                offset: span.offset,
                length: span.size,
            };
            let mut pending = PendingPart {
                path: span.file.clone(),
                bytes: span.size,
                ..PendingPart::default()
            };
            pending.items.push(item(piece, vec![held]));
            pending.cells = self.file.task.cells(&pending.items[0]);
            self.send(pending);
            return Ok(());
        };
        let chunked = matches!(self.file.variable.storage, Storage::Chunked(_));
        let ends: Vec<u64> = match chunked || piece.stride.is_some() {
            true => Vec::new(),
            false => layout
                .segments(range)
                .map(|piece| piece.offset)
                .skip(1)
                .collect(),
        };
        let mut some = Vec::new();
        for piece in cut(piece, &ends) {
            let span = piece.span.clone().unwrap_or_else(|| span.clone());
            some.push((
                item(&piece, Vec::new()),
                placed(layout, span.offset..span.offset + span.size),
                span.size,
            ));
        }
        for (mut one, (part, places), bytes) in some {
            let sent;
            (one.bytes, sent) = split(places);
            self.put(part, one, bytes, sent)?;
        }
        Ok(())
    }

    fn put(
        &mut self,
        part: usize,
        one: ReductionItem,
        bytes: u64,
        sent: Vec<Range<u64>>,
    ) -> Result<()> {
        let length = |sent: &[Range<u64>]| {
            sent.iter()
                .map(|range| range.end - range.start)
                .sum::<u64>()
        };
        if length(&sent) > SENT_BYTES_MAX as u64 {
            return Err(ClusterReductionError::Other(format!(
                "{}: chunk {} is on several nodes and is too large to be sent",
                self.name, one.chunk
            )));
        }
        let cells = self.file.task.cells(&one);
        let size = self.file.task.dtype.size() as u64;
        let raw = one
            .shape
            .iter()
            .fold(size, |all, length| all.saturating_mul(*length));
        if let Some(pending) = self.pending.remove(&part) {
            let both = around(&pending.cells, &cells);
            let count = both
                .1
                .iter()
                .fold(self.pass.cell_bytes(self.file) as u64, |all, length| {
                    all.saturating_mul(*length)
                });
            let full = pending.bytes + bytes > BATCH_BYTES
                || pending.raw.saturating_add(raw) > RAW_BYTES
                || pending.items.len() >= ITEMS_MAX
                || length(&pending.sent) + length(&sent) > SENT_BYTES
                || count > STATE_BYTES_MAX as u64 / 2;
            if full {
                self.send(pending);
            } else {
                self.pending.insert(
                    part,
                    PendingPart {
                        cells: both,
                        ..pending
                    },
                );
            }
        }
        let pending = self.pending.entry(part).or_insert_with(|| PendingPart {
            part,
            cells,
            ..PendingPart::default()
        });
        pending.items.push(one);
        pending.bytes += bytes;
        pending.raw = pending.raw.saturating_add(raw);
        pending.sent.extend(sent);
        Ok(())
    }

    /// Folds the fill values of a piece that nobody wrote.
    fn fill(&mut self, piece: &VariableExtent) -> Result<()> {
        let one = item(piece, Vec::new());
        let cells = self.file.task.cells(&one);
        let failed = |error| ClusterReductionError::Array(self.name.to_owned(), error);
        let folding = BoxFold::new(self.pass.task(self.file, &cells), cells);
        let mut folding = folding.map_err(failed)?;
        folding.add(&one, &[]).map_err(failed)?;
        self.ready
            .push_back(ReadyPart::Known(self.file, folding.finish()));
        Ok(())
    }

    fn send(&mut self, pending: PendingPart) {
        let (pass, file) = (self.pass, self.file);
        let (name, of) = (self.name, self.of.clone());
        self.ready.push_back(ReadyPart::Asked(NodeReduction {
            pass,
            file,
            name,
            of,
            pending,
        }));
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<ReadyPart<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(Ok(ready));
            }
            if self.ended {
                return None;
            }
            let added = match block_in_place(|| self.pieces.next()) {
                Some(Ok(piece)) => self.add(&piece),
                Some(Err(error)) => Err(ClusterReductionError::Format(self.name.to_owned(), error)),
                None => {
                    self.ended = true;
                    std::mem::take(&mut self.pending)
                        .into_values()
                        .for_each(|pending| self.send(pending));
                    Ok(())
                }
            };
            if let Err(error) = added {
                self.ended = true;
                return Some(Err(error));
            }
        }
    }
}
