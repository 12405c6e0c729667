//! Components of a variable whose bytes are in many files of one directory. Each component has those files as inputs; the kernel sees only the
//! first one, with the values that the files hold together. This module changes only the parsed job.

use super::components::{Mapping, One, SELECTION, VERSION, padded, setting, told};
use super::error::Problem;
use super::expand::{Expander, Wrong, group_of, text, values, wrong};
use super::path;
use crate::id::ObjectId;
use crate::layout::Selection;
use crate::script::{Data, Group, Position, Setting, Value};

/// Selection that a component reads from one file in a mapped directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedFile {
    /// Path below the directory.
    pub below: String,
    /// Version that the mapper read.
    pub object: ObjectId,
    /// Bytes of the version; for a component's first file, also the values in the bytes of all its files.
    pub selection: Selection,
}

/// Components that a mapper finds in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryMap {
    /// For each component, the files that contain its bytes.
    pub components: Vec<Vec<MappedFile>>,
    /// Arguments that the kernel gets in addition to its own, so that it interprets the values as the file defines them.
    pub args: Vec<String>,
}

/// Inputs of components, and the additional arguments of their kernel.
pub(super) type Read = (Vec<One>, Vec<String>);

impl Expander<'_> {
    /// Returns the components that a mapper finds in the first input if that is a directory, each with all other inputs.
    pub(super) fn mapped_directory(
        &mut self,
        task: &Group,
        first: &Value,
        (mapping, at): (&Mapping<'_>, Position),
        word: &'static str,
    ) -> Result<Option<Read>, Wrong> {
        let problem = |what: &str| wrong(at, Problem::Mapper(what.to_owned()));
        let group = group_of(first);
        let of_it = ["part", "bytes", "records"];
        if group.is_some_and(|group| of_it.iter().any(|name| group.get(name).is_some())) {
            return Ok(None);
        }
        let said = |name: &str| text(&group?.get(name)?.value);
        let given = said("file").or_else(|| text(first)).unwrap_or_default();
        let Ok(named) = path::file_or_directory(&self.workdir, given) else {
            return Ok(None);
        };
        if self.made_directories.contains(&named.path) {
            return Err(problem(
                "it reads a header, so the directory must be there when the job is submitted",
            ));
        }
        let found = self.files.mapped_directory(&named.path, mapping);
        let Some(DirectoryMap { components, args }) = found.map_err(|why| problem(&why))? else {
            return Ok(None);
        };
        let name = said("name").unwrap_or(named.name.trim_end_matches('/'));
        let count = components.len();
        let mut all = Vec::with_capacity(count);
        for (number, files) in components.into_iter().enumerate() {
            let mut inputs = Vec::with_capacity(files.len());
            for (place, file) in files.into_iter().enumerate() {
                let called = match place {
                    0 => name.to_owned(),
                    _ => format!("{name}[{}]", file.below),
                };
                inputs.push(self.file_of(&named.path, &called, file, first.at)?);
            }
            inputs.extend(values(task, "input").iter().skip(1).cloned());
            let words = vec![(word, padded(number, count))];
            all.push(One { inputs, words });
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
    ) -> Result<Value, Wrong> {
        let texts = [
            ("file", format!("{directory}/{}", file.below)),
            ("name", called.to_owned()),
            (SELECTION, file.selection.to_string()),
        ];
        let bytes: usize = texts.iter().map(|(_, text)| text.len()).sum();
        self.spend(bytes + 4 * size_of::<Setting>(), at)?;
        let mut settings: Vec<Setting> = texts
            .into_iter()
            .map(|(name, text)| setting(name, Data::Text(text), at))
            .collect();
        settings.push(told(VERSION, file.object.0, at));
        let data = Data::Group(Group { settings });
        Ok(Value { data, at })
    }
}
