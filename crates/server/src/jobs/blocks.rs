//! Ids for the dispatcher, taken in blocks from the database.

use std::ops::Range;
use std::sync::Arc;
use tidemill_meta::commit::Database;
use tidemill_meta::ids;
use tidemill_model::event::IdSource;
use tidemill_model::id::{LabelId, ObjectId};

/// Number of ids that the dispatcher takes from the database at once.
const IDS_BLOCK: u64 = 4096;

/// Ids of labels and objects for the dispatcher. If the database can't supply ids, the dispatcher sends nothing.
#[derive(Debug)]
pub(super) struct IdBlocks {
    database: Arc<Database>,
    labels: Range<u64>,
    objects: Range<u64>,
}

impl IdBlocks {
    pub(super) fn new(database: Arc<Database>) -> Self {
        Self {
            database,
            labels: 0..0,
            objects: 0..0,
        }
    }
}

/// Makes sure that a block holds `count` ids; returns whether the block does. The rest of the previous block is never used.
fn fill(database: &Database, kind: &'static str, block: &mut Range<u64>, count: u64) -> bool {
    if block.end - block.start >= count {
        return true;
    }
    let size = count.max(IDS_BLOCK);
    match database.write_blocking(move |db| ids::reserve(db, kind, size)) {
        Ok(first) => *block = first..first + size,
        Err(fault) => {
            tracing::warn!(kind, %fault, "ids can't be reserved; labels wait");
            return false;
        }
    }
    true
}

impl IdSource for IdBlocks {
    fn ready(&mut self, objects: u64) -> bool {
        fill(&self.database, "label", &mut self.labels, 1)
            && fill(&self.database, "object", &mut self.objects, objects)
    }

    fn label(&mut self) -> LabelId {
        LabelId(self.labels.next().expect("an id was reserved before"))
    }

    fn objects(&mut self, count: u64) -> ObjectId {
        ObjectId(ids::take(&mut self.objects, count))
    }
}
