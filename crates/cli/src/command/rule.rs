//! `tidemill rule`: tasks that run when files that match a pattern are sealed.

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::rule::{LogView, RuleView, RulesView, TestView, rule_json};
use crate::output::{Printed, exact};
use anyhow::{Context as _, bail};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use tidemill_core::rule::MAX_RULE_BYTES;
use tidemill_wire::v1::{self, name_op::Op};

const EXAMPLES: &str = "Examples:
  tidemill rule test monthly.rule /climate/run-07/tas.nc      the task for a file, without running it
  tidemill rule add monthly.rule --existing                   from now on, and for existing files
  tidemill rule add --path /raw wc.rule                     as the directory's attribute user.tidemill.rule
  tidemill rule list
  tidemill rule show monthly                                  its text, and the outcomes of its runs
  tidemill rule log monthly --state failed                    failed files, with reasons
  tidemill rule retry monthly                                 run the rule for them again
  tidemill rule pause monthly                                 files that are sealed now wait for `resume`
  tidemill rule remove monthly

monthly.rule:
  name = \"monthly\"; workdir = \"/climate\";
  pattern = \"run-(?<n>\\d+)/*.nc\";
  task = { kernel = \"wordcount\"; output = [ \"counts/${n}-${stem}.txt\" ]; };";

/// Manage rules: run a task for every file that matches a pattern, when the file is sealed
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RuleCommand {
    /// Make a rule from a file of this machine. The rule runs once for each matching version
    Add(AddRule),
    /// List your rules; as root, all rules
    List,
    /// Show a rule with its text and the outcomes of its runs
    Show(RuleName),
    /// Pause a rule. Files that are sealed during the pause wait for `resume`
    Pause(RuleName),
    /// Resume a rule, also for files that waited
    Resume(RuleName),
    /// Delete a rule with its log. Jobs that it has begun continue
    Remove(RuleName),
    /// Show the task that a rule would run for a file, which need not exist
    Test(TestRule),
    /// Show the versions that matched and their outcomes, the newest first
    Log(RuleLog),
    /// Run again for versions whose rule run failed or was stopped as a loop
    Retry(Retry),
}

#[derive(Debug, clap::Args)]
struct RuleName {
    /// Name or number of the rule
    #[arg(value_name = "RULE")]
    name: String,
}

#[derive(Debug, clap::Args)]
struct AddRule {
    /// File with the rule's text, libconfig or XML; - for standard input
    #[arg(value_name = "FILE")]
    file: OsString,
    /// Replace the rule of the same name, and keep its log
    #[arg(long)]
    replace: bool,
    /// Directory of the cluster whose attribute user.tidemill.rule takes the text, in place of its present rule
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["replace", "existing", "for_all"])]
    path: Option<OsString>,
    /// Run for existing files, too
    #[arg(long)]
    existing: bool,
    /// Apply the rule to everybody's files, each with the rights of the file's owner (administrators only)
    #[arg(long)]
    for_all: bool,
}

#[derive(Debug, clap::Args)]
struct TestRule {
    /// Name of a rule, or else a file with the text of a rule
    #[arg(value_name = "RULE|FILE")]
    rule: OsString,
    /// Path in the cluster, absolute or relative to the rule's directory
    path: OsString,
}

#[derive(Debug, clap::Args)]
struct RuleLog {
    /// Name or number of the rule
    #[arg(value_name = "RULE")]
    name: String,
    /// States of listed rule runs: `queued`, `waiting`, `running`, `done`, `failed`, `deleted`, `loop`, `other`
    #[arg(long, value_name = "STATE,…", value_delimiter = ',')]
    state: Vec<String>,
    /// Maximum number of rule runs
    #[arg(long, short = 'n', default_value_t = 100)]
    limit: u32,
    /// Number of the rule run before which the list begins
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    before: u64,
}

#[derive(Debug, clap::Args)]
struct Retry {
    /// Name or number of the rule
    #[arg(value_name = "RULE")]
    name: String,
    /// Path of one file, to retry it only
    path: Option<OsString>,
}

fn read(file: &OsStr) -> anyhow::Result<String> {
    let at = || file.display().to_string();
    let open: Box<dyn Read> = match file.as_bytes() {
        b"-" => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(file).with_context(at)?),
    };
    let mut text = String::new();
    // Reads one byte more than the maximum, so that the server reports a text that is too long.
    let most = MAX_RULE_BYTES as u64 + 1;
    open.take(most).read_to_string(&mut text).with_context(at)?;
    Ok(text)
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    match args.command {
        RuleCommand::Add(args) => return add(args, context, &server).await,
        RuleCommand::Test(args) => return test(args, context, &server).await,
        RuleCommand::List => {
            let rules = list(&server, "").await?;
            context.output.show(&RulesView(rules))?;
        }
        RuleCommand::Show(args) => {
            let rule = list(&server, &args.name).await?.pop();
            context.output.show(&RuleView(rule.unwrap_or_default()))?;
        }
        RuleCommand::Pause(args) => pause(args, true, context, &server).await?,
        RuleCommand::Resume(args) => pause(args, false, context, &server).await?,
        RuleCommand::Remove(args) => {
            let request = v1::RuleRequest {
                credentials: Some(credentials()),
                name: args.name,
            };
            let removed = server.rules().remove(request).await;
            let rule = removed
                .map_err(|status| server.explain(status))?
                .into_inner();
            let text = format!("rule {} is removed", rule.name);
            context.output.show(&Printed::new(text, rule_json(&rule)))?;
        }
        RuleCommand::Log(args) => {
            let request = v1::RuleLogRequest {
                credentials: Some(credentials()),
                name: args.name,
                before: args.before,
                limit: args.limit,
                states: args.state,
            };
            let log = server.rules().log(request).await;
            let log = log.map_err(|status| server.explain(status))?.into_inner();
            context.output.show(&LogView(log.rule_runs))?;
        }
        RuleCommand::Retry(args) => {
            let request = v1::RetryRuleRequest {
                credentials: Some(credentials()),
                name: args.name,
                path: match args.path {
                    Some(path) => files::path(path)?.text("a rule")?.to_owned(),
                    None => String::new(),
                },
            };
            let retried = server.rules().retry(request).await;
            let rule_runs = retried
                .map_err(|status| server.explain(status))?
                .into_inner()
                .rule_runs;
            let text = format!("{rule_runs} rule runs are queued again");
            context
                .output
                .show(&Printed::new(text, json!({ "rule_runs": rule_runs })))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(server: &tidemill_client::Server, name: &str) -> anyhow::Result<Vec<v1::Rule>> {
    let request = v1::ListRulesRequest {
        credentials: Some(credentials()),
        name: name.to_owned(),
    };
    let reply = server.rules().list(request).await;
    Ok(reply
        .map_err(|status| server.explain(status))?
        .into_inner()
        .rules)
}

async fn pause(
    args: RuleName,
    paused: bool,
    context: &CommandContext,
    server: &tidemill_client::Server,
) -> anyhow::Result<()> {
    let request = v1::PauseRuleRequest {
        credentials: Some(credentials()),
        name: args.name,
        paused,
    };
    let rule = server.rules().pause(request).await;
    let rule = rule.map_err(|status| server.explain(status))?.into_inner();
    let what = if paused {
        "paused: what is sealed waits"
    } else {
        "active"
    };
    let text = format!("rule {} is {what}", rule.name);
    context.output.show(&Printed::new(text, rule_json(&rule)))?;
    Ok(())
}

async fn add(
    args: AddRule,
    context: &CommandContext,
    server: &tidemill_client::Server,
) -> anyhow::Result<ExitCode> {
    let text = read(&args.file)?;
    if let Some(directory) = args.path {
        return set(&directory, text, context, server).await;
    }
    let request = v1::AddRuleRequest {
        credentials: Some(credentials()),
        text,
        source: exact(&args.file),
        replace: args.replace,
        existing: args.existing,
        for_all: args.for_all,
    };
    let reply = server.rules().add(request).await;
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    let Some(rule) = reply.rule else {
        bail!("{}", reply.errors.join("\n"));
    };
    let text = format!(
        "rule {} (number {}, revision {}) runs for {} below {}",
        rule.name, rule.rule, rule.revision, rule.pattern, rule.workdir
    );
    context.output.show(&Printed::new(text, rule_json(&rule)))?;
    Ok(ExitCode::SUCCESS)
}

/// Sets the attribute of a directory, as `setfattr` does, but reports faults of the rule.
async fn set(
    directory: &OsStr,
    text: String,
    context: &CommandContext,
    server: &tidemill_client::Server,
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
    context
        .output
        .show(&Printed::new(text, json!({ "directory": path })))?;
    Ok(ExitCode::SUCCESS)
}

async fn test(
    args: TestRule,
    context: &CommandContext,
    server: &tidemill_client::Server,
) -> anyhow::Result<ExitCode> {
    let path = args.path.to_str().with_context(|| {
        format!(
            "bad path: {}: a rule needs a path in UTF-8",
            args.path.display()
        )
    })?;
    let mut request = v1::TestRuleRequest {
        credentials: Some(credentials()),
        path: path.to_owned(),
        ..v1::TestRuleRequest::default()
    };
    let file = &args.rule;
    if file == "-" || std::path::Path::new(file).is_file() {
        request.text = read(file)?;
        request.source = exact(file);
    } else {
        request.name = file.to_string_lossy().into_owned();
    }
    let reply = server.rules().test(request).await;
    let reply = reply.map_err(|status| server.explain(status))?.into_inner();
    if !reply.errors.is_empty() {
        bail!("{}", reply.errors.join("\n"));
    }
    let matches = reply.matches;
    context.output.show(&TestView(reply))?;
    Ok(if matches {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(crate::FAILED)
    })
}
