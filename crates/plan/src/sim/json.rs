//! JSON files with the line of every entry of a list, for errors that are only found after the whole file is parsed.

use super::error::{FileProblem, InputError};
use crate::suggestions;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use tidemill_model::similar_names::nearest;

/// Keys of a JSON object in a format that allows additional keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonKeys {
    /// Name of the object, with its article, for errors.
    pub(super) place: &'static str,
    /// Keys of the format that the simulator reads.
    pub(super) read: &'static [&'static str],
    /// Keys of the format that the simulator does not read.
    pub(super) others: &'static [&'static str],
}

/// Reader of JSON that knows the line of each part of the text.
pub(super) struct JsonReader<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl<'a> JsonReader<'a> {
    /// Returns the line, from 1, on which a part of the text begins.
    pub(super) fn line(&self, part: &RawValue) -> u32 {
        let offset = (part.get().as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let breaks = before.iter().filter(|&&byte| byte == b'\n').count();
        u32::try_from(breaks + 1).unwrap_or(u32::MAX)
    }

    pub(super) fn error(&self, line: u32, problem: FileProblem) -> InputError {
        InputError::new(self.file, line, problem)
    }

    /// Returns an error of the JSON reader in a part of the text that begins on the line after `lines`.
    pub(super) fn json(&self, lines: u32, error: &serde_json::Error) -> InputError {
        let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
        let full = error.to_string();
        let text = full.split(" at line ").next().unwrap_or(&full);
        self.error(
            lines + line,
            FileProblem::Json(suggestions::with_suggestion(text)),
        )
    }

    /// Refuses an unknown key if it resembles a known key that is missing. Extensions of a format are ignored.
    pub(super) fn check_keys(&self, part: &RawValue, keys: JsonKeys) -> Result<(), InputError> {
        let Ok(given) = serde_json::from_str::<BTreeMap<String, IgnoredAny>>(part.get()) else {
            // The part is no valid object: its reader reports this.
            return Ok(());
        };
        let missing = keys.read.iter().filter(|key| !given.contains_key(**key));
        let missing: Vec<&str> = missing.copied().collect();
        let known = |key: &str| keys.read.contains(&key) || keys.others.contains(&key);
        for key in given.keys().filter(|key| !known(key)) {
            let Some(meant) = nearest(key, &missing) else {
                continue;
            };
            let before = part.get().split(&format!("\"{key}\"")).next().unwrap_or("");
            let breaks = before.bytes().filter(|&byte| byte == b'\n').count();
            let line = self.line(part) + u32::try_from(breaks).unwrap_or(u32::MAX);
            let problem = FileProblem::Misspelt {
                place: keys.place,
                key: key.clone(),
                meant,
            };
            return Err(self.error(line, problem));
        }
        Ok(())
    }

    /// Parses a part of the text.
    pub(super) fn sub<T: Deserialize<'a>>(&self, part: &'a RawValue) -> Result<T, InputError> {
        serde_json::from_str(part.get()).map_err(|e| self.json(self.line(part) - 1, &e))
    }

    /// Parses the entries of a list with their lines, which are counted in the process.
    pub(super) fn list<T: Deserialize<'a>>(
        &self,
        parts: &[&'a RawValue],
        keys: JsonKeys,
    ) -> Result<Vec<(u32, T)>, InputError> {
        let mut line = 1;
        let mut seen = self.text.as_ptr() as usize;
        let mut list = Vec::with_capacity(parts.len());
        for part in parts {
            let start = part.get().as_ptr() as usize;
            let from = seen.saturating_sub(self.text.as_ptr() as usize);
            let to = start.saturating_sub(self.text.as_ptr() as usize);
            let between = self.text.as_bytes().get(from..to).unwrap_or_default();
            let breaks = between.iter().filter(|&&byte| byte == b'\n').count();
            line += u32::try_from(breaks).unwrap_or(u32::MAX);
            seen = start;
            self.check_keys(part, keys)?;
            let value = serde_json::from_str(part.get()).map_err(|e| self.json(line - 1, &e))?;
            list.push((line, value));
        }
        Ok(list)
    }
}
