//! Analyses: a kernel, or a pipeline of kernels, that a label runs on files. The application's description becomes a job script, which the
//! label contains (next: `label/src/jobs.rs`).

use crate::error::Error;
use crate::intent::Intent;
use std::borrow::Cow;
use std::fmt::Write as _;

/// Number of bytes that are reserved for the reason of a failed analysis.
pub(crate) const TEXT_MAX: u64 = 1024;

/// A kernel, or a pipeline of kernels, that is to run on files of the cluster. Files are addresses.
///
/// The kernel finds the files below the directory of its first output by their names relative to this directory, and all other files by
/// their last name. The kernel's arguments use these names.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileAnalysis<'a> {
    /// Kernel as job scripts name it: a built-in kernel, a file of the cluster or a program; `"a | b"` is a pipeline.
    pub kernel: &'a str,
    /// Arguments of the kernel.
    pub args: &'a [&'a str],
    /// Input files, which must exist when the analysis starts.
    pub inputs: &'a [&'a str],
    /// Output files, at least one. An existing file gets a new version.
    pub outputs: &'a [&'a str],
    /// Input file that the kernel reads as standard input, if any.
    pub stdin: Option<&'a str>,
    /// Output file that receives the kernel's standard output, if any.
    pub stdout: Option<&'a str>,
    /// Placement policy; by default the policy of the application's intent, or of the cluster.
    pub policy: Option<&'a str>,
}

/// An analysis whose files are paths below the mountpoint.
pub(crate) struct MountedAnalysis<'a> {
    analysis: &'a FileAnalysis<'a>,
    inputs: Vec<Cow<'a, str>>,
    outputs: Vec<Cow<'a, str>>,
    stdin: Option<Cow<'a, str>>,
    stdout: Option<Cow<'a, str>>,
}

/// Paths that the log stores for a label of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Path of the file whose first bytes the label returns.
    pub(crate) result: Option<Vec<u8>>,
    pub(crate) outputs: Vec<Vec<u8>>,
    pub(crate) inputs: Vec<Vec<u8>>,
}

impl Paths {
    /// Encodes the paths of a job if only the path of its result is known.
    pub(crate) fn of_result(result: &str) -> Vec<u8> {
        Self::to_bytes(result, &[], &[])
    }

    /// Encodes the result (empty if there is none) and the outputs, each followed by a zero; then another zero and the inputs.
    fn to_bytes(result: &str, outputs: &[Cow<'_, str>], inputs: &[Cow<'_, str>]) -> Vec<u8> {
        let mut text = String::new();
        for name in [result]
            .into_iter()
            .chain(outputs.iter().map(AsRef::as_ref))
        {
            text.push_str(name);
            text.push('\0');
        }
        text.push('\0');
        text.push_str(&inputs.join("\0"));
        text.into_bytes()
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut all = bytes.split(|&byte| byte == 0);
        let result = all.next().filter(|name| !name.is_empty());
        let some = |name: &&[u8]| !name.is_empty();
        let outputs = all.by_ref().take_while(some).map(<[u8]>::to_vec).collect();
        Self {
            result: result.map(<[u8]>::to_vec),
            outputs,
            inputs: all.filter(some).map(<[u8]>::to_vec).collect(),
        }
    }
}

impl<'a> FileAnalysis<'a> {
    /// Replaces the addresses of files by paths below the mountpoint.
    pub(crate) fn within(
        &'a self,
        path: impl Fn(&'a str) -> Result<Cow<'a, str>, Error>,
    ) -> Result<MountedAnalysis<'a>, Error> {
        let file = |address: &'a str| match path(address)? {
            path if path.is_empty() => Err(Error::Invalid(format!("{address} is not a file"))),
            path => Ok(path),
        };
        let all = |addresses: &'a [&'a str]| {
            let paths = addresses.iter().map(|address| file(address));
            paths.collect::<Result<Vec<_>, Error>>()
        };
        Ok(MountedAnalysis {
            analysis: self,
            inputs: all(self.inputs)?,
            outputs: all(self.outputs)?,
            stdin: self.stdin.map(file).transpose()?,
            stdout: self.stdout.map(file).transpose()?,
        })
    }
}

impl MountedAnalysis<'_> {
    pub(crate) fn paths(&self, result: &str) -> Vec<u8> {
        Paths::to_bytes(result, &self.outputs, &self.inputs)
    }

    /// Returns the script of a job with the name `name`, for an application with this intent.
    pub(crate) fn script(&self, name: &str, intent: Intent) -> Result<String, Error> {
        let first = self.outputs.first();
        let first = first.ok_or_else(|| Error::Invalid("an analysis needs an output".into()))?;
        let workdir = first
            .rsplit_once('/')
            .map_or("", |(directory, _)| directory);
        let analysis = self.analysis;
        let (name, workdir) = (quoted(&name.replace('/', "-")), quoted_path(workdir));
        let mut script = format!("name = {name};\nworkdir = {workdir};\n");
        if let Some(policy) = analysis.policy.or(intent.policy()) {
            let _ = writeln!(script, "policy = {};", quoted(policy));
        }
        script.push_str("strict = true;\nreplace = true;\ntasks = ( {\n  name = \"label\";\n");
        let _ = writeln!(script, "  kernel = {};", quoted(analysis.kernel));
        let args: Vec<_> = analysis.args.iter().map(|arg| quoted(arg)).collect();
        let paths = |paths: &[Cow<'_, str>]| paths.iter().map(|path| quoted_path(path)).collect();
        let inputs = self
            .inputs
            .iter()
            .map(|path| quoted_path(&literal_glob(path)));
        for (setting, values) in [
            ("args", args),
            ("input", inputs.collect()),
            ("output", paths(&self.outputs)),
        ] {
            if !values.is_empty() {
                let _ = writeln!(script, "  {setting} = [ {} ];", values.join(", "));
            }
        }
        for (setting, path) in [("stdin", &self.stdin), ("stdout", &self.stdout)] {
            if let Some(path) = path {
                let _ = writeln!(script, "  {setting} = {};", quoted_path(path));
            }
        }
        script.push_str("} );\n");
        Ok(script)
    }
}

/// Returns a path as a glob that matches only this path: inputs of jobs are globs.
fn literal_glob(path: &str) -> String {
    let mut glob = String::with_capacity(path.len());
    for letter in path.chars() {
        if matches!(letter, '*' | '?' | '[' | '\\') {
            glob.push('\\');
        }
        glob.push(letter);
    }
    glob
}

/// Returns a path of the cluster as a quoted string of a script.
fn quoted_path(path: &str) -> String {
    quoted(&format!("/{path}"))
}

pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_ascii_control() => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn analysis_becomes_a_job_script() {
        let analysis = FileAnalysis {
            kernel: "stats | head",
            args: &["-a", "\"b\"\n"],
            inputs: &["run/in", "x"],
            outputs: &["run/out"],
            stdout: Some("run/out"),
            policy: Some("min-wait"),
            ..FileAnalysis::default()
        };
        let known = analysis.within(|path| Ok(path.into())).unwrap();
        assert_eq!(
            known.script("a/b", Intent::Energy).unwrap(),
            "name = \"a-b\";\nworkdir = \"/run\";\npolicy = \"min-wait\";\nstrict = true;\nreplace = true;\n\
             tasks = ( {\n  name = \"label\";\n  kernel = \"stats | head\";\n  args = [ \"-a\", \"\\\"b\\\"\\x0a\" ];\n  \
             input = [ \"/run/in\", \"/x\" ];\n  output = [ \"/run/out\" ];\n  stdout = \"/run/out\";\n} );\n"
        );
        let unstated = FileAnalysis {
            policy: None,
            ..analysis
        };
        let script = |intent| {
            unstated
                .within(|path| Ok(path.into()))
                .unwrap()
                .script("a", intent)
                .unwrap()
        };
        assert!(script(Intent::Energy).contains("policy = \"constraint:energy\";"));
        assert!(!script(Intent::None).contains("policy"));
        let paths = Paths::of(&known.paths("run/out"));
        assert_eq!(paths.result.as_deref(), Some(&b"run/out"[..]));
        assert_eq!(paths.outputs, [b"run/out"]);
        assert_eq!(paths.inputs, [&b"run/in"[..], b"x"]);
        let none = Paths::of(&known.paths(""));
        assert_eq!((none.result, none.inputs.len()), (None, 2));
        assert_eq!(Paths::of(&Paths::of_result("")), Paths::default());
    }
}
