//! `tidemill submit`: submits a job file to the cluster.

mod dry_run;

use super::job::watch;
use crate::config::Submit;
use crate::context::{CommandContext, credentials};
use crate::output::messages::Submission;
use crate::output::{Message, exact, list};
use anyhow::Context as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_model::display::line;
use tidemill_plan::units::{MoneyPerJoule, Price, Watts};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill submit job.toml                      print the job's id, and return
  tidemill submit --watch job.toml              follow the job to its end
  tidemill submit --dry-run job.toml            show the placement of its tasks, and their times; submit nothing
  tidemill submit --policy hybrid job.toml      another policy than the job file's
  tidemill submit --replace job.toml            again after a change: unchanged tasks do not run again
  make-job | tidemill submit -                  the job file from standard input

Through the mount: echo /path/to/job.toml > MOUNT/.tidemill/$USER/submit";

/// Submit a job file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Job file, a local file; `-` for standard input
    script: PathBuf,
    /// Placement policy; `tidemill status` lists the policies [default: the job file's, else the cluster's]
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Make new versions of outputs that exist, instead of refusing the job
    #[arg(long)]
    replace: bool,
    /// Refuse the job unless all its inputs exist, instead of waiting for them
    #[arg(long)]
    strict: bool,
    /// Run all tasks, even if the results of the same kernels, arguments and inputs are cached
    #[arg(long)]
    no_cache: bool,
    /// Follow the job until it ends, as `tidemill job watch` does
    #[arg(long, short)]
    watch: bool,
    /// Submit nothing: show the placement of the tasks, their times as predicted from the cluster's records, and the tasks and
    /// inputs that they would wait for
    #[arg(long, conflicts_with = "watch")]
    dry_run: bool,
    /// For --dry-run: power of a node with all cores busy, such as '190 W'
    #[arg(long, env = "TIDEMILL_SUBMIT_BUSY_POWER", value_name = "POWER")]
    busy_power: Option<Watts>,
    /// For --dry-run: power of a node with no core busy
    #[arg(long, env = "TIDEMILL_SUBMIT_IDLE_POWER", value_name = "POWER")]
    idle_power: Option<Watts>,
    /// For --dry-run: price of energy, such as '0.30 EUR/kWh'
    #[arg(long, env = "TIDEMILL_SUBMIT_ENERGY_PRICE", value_name = "PRICE")]
    energy_price: Option<Price<MoneyPerJoule>>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let script = read(&args.script)?;
    let server = context.connect().await?;
    let request = v1::SubmitRequest {
        credentials: Some(credentials()),
        script,
        source: source(&args.script),
        policy: args.policy.unwrap_or_default(),
        replace: args.replace,
        no_cache: args.no_cache,
        strict: args.strict,
        dry_run: args.dry_run,
    };
    let reply = server.answer(server.jobs().submit(request).await)?;
    if !reply.errors.is_empty() {
        context.output.step(&Message(
            String::new(),
            Submission {
                job: None,
                errors: reply.errors.clone(),
                awaited: Vec::new(),
            },
        ))?;
        for error in &reply.errors {
            eprintln!("error: {}", line(error));
        }
        return Ok(ExitCode::from(crate::FAILED));
    }
    if args.dry_run {
        let printed = context.config.submit.clone();
        let prices = Submit {
            busy_power: args.busy_power.or(printed.busy_power),
            idle_power: args.idle_power.or(printed.idle_power),
            energy_price: args.energy_price.or(printed.energy_price),
        };
        return dry_run::show(reply, &prices, context);
    }
    let job = reply.job;
    let text = format!("job {job} submitted");
    let submission = Submission {
        job: Some(job),
        errors: Vec::new(),
        awaited: list(&reply.awaited),
    };
    context.output.step(&Message(text, submission))?;
    tell_awaited(&reply, context);
    if args.watch {
        return watch::follow(&server, job, context).await;
    }
    context.note(format_args!("follow it: tidemill job watch {job}"));
    Ok(ExitCode::SUCCESS)
}

/// Returns a line for each missing input: a job may be submitted before its data, and a name may be wrong.
fn awaited(reply: &v1::SubmitReply) -> Vec<String> {
    let printed = reply.awaited.iter().map(|awaited| {
        let perhaps = match awaited.nearest.as_str() {
            "" => String::new(),
            nearest => format!("; did you mean {nearest}?"),
        };
        let (task, path) = (&awaited.task, &awaited.path);
        line(&format!(
            "task {task} waits for {path}, which does not exist yet{perhaps}"
        ))
    });
    let mut printed: Vec<String> = printed.collect();
    let more = usize::try_from(reply.awaited_total).unwrap_or(usize::MAX);
    match more.saturating_sub(reply.awaited.len()) {
        0 => {}
        more => printed.push(format!("and for {more} more files")),
    }
    printed
}

fn tell_awaited(reply: &v1::SubmitReply, context: &CommandContext) {
    for printed in awaited(reply) {
        context.note(printed);
    }
    if !reply.awaited.is_empty() {
        context.note(format_args!(
            "--strict refuses a job whose inputs do not exist; `tidemill job cancel {}` ends the wait",
            reply.job
        ));
    }
}

/// Returns the name of the script in errors and in the job list.
fn source(script: &Path) -> String {
    if script.as_os_str() == "-" {
        return "standard input".into();
    }
    let full = std::path::absolute(script).unwrap_or_else(|_| script.into());
    exact(full)
}

fn read(script: &Path) -> anyhow::Result<String> {
    if script.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("can't read the job file: standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(script).with_context(|| {
        format!(
            "can't read the job file: {}; name a local file, or use `tidemill cat PATH | tidemill submit -` for one in the cluster",
            script.display()
        )
    })
}
