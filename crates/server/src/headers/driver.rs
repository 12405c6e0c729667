//! Reads headers of scientific files as long as the server runs: by ranges from the nodes that hold the files, for every layout. Nodes
//! decode filtered coordinates, in a process of the file's owner. The results are stored in the tables of `meta/src/index`.

use super::coordinates::{Stored, spans};
use super::facts::facts_of;
use super::zarr::ZarrFiles;
use crate::files::{FileService, SourceNodes, VersionStream};
use crate::reductions::ordered;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tidemill_compute::array::{ArraySpec, Reduced};
use tidemill_format::zip::Zip;
use tidemill_format::{Bytes, Error, FileSpan, Format, Header, VariableSource};
use tidemill_meta::index::facts::CoordinateRange;
use tidemill_meta::index::headers::{self, HeaderOutcome, HeaderWake, WantedHeader};
use tidemill_meta::index::zarr::{self, HeaderKind, Zarr};
use tidemill_meta::vnode::InodeRecord;
use tidemill_meta::{Caller, Connection, Fault, SqliteNames};
use tokio::runtime::Handle;

/// Number of headers that are selected at once, and (`AT_ONCE`) number that are read at once.
const PICKED_MAX: usize = 64;
const AT_ONCE: usize = 2;
/// Pause during which results are collected before they are stored together.
const REST: Duration = Duration::from_millis(5);
/// Pauses before another attempt to read headers: the first pause is `AGAIN_MIN`, and each pause is twice the last, up to `AGAIN`. After a
/// failure of the database the pause is `AGAIN`.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(30);
/// Number of additional reads of a Zarr, each after such a pause, because chunks of its coordinates are missing; and (`LACKING_MAX`)
/// maximum number of such Zarrs.
const LACKING_TRIES: u32 = 8;
const LACKING_MAX: usize = 4096;
/// Limits of reading one header, in time and (`READ_BYTES_MAX`) in bytes of the file.
const HEADER_MAX: Duration = Duration::from_secs(20);
const READ_BYTES_MAX: u64 = 64 << 20;
/// Size of one fetched page of a file in bytes, and (`PAGES_MAX`) number of pages that are kept in memory.
const PAGE: u64 = 64 << 10;
const PAGES_MAX: usize = 16;
/// Maximum number of bytes of a Zarr's file that are requested at once.
pub(super) const WINDOW_MAX: usize = 2 << 20;

/// Starts the task that reads headers.
pub(crate) fn start(names: &Arc<SqliteNames>, files: &FileService) {
    let reader = HeaderReader {
        names: names.clone(),
        nodes: files.nodes().clone(),
        lacking: Mutex::default(),
    };
    tokio::spawn(reader.run());
}

struct HeaderReader {
    names: Arc<SqliteNames>,
    nodes: SourceNodes,
    /// Zarrs with missing chunks of coordinates, and the number of reads of each Zarr.
    lacking: Mutex<BTreeMap<u64, (Zarr, u32)>>,
}

impl HeaderReader {
    async fn run(self) {
        let (mut later, mut pause) = (true, AGAIN_MIN);
        loop {
            match self.turn().await {
                Ok(HeaderTurn::More) => later = true,
                Ok(HeaderTurn::Done) => {
                    let timer = async {
                        match later {
                            true => tokio::time::sleep(pause).await,
                            false => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = self.names.shared().headers.woken() => {}
                        () = timer => {
                            later = self.again().await.unwrap_or(true);
                            pause = if later { (pause * 2).min(AGAIN) } else { AGAIN_MIN };
                        }
                    }
                }
                Err(Fault::Closed) => return,
                Err(fault) => {
                    fault.log_delay("headers of files are not read for now");
                    tokio::time::sleep(AGAIN).await;
                }
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// Queues headers again whose read failed or was incomplete. Returns whether there were any such headers.
    async fn again(&self) -> Result<bool, Fault> {
        let lacking: Vec<Zarr> = self
            .lacking
            .lock()
            .values()
            .map(|(zarr, _)| zarr.clone())
            .collect();
        let work = move |db: &Connection| {
            let mut any = headers::again(db)?;
            for zarr in &lacking {
                if headers::is_read(db, zarr.stands.object)? {
                    any |= headers::queue(db, zarr)?;
                }
            }
            Ok(any)
        };
        self.names.database().write(work).await
    }

    /// Records whether chunks of a Zarr's coordinates are missing.
    fn note_lacking(&self, zarr: &Zarr, lacks: bool) {
        let mut lacking = self.lacking.lock();
        let tries = lacking
            .remove(&zarr.stands.object)
            .map_or(0, |(_, tries)| tries);
        if lacks && tries < LACKING_TRIES && lacking.len() < LACKING_MAX {
            lacking.insert(zarr.stands.object, (zarr.clone(), tries + 1));
        }
    }

    /// Reads some queued headers. The function first writes to the database, so its write follows the transaction that woke the reader.
    async fn turn(&self) -> Result<HeaderTurn, Fault> {
        let names = self.names.clone();
        let pick = move |db: &Connection| {
            let more = headers::scan(db)? | headers::take(db)?;
            Ok((more, picked(db, &names.shared().headers)?))
        };
        let (more, picked) = self.names.database().write(pick).await?;
        if picked.is_empty() {
            return Ok(if more {
                HeaderTurn::More
            } else {
                HeaderTurn::Done
            });
        }
        let read = picked.into_iter().map(async |what| match what {
            PickedHeader::File(wanted) => (wanted, self.read(wanted).await, Vec::new()),
            PickedHeader::Zarr(zarr, mut parts) => {
                let (outcome, seen) = self.read_zarr(&zarr).await;
                parts.extend(seen);
                parts.retain(|part| part.object != zarr.stands.object);
                (zarr.wanted(), outcome, parts)
            }
            PickedHeader::Nothing(wanted) => {
                let why = "its directory is not a Zarr".into();
                (wanted, HeaderOutcome::Unreadable(why), Vec::new())
            }
        });
        let read: Vec<_> = stream::iter(read).buffer_unordered(AT_ONCE).collect().await;
        let names = self.names.clone();
        let keep = move |db: &Connection| {
            let mut read = read.iter();
            read.try_for_each(|(wanted, outcome, parts)| {
                headers::are_parts(db, parts)?;
                match names.shared().headers.is_stale(*wanted) {
                    true => Ok(()),
                    false => headers::keep(db, *wanted, outcome),
                }
            })
        };
        self.names.database().write(keep).await?;
        Ok(HeaderTurn::More)
    }

    /// Reads the metadata of a Zarr. Returns the outcome, and those files of the Zarr's owner that are parts of the Zarr.
    async fn read_zarr(&self, zarr: &Zarr) -> (HeaderOutcome, Vec<WantedHeader>) {
        let files = ZarrFiles {
            zarr: zarr.clone(),
            names: self.names.clone(),
            nodes: self.nodes.clone(),
            until: Instant::now() + HEADER_MAX,
            bytes_left: Mutex::new(READ_BYTES_MAX),
            seen: Mutex::default(),
            lacks: AtomicBool::new(false),
        };
        let read = tokio::task::spawn_blocking(move || {
            let header = tidemill_format::zarr::read(&files);
            let outcome = outcome(header, |header| {
                files.look_at_all(header);
                spans(header, VariableSource::Directory(&files), &files)
            });
            (outcome, files.seen.into_inner(), files.lacks.into_inner())
        });
        let Ok((outcome, seen, lacks)) = read.await else {
            let why = "its header can't be read".into();
            return (HeaderOutcome::Unreadable(why), Vec::new());
        };
        self.note_lacking(zarr, lacks);
        // Files of other users are not declared to be parts.
        let own = seen
            .into_values()
            .filter(|vnode| vnode.uid == zarr.stands.uid);
        let wanted = |vnode: InodeRecord| WantedHeader {
            object: vnode.object,
            ino: vnode.ino,
        };
        (outcome, own.map(wanted).collect())
    }

    async fn read(&self, wanted: WantedHeader) -> HeaderOutcome {
        let reading = match self.names.read_version(&Caller::root(), wanted.ino) {
            Ok(reading) if reading.vnode.object == wanted.object => reading,
            Err(fault) if !matches!(fault, Fault::NotFound(_)) => return HeaderOutcome::Later,
            _ => return HeaderOutcome::Unreadable("the file has another version".into()),
        };
        let owner = (reading.vnode.uid, reading.vnode.gid);
        let size = reading.vnode.size;
        let Some(source) = VersionStream::new(&self.nodes, reading) else {
            return HeaderOutcome::Unreadable("the file is empty".into());
        };
        let ranged = RangedReader {
            source: Arc::new(source),
            size,
            owner,
            runtime: Handle::current(),
            until: Instant::now() + HEADER_MAX,
            read: Mutex::default(),
        };
        let read = tokio::task::spawn_blocking(move || ranged.header()).await;
        read.unwrap_or_else(|_| HeaderOutcome::Unreadable("its header can't be read".into()))
    }
}

enum HeaderTurn {
    More,
    Done,
}

/// Next version or Zarr to read.
enum PickedHeader {
    File(WantedHeader),
    /// A Zarr, with the queued files that are parts of the Zarr.
    Zarr(Box<Zarr>, Vec<WantedHeader>),
    Nothing(WantedHeader),
}

fn picked(db: &Connection, wake: &HeaderWake) -> Result<Vec<PickedHeader>, Fault> {
    let mut all = Vec::new();
    let mut zarrs: BTreeMap<u64, (Box<Zarr>, Vec<WantedHeader>)> = BTreeMap::new();
    for wanted in headers::next(db, PICKED_MAX)? {
        wake.begin(wanted);
        match zarr::of(db, wanted.ino)? {
            HeaderKind::File => all.push(PickedHeader::File(wanted)),
            HeaderKind::Nothing => all.push(PickedHeader::Nothing(wanted)),
            HeaderKind::Zarr(zarr) => {
                headers::queue(db, &zarr)?;
                wake.begin(zarr.wanted());
                let (_, parts) = zarrs
                    .entry(zarr.stands.object)
                    .or_insert_with(|| (zarr, Vec::new()));
                parts.push(wanted);
            }
        }
    }
    let zarrs = zarrs.into_values();
    all.extend(zarrs.map(|(zarr, parts)| PickedHeader::Zarr(zarr, parts)));
    Ok(all)
}

/// Converts a read header to the outcome that is stored.
fn outcome(
    header: tidemill_format::Result<Header>,
    spans: impl FnOnce(&Header) -> Vec<CoordinateRange>,
) -> HeaderOutcome {
    match header {
        Ok(header) => {
            let spans = spans(&header);
            HeaderOutcome::Read(Box::new(facts_of(&header, spans)))
        }
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotConnected => {
            HeaderOutcome::Later
        }
        Err(error) => HeaderOutcome::Unreadable(error.to_string()),
    }
}

/// A version that is read by ranges, within limits of time and bytes.
struct RangedReader {
    source: Arc<VersionStream>,
    size: u64,
    owner: (u32, u32),
    runtime: Handle,
    until: Instant,
    read: Mutex<HeaderPages>,
}

#[derive(Default)]
struct HeaderPages {
    bytes: u64,
    kept: Vec<(u64, bytes::Bytes)>,
}

impl RangedReader {
    fn header(&self) -> HeaderOutcome {
        outcome(tidemill_format::read(self), |header| {
            let zip = matches!(header.format, Format::Zarr(_)).then(|| Zip::open(self));
            match &zip {
                Some(Ok(zip)) => spans(header, VariableSource::Directory(zip), self),
                _ => spans(header, VariableSource::File(self), self),
            }
        })
    }

    fn decoded(&self, spec: ArraySpec, range: Range<u64>) -> Option<Vec<u8>> {
        let work = async {
            let (part, order) = ordered(&self.source, spec, range).await.ok()?;
            self.source.reduce(part, self.owner, order).await.ok()
        };
        let left = self.until.saturating_duration_since(Instant::now());
        let answer = self
            .runtime
            .block_on(async { tokio::time::timeout(left, work).await });
        let reduced: Reduced = postcard::from_bytes(&answer.ok()??).ok()?;
        Some(reduced.bytes)
    }

    fn fetch(&self, range: Range<u64>, pages: &mut HeaderPages) -> io::Result<bytes::Bytes> {
        pages.bytes = pages.bytes.saturating_add(range.end - range.start);
        if pages.bytes > READ_BYTES_MAX || Instant::now() >= self.until {
            let why = "its header is too large, or too scattered, to be read for searches";
            return Err(io::Error::other(why));
        }
        let window = self.runtime.block_on(self.source.window(range));
        window.map_err(|why| io::Error::new(io::ErrorKind::NotConnected, why))
    }
}

impl Stored for RangedReader {
    fn read(&self, span: &FileSpan, into: &mut [u8]) -> Option<()> {
        self.read_at(span.offset, into).ok()
    }

    fn decode(&self, spec: ArraySpec, span: &FileSpan) -> Option<Vec<u8>> {
        let end = span.offset.checked_add(span.size)?;
        self.decoded(spec, span.offset..end)
    }
}

impl Bytes for RangedReader {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut pages = self.read.lock();
        let end = offset.saturating_add(into.len() as u64);
        let start = offset - offset % PAGE;
        if end > start + PAGE {
            into.copy_from_slice(&self.fetch(offset..end, &mut pages)?);
            return Ok(());
        }
        let known = pages.kept.iter().find(|(at, _)| *at == start);
        let page = match known {
            Some((_, page)) => page.clone(),
            None => {
                let page = self.fetch(start..self.size.min(start + PAGE), &mut pages)?;
                if pages.kept.len() == PAGES_MAX {
                    pages.kept.remove(0);
                }
                pages.kept.push((start, page.clone()));
                page
            }
        };
        let from = usize::try_from(offset - start).unwrap_or(usize::MAX);
        let there = page.get(from..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(there.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
