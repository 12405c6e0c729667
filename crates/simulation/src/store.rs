//! The objects of an element, in memory. Bytes are stood for by a number that says whose they are and how many of
//! them have been written.

use std::collections::BTreeMap;

/// What an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// Stands for the bytes: equal numbers are equal bytes.
    pub(crate) token: u64,
    pub(crate) size: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) sealed: bool,
    /// It changed after it was sealed.
    pub(crate) rotten: bool,
}

impl Object {
    fn new(bytes: Bytes, sealed: bool) -> Self {
        Self {
            bytes,
            sealed,
            rotten: false,
        }
    }
}

/// Why the store refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Missing,
    Sealed,
    Full,
}

/// What survives when the element is killed.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) objects: BTreeMap<u64, Object>,
    /// Nothing more can be written.
    pub(crate) full: bool,
    /// Clients can't write more than that.
    pub(crate) capacity_bytes: Option<u64>,
}

impl Store {
    pub(crate) fn write(&mut self, object: u64, bytes: Bytes) -> Result<(), Refusal> {
        match self.objects.get(&object) {
            Some(known) if known.sealed => return Err(Refusal::Sealed),
            _ if self.full || self.lacks_room(object, bytes) => return Err(Refusal::Full),
            _ => {}
        }
        self.objects.insert(object, Object::new(bytes, false));
        Ok(())
    }

    fn lacks_room(&self, object: u64, bytes: Bytes) -> bool {
        let others = self.objects.iter().filter(|(known, _)| **known != object);
        let others = || others.map(|(_, known)| known.bytes.size).sum::<u64>();
        self.capacity_bytes
            .is_some_and(|most| others() + bytes.size > most)
    }

    pub(crate) fn seal(&mut self, object: u64) -> Result<u64, Refusal> {
        let object = self.objects.get_mut(&object).ok_or(Refusal::Missing)?;
        object.sealed = true;
        Ok(object.bytes.size)
    }

    /// Takes bytes as a sealed object, in place of what was there.
    pub(crate) fn adopt(&mut self, object: u64, bytes: Bytes) -> Result<(), Refusal> {
        if self.full {
            return Err(Refusal::Full);
        }
        self.objects.insert(object, Object::new(bytes, true));
        Ok(())
    }

    /// Changes the bytes of an object.
    pub(crate) fn rot(&mut self, object: u64) {
        if let Some(known) = self.objects.get_mut(&object) {
            known.bytes.token ^= 1;
            known.rotten = true;
        }
    }

    pub(crate) fn is_rotten(&self, object: u64) -> bool {
        self.objects.get(&object).is_some_and(|known| known.rotten)
    }

    /// The bytes of a sealed object.
    pub(crate) fn read(&self, object: u64) -> Option<Bytes> {
        let known = self.objects.get(&object)?;
        known.sealed.then_some(known.bytes)
    }
}
