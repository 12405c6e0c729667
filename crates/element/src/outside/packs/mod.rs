//! Files outside as chunks in packs: what is there already is not sent again, and what is sent is compressed.
//!
//! A file is cut where its content says so; its **recipe** says which chunks it is made of, in **parts** of at most 1024. Chunks that
//! are not there yet, and all parts, go into **packs** of some 16 MiB. A pack says what is in it (`format`), so that the store alone is
//! enough to find all files again (`recovery`). The tables `pack`, `chunk` and `recipe` say the same, and how often a chunk is needed.
//!
//! ```text
//!   settle ──► queue ──► one at a time: cut, look up, fill packs ──► far ──► note: chunks, parts, objects that are whole
//!   read   ──► recipe ──► chunks ──► ranges of packs ──► each chunk is hashed
//! ```
//!
//! Who has the **turn** packs or tidies, and nobody else: so no chunk goes that was just found to be there.
//!
//! | module | |
//! |---|---|
//! | `format` | a pack, byte by byte |
//! | `packing` | how objects get there |
//! | `reading` | bytes of what is in packs |
//! | `recovery` | files of a store whose element is lost |
//! | `rows` | the tables |
//! | `tidying` | what is needed no more |

mod format;
mod packing;
mod reading;
pub mod recovery;
mod rows;
#[cfg(test)]
pub(super) mod tests;
mod tidying;

pub(super) use packing::now_s;

use super::Failure;
use parking_lot::Mutex;
use rows::PackId;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Where packs are, below the store.
pub const FOLDER: &str = ".tidemill-packs";

/// How files are put outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum Packing {
    /// Each as it is, under its name.
    #[default]
    Files,
    /// As chunks in packs.
    Chunks {
        /// Whether what is sent is compressed.
        compress: bool,
    },
}

/// It says nothing that can be done on the way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to put files outside: give files, dedup or \"dedup | zstd\"")]
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

/// What is known of packs without asking the database.
#[derive(Debug, Default)]
pub(super) struct Packs {
    /// Who has it packs or tidies.
    turn: Mutex<()>,
    queue: Mutex<Vec<Arc<packing::Ticket>>>,
    /// Whether packs were there when the store was asked, and when that was.
    asked: Mutex<HashMap<PackId, (Instant, bool)>>,
    /// What could not be written anew: it is damaged, and not tried again by this process.
    stuck: Mutex<HashSet<PackId>>,
    /// That packs can't be tidied was told.
    told: Mutex<bool>,
}

impl From<format::Malformed> for Failure {
    fn from(_: format::Malformed) -> Self {
        Self::Changed
    }
}
