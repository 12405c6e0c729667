//! Files in the backend as chunks in packs. Chunks that the store already holds are not sent again; sent data is compressed. The module uses the
//! external store and the node's database.
//!
//! The content of a file determines where it is cut. Its **manifest** lists its chunks, in **parts** of at most 1024. New chunks and all
//! parts are written into **packs** of some 16 MiB. A pack lists its content (`format`), so that the store alone is enough to find all
//! files again (`recovery`). The tables `pack`, `chunk` and `manifest` hold the same information, and the use counts of the chunks.
//!
//! ```text
//!    upload ──► queue ──► one at a time: cut, look up, fill packs ──► external store ──► record: chunks, parts, complete objects
//!    read   ──► manifest ──► chunks ──► ranges of packs ──► each chunk is hashed
//! ```
//!
//! Only the holder of the **turn** packs or tidies. So no chunk is deleted that the packer has just found.
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

use super::BackendFailure;
use parking_lot::Mutex;
use rows::PackId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Directory of packs, relative to the store.
pub const DIRECTORY: &str = ".tidemill-packs";

/// Format of files in the external store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum Packing {
    /// Each file unchanged, under its name.
    #[default]
    Files,
    /// Files as chunks in packs.
    Chunks {
        /// Whether packs are compressed.
        compress: bool,
    },
}

/// Error: the text names no storage format.
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

/// State of packs in memory, for questions that need no query of the database.
#[derive(Debug, Default)]
pub(super) struct Packs {
    /// Lock of the thread that packs or tidies.
    turn: Mutex<()>,
    queue: Mutex<Vec<Arc<packing::Ticket>>>,
    /// Last answer of the store for each pack: its time, and whether the pack exists.
    asked: Mutex<HashMap<PackId, (Instant, bool)>>,
    /// Corrupt packs that could not be rewritten. This process does not retry them.
    stuck: Mutex<HashSet<PackId>>,
    /// Whether the present failure of the clean-up was logged.
    logged: Mutex<bool>,
}

impl From<format::Malformed> for BackendFailure {
    fn from(_: format::Malformed) -> Self {
        Self::Changed
    }
}
