//! `tidemill hook`: kernels that run on new files where they were written, and the handling of their results and of the files.

use crate::context::{CommandContext, credentials};
use crate::output::Printed;
use crate::output::hook::{HookView, HooksView, hook_json};
use anyhow::bail;
use clap::ValueEnum;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_core::rule::hook::{HookSpec, InputAction, On};
use tidemill_wire::v1;

/// How often a batch is looked at that somebody waits for.
const PERIOD: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "Examples:
  tidemill hook add '/run/step-*.dat' --map 'max dtype=f32' --output 'max/${stem}.txt'
  tidemill hook add '/run/*.f64' --map max --reduce 'max dtype=text' --output all.txt --on write --inputs delete
  tidemill hook add '/run/*.nc' --map /usr/bin/sha256sum --output 'sums/${name}' --on write
  tidemill hook add '/run/*.csv' --map 'sort -u {inputs}' --group 10 --on group --output 'sorted/${batch}'
  tidemill hook list
  tidemill hook show max                  the progress of its maps and batches, and whether they keep up
  tidemill hook end max --wait            reduce the files of the open batch
  tidemill hook remove max

Names of files are relative to the directory at the start of the pattern; ${stem}, ${name} and the like are as in rules.";

/// Manage hooks: run a kernel on each new file, on the node that took the file, and reduce the results
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: HookCommand,
}

#[derive(Debug, clap::Subcommand)]
enum HookCommand {
    /// Make a hook for files that match a pattern, from now on
    Add(Box<AddHook>),
    /// List your hooks; as root, all hooks
    List,
    /// Show the progress of a hook's maps and batches, and whether its maps keep up
    Show(HookName),
    /// End the open batch of a hook: its files are reduced as soon as they are mapped
    End(EndHook),
    /// Delete a hook. Jobs that it has begun continue
    Remove(HookName),
}

#[derive(Debug, clap::Args)]
struct HookName {
    /// Name or number of the hook
    #[arg(value_name = "HOOK")]
    name: String,
}

#[derive(Debug, clap::Args)]
struct EndHook {
    /// Name or number of the hook
    #[arg(value_name = "HOOK")]
    name: String,
    /// Wait until the batch is reduced
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, clap::Args)]
struct AddHook {
    /// Pattern of the files, as in rules, for paths from the root of the cluster
    pattern: String,
    /// Kernel to run on each file, with its arguments; programs read standard input
    #[arg(long, value_name = "KERNEL")]
    map: String,
    /// Path of the map's output; with --reduce, path of the reduced output
    #[arg(long, value_name = "FILE")]
    output: String,
    /// Kernel that makes one result from the results of a batch; {inputs} stands for their names
    #[arg(long, value_name = "KERNEL")]
    reduce: Option<String>,
    /// Path of the outputs of maps, which the reduction then reads [default: a hidden directory next to the output]
    #[arg(long, value_name = "FILE", requires = "reduce")]
    parts: Option<String>,
    /// Number of files after which a batch is reduced; with --on group, number of files of one map
    #[arg(long, value_name = "FILES")]
    group: Option<u32>,
    /// Pattern of marker files, below the hook's directory. A matching file ends the batch
    #[arg(long, value_name = "PATTERN", requires = "reduce")]
    marker: Option<String>,
    /// Files after their map: keep; delete; or evict from the burst tier as soon as they are stored elsewhere
    #[arg(long, value_enum, default_value_t = InputsArg::Keep)]
    inputs: InputsArg,
    /// Time of the map: as a file is written; when it is closed; or for several closed files together
    #[arg(long, value_enum, default_value_t = OnArg::Seal)]
    on: OnArg,
    /// Name of the hook [default: the kernel's]
    #[arg(long)]
    name: Option<String>,
    /// Time limit of one kernel, such as 10m; with --on write, it includes the time that the file is open
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// Maximum output of one kernel, such as 64MB
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// Run the kernels, shared objects that use MPI, as one process on each node that has a part of the file
    #[arg(long)]
    mpi: bool,
    /// Replace the hook of the same name
    #[arg(long)]
    replace: bool,
    /// Apply the hook to existing files, too
    #[arg(long)]
    existing: bool,
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

impl AddHook {
    fn spec(&self) -> HookSpec {
        HookSpec {
            name: self.name.clone().unwrap_or_default(),
            pattern: self.pattern.clone(),
            map: self.map.clone(),
            output: self.output.clone(),
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

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    match args.command {
        HookCommand::Add(args) => return add(*args, context, &server).await,
        HookCommand::List => {
            let mut hooks = list(&server, "").await?;
            hooks.retain(|rule| rule.hook.is_some());
            context.output.show(&HooksView(hooks))?;
        }
        HookCommand::Show(args) => {
            let hook = one(&server, &args.name).await?;
            context.output.show(&HookView(hook))?;
        }
        HookCommand::End(args) => return end(args, context, &server).await,
        HookCommand::Remove(args) => {
            one(&server, &args.name).await?;
            let request = v1::RuleRequest {
                credentials: Some(credentials()),
                name: args.name,
            };
            let removed = server.rules().remove(request).await;
            let removed = removed.map_err(|status| server.explain(status))?;
            let rule = removed.into_inner();
            let text = format!("hook {} is removed", rule.name);
            context.output.show(&Printed::new(text, hook_json(&rule)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(server: &Server, name: &str) -> anyhow::Result<Vec<v1::Rule>> {
    let request = v1::ListRulesRequest {
        credentials: Some(credentials()),
        name: name.to_owned(),
    };
    let reply = server.rules().list(request).await;
    let reply = reply.map_err(|status| server.explain(status))?;
    Ok(reply.into_inner().rules)
}

pub(crate) async fn one(server: &Server, name: &str) -> anyhow::Result<v1::Rule> {
    let rule = list(server, name).await?.pop().unwrap_or_default();
    if rule.hook.is_none() {
        bail!("{name} is a rule that is no hook: see `tidemill rule show {name}`");
    }
    Ok(rule)
}

async fn add(args: AddHook, context: &CommandContext, server: &Server) -> anyhow::Result<ExitCode> {
    let request = v1::AddRuleRequest {
        credentials: Some(credentials()),
        text: args.spec().rule_text(),
        source: "hook".into(),
        replace: args.replace,
        existing: args.existing,
        for_all: false,
    };
    let reply = server.rules().add(request).await;
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    let Some(rule) = reply.rule else {
        bail!("{}", reply.errors.join("\n"));
    };
    let text = format!(
        "hook {} (number {}, revision {}) is for {} below {}",
        rule.name, rule.rule, rule.revision, rule.pattern, rule.workdir
    );
    context.output.show(&Printed::new(text, hook_json(&rule)))?;
    Ok(ExitCode::SUCCESS)
}

async fn end(args: EndHook, context: &CommandContext, server: &Server) -> anyhow::Result<ExitCode> {
    let request = v1::RuleRequest {
        credentials: Some(credentials()),
        name: args.name.clone(),
    };
    let ended = server.rules().end_batch(request).await;
    let ended = ended.map_err(|status| server.explain(status))?;
    let number = ended.into_inner().batch;
    if !args.wait {
        let text = format!("batch {number} has ended: it is reduced when all of it is mapped");
        let printed = json!({ "batch": number, "state": "ending" });
        context.output.show(&Printed::new(text, printed))?;
        return Ok(ExitCode::SUCCESS);
    }
    let batch = reduced(server, &args.name, number).await?;
    let mut text = format!("batch {number} is {}", batch.state);
    let failed = batch.state == "failed";
    if failed {
        text = format!("{text}: {}", batch.error);
    }
    let printed = json!({ "batch": number, "state": batch.state, "error": batch.error });
    context.output.show(&Printed::new(text, printed))?;
    Ok(match failed {
        true => ExitCode::from(crate::FAILED),
        false => ExitCode::SUCCESS,
    })
}

/// A batch when it has ended, or is not known any more.
async fn reduced(server: &Server, name: &str, number: u64) -> anyhow::Result<v1::HookBatch> {
    loop {
        let hook = one(server, name).await?.hook.unwrap_or_default();
        let batches = hook.batches.into_iter();
        let batch = batches.into_iter().find(|batch| batch.batch == number);
        let batch = batch.unwrap_or_default();
        if matches!(batch.state.as_str(), "done" | "failed" | "empty" | "") {
            return Ok(batch);
        }
        tokio::time::sleep(PERIOD).await;
    }
}
