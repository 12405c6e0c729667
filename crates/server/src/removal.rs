//! Removal of objects that no name leads to: a durable list in the table `removal`, carried out when
//! nobody reads the object and its element is up. Removing twice is no error, so what was sent on a
//! connection that broke is sent again.

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
/// What was sent and not heard of again for this long, on a connection that still stands, is done.
const SETTLED: Duration = Duration::from_secs(30);
/// Objects looked at in one go, per element.
const BATCH_MAX: i64 = 4096;

/// Objects sent for removal on one connection.
#[derive(Debug)]
struct Sent {
    epoch: u64,
    objects: Vec<u64>,
    at: Instant,
}

/// Carries out removals for ever.
pub(crate) async fn run(database: Arc<Database>, shared: Arc<Shared>, array: Arc<Array>) {
    let started = clock::now_ns();
    let mut sent: BTreeMap<u32, Vec<Sent>> = BTreeMap::new();
    loop {
        tokio::time::sleep(PERIOD).await;
        for element in array.up() {
            let Some(epoch) = array.epoch(element) else {
                continue;
            };
            let batches = sent.entry(element).or_default();
            // Batches of a broken connection may have been lost: they count as unsent.
            batches.retain(|batch| batch.epoch == epoch);
            if let Err(fault) = one_element(
                &database,
                &shared,
                &array,
                (element, epoch),
                batches,
                started,
            )
            .await
            {
                tracing::warn!(element, %fault, "removals are put off");
            }
        }
    }
}

async fn one_element(
    database: &Database,
    shared: &Shared,
    array: &Array,
    (element, epoch): (u32, u64),
    batches: &mut Vec<Sent>,
    started: i64,
) -> Result<(), Fault> {
    let settled: Vec<u64> = batches
        .extract_if(.., |batch| batch.at.elapsed() > SETTLED)
        .flat_map(|b| b.objects)
        .collect();
    if !settled.is_empty() {
        forget(database, settled).await?;
    }
    let on_the_way: std::collections::BTreeSet<u64> = batches
        .iter()
        .flat_map(|batch| batch.objects.iter().copied())
        .collect();
    let mut objects = due(database, element, started)?;
    objects.retain(|&object| !on_the_way.contains(&object) && !shared.object_held(object));
    if objects.is_empty() {
        return Ok(());
    }
    if array.send(
        element,
        To::Remove(v1::RemoveObjects {
            objects: objects.clone(),
        }),
    ) {
        batches.push(Sent {
            epoch,
            objects,
            at: Instant::now(),
        });
    }
    Ok(())
}

fn due(database: &Database, element: u32, started: i64) -> Result<Vec<u64>, Fault> {
    let now = clock::now_ns();
    let before = now - REST_NS;
    let after = if now - started < START_GRACE_NS {
        started
    } else {
        0
    };
    database.read(|db| {
        let sql = "SELECT object FROM removal WHERE element = ?1 AND queued < ?2 AND queued >= ?3 LIMIT ?4";
        let mut statement = db.prepare_cached(sql)?;
        let rows = statement.query_map(params![element, before, after, BATCH_MAX], |row| row.get::<_, i64>(0))?;
        Ok(rows.map(|object| object.map(i64::cast_unsigned)).collect::<Result<_, _>>()?)
    })
}

async fn forget(database: &Database, objects: Vec<u64>) -> Result<(), Fault> {
    let work = move |db: &rusqlite::Connection| {
        let mut statement = db.prepare_cached("DELETE FROM removal WHERE object = ?1")?;
        for object in objects {
            statement.execute([object.cast_signed()])?;
        }
        Ok(())
    };
    database.write(false, work).await
}
