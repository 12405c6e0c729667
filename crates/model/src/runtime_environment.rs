//! Environment of a task apart from its files: environment variables, directories of programs, and directories of the node's host, such as
//! `/sw` or a virtual environment.
//!
//! Nodes report the programs and directories of their host by name; the name of a directory has a slash at the end.

use crate::label::Kernel;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of directories of one task.
pub const DIRECTORIES_MAX: usize = 64;
/// Maximum size of a task's environment, in bytes.
pub const BYTES_MAX: usize = 128 << 10;
/// Maximum size of the environments of all tasks of a job together, in bytes.
pub const JOB_BYTES_MAX: usize = 64 << 20;

/// Maximum number of programs to look for per job, counted once for each directory of a `path`.
pub const LOOKS_MAX: usize = 10_000;

/// Environment variable of a task that may read all of its inputs completely, whatever selection it sees as files. The node sets the
/// variable to the names of the pipes for these reads.
pub const READS: &str = "TIDEMILL_READ";

/// Environment variable of a task that runs as one process on each node with a part of its input.
pub const RANKS: &str = "TIDEMILL_MPI";

/// Environment variables that only the node sets.
const OWN_VARIABLES: [&str; 4] = ["HOME", "PATH", "PWD", "TMPDIR"];

/// Environment of a task, except its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeEnvironment {
    /// Environment variables of the task.
    pub environment: BTreeMap<String, String>,
    /// Absolute paths of directories that are searched for programs before the node's directories, and that the task may read.
    pub path: Vec<String>,
    /// Absolute paths of directories of the node's host that the task may read.
    pub directories: Vec<String>,
}

impl RuntimeEnvironment {
    /// Returns whether the task adds nothing to the environment that every task has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the task may read all of its inputs completely, whatever selection it sees as files.
    #[must_use]
    pub fn reads_all(&self) -> bool {
        self.environment.contains_key(READS)
    }

    /// Returns whether the task runs as one process on each node with a part of its input; these processes communicate by MPI.
    #[must_use]
    pub fn is_ranked(&self) -> bool {
        self.environment.contains_key(RANKS)
    }

    /// Returns the size of the environment as stored, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let variables = self.environment.iter();
        let variables = variables.map(|(name, value)| name.len() + value.len());
        variables
            .chain(self.shown().map(str::len))
            .map(|one| one + 1)
            .sum()
    }

    /// Returns the directories of the host that the task may read, the directories of `path` first.
    pub fn shown(&self) -> impl Iterator<Item = &str> {
        self.path
            .iter()
            .chain(&self.directories)
            .map(String::as_str)
    }

    /// Returns the requirements of `kernel` in this environment on the node's host: programs, then directories.
    #[must_use]
    pub fn wanted(&self, kernel: &Kernel) -> Vec<String> {
        let mut wanted = kernel.programs();
        wanted.extend(self.shown().map(|directory| format!("{directory}/")));
        wanted
    }

    /// Merges this environment with the environment of the whole job: the task's variables take precedence, and its directories come first.
    #[must_use]
    pub fn over(mut self, job: &Self) -> Self {
        for (name, value) in &job.environment {
            let entry = self.environment.entry(name.clone());
            entry.or_insert_with(|| value.clone());
        }
        for (own, others) in [
            (&mut self.path, &job.path),
            (&mut self.directories, &job.directories),
        ] {
            for one in others {
                if !own.contains(one) {
                    own.push(one.clone());
                }
            }
        }
        self
    }
}

impl fmt::Display for RuntimeEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables = self.environment.iter();
        let mut words: Vec<String> = variables
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        for (what, directories) in [("path", &self.path), ("directories", &self.directories)] {
            if !directories.is_empty() {
                words.push(format!("{what} {}", directories.join(":")));
            }
        }
        f.write_str(&words.join(", "))
    }
}

/// Returns the name of a program, or of a directory with a slash at the end, in a form for people.
#[must_use]
pub fn named(name: &str) -> String {
    match name.strip_suffix('/') {
        Some(directory) => format!("the directory `{directory}`"),
        None => format!("the program `{name}`"),
    }
}

/// Returns the reason for which a task can't have an environment variable of this name; `None` if it can.
#[must_use]
pub fn refusal(name: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(plain)
    {
        return Some("names have letters, digits and '_'");
    }
    if OWN_VARIABLES.contains(&name) {
        return Some("the node sets it; programs are found by \"path\"");
    }
    if name.starts_with("TIDEMILL_") {
        return Some("the node sets variables with this prefix");
    }
    // Software of a site needs `LD_LIBRARY_PATH`; the other variables are for inspecting programs.
    if (name.starts_with("LD_") && name != "LD_LIBRARY_PATH") || name == "GLIBC_TUNABLES" {
        return Some("it would run other code in programs than lineage records");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_environment_refuses_variables_that_change_code() {
        for name in ["OMP_NUM_THREADS", "LD_LIBRARY_PATH", "_x", "HOMES"] {
            assert_eq!(refusal(name), None, "{name}");
        }
        let hostile = "LD_PRELOAD LD_AUDIT LD_BIND_NOW LD_ GLIBC_TUNABLES PATH HOME PWD TMPDIR TIDEMILL_TASK 1a a=b a-b ä";
        for name in hostile.split(' ').chain(["", "a b", "a\0"]) {
            assert!(refusal(name).is_some(), "{name}");
        }
    }

    #[test]
    fn task_runtime_environment_overrides_that_of_job() {
        let of = |variable: &str, path: &[&str]| RuntimeEnvironment {
            environment: BTreeMap::from([(variable.into(), path[0].into())]),
            path: path.iter().map(|&one| one.into()).collect(),
            directories: vec!["/sw".into()],
        };
        let all = of("A", &["/t/bin", "/both"]).over(&of("A", &["/both", "/j/bin"]));
        assert_eq!(all.environment["A"], "/t/bin");
        assert_eq!(all.path, ["/t/bin", "/both", "/j/bin"]);
        assert_eq!(all.directories, ["/sw"]);
        assert_eq!(
            of("B", &["/x"]).over(&of("A", &["/y"])).environment.len(),
            2
        );
        let none = RuntimeEnvironment::default();
        assert!(none.clone().over(&none).is_empty());
        let program = Kernel::Program("/t/bin/x".into());
        let wanted = ["/t/bin/x", "/t/bin/", "/both/", "/j/bin/", "/sw/"];
        assert_eq!(all.wanted(&program), wanted);
        let shown = "A=/t/bin, path /t/bin:/both:/j/bin, directories /sw";
        assert_eq!(all.to_string(), shown);
    }
}
