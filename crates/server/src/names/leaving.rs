//! Elements that are being emptied or were taken out of the array: nothing new goes there. In memory, of the tables
//! `drain` and `removed`.

use super::fault::Fault;
use parking_lot::RwLock;
use rusqlite::Connection;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    elements: RwLock<Elements>,
    /// There may be copies, or rows of `move`, of versions of which one copy is wanted.
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
    /// Takes over what is kept.
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

    /// Elements that are being emptied.
    pub(crate) fn emptied(&self) -> BTreeSet<u32> {
        self.elements.read().emptied.clone()
    }

    /// Elements that are the array's no more.
    pub(crate) fn removed(&self) -> BTreeSet<u32> {
        self.elements.read().removed.clone()
    }

    /// Whether an element is being emptied.
    pub(crate) fn is_emptied(&self, element: u32) -> bool {
        self.elements.read().emptied.contains(&element)
    }

    /// Whether an element was taken out of the array.
    pub(crate) fn is_removed(&self, element: u32) -> bool {
        self.elements.read().removed.contains(&element)
    }

    /// Whether nothing new may go to an element.
    pub(crate) fn is_closed(&self, element: u32) -> bool {
        let elements = self.elements.read();
        elements.emptied.contains(&element) || elements.removed.contains(&element)
    }

    /// An element is being emptied, or no more. Called where that is written, before anything else is.
    pub(crate) fn set_emptied(&self, element: u32, emptied: bool) {
        let mut elements = self.elements.write();
        if emptied {
            elements.emptied.insert(element);
            self.set_moving();
        } else {
            elements.emptied.remove(&element);
        }
    }

    /// An element is taken out of the array.
    pub(crate) fn set_removed(&self, element: u32) {
        let mut elements = self.elements.write();
        elements.emptied.remove(&element);
        elements.removed.insert(element);
        self.set_moving();
    }

    /// Whether versions of which one copy is wanted may have others, or be about to move.
    pub(crate) fn moving(&self) -> bool {
        self.moving.load(Ordering::Relaxed)
    }

    pub(crate) fn set_moving(&self) {
        self.moving.store(true, Ordering::Relaxed);
    }
}
