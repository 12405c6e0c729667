//! Clean-up of packs. The module deletes the manifests of removed objects, removes packs without used content, and rewrites the used
//! content of packs that are mostly unused. The module changes the database and the external store.

use super::super::{Backend, Error, StoreFile};
use super::Packing;
use super::format::ManifestPart;
use super::packing::{PackBatch, PackError, now_s};
use super::rows::{self, PackId};
use crate::store::StoreError;
use tidemill_model::id::ObjectId;

/// Time in seconds for which an unused pack is kept, because a file whose upload is retried may need the pack.
const UNUSED_S: i64 = 3600;

/// Number of chunks of a pack per read.
const CHUNKS_AT_ONCE: usize = 16;

impl Backend {
    /// Deletes the manifest of an object, one part per transaction.
    pub(in super::super) fn release(&self, object: ObjectId) -> Result<(), StoreError> {
        let known = self.db.read(|db| rows::has_parts(db, object));
        let mut more = known.map_err(|error| self.failed(&error))?;
        while more {
            let release = move |db: &rusqlite::Connection| rows::release(db, object, now_s());
            let released = self.db.write_blocking(false, release);
            more = released.map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// Does a limited amount of clean-up. Returns whether more clean-up may remain; `None` if the clean-up failed.
    pub(in super::super) fn tidy(&self) -> Option<bool> {
        let tidied = self.tidy_some();
        let mut logged = self.packs.logged.lock();
        match tidied {
            Ok(more) => {
                *logged = false;
                if more {
                    self.count_packs();
                }
                Some(more)
            }
            Err(error) => {
                if !*logged {
                    tracing::warn!(%error, "packs in the backend can't be cleaned up now; the node retries");
                }
                *logged = true;
                None
            }
        }
    }

    fn tidy_some(&self) -> Result<bool, StoreError> {
        let turn = self.packs.turn.lock();
        let failed = |error| self.failed(&error);
        let deleted = self.db.read(rows::deleted_objects).map_err(failed)?;
        if !deleted.is_empty() {
            let release = |db: &rusqlite::Connection| rows::release_deleted(db, now_s());
            let released = self.db.write_blocking(false, release);
            released.map_err(failed)?;
        }
        let before_s = now_s() - UNUSED_S;
        let dead = self.db.read(|db| rows::has_dead(db, before_s));
        if dead.map_err(failed)? {
            let retire = move |db: &rusqlite::Connection| rows::retire_dead(db, before_s);
            self.db.write_blocking(true, retire).map_err(failed)?;
        }
        let rewritten = self.rewrite();
        drop(turn);
        let removed = self.remove_packs()?;
        Ok(rewritten? || removed || !deleted.is_empty())
    }

    /// Rewrites the used content of some packs into new packs. Returns whether a pack was rewritten.
    fn rewrite(&self) -> Result<bool, StoreError> {
        let stuck = self.packs.stuck.lock().clone();
        let sparse = self.db.read(|db| rows::sparse(db, &stuck));
        let sparse = sparse.map_err(|error| self.failed(&error))?;
        if sparse.is_empty() {
            return Ok(false);
        }
        let compress = self.packing != Packing::Chunks { compress: false };
        let error_of = |trouble: PackError| trouble.error_of(ObjectId::STATUS);
        let mut batch = PackBatch::new(self, compress).map_err(error_of)?;
        let mut trouble = None;
        for pack in &sparse {
            match self.take_over(*pack, &mut batch) {
                Err(PackError::Failed { path, why })
                    if why.is_loss() && batch.goes_on().is_ok() =>
                {
                    tracing::warn!(path, %why, "a pack can't be rewritten and stays unchanged");
                    self.packs.stuck.lock().insert(*pack);
                }
                Err(other) => {
                    trouble = Some(other);
                    break;
                }
                Ok(()) => {}
            }
        }
        let (_, failed) = batch.finish();
        if let Some(trouble) = failed.or(trouble) {
            return Err(error_of(trouble));
        }
        let retire = move |db: &rusqlite::Connection| {
            sparse.iter().try_for_each(|pack| rows::retire(db, *pack))
        };
        let retired = self.db.write_blocking(true, retire);
        retired.map_err(|error| self.failed(&error))?;
        Ok(true)
    }

    /// Adds the used content of a pack to a batch.
    fn take_over(&self, pack: PackId, batch: &mut PackBatch<'_>) -> Result<(), PackError> {
        let needed = self.db.read(|db| rows::needed(db, pack));
        let needed = needed.map_err(|error| PackError::of(self.failed(&error)))?;
        let failed = |why| PackError::Failed {
            path: needed.placed.path.clone(),
            why,
        };
        for some in needed.chunks.chunks(CHUNKS_AT_ONCE) {
            let bytes = self.chunks(pack, &needed.placed, some);
            let mut bytes = bytes.map_err(failed)?;
            for (hash, spot) in some {
                let chunk = bytes.split_to(bytes.len().min(spot.size as usize));
                batch.add_chunk(*hash, &chunk)?;
            }
        }
        for encoded in needed.parts {
            let part = ManifestPart::decoded(&encoded).map_err(|error| failed(error.into()))?;
            batch.move_part(part, encoded)?;
        }
        Ok(())
    }

    fn remove_packs(&self) -> Result<bool, StoreError> {
        let deleted = self.db.read(rows::deleted_packs);
        let deleted = deleted.map_err(|error| self.failed(&error))?;
        let mut removed = Vec::new();
        let mut failure = None;
        for (pack, placed) in &deleted {
            match self.remove_pack(placed) {
                Ok(()) => removed.push(*pack),
                Err(why) => {
                    let path = placed.path.clone();
                    failure = Some(StoreError::Backend { path, why });
                    break;
                }
            }
        }
        self.are_removed(removed)?;
        match failure {
            Some(error) => Err(error),
            None => Ok(!deleted.is_empty()),
        }
    }

    fn are_removed(&self, removed: Vec<PackId>) -> Result<(), StoreError> {
        if removed.is_empty() {
            return Ok(());
        }
        let mut asked = self.packs.asked.lock();
        asked.retain(|pack, _| !removed.contains(pack));
        drop(asked);
        let forget = move |db: &rusqlite::Connection| {
            removed.iter().try_for_each(|pack| rows::removed(db, *pack))
        };
        let forgotten = self.db.write_blocking(false, forget);
        forgotten.map_err(|error| self.failed(&error))
    }

    /// Removes a pack from the external store if it is unchanged. A pack whose write was interrupted is identified by its unique name.
    fn remove_pack(&self, placed: &StoreFile) -> Result<(), Error> {
        let same = placed.tag.is_empty() || self.reach.wait(self.reach.is_same(placed))?;
        match same {
            true => self.reach.wait(self.reach.far.remove(&placed.path)),
            false => Ok(()),
        }
    }

    /// Updates the total bytes of packs in memory.
    pub(in super::super) fn count_packs(&self) {
        if let Ok(bytes) = self.db.read(rows::bytes) {
            self.known.lock().pack_bytes = bytes;
        }
    }
}
