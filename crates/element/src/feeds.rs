//! Inputs that a label of the same job is still making on this element: they are read where its kernel writes them, in its
//! private folder, until it has ended.
//!
//! Nothing is believed of that folder but what a kernel could read itself: what is opened there is a plain file, through no link.

use crate::store::StoreError;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tidemill_core::id::{LabelId, ObjectId};
use tidemill_core::label::{Analysis, Label, Operation};

/// How a label ended, for those that it feeds.
#[derive(Debug, Default)]
pub(crate) struct Fate(AtomicU8);

impl Fate {
    const WELL: u8 = 1;
    const BADLY: u8 = 2;

    /// It has ended, and whether well. To be said after it can't be otherwise any more.
    pub(crate) fn seal(&self, well: bool) {
        let fate = if well { Self::WELL } else { Self::BADLY };
        self.0.store(fate, Ordering::Release);
    }

    /// Whether its outputs are sealed and count.
    pub(crate) fn is_well(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::WELL
    }

    /// Whether it will have no outputs.
    pub(crate) fn is_bad(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::BADLY
    }
}

/// An input of a label that another makes while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    /// Its place among the inputs.
    pub(crate) index: usize,
    /// Which label makes it, by which name.
    pub(crate) maker: LabelId,
    pub(crate) name: String,
    /// How that label ended.
    pub(crate) fate: Arc<Fate>,
}

/// What a label analyses.
pub(crate) fn analysis(label: &Label) -> Option<&Analysis> {
    match &label.operation {
        Operation::Analyse(analysis) => Some(analysis),
        _ => None,
    }
}

/// What another label makes of the inputs of one, each by its place and the name that the other gives it: `None` if one of them
/// has to be there before, or none is made.
pub(crate) fn fed_by(analysis: &Analysis, maker: &Analysis) -> Option<Vec<(usize, String)>> {
    if analysis.pipelined.is_empty() || analysis.surroundings.reads_all() {
        return None;
    }
    let mut fed = Vec::new();
    for (index, input) in (0_u32..).zip(&analysis.inputs) {
        let makes = |object: ObjectId| {
            let mut outputs = maker.outputs.iter();
            outputs.find(|output| output.objects().contains(&object.0))
        };
        let Some(output) = makes(input.object) else {
            continue;
        };
        if output.object != input.object || !analysis.pipelined.contains(&index) {
            return None;
        }
        fed.push((index as usize, output.name.clone()));
    }
    (!fed.is_empty()).then_some(fed)
}

/// A file as it is made.
#[derive(Debug)]
pub(crate) struct Making {
    /// The private folder of the label that makes it, and its name there.
    folder: PathBuf,
    name: String,
    fate: Arc<Fate>,
    file: Option<File>,
}

impl Making {
    pub(crate) fn new(folder: PathBuf, feed: &Feed) -> Self {
        Self {
            folder,
            name: feed.name.clone(),
            fate: Arc::clone(&feed.fate),
            file: None,
        }
    }

    pub(crate) fn fate(&self) -> &Fate {
        &self.fate
    }

    /// How long it is by now; 0 as long as it is not there. One of which nothing was `read` yet may have become another file.
    pub(crate) fn size(&mut self, read: bool) -> u64 {
        if !read || self.file.is_none() {
            self.file = tidemill_kernel::open_as_made(&self.folder, &self.name).ok();
        }
        let data = self.file.as_ref().and_then(|file| file.metadata().ok());
        data.map_or(0, |data| data.len())
    }

    pub(crate) fn read_at(&self, at: u64, buffer: &mut [u8]) -> Result<usize, StoreError> {
        let Some(file) = &self.file else {
            return Ok(0);
        };
        file.read_at(buffer, at)
            .map_err(|source| StoreError::Device {
                path: self.folder.join(&self.name),
                source,
            })
    }
}
