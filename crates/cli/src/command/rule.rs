//! `tidemill rule`: tasks that run when files that match a pattern are sealed, and hooks, which map files as they are written.

mod create;
mod flush;

use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::messages::RetriedRuns;
use crate::output::rule::{self as shown, Rule, RuleTest, Rules};
use crate::output::{Message, exact, list as listed};
use anyhow::{Context as _, bail};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use tidemill_client::Server;
use tidemill_lang::rule::MAX_RULE_BYTES;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill rule test monthly.toml /climate/run-07/tas.nc      the task for a file, without running it
  tidemill rule create monthly.toml --existing                from now on, and for existing files
  tidemill rule create --path /raw wc.toml                    as the directory's attribute user.tidemill.rule
  tidemill rule create '/run/step-*.dat' --map 'max dtype=f32' --result 'max/{stem}.txt'     a hook: a rule with a map
  tidemill rule list                                          rules and hooks
  tidemill rule show monthly                                  its text, and the outcomes of its runs
  tidemill rule log monthly --state failed                    failed files, with reasons
  tidemill rule retry monthly                                 run the rule for them again
  tidemill rule pause monthly                                 files that are sealed now wait for `resume`
  tidemill rule flush max --wait                              reduce the files of the hook's open batch
  tidemill rule delete monthly

monthly.toml:
  [job]
  name = \"monthly\"
  workdir = \"/climate\"
  [on]
  files = \"run-{n}/*.nc\"
  [task]
  kernel = \"wordcount\"
  output = [\"counts/{n}-{stem}.txt\"]";

/// Manage rules: run a task for every file that matches a pattern, and hooks: map each new file where it was written
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: RuleCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RuleCommand {
    /// Create a rule from a local file, or with --map a hook. It runs once for each matching version
    Create(Box<create::Args>),
    /// List your rules and hooks; as root, all rules and hooks
    List,
    /// Show the text of a rule and the outcomes of its runs, or the progress of a hook's maps and batches
    Show(RuleName),
    /// Show the task that a rule would run for a file, which need not exist
    Test(TestRule),
    /// Pause a rule. Files that are sealed during the pause wait for `resume`
    Pause(RuleName),
    /// Resume a rule, also for files that waited
    Resume(RuleName),
    /// Close the open batch of a hook. Its files are reduced as soon as all are mapped
    Flush(flush::Args),
    /// Show the versions that matched and their outcomes, the newest first
    Log(RuleLog),
    /// Run again for versions whose rule run failed or was stopped as a loop
    Retry(Retry),
    /// Delete a rule with its log. Jobs that it has begun continue
    Delete(RuleName),
}

#[derive(Debug, clap::Args)]
struct RuleName {
    /// Name or number of the rule
    #[arg(value_name = "RULE")]
    name: String,
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
        RuleCommand::Create(args) => return create::run(*args, context, &server).await,
        RuleCommand::Test(args) => return test(args, context, &server).await,
        RuleCommand::Flush(args) => return flush::run(args, context, &server).await,
        RuleCommand::List => {
            let rules = list(&server, "").await?;
            context.output.show(&Rules(listed(&rules)))?;
        }
        RuleCommand::Show(args) => {
            let rule = list(&server, &args.name).await?.pop().unwrap_or_default();
            context.output.show(&Rule::from(&rule))?;
        }
        RuleCommand::Pause(args) => pause(args, true, context, &server).await?,
        RuleCommand::Resume(args) => pause(args, false, context, &server).await?,
        RuleCommand::Log(args) => log(args, context, &server).await?,
        RuleCommand::Retry(args) => retry(args, context, &server).await?,
        RuleCommand::Delete(args) => {
            let request = v1::RuleRequest {
                credentials: Some(credentials()),
                name: args.name,
            };
            let rule = server.answer(server.rules().remove(request).await)?;
            let text = format!("rule {} is deleted", rule.name);
            context.output.show(&Message(text, Rule::from(&rule)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(server: &Server, name: &str) -> anyhow::Result<Vec<v1::Rule>> {
    let request = v1::ListRulesRequest {
        credentials: Some(credentials()),
        name: name.to_owned(),
    };
    let reply = server.answer(server.rules().list(request).await)?;
    Ok(reply.rules)
}

/// Returns a rule that is a hook.
///
/// # Errors
/// If no hook of the caller has the name or number.
pub(crate) async fn hook(server: &Server, name: &str) -> anyhow::Result<v1::Rule> {
    let rule = list(server, name).await?.pop().unwrap_or_default();
    if rule.hook.is_none() {
        bail!("rule {name}: not a hook, it has no map; see `tidemill rule show {name}`");
    }
    Ok(rule)
}

async fn pause(
    args: RuleName,
    paused: bool,
    context: &CommandContext,
    server: &Server,
) -> anyhow::Result<()> {
    let request = v1::PauseRuleRequest {
        credentials: Some(credentials()),
        name: args.name,
        paused,
    };
    let rule = server.answer(server.rules().pause(request).await)?;
    let what = if paused {
        "paused: files that are sealed now wait for `tidemill rule resume`"
    } else {
        "active"
    };
    let text = format!("rule {} is {what}", rule.name);
    context.output.show(&Message(text, Rule::from(&rule)))?;
    Ok(())
}

async fn log(args: RuleLog, context: &CommandContext, server: &Server) -> anyhow::Result<()> {
    let request = v1::RuleLogRequest {
        credentials: Some(credentials()),
        name: args.name,
        before: args.before,
        limit: args.limit,
        states: args.state,
    };
    let log = server.answer(server.rules().log(request).await)?;
    context
        .output
        .show(&shown::RuleLog(listed(&log.rule_runs)))?;
    Ok(())
}

async fn retry(args: Retry, context: &CommandContext, server: &Server) -> anyhow::Result<()> {
    let request = v1::RetryRuleRequest {
        credentials: Some(credentials()),
        name: args.name,
        path: match args.path {
            Some(path) => files::path(path)?.text("a rule")?.to_owned(),
            None => String::new(),
        },
    };
    let rule_runs = server
        .answer(server.rules().retry(request).await)?
        .rule_runs;
    let text = format!("{rule_runs} rule runs are queued again");
    context
        .output
        .show(&Message(text, RetriedRuns { rule_runs }))?;
    Ok(())
}

async fn test(
    args: TestRule,
    context: &CommandContext,
    server: &Server,
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
    let reply = server.answer(server.rules().test(request).await)?;
    if !reply.errors.is_empty() {
        bail!("{}", reply.errors.join("\n"));
    }
    let matches = reply.matches;
    context.output.show(&RuleTest::from(&reply))?;
    Ok(if matches {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(crate::FAILED)
    })
}
