//! Names of files in a script: converts them to paths in the namespace and to the names that the kernel sees.

use super::{JobProblem, MAX_NAME_BYTES};
use tidemill_model::label::MAX_PATH_BYTES;

/// File with its name for the kernel and its path in the namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedFile {
    pub(super) name: String,
    pub(super) path: String,
    /// Whether the file is below the working directory.
    pub(super) inside: bool,
}

/// Checks a working directory and removes `.`, `//` and the slash at the end.
pub(super) fn workdir(given: &str) -> Result<String, JobProblem> {
    if !given.starts_with('/') {
        return Err(JobProblem::Workdir(given.to_owned()));
    }
    normal(given)
}

/// Returns the file that `given` means in a job with this (checked) working directory.
pub(super) fn file(workdir: &str, given: &str) -> Result<NamedFile, JobProblem> {
    if given.ends_with('/') {
        return Err(JobProblem::DirectoryPath(given.to_owned()));
    }
    let clean = normal(given)?;
    let base = if workdir == "/" { "" } else { workdir };
    let path = if given.starts_with('/') {
        clean
    } else {
        format!("{base}/{clean}")
    };
    if path.len() > MAX_PATH_BYTES {
        return Err(JobProblem::Path(given.to_owned()));
    }
    let relative = path
        .strip_prefix(base)
        .and_then(|rest| rest.strip_prefix('/'));
    let (name, inside) = match relative {
        Some(relative) => (relative, true),
        None => (path.rsplit('/').next().unwrap_or_default(), false),
    };
    // Names such as "." and "/" only refer to a directory.
    if name.is_empty() || path == workdir {
        return Err(match given {
            "" => JobProblem::EmptyPath,
            _ => JobProblem::DirectoryPath(given.to_owned()),
        });
    }
    Ok(NamedFile {
        name: name.to_owned(),
        path: path.clone(),
        inside,
    })
}

/// Returns a file like [`file`], or the directory that a name with a slash at its end means: its name keeps the slash, its path has none.
pub(super) fn file_or_directory(workdir: &str, given: &str) -> Result<NamedFile, JobProblem> {
    let plain = given.trim_end_matches('/');
    if plain.len() == given.len() || plain.is_empty() {
        return file(workdir, given);
    }
    let mut named = file(workdir, plain)?;
    named.name.push('/');
    Ok(named)
}

/// Removes `.` and `//`; a path that begins with a slash still does afterwards.
fn normal(given: &str) -> Result<String, JobProblem> {
    let mut clean = String::with_capacity(given.len());
    for part in given.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." {
            return Err(JobProblem::Escape(given.to_owned()));
        }
        if part.len() > MAX_NAME_BYTES || part.contains('\0') {
            return Err(JobProblem::Path(given.to_owned()));
        }
        if !clean.is_empty() || given.starts_with('/') {
            clean.push('/');
        }
        clean.push_str(part);
    }
    if clean.is_empty() && given.starts_with('/') {
        clean.push('/');
    }
    if clean.len() > MAX_PATH_BYTES {
        return Err(JobProblem::Path(given.to_owned()));
    }
    Ok(clean)
}

/// Returns the directories above a path or name, nearest first, without the root.
pub(super) fn above(path: &str) -> impl Iterator<Item = &str> {
    path.rmatch_indices('/')
        .map(|(end, _)| &path[..end])
        .filter(|directory| !directory.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(workdir: &str, given: &str) -> (String, String) {
        let named = file(workdir, given).unwrap();
        (named.name, named.path)
    }

    #[test]
    fn file_names_are_relative_to_workdir() {
        let pair = |name: &str, path: &str| (name.to_owned(), path.to_owned());
        assert_eq!(seen("/w", "a"), pair("a", "/w/a"));
        assert_eq!(seen("/w", "./s//a"), pair("s/a", "/w/s/a"));
        assert_eq!(seen("/w", "/w/s/a"), pair("s/a", "/w/s/a"));
        assert_eq!(seen("/w", "/data/x/a"), pair("a", "/data/x/a"));
        assert_eq!(seen("/w", "/wide/a"), pair("a", "/wide/a"));
        assert_eq!(seen("/", "a"), pair("a", "/a"));
        assert_eq!(seen("/", "/s/a"), pair("s/a", "/s/a"));
        assert!(!file("/w", "/wide/a").unwrap().inside);
        assert_eq!(workdir("//scratch/./x/").unwrap(), "/scratch/x");
        assert_eq!(workdir("/").unwrap(), "/");
    }

    #[test]
    fn invalid_file_paths_are_refused() {
        let directory = |given: &str| Err(JobProblem::DirectoryPath(given.to_owned()));
        for given in ["a/", ".", "/", "/w", "./."] {
            assert_eq!(file("/w", given), directory(given), "{given}");
        }
        assert_eq!(file("/w", ""), Err(JobProblem::EmptyPath));
        for given in ["..", "../a", "a/../b", "/w/../etc/passwd"] {
            assert_eq!(file("/w", given), Err(JobProblem::Escape(given.to_owned())));
        }
        assert!(matches!(file("/w", "a\0b"), Err(JobProblem::Path(_))));
        assert!(matches!(
            file("/w", &"a".repeat(256)),
            Err(JobProblem::Path(_))
        ));
        assert!(matches!(
            file("/w", &"a/".repeat(2100)),
            Err(JobProblem::DirectoryPath(_))
        ));
        assert!(matches!(
            file("/w", &"/a".repeat(2100)),
            Err(JobProblem::Path(_))
        ));
        assert!(matches!(workdir("w"), Err(JobProblem::Workdir(_))));
        assert!(matches!(workdir("/w/.."), Err(JobProblem::Escape(_))));
    }

    #[test]
    fn trailing_slash_means_a_directory() {
        let named = |given| file_or_directory("/w", given).map(|named| (named.name, named.path));
        let pair = |name: &str, path: &str| Ok((name.to_owned(), path.to_owned()));
        assert_eq!(named("a"), pair("a", "/w/a"));
        assert_eq!(named("./s//a//"), pair("s/a/", "/w/s/a"));
        assert_eq!(named("/w/a/"), pair("a/", "/w/a"));
        for given in ["/", "./", "/w/", "//"] {
            assert!(
                matches!(named(given), Err(JobProblem::DirectoryPath(_))),
                "{given}"
            );
        }
        assert!(matches!(named("../a/"), Err(JobProblem::Escape(_))));
    }

    #[test]
    fn above_lists_parent_directories() {
        assert_eq!(above("/a/b/c").collect::<Vec<_>>(), ["/a/b", "/a"]);
        assert_eq!(above("a/b").collect::<Vec<_>>(), ["a"]);
    }
}
