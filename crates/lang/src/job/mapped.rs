//! Task instances of a variable whose bytes are in many files of one directory. Each task instance has those files as inputs; the kernel sees only
//! the first one, with the values that the files hold together. This module changes only the parsed job.

use super::error::JobProblem;
use super::expand::{Expander, PatternFault, group_of, text, values, wrong};
use super::instances::{
    Mapping, NamedInstance, SELECTION, VERSION, number_setting, padded, setting,
};
use super::path;
use crate::script::{Position, ScriptValue, Setting, SettingGroup, ValueData};
use tidemill_model::id::ObjectId;
use tidemill_model::layout::Selection;

/// Selection that a task instance reads from one file in a mapped directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Path below the directory.
    pub below: String,
    /// Version that the mapper read.
    pub object: ObjectId,
    /// Bytes of the version; for a task instance's first file, also the values in the bytes of all its files.
    pub selection: Selection,
}

/// Task instances that a mapper finds in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryMap {
    /// For each task instance, the files that contain its bytes.
    pub instances: Vec<Vec<MappedFile>>,
    /// Arguments that the kernel gets in addition to its own, so that it interprets the values as the file defines them.
    pub args: Vec<String>,
}

/// Inputs of task instances, and the additional arguments of their kernel.
pub(super) type InstanceInputs = (Vec<NamedInstance>, Vec<String>);

impl Expander<'_> {
    /// Returns the task instances that a mapper finds in the first input if that is a directory, each with all other inputs.
    pub(super) fn mapped_directory(
        &mut self,
        task: &SettingGroup,
        first: &ScriptValue,
        (mapping, at): (&Mapping<'_>, Position),
        word: &'static str,
    ) -> Result<Option<InstanceInputs>, PatternFault> {
        let problem = |what: &str| wrong(at, JobProblem::Mapper(what.to_owned()));
        let group = group_of(first);
        let of_it = ["part", "bytes", "records"];
        if group.is_some_and(|group| of_it.iter().any(|name| group.get(name).is_some())) {
            return Ok(None);
        }
        let value_of = |name: &str| text(&group?.get(name)?.value);
        let given = value_of("file").or_else(|| text(first)).unwrap_or_default();
        let Ok(named) = path::file_or_directory(&self.workdir, given) else {
            return Ok(None);
        };
        if self.made_directories.contains(&named.path) {
            return Err(problem(
                "it reads a header, so the directory must exist when the job is submitted",
            ));
        }
        let found = self.files.mapped_directory(&named.path, mapping);
        let Some(DirectoryMap { instances, args }) = found.map_err(|why| problem(&why))? else {
            return Ok(None);
        };
        let name = value_of("name").unwrap_or(named.name.trim_end_matches('/'));
        let count = instances.len();
        let mut all = Vec::with_capacity(count);
        for (number, files) in instances.into_iter().enumerate() {
            let mut inputs = Vec::with_capacity(files.len());
            for (place, file) in files.into_iter().enumerate() {
                let called = match place {
                    0 => name.to_owned(),
                    _ => format!("{name}[{}]", file.below),
                };
                inputs.push(self.file_of(&named.path, &called, file, first.at)?);
            }
            inputs.extend(values(task, "input").iter().skip(1).cloned());
            let of_instance = vec![(word, padded(number, count))];
            all.push(NamedInstance {
                inputs,
                values: of_instance,
            });
        }
        Ok(Some((all, args)))
    }

    /// Returns a file below a directory as an input.
    fn file_of(
        &mut self,
        directory: &str,
        called: &str,
        file: MappedFile,
        at: Position,
    ) -> Result<ScriptValue, PatternFault> {
        let texts = [
            ("file", format!("{directory}/{}", file.below)),
            ("name", called.to_owned()),
            (SELECTION, file.selection.to_string()),
        ];
        let bytes: usize = texts.iter().map(|(_, text)| text.len()).sum();
        self.spend(bytes + 4 * size_of::<Setting>(), at)?;
        let mut settings: Vec<Setting> = texts
            .into_iter()
            .map(|(name, text)| setting(name, ValueData::Text(text), at))
            .collect();
        settings.push(number_setting(VERSION, file.object.0, at));
        let data = ValueData::Group(SettingGroup { settings });
        Ok(ScriptValue { data, at })
    }
}
