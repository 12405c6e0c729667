//! `tidemill rule create`: a rule from a file of this machine, or a hook from flags.

use super::read;
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::format::{LengthError, TimeLength};
use crate::output::messages::RuleDirectory;
use crate::output::rule::Rule;
use crate::output::{Message, exact};
use anyhow::{Context as _, bail};
use clap::ValueEnum;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_lang::rule::hook::{HookSpec, InputAction, On};
use tidemill_wire::v1::{self, name_op::Op};

const EXAMPLES: &str = "Examples of rules:
  tidemill rule create monthly.toml
  tidemill rule create monthly.toml --replace --existing
  tidemill rule create --path /raw wc.toml          as the directory's attribute user.tidemill.rule

Examples of hooks:
  tidemill rule create '/run/step-*.dat' --map 'max dtype=f32' --result 'max/{stem}.txt'
  tidemill rule create '/run/*.f64' --map max --reduce 'max dtype=text' --result all.txt --on write --inputs delete
  tidemill rule create '/run/*.nc' --map /usr/bin/sha256sum --result 'sums/{name}' --on write
  tidemill rule create '/run/*.csv' --map '/usr/bin/sort -u {inputs}' --group 10 --on group --result 'sorted/{batch}'

A hook runs a kernel on each new file, on the node that took the file, and can reduce the results of a batch. Names of
results are relative to the directory at the start of the pattern; {stem}, {name} and the like are as in rules.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// File with the rule's text, TOML, libconfig or XML; - for standard input. With --map, glob of the hook's files
    /// from the root of the cluster
    #[arg(value_name = "FILE|PATTERN")]
    source: OsString,
    /// Replace the rule of the same name, and keep its log
    #[arg(long)]
    replace: bool,
    /// Directory of the cluster whose attribute user.tidemill.rule takes the text, in place of its present rule
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["replace", "existing", "for_all", "map"])]
    path: Option<OsString>,
    /// Run for existing files, too
    #[arg(long)]
    existing: bool,
    /// Apply the rule to everybody's files, each with the rights of the file's owner (administrators only)
    #[arg(long, conflicts_with = "map")]
    for_all: bool,
    #[command(flatten)]
    hook: HookArgs,
}

/// Flags of a hook.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Hooks")]
struct HookArgs {
    /// Kernel to run on each file, with its arguments. Programs read standard input
    #[arg(long, value_name = "KERNEL", requires = "result")]
    map: Option<String>,
    /// Path in the cluster of the map's result; with --reduce, path of the reduced result
    #[arg(long, value_name = "PATH", requires = "map")]
    result: Option<String>,
    /// Kernel that makes one result from the results of a batch. {inputs} stands for their names
    #[arg(long, value_name = "KERNEL", requires = "map")]
    reduce: Option<String>,
    /// Path in the cluster of the results of maps, which the reduction reads [default: a hidden directory next to the
    /// result]
    #[arg(long, value_name = "PATH", requires = "reduce")]
    parts: Option<String>,
    /// Number of files after which a batch is reduced; with --on group, number of files of one map
    #[arg(long, value_name = "FILES", requires = "map")]
    group: Option<u32>,
    /// Glob of marker files, below the hook's directory. A matching file closes the batch
    #[arg(long, value_name = "PATTERN", requires = "reduce")]
    marker: Option<String>,
    /// Files after their map: keep; delete; or evict from the burst tier as soon as they are stored elsewhere
    #[arg(long, value_enum, default_value_t = InputsArg::Keep, requires = "map")]
    inputs: InputsArg,
    /// Time of the map: as a file is written; when it is closed; or for several closed files together
    #[arg(long, value_enum, default_value_t = OnArg::Seal, requires = "map")]
    on: OnArg,
    /// Name of the hook [default: the kernel's]
    #[arg(long, requires = "map")]
    name: Option<String>,
    /// Time limit of one kernel, such as 10m. With --on write, it includes the time that the file is open
    #[arg(long, value_name = "TIME", value_parser = time, requires = "map")]
    time: Option<String>,
    /// Maximum size of one kernel's output, such as 64MB
    #[arg(long, value_name = "SIZE", requires = "map")]
    size: Option<String>,
    /// Run the kernels, shared objects that use MPI, as one process on each node that has a part of the file
    #[arg(long, requires = "map")]
    mpi: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum InputsArg {
    Keep,
    Delete,
    Evict,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnArg {
    Write,
    Seal,
    Group,
}

/// Checks a length of time, which the server gets as text.
fn time(text: &str) -> Result<String, LengthError> {
    text.parse().map(|TimeLength(_)| text.to_owned())
}

impl HookArgs {
    fn spec(&self, pattern: &str, map: &str) -> HookSpec {
        HookSpec {
            name: self.name.clone().unwrap_or_default(),
            pattern: pattern.to_owned(),
            map: map.to_owned(),
            output: self.result.clone().unwrap_or_default(),
            reduce: self.reduce.clone(),
            parts: self.parts.clone(),
            group: self.group,
            marker: self.marker.clone(),
            inputs: match self.inputs {
                InputsArg::Keep => InputAction::Keep,
                InputsArg::Delete => InputAction::Delete,
                InputsArg::Evict => InputAction::Evict,
            },
            on: match self.on {
                OnArg::Write => On::Write,
                OnArg::Seal => On::Seal,
                OnArg::Group => On::Group,
            },
            mpi: self.mpi,
            time: self.time.clone(),
            size: self.size.clone(),
        }
    }
}

impl Args {
    /// Returns the text of the rule, and the place that errors in it name.
    fn text(&self) -> anyhow::Result<(String, String)> {
        let Some(map) = &self.hook.map else {
            return Ok((read(&self.source)?, exact(&self.source)));
        };
        let pattern = self.source.to_str().with_context(|| {
            let pattern = self.source.display();
            format!("bad pattern: {pattern}: a hook needs a pattern in UTF-8")
        })?;
        Ok((self.hook.spec(pattern, map).rule_text(), "hook".to_owned()))
    }
}

pub(super) async fn run(
    args: Args,
    context: &CommandContext,
    server: &Server,
) -> anyhow::Result<ExitCode> {
    let (text, source) = args.text()?;
    if let Some(directory) = args.path {
        return set(&directory, text, context, server).await;
    }
    let request = v1::AddRuleRequest {
        credentials: Some(credentials()),
        text,
        source,
        replace: args.replace,
        existing: args.existing,
        for_all: args.for_all,
        ..v1::AddRuleRequest::default()
    };
    let reply = server.answer(server.rules().add(request).await)?;
    let Some(rule) = reply.rule else {
        bail!("{}", reply.errors.join("\n"));
    };
    let kind = if rule.hook.is_some() { "hook" } else { "rule" };
    let text = format!(
        "{kind} {} (number {}, revision {}) runs for {} below {}",
        rule.name, rule.rule, rule.revision, rule.pattern, rule.workdir
    );
    context.output.finish(&Message(text, Rule::from(&rule)))
}

/// Sets the attribute of a directory, as `setfattr` does, but reports faults of the rule.
async fn set(
    directory: &OsStr,
    text: String,
    context: &CommandContext,
    server: &Server,
) -> anyhow::Result<ExitCode> {
    let path = files::path(directory)?;
    let attr = files::resolve(server, &path, true).await?.attr;
    let set = v1::SetXattr {
        ino: attr.unwrap_or_default().ino,
        name: b"user.tidemill.rule".to_vec(),
        value: text.into_bytes(),
        ..v1::SetXattr::default()
    };
    server.one(&credentials(), Op::SetXattr(set)).await?;
    let text = format!("{path} has its rule: see `tidemill rule list`");
    let directory = path;
    context
        .output
        .show(&Message(text, RuleDirectory { directory }))?;
    Ok(ExitCode::SUCCESS)
}
