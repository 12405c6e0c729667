//! Reads headers, for as long as the server runs: by ranges from the elements that hold the files, whatever their layout.
//! What filters have made of coordinates is decoded on an element, in a process of the file's owner.

use super::coordinates::spans;
use super::facts::Facts;
use super::store::{self, Outcome, Wanted};
use crate::files::{Elements, Files, Source};
use crate::names::{Caller, Fault, SqliteNames};
use crate::reductions::ordered;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use rusqlite::Connection;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidemill_format::{Bytes, Error};
use tidemill_kernel::array::{Reduced, Spec};
use tokio::runtime::Handle;

/// Headers that are picked, and read, at once.
const PICKED_MAX: usize = 64;
const AT_ONCE: usize = 2;
/// What is kept may gather for so long.
const REST: Duration = Duration::from_millis(5);
/// Headers that could not be read are tried again, and a database that failed is, after this.
const AGAIN: Duration = Duration::from_secs(30);
/// How long one header may take, and how much of its file may be read for it.
const HEADER_MAX: Duration = Duration::from_secs(20);
const READ_BYTES_MAX: u64 = 64 << 20;
/// Bytes that are fetched at once, and how many of these are kept.
const PAGE: u64 = 64 << 10;
const PAGES_MAX: usize = 16;

/// Begins to read headers.
pub(crate) fn start(names: &Arc<SqliteNames>, files: &Files) {
    let reader = Reader {
        names: names.clone(),
        elements: files.elements().clone(),
    };
    tokio::spawn(reader.run());
}

struct Reader {
    names: Arc<SqliteNames>,
    elements: Elements,
}

impl Reader {
    async fn run(self) {
        let mut later = true;
        loop {
            match self.turn().await {
                Ok(Turn::More) => later = true,
                Ok(Turn::Done) => {
                    let timer = async {
                        match later {
                            true => tokio::time::sleep(AGAIN).await,
                            false => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        () = self.names.shared().headers.woken() => {}
                        () = timer => {
                            let again = self.names.database().write(store::again).await;
                            later = again.unwrap_or(true);
                        }
                    }
                }
                Err(Fault::Closed) => return,
                Err(fault) => {
                    tracing::warn!(%fault, "headers of files are not read for now");
                    tokio::time::sleep(AGAIN).await;
                }
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// Reads some headers. It writes first, so that it comes after whoever woke it.
    async fn turn(&self) -> Result<Turn, Fault> {
        let pick = |db: &Connection| Ok((store::scan(db)?, store::next(db, PICKED_MAX)?));
        let (more, picked) = self.names.database().write(pick).await?;
        if picked.is_empty() {
            return Ok(if more { Turn::More } else { Turn::Done });
        }
        let read = picked
            .into_iter()
            .map(async |wanted| (wanted, self.read(wanted).await));
        let read: Vec<_> = stream::iter(read).buffer_unordered(AT_ONCE).collect().await;
        let keep = move |db: &Connection| {
            let mut read = read.iter();
            read.try_for_each(|(wanted, outcome)| store::keep(db, *wanted, outcome))
        };
        self.names.database().write(keep).await?;
        Ok(Turn::More)
    }

    async fn read(&self, wanted: Wanted) -> Outcome {
        let reading = match self.names.read_version(&Caller::root(), wanted.ino) {
            Ok(reading) if reading.node.object == wanted.object => reading,
            Err(fault) if !matches!(fault, Fault::NotFound(_)) => return Outcome::Later,
            _ => return Outcome::Unreadable("the file has another version".into()),
        };
        let owner = (reading.node.uid, reading.node.gid);
        let size = reading.node.size;
        let Some(source) = Source::new(&self.elements, reading) else {
            return Outcome::Unreadable("the file is empty".into());
        };
        let ranged = Ranged {
            source: Arc::new(source),
            size,
            owner,
            runtime: Handle::current(),
            until: Instant::now() + HEADER_MAX,
            read: Mutex::default(),
        };
        let read = tokio::task::spawn_blocking(move || ranged.header()).await;
        read.unwrap_or_else(|_| Outcome::Unreadable("its header can't be read".into()))
    }
}

enum Turn {
    More,
    Done,
}

/// A version that is read by ranges, within bounds.
struct Ranged {
    source: Arc<Source>,
    size: u64,
    owner: (u32, u32),
    runtime: Handle,
    until: Instant,
    read: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    bytes: u64,
    kept: Vec<(u64, bytes::Bytes)>,
}

impl Ranged {
    fn header(&self) -> Outcome {
        let header = match tidemill_format::read(self) {
            Ok(header) => header,
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotConnected => {
                return Outcome::Later;
            }
            Err(error) => return Outcome::Unreadable(error.to_string()),
        };
        let decode = |spec: Spec, range: Range<u64>| self.decode(spec, range);
        let spans = spans(&header, self, &decode);
        Outcome::Read(Box::new(Facts::of(&header, spans)))
    }

    fn decode(&self, spec: Spec, range: Range<u64>) -> Option<Vec<u8>> {
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

    fn fetch(&self, range: Range<u64>, pages: &mut Pages) -> io::Result<bytes::Bytes> {
        pages.bytes = pages.bytes.saturating_add(range.end - range.start);
        if pages.bytes > READ_BYTES_MAX || Instant::now() >= self.until {
            let why = "its header is larger, or further apart, than is read to find files by it";
            return Err(io::Error::other(why));
        }
        let window = self.runtime.block_on(self.source.window(range));
        window.map_err(|why| io::Error::new(io::ErrorKind::NotConnected, why))
    }
}

impl Bytes for Ranged {
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
