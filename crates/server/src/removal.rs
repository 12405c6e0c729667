//! Removal of objects that no name leads to: a durable list in the table `removal`, carried out when
//! nobody reads the object and its element is up. An object leaves the list when its element has confirmed that it is
//! gone. Removing twice is no error, so what is not confirmed is asked for again.

use crate::array::Array;
use crate::names::commit::Database;
use crate::names::shared::Shared;
use crate::{clock, names::Fault};
use rusqlite::params;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1::{self, to_element::Message as To};
use tokio::time::Instant;

/// How often the list is looked at.
const PERIOD: Duration = Duration::from_millis(500);
/// An object rests this long before it is removed, so that an open that just saw it can hold it.
const REST_NS: i64 = 1_000_000_000;
/// After a start, mounts get this long to say again what they have open; what was to be removed before the
/// start rests until then.
const START_GRACE_NS: i64 = 15 * 1_000_000_000;
/// What was not confirmed for this long, on a connection that still stands, is asked for again: its file could not be
/// removed, or that could not be kept.
const AGAIN: Duration = Duration::from_secs(30);
/// Objects of one element that are asked for and not confirmed.
const ASKED_MAX: usize = 4096;
/// Objects of the list read at once.
const PAGE: usize = 1024;

/// What one element was asked to remove on its present connection, and when.
#[derive(Debug, Default)]
struct Asked {
    epoch: u64,
    objects: BTreeMap<u64, Instant>,
}

/// Carries out removals for ever.
pub(crate) async fn run(database: Arc<Database>, shared: Arc<Shared>, array: Arc<Array>) {
    let started = clock::now_ns();
    let mut asked: BTreeMap<u32, Asked> = BTreeMap::new();
    loop {
        tokio::time::sleep(PERIOD).await;
        for element in array.up() {
            let Some(epoch) = array.epoch(element) else {
                continue;
            };
            let asked = asked.entry(element).or_default();
            if asked.epoch != epoch {
                // What was asked on a broken connection may be lost.
                *asked = Asked {
                    epoch,
                    objects: BTreeMap::new(),
                };
            }
            asked.objects.retain(|_, at| at.elapsed() < AGAIN);
            match due(&database, &shared, element, asked, started) {
                Err(fault) => tracing::warn!(element, %fault, "removals are put off"),
                Ok(objects) if objects.is_empty() => {}
                Ok(objects) => {
                    let remove = v1::RemoveObjects {
                        objects: objects.clone(),
                    };
                    if array.send(element, To::Remove(remove)) {
                        let now = Instant::now();
                        let new = objects.into_iter().map(|object| (object, now));
                        asked.objects.extend(new);
                    }
                }
            }
        }
    }
}

/// What an element is to be asked to remove now. Forgets what it has confirmed.
fn due(
    database: &Database,
    shared: &Shared,
    element: u32,
    asked: &mut Asked,
    started: i64,
) -> Result<Vec<u64>, Fault> {
    let mut open = BTreeMap::new();
    let mut due = Vec::new();
    let mut after = 0;
    loop {
        let page = queued(database, element, after, started)?;
        let Some(&last) = page.last() else { break };
        after = last;
        for object in page {
            match asked.objects.get(&object) {
                Some(&at) => drop(open.insert(object, at)),
                None if shared.object_held(object) => {}
                None if open.len() + due.len() < ASKED_MAX => due.push(object),
                None => {}
            }
        }
        if open.len() + due.len() >= ASKED_MAX {
            // What was asked for and is not looked at here stays open.
            return Ok(due);
        }
    }
    asked.objects = open;
    Ok(due)
}

/// The list of one element in order of objects.
fn queued(database: &Database, element: u32, after: u64, started: i64) -> Result<Vec<u64>, Fault> {
    let now = clock::now_ns();
    let before = now - REST_NS;
    let since = if now - started < START_GRACE_NS {
        started
    } else {
        0
    };
    database.read(|db| {
        let sql = "SELECT object FROM removal WHERE element = ?1 AND object > ?2 AND queued < ?3 AND queued >= ?4 \
                   ORDER BY object LIMIT ?5";
        let mut statement = db.prepare_cached(sql)?;
        let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
        let key = params![element, after.cast_signed(), before, since, limit];
        let rows = statement.query_map(key, |row| row.get::<_, i64>(0))?;
        Ok(rows.map(|object| object.map(i64::cast_unsigned)).collect::<Result<_, _>>()?)
    })
}

/// An element has confirmed that these objects are gone.
pub(crate) async fn forget(
    database: &Database,
    element: u32,
    objects: Vec<u64>,
) -> Result<(), Fault> {
    let work = move |db: &rusqlite::Connection| {
        let sql = "DELETE FROM removal WHERE object = ?1 AND element = ?2";
        let mut statement = db.prepare_cached(sql)?;
        for object in objects {
            statement.execute(params![object.cast_signed(), element])?;
        }
        Ok(())
    };
    database.write(work).await
}
