//! Objects of a node, in memory. A number stands for the bytes of an object: the number identifies the bytes and their length.

use std::collections::BTreeMap;

/// Content of an object in a simulated store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectContent {
    /// Placeholder for the bytes: equal numbers are equal bytes.
    pub(crate) token: u64,
    pub(crate) size: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedObject {
    pub(crate) bytes: ObjectContent,
    pub(crate) sealed: bool,
    /// Whether the object changed after it was sealed.
    pub(crate) corrupt: bool,
}

impl SimulatedObject {
    fn new(bytes: ObjectContent, sealed: bool) -> Self {
        Self {
            bytes,
            sealed,
            corrupt: false,
        }
    }
}

/// Reason for which the store refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreRefusal {
    Missing,
    Sealed,
    Full,
}

/// Store of a simulated node's objects, which survives the death of the node.
#[derive(Debug, Default)]
pub(crate) struct SimulatedStore {
    pub(crate) objects: BTreeMap<u64, SimulatedObject>,
    /// Whether the store accepts no more bytes.
    pub(crate) full: bool,
    /// Maximum number of bytes that clients can write to the store.
    pub(crate) capacity_bytes: Option<u64>,
}

impl SimulatedStore {
    pub(crate) fn write(&mut self, object: u64, bytes: ObjectContent) -> Result<(), StoreRefusal> {
        match self.objects.get(&object) {
            Some(known) if known.sealed => return Err(StoreRefusal::Sealed),
            _ if self.full || self.lacks_space(object, bytes) => return Err(StoreRefusal::Full),
            _ => {}
        }
        self.objects
            .insert(object, SimulatedObject::new(bytes, false));
        Ok(())
    }

    fn lacks_space(&self, object: u64, bytes: ObjectContent) -> bool {
        let others = self.objects.iter().filter(|(known, _)| **known != object);
        let others = || others.map(|(_, known)| known.bytes.size).sum::<u64>();
        self.capacity_bytes
            .is_some_and(|most| others() + bytes.size > most)
    }

    pub(crate) fn seal(&mut self, object: u64) -> Result<u64, StoreRefusal> {
        let object = self.objects.get_mut(&object).ok_or(StoreRefusal::Missing)?;
        object.sealed = true;
        Ok(object.bytes.size)
    }

    /// Stores bytes as a sealed object, replacing the object's previous bytes.
    pub(crate) fn adopt(&mut self, object: u64, bytes: ObjectContent) -> Result<(), StoreRefusal> {
        if self.full {
            return Err(StoreRefusal::Full);
        }
        self.objects
            .insert(object, SimulatedObject::new(bytes, true));
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
    pub(crate) fn read(&self, object: u64) -> Option<ObjectContent> {
        let known = self.objects.get(&object)?;
        known.sealed.then_some(known.bytes)
    }
}
