//! The subject of a measurement: a kernel with arguments that make it work, and data of its kind, generated from a seed.

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use tidemill_compute::{builtin_hash, builtin_names, is_builtin};
use tidemill_model::glob;
use tidemill_sandbox::{CodeSource, InputsAs, Launcher, Run, RunInput, find_program, hash_file};

/// Name of the input as a kernel sees it, and of the result.
pub(super) const DATA: &str = "data";
pub(super) const RESULT: &str = "result";

/// Size of the input of a run that does almost nothing: its time is the start.
pub(super) const SMALL_BYTES: u64 = 4096;

/// Large pieces make large page-cache folios, as nodes have them.
const PIECE_BYTES: usize = 4 << 20;

/// Words of generated text; `grep` searches for the first.
const WORDS: [&str; 16] = [
    "tide", "mill", "pond", "and", "the", "of", "water", "wheel", "grinds", "flour", "storage",
    "burst", "drain", "node", "kernel", "analysis",
];

/// Kind of the generated input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum BenchData {
    /// Little-endian doubles.
    Numbers,
    /// Lines of words.
    Text,
}

impl BenchData {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Numbers => "numbers",
            Self::Text => "text",
        }
    }

    /// Writes a file of `bytes` bytes, a multiple of eight.
    ///
    /// # Errors
    /// If it can't be written.
    pub(super) fn write(self, path: &Path, bytes: u64, seed: u64) -> anyhow::Result<()> {
        let mut random = StdRng::seed_from_u64(seed);
        let at = || format!("can't write {}", path.display());
        let file = File::create(path).with_context(at)?;
        let mut out = BufWriter::with_capacity(PIECE_BYTES, file);
        match self {
            Self::Numbers => {
                for _ in 0..bytes / 8 {
                    let value: f64 = random.random_range(-1e6..1e6);
                    out.write_all(&value.to_le_bytes()).with_context(at)?;
                }
            }
            Self::Text => {
                let mut left = usize::try_from(bytes)?;
                while left > 0 {
                    let line = line(&mut random);
                    let part = &line.as_bytes()[..line.len().min(left)];
                    out.write_all(part).with_context(at)?;
                    left -= part.len();
                }
            }
        }
        out.flush().with_context(at)
    }
}

fn line(random: &mut StdRng) -> String {
    let words = random.random_range(4..14);
    let words: Vec<&str> = (0..words)
        .map(|_| WORDS[random.random_range(0..WORDS.len())])
        .collect();
    words.join(" ") + "\n"
}

/// A kernel to be measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Subject {
    /// Name, as in a job file.
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) data: BenchData,
    pub(super) hash: String,
    /// Size of its input; 0: not chosen yet.
    pub(super) bytes: u64,
    code: CodeSource,
}

impl Subject {
    /// A built-in kernel, or a program of this machine. A program is a filter: it gets the data as its standard input,
    /// and its standard output is the result.
    ///
    /// # Errors
    /// If there is no such kernel.
    pub(super) fn new(
        name: &str,
        args: &[String],
        data: Option<BenchData>,
        launcher: &Launcher,
    ) -> anyhow::Result<Self> {
        if is_builtin(name) {
            let text = matches!(name, "grep" | "wordcount");
            let usual = if name == "grep" {
                vec!["-c".to_owned(), WORDS[0].to_owned()]
            } else {
                Vec::new()
            };
            return Ok(Self {
                name: name.to_owned(),
                args: if args.is_empty() {
                    usual
                } else {
                    args.to_vec()
                },
                data: data.unwrap_or(if text {
                    BenchData::Text
                } else {
                    BenchData::Numbers
                }),
                hash: builtin_hash(name).unwrap_or_default(),
                bytes: 0,
                code: CodeSource::Builtin(name.to_owned()),
            });
        }
        let Some(program) = find_program(name, &launcher.settings().path) else {
            bail!(
                "there is no kernel `{name}`: no built-in one ({}), no program in {}",
                builtin_names().join(", "),
                std::env::join_paths(&launcher.settings().path)?.display()
            );
        };
        let at = || format!("can't read {}", program.display());
        Ok(Self {
            name: name.to_owned(),
            args: args.to_vec(),
            data: data.unwrap_or(BenchData::Text),
            hash: hash_file(&program).with_context(at)?,
            bytes: 0,
            code: CodeSource::Program(program),
        })
    }

    fn is_filter(&self) -> bool {
        matches!(self.code, CodeSource::Program(_))
    }

    /// Returns a run over a local file.
    pub(super) fn run(&self, data: &Path, directory: PathBuf) -> Run {
        let mut run = Run::new(self.code.clone(), directory);
        run.args.clone_from(&self.args);
        run.inputs_as = InputsAs::Symlink;
        run.inputs.push(RunInput {
            name: DATA.into(),
            path: data.into(),
        });
        run.outputs.push(RESULT.into());
        if self.is_filter() {
            run.stdin = Some(DATA.into());
            run.stdout = Some(RESULT.into());
        }
        run
    }

    /// Returns a job of one task over a file of `directory` in the cluster.
    pub(super) fn script(&self, directory: &str, input: &str, node: u32) -> String {
        let quoted: Vec<String> = self.args.iter().map(|arg| quote(arg)).collect();
        let streams = if self.is_filter() {
            format!("stdin = {}; stdout = \"{RESULT}\";", quote(input))
        } else {
            String::new()
        };
        format!(
            "name = \"bench-kernel\"; workdir = {}; tasks = ( {{ name = \"run\"; kernel = {}; args = [ {} ]; \
             input = [ {} ]; output = [ \"{RESULT}\" ]; {streams} node = {node}; }} );",
            quote(directory),
            quote(&self.name),
            quoted.join(", "),
            quote(&glob::escaped(input)),
        )
    }
}

/// Returns a string of a job file.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_lang::script;

    #[test]
    fn bench_data_is_determined_by_seed_and_size() {
        let directory = tempfile::tempdir().unwrap();
        let made = |data: BenchData, seed| {
            let path = directory.path().join("data");
            data.write(&path, 4096, seed).unwrap();
            std::fs::read(path).unwrap()
        };
        for data in [BenchData::Numbers, BenchData::Text] {
            assert_eq!(made(data, 1).len(), 4096);
            assert_eq!(made(data, 1), made(data, 1));
            assert_ne!(made(data, 1), made(data, 2));
        }
        assert!(
            String::from_utf8(made(BenchData::Text, 1))
                .unwrap()
                .contains("tide")
        );
    }

    #[test]
    fn bench_script_quotes_any_kernel_argument() {
        let odd = Subject {
            name: "grep".into(),
            args: vec!["a \"b\" \\d".into(), String::new()],
            data: BenchData::Text,
            hash: String::new(),
            bytes: 0,
            code: CodeSource::Program("/bin/grep".into()),
        };
        let text = odd.script("/bench", "text-4096", 3);
        let read = script::parse("job.conf", text.as_bytes()).unwrap();
        assert!(
            format!("{read:?}").contains("a \\\"b\\\" \\\\d"),
            "{read:?}"
        );
    }
}
