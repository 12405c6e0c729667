//! Output directories: a directory as one output of a task. The kernel creates files in the directory, and these files become files of the
//! cluster. This module only computes names and ids.
//!
//! A directory is recognised by its name, which ends in a slash wherever it is used: in the script, in labels, in stored data. The number of
//! its files is known only when the kernel has ended, so such an output takes a whole range of ids. The first id stands for the directory
//! itself, which no object has. The other ids are for its files, in order of their names.

use crate::id::ObjectId;
use crate::label::SealedOutput;
use std::ops::Range;

/// Maximum number of files in all directories among a task's outputs together.
pub const FILES_MAX: u64 = 10_000;
/// Maximum length of the full paths of all files in output directories together, in bytes: the paths are reported and stored at once.
pub const PATH_BYTES_MAX: usize = 4 << 20;
/// Maximum nesting depth of directories below an output directory.
pub const DEPTH_MAX: usize = 32;

/// Returns whether `name` names an input or output directory.
#[must_use]
pub fn is_directory(name: &str) -> bool {
    name.ends_with('/')
}

/// Returns the number of object ids that an output with this name takes.
#[must_use]
pub fn ids(name: &str) -> u64 {
    if is_directory(name) { 1 + FILES_MAX } else { 1 }
}

/// Returns the object ids that an output with this name may use; `first` is the first of these ids.
#[must_use]
pub fn objects(name: &str, first: ObjectId) -> Range<u64> {
    if is_directory(name) {
        first.0 + 1..first.0 + ids(name)
    } else {
        first.0..first.0 + 1
    }
}

/// Returns the sealed outputs of a label that belong to the output directory with the first id `first`, in order of names. Returns `None`
/// if no outputs belong to it, or if they can't be the content of a directory.
#[must_use]
pub fn files<'a>(
    name: &str,
    first: ObjectId,
    sealed: &'a [SealedOutput],
) -> Option<Vec<&'a SealedOutput>> {
    let range = objects(name, first);
    let own = sealed.iter().filter(|one| range.contains(&one.object.0));
    let own: Vec<&SealedOutput> = own.collect();
    let in_order = own
        .windows(2)
        .all(|two| two[0].object < two[1].object && two[0].name < two[1].name);
    let right = !own.is_empty() && in_order && own.iter().all(|one| is_below(&one.name));
    right.then_some(own)
}

/// Assigns each sealed file to an output of the task, by name and in order; returns `None` if files and outputs don't match.
#[must_use]
pub fn outputs_of<'a>(
    outputs: impl IntoIterator<Item = &'a str>,
    files: impl IntoIterator<Item = &'a str>,
) -> Option<Vec<usize>> {
    let mut files = files.into_iter().peekable();
    let mut owners = Vec::new();
    for (index, output) in outputs.into_iter().enumerate() {
        let first = files.next()?;
        owners.push(index);
        if !is_directory(output) {
            continue;
        }
        let within = |file: &&str| file.len() > output.len() && file.starts_with(output);
        if !within(&first) {
            return None;
        }
        while files.next_if(within).is_some() {
            owners.push(index);
        }
    }
    files.next().is_none().then_some(owners)
}

/// Returns whether a relative name refers to an entry below the directory to which the name is relative.
#[must_use]
pub fn is_below(name: &str) -> bool {
    let within = |part| !matches!(part, "" | "." | "..");
    name.split('/').all(within) && !name.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(object: u64, name: &str) -> SealedOutput {
        SealedOutput {
            object: ObjectId(object),
            size: 1,
            name: name.into(),
        }
    }

    #[test]
    fn outputs_of_maps_each_file_to_its_output() {
        let of = |outputs: &[&'static str], files: &[&'static str]| {
            outputs_of(outputs.iter().copied(), files.iter().copied())
        };
        let files = ["f", "d/a", "d/b/c", "e/a", "g"];
        assert_eq!(
            of(&["f", "d/", "e/", "g"], &files),
            Some(vec![0, 1, 1, 2, 3])
        );
        assert_eq!(of(&["f", "d/", "e/"], &files), None);
        assert_eq!(of(&["f", "d/", "x/", "g"], &files), None);
        assert_eq!(of(&["d/"], &["d/"]), None);
        assert_eq!(of(&["d/"], &[]), None);
        assert_eq!(of(&["f"], &["g"]), Some(vec![0]));
    }

    #[test]
    fn directory_files_need_ids_in_range_and_valid_names() {
        let first = ObjectId(10);
        let of = |sealed: &[SealedOutput]| {
            let files = files("d/", first, sealed)?;
            Some(files.iter().map(|one| one.object.0).collect::<Vec<_>>())
        };
        let last = 10 + FILES_MAX;
        let all = [
            sealed(10, ""),
            sealed(11, "a"),
            sealed(last, "b/c"),
            sealed(last + 1, "x"),
        ];
        assert_eq!(of(&all), Some(vec![11, last]));
        assert_eq!(of(&[sealed(10, "a")]), None);
        for names in [["a", "a"], ["b", "a"]] {
            assert_eq!(of(&[sealed(11, names[0]), sealed(12, names[1])]), None);
        }
        for name in ["", ".", "..", "/a", "a/", "a//b", "../a", "a/../b", "a\0"] {
            assert_eq!(of(&[sealed(11, name)]), None, "{name:?}");
        }
        assert_eq!(objects("f", first), 10..11);
    }
}
