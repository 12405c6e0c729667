//! Files in the backend as chunks in packs. Chunks that the external store already holds are not sent again; sent data is compressed. The
//! module uses the external store and the node's database.
//!
//! The content of a file determines where it is cut. The **manifest** of a file lists its chunks, in **parts** of at most 1024. New chunks
//! and all parts are written into **packs** of some 16 MiB. A pack lists its content (`format`), so that the store alone is enough to find
//! all files again (`recovery`). The tables `pack`, `chunk` and `manifest` hold the same information, and the use counts of the chunks.
//!
//! ```text
//!    upload ──► queue ──► one at a time: cut, look up, fill packs ──► external store ──► record: chunks, parts, complete objects
//!    read   ──► manifest ──► chunks ──► ranges of packs ──► each chunk is hashed
//! ```
//!
//! Only the holder of the lock `turn` packs or tidies, so no chunk is deleted after the packer has found it.
//!
//! | module | contents |
//! |---|---|
//! | `format` | a pack, byte by byte |
//! | `packing` | writing objects into packs |
//! | `reading` | bytes of objects in packs |
//! | `recovery` | files of a store whose node is lost |
//! | `rows` | the tables |
//! | `tidying` | clean-up of unused content |

mod format;
mod packing;
mod reading;
pub mod recovery;
mod rows;
#[cfg(test)]
pub(super) mod tests;
mod tidying;

pub(super) use packing::now_s;

use super::Error;
use parking_lot::Mutex;
use rows::PackId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Directory of packs, relative to the root of the external store.
pub const DIRECTORY: &str = ".tidemill-packs";

/// Storage format of files in the external store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum Packing {
    /// The external store has each file unchanged, under its name.
    #[default]
    Files,
    /// The external store has files as chunks in packs.
    Chunks {
        /// Whether chunks in packs are compressed.
        compress: bool,
    },
}

/// Error for a text that names no storage format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a storage format of a backend: give files, dedup or \"dedup | zstd\"")]
pub struct NoPacking(String);

impl std::str::FromStr for Packing {
    type Err = NoPacking;

    fn from_str(text: &str) -> Result<Self, NoPacking> {
        let steps: Vec<&str> = text.split('|').map(str::trim).collect();
        match steps[..] {
            ["files"] => Ok(Self::Files),
            ["dedup"] => Ok(Self::Chunks { compress: false }),
            ["dedup", "zstd"] => Ok(Self::Chunks { compress: true }),
            _ => Err(NoPacking(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Packing {
    type Error = NoPacking;

    fn try_from(text: String) -> Result<Self, NoPacking> {
        text.parse()
    }
}

impl std::fmt::Display for Packing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Files => "files",
            Self::Chunks { compress: false } => "dedup",
            Self::Chunks { compress: true } => "dedup | zstd",
        })
    }
}

/// State of packs in memory, for requests that need no query of the database.
#[derive(Debug, Default)]
pub(super) struct Packs {
    /// Lock of the thread that packs or tidies.
    turn: Mutex<()>,
    queue: Mutex<Vec<Arc<packing::Ticket>>>,
    /// Last answer of the external store for each pack: the time of the answer, and whether the pack exists.
    asked: Mutex<HashMap<PackId, (Instant, bool)>>,
    /// Corrupt packs that could not be rewritten and that this process does not retry.
    stuck: Mutex<HashSet<PackId>>,
    /// Whether the current failure of the clean-up was logged.
    logged: Mutex<bool>,
}

impl From<format::Malformed> for Error {
    fn from(_: format::Malformed) -> Self {
        Self::Changed("a pack".into())
    }
}
