//! Objects of a node, in memory. A number stands for the bytes of an object: it identifies them and the number of written bytes.

use std::collections::BTreeMap;

/// Content of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// Placeholder for the bytes: equal numbers are equal bytes.
    pub(crate) token: u64,
    pub(crate) size: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) sealed: bool,
    /// Whether the object changed after it was sealed.
    pub(crate) corrupt: bool,
}

impl Object {
    fn new(bytes: Bytes, sealed: bool) -> Self {
        Self {
            bytes,
            sealed,
            corrupt: false,
        }
    }
}

/// Reason for which the store refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Missing,
    Sealed,
    Full,
}

/// Store that survives the death of the node.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) objects: BTreeMap<u64, Object>,
    /// Whether no more bytes can be written.
    pub(crate) full: bool,
    /// Maximum size of bytes that clients can write.
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

    /// Stores bytes as a sealed object, replacing the previous one.
    pub(crate) fn adopt(&mut self, object: u64, bytes: Bytes) -> Result<(), Refusal> {
        if self.full {
            return Err(Refusal::Full);
        }
        self.objects.insert(object, Object::new(bytes, true));
        Ok(())
    }

    /// Changes the bytes of an object.
    pub(crate) fn corrupt(&mut self, object: u64) {
        if let Some(known) = self.objects.get_mut(&object) {
            known.bytes.token ^= 1;
            known.corrupt = true;
        }
    }

    pub(crate) fn is_corrupt(&self, object: u64) -> bool {
        self.objects.get(&object).is_some_and(|known| known.corrupt)
    }

    /// Returns the bytes of a sealed object.
    pub(crate) fn read(&self, object: u64) -> Option<Bytes> {
        let known = self.objects.get(&object)?;
        known.sealed.then_some(known.bytes)
    }
}
