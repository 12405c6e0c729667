//! Elements that are being emptied or were removed from the array: they take no new objects. This is the copy in memory of the
//! tables `drain` and `removed`.

use super::fault::Fault;
use parking_lot::RwLock;
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    elements: RwLock<Elements>,
    /// Whether versions with one wanted copy may have further copies or rows of `move`.
    moving: AtomicBool,
}

#[derive(Debug, Default)]
struct Elements {
    emptied: BTreeSet<u32>,
    removed: BTreeSet<u32>,
}

fn numbers(db: &Connection, sql: &str) -> Result<BTreeSet<u32>, Fault> {
    let mut statement = db.prepare_cached(sql)?;
    let numbers = statement.query_map([], |row| row.get(0))?;
    Ok(numbers.collect::<Result<_, _>>()?)
}

impl Leaving {
    /// Loads the stored state.
    pub(crate) fn load(&self, db: &Connection) -> Result<(), Fault> {
        let emptied = numbers(db, "SELECT element FROM drain")?;
        let removed = numbers(db, "SELECT element FROM removed")?;
        let any = "SELECT EXISTS (SELECT 1 FROM move) OR EXISTS (SELECT 1 FROM copy)";
        if db.query_row(any, [], |row| row.get(0))? || !emptied.is_empty() {
            self.set_moving();
        }
        *self.elements.write() = Elements { emptied, removed };
        Ok(())
    }

    /// Returns the elements that are being emptied.
    pub(crate) fn emptied(&self) -> BTreeSet<u32> {
        self.elements.read().emptied.clone()
    }

    /// Returns the elements that were removed from the array.
    pub(crate) fn removed(&self) -> BTreeSet<u32> {
        self.elements.read().removed.clone()
    }

    /// Returns whether an element is being emptied.
    pub(crate) fn is_emptied(&self, element: u32) -> bool {
        self.elements.read().emptied.contains(&element)
    }

    /// Returns whether an element was removed from the array.
    pub(crate) fn is_removed(&self, element: u32) -> bool {
        self.elements.read().removed.contains(&element)
    }

    /// Returns whether an element takes no new objects.
    pub(crate) fn is_closed(&self, element: u32) -> bool {
        let elements = self.elements.read();
        elements.emptied.contains(&element) || elements.removed.contains(&element)
    }

    /// Sets whether an element is being emptied. The caller is the write of this change, before any other write.
    pub(crate) fn set_emptied(&self, element: u32, emptied: bool) {
        let mut elements = self.elements.write();
        if emptied {
            elements.emptied.insert(element);
            self.set_moving();
        } else {
            elements.emptied.remove(&element);
        }
    }

    /// Records that an element is removed from the array.
    pub(crate) fn set_removed(&self, element: u32) {
        let mut elements = self.elements.write();
        elements.emptied.remove(&element);
        elements.removed.insert(element);
        self.set_moving();
    }

    /// Returns whether versions with one wanted copy may have others, or may be about to move.
    pub(crate) fn moving(&self) -> bool {
        self.moving.load(Ordering::Relaxed)
    }

    pub(crate) fn set_moving(&self) {
        self.moving.store(true, Ordering::Relaxed);
    }
}
