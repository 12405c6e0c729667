//! Inputs that another label of the same job is still writing on this node. The module reads the inputs in the private directory of the
//! writing label until that label has ended.
//!
//! The module opens only files that a kernel could read itself: regular files that are reached through no link.

use crate::store::StoreError;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tidemill_model::id::{LabelId, ObjectId};
use tidemill_model::label::{Analysis, Label, Operation};

/// Outcome of a label, for the labels to which it streams outputs.
#[derive(Debug, Default)]
pub(crate) struct ProducerOutcome(AtomicU8);

impl ProducerOutcome {
    const WELL: u8 = 1;
    const BADLY: u8 = 2;

    /// Sets the outcome of the label, which must be final.
    pub(crate) fn seal(&self, well: bool) {
        let fate = if well { Self::WELL } else { Self::BADLY };
        self.0.store(fate, Ordering::Release);
    }

    /// Returns whether the label has succeeded, so that its outputs are sealed and valid.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::WELL
    }

    /// Returns whether the label has failed, so that it will have no outputs.
    pub(crate) fn is_bad(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::BADLY
    }
}

/// Input of a label that another label writes at the same time.
#[derive(Clone, Debug)]
pub(crate) struct StreamingInput {
    pub(crate) index: usize,
    /// Id of the label that writes the input, and the name of the output in that label.
    pub(crate) maker: LabelId,
    pub(crate) name: String,
    /// Outcome of the label that writes the input.
    pub(crate) fate: Arc<ProducerOutcome>,
}

/// Returns the analysis of a label; `None` if the label is no analysis.
pub(crate) fn analysis(label: &Label) -> Option<&Analysis> {
    match &label.operation {
        Operation::Analyse(analysis) => Some(analysis),
        _ => None,
    }
}

/// Returns the inputs that the label of `maker` streams, each with its index and the name of the output. `None` if an output of `maker`
/// must be complete before the start, or if `maker` streams no input.
pub(crate) fn streamed_by(analysis: &Analysis, maker: &Analysis) -> Option<Vec<(usize, String)>> {
    if analysis.streaming.is_empty() || analysis.runtime_environment.reads_all() {
        return None;
    }
    let mut streamed = Vec::new();
    for (index, input) in (0_u32..).zip(&analysis.inputs) {
        let makes = |object: ObjectId| {
            let mut outputs = maker.outputs.iter();
            outputs.find(|output| output.objects().contains(&object.0))
        };
        let Some(output) = makes(input.object) else {
            continue;
        };
        if output.object != input.object || !analysis.streaming.contains(&index) {
            return None;
        }
        streamed.push((index as usize, output.name.clone()));
    }
    (!streamed.is_empty()).then_some(streamed)
}

/// Output file that another label is writing.
#[derive(Debug)]
pub(crate) struct GrowingOutput {
    /// Private directory of the label that writes the file, and the name of the file in it.
    directory: PathBuf,
    name: String,
    fate: Arc<ProducerOutcome>,
    file: Option<File>,
}

impl GrowingOutput {
    pub(crate) fn new(directory: PathBuf, input: &StreamingInput) -> Self {
        Self {
            directory,
            name: input.name.clone(),
            fate: Arc::clone(&input.fate),
            file: None,
        }
    }

    pub(crate) fn fate(&self) -> &ProducerOutcome {
        &self.fate
    }

    /// Returns the current length of the output file in bytes; 0 if the file does not exist yet. While no byte was `read`, the function
    /// opens the file again, as it may have been replaced.
    pub(crate) fn size(&mut self, read: bool) -> u64 {
        if !read || self.file.is_none() {
            self.file = tidemill_sandbox::open_as_made(&self.directory, &self.name).ok();
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
                path: self.directory.join(&self.name),
                source,
            })
    }
}
