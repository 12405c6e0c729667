//! Versions that the server itself reads. They are not removed during the read, like versions that jobs read.

use super::clock;
use super::fault::Fault;
use super::shared::NamesShared;
use super::sqlite::SqliteNames;
use super::transaction::Tx;
use super::vnode::{Caller, InodeRecord};
use std::sync::Arc;
use tidemill_model::layout::Layout;
use tidemill_wire::v1::Kind;

/// A version of a file that is being read. The version's bytes and replicas are not removed while this value exists.
#[derive(Debug)]
pub struct ReadVersion {
    shared: Arc<NamesShared>,
    /// Inode record of the file at the time of the lookup.
    pub vnode: InodeRecord,
    /// Layout of the version's bytes; `None` if the version has no bytes.
    pub layout: Option<Layout>,
    pinned: Vec<u64>,
}

impl Drop for ReadVersion {
    fn drop(&mut self) {
        for &object in &self.pinned {
            self.shared.unpin(object);
        }
    }
}

impl SqliteNames {
    /// Returns the sealed version of a file, if the caller may read the file.
    pub fn read_version(&self, caller: &Caller, ino: u64) -> Result<ReadVersion, Fault> {
        let shared = self.shared();
        self.database().read(|db| {
            let tx = Tx::new(db, shared, caller, 0, clock::now_ns());
            let vnode = tx.reach(ino)?;
            if vnode.kind != Kind::File {
                return Err(Fault::Malformed("only files have versions"));
            }
            tx.need_read(&vnode)?;
            let mut reading = ReadVersion {
                shared: shared.clone(),
                vnode,
                layout: None,
                pinned: Vec::new(),
            };
            if reading.vnode.object == 0 {
                return Ok(reading);
            }
            let layout = tx.layout_of(&reading.vnode)?;
            for part in layout.parts() {
                if part.current().next().is_none() {
                    // Returns an error with the corruption of the part.
                    tx.readable(part.object.0, part.replicas[0].node.0, &[])?;
                }
            }
            // A version that is replaced at this moment rests before its removal, so the pins are in time.
            let parts = layout.parts().iter().map(|part| part.object.0);
            let mut objects: Vec<u64> = parts.collect();
            if !objects.contains(&reading.vnode.object) {
                objects.push(reading.vnode.object);
            }
            for &object in &objects {
                shared.pin(object);
            }
            reading.pinned = objects;
            reading.layout = Some(layout);
            Ok(reading)
        })
    }
}
