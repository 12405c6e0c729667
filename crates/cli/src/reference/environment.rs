//! The reference of environment variables: those of flags, and those that no flag has.

use super::markdown::{code, table};
use clap::Command;
use std::collections::BTreeMap;

/// Variables that commands read, and that no flag has.
const READ: [(&str, &str); 6] = [
    (
        "TIDEMILL_LOG",
        "log level of each module, such as `info,tidemill_node=debug`; overrides `--verbose`",
    ),
    (
        "TIDEMILL_MOUNT",
        "mountpoint of the cluster for [applications with labels](../labels.md); needed if several clusters are mounted",
    ),
    (
        "XDG_CONFIG_HOME",
        "directory of `tidemill/tidemill.toml` and `tidemill/token`, instead of `~/.config`",
    ),
    (
        "XDG_DATA_HOME",
        "directory of the cluster of `tidemill up`, instead of `~/.local/share`",
    ),
    (
        "XDG_RUNTIME_DIR",
        "directory of the file system of `tidemill exec`, instead of `/tmp`",
    ),
    (
        "HOME",
        "directory of the user, for the defaults of the three above",
    ),
];

/// Variables that the node sets for kernels.
const KERNELS: [(&str, &str); 14] = [
    ("TIDEMILL_NODE", "id of the node"),
    ("TIDEMILL_JOB", "id of the job"),
    ("TIDEMILL_TASK", "id of the task"),
    ("TIDEMILL_TASK_NAME", "name of the task"),
    ("TIDEMILL_CORES", "cores of the task, at least 1"),
    (
        "TIDEMILL_MEMORY_BYTES",
        "memory of the task in bytes, if the task declares memory",
    ),
    (
        "TIDEMILL_LAYOUT",
        "position of the input's bytes or values, as [JSON](../variables.md#position-of-values), for task instances",
    ),
    (
        "TIDEMILL_READ",
        "path of the pipes for [reads of all inputs](../parallel-tasks.md#full-access), for tasks with full access",
    ),
    (
        "TIDEMILL_MPI",
        "set for [MPI processes](../parallel-tasks.md#ranks)",
    ),
    ("HOME", "private directory of the task"),
    ("PWD", "private directory of the task"),
    (
        "TMPDIR",
        "directory for temporary files in the private directory",
    ),
    (
        "PATH",
        "directories with programs: those of the task, of the node and of the system",
    ),
    ("LANG", "`C`, unless the task sets another value"),
];

/// Variables that `tidemill exec` and `tidemill node run` set for the processes that they start.
const STARTED: [(&str, &str); 7] = [
    (
        "TIDEMILL_NODE",
        "number of the node, for the commands of `suspend` and `resume`",
    ),
    (
        "TIDEMILL_PRELOAD_SOCKET",
        "socket of the file system, for programs of `tidemill exec`",
    ),
    (
        "TIDEMILL_PRELOAD_PREFIX",
        "path below which programs of `tidemill exec` find the cluster",
    ),
    (
        "TIDEMILL_PRELOAD_CWD",
        "working directory of a program of `tidemill exec`, if it is in the cluster",
    ),
    (
        "TIDEMILL_PRELOAD_ASYNC",
        "set if programs of `tidemill exec` store files in the background",
    ),
    (
        "TIDEMILL_NODE_SUSPENDED",
        "set for the process that waits for the resume of a suspended node",
    ),
    (
        "TIDEMILL_SERVER_DEPOSED",
        "set for a server with a log that has led, and follows as a standby",
    ),
];

/// Returns the page of a built command line.
pub(super) fn page(line: &Command) -> String {
    let mut out = "# Environment variables\n\n## Variables of flags\n\nA flag takes precedence over its variable. Variables of daemons are also \
                   keys of the [configuration file](configuration.md).\n\n".to_owned();
    let mut found = BTreeMap::new();
    of_flags(line, line.get_name(), &mut found);
    let rows: Vec<_> = found
        .into_iter()
        .map(|(name, flags)| [code(&name), flags.join(", ")])
        .collect();
    table(&mut out, ["variable", "flag"], &rows);
    for (title, rows) in [
        ("Other variables that are read", &READ[..]),
        ("Variables of kernels", &KERNELS),
        ("Variables of started processes", &STARTED),
    ] {
        out.push_str(&format!("## {title}\n\n"));
        let rows: Vec<_> = rows
            .iter()
            .map(|(name, meaning)| [code(name), (*meaning).to_owned()])
            .collect();
        table(&mut out, ["variable", "meaning"], &rows);
    }
    out.trim_end().to_owned() + "\n"
}

/// Flags with their commands, by their variables.
type ByVariable = BTreeMap<String, Vec<String>>;

fn of_flags(command: &Command, path: &str, found: &mut ByVariable) {
    let of_all = path == "tidemill";
    for arg in command.get_arguments() {
        let inherited = arg.is_global_set() && !of_all;
        let (Some(name), false) = (arg.get_env(), inherited) else {
            continue;
        };
        let flag = arg.get_long().unwrap_or_default();
        let flag = match of_all {
            true => format!("{} of every command", code(&format!("--{flag}"))),
            false => code(&format!("{path} --{flag}")),
        };
        let name = name.to_string_lossy().into_owned();
        found.entry(name).or_default().push(flag);
    }
    for subcommand in command.get_subcommands() {
        of_flags(
            subcommand,
            &format!("{path} {}", subcommand.get_name()),
            found,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;
    use std::path::Path;

    fn sources(directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// Returns the variables in the string literals of a source file: tests of the program are below `mod tests`.
    fn variables(source: &str) -> Vec<String> {
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
        let after = |start: &'static str, prefix: &'static str| {
            source.split(start).skip(1).filter_map(move |rest| {
                let end = rest.find(|c| !is_name(c))?;
                let ends = end > 0 && rest[end..].starts_with(['"', '=']);
                ends.then(|| format!("{prefix}{}", &rest[..end]))
            })
        };
        let literal = after("\"TIDEMILL_", "TIDEMILL_");
        literal.chain(after("variable(\"", "TIDEMILL_")).collect()
    }

    #[test]
    fn page_has_every_variable_of_the_sources() {
        let mut line = Cli::command();
        line.build();
        let page = page(&line);
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&crates).unwrap() {
            sources(&entry.unwrap().path().join("src"), &mut found);
        }
        let names: Vec<String> = found.iter().flat_map(|source| variables(source)).collect();
        assert!(names.len() > 60, "{names:?}");
        for name in names {
            // Variables of the build and of tests.
            let other = [
                "TIDEMILL_COMMIT",
                "TIDEMILL_FEATURES",
                "TIDEMILL_TEST_",
                "TIDEMILL_WRITE_",
                "TIDEMILL_CASES",
                "TIDEMILL_SEED",
                "TIDEMILL_STORES",
                "TIDEMILL_FORMAT_FILES",
            ];
            let known = page.contains(&format!("`{name}`"))
                || other.iter().any(|start| name.starts_with(start));
            assert!(known, "{name}");
        }
    }
}
