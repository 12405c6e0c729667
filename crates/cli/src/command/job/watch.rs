//! `tidemill job watch`: follows a job, with bars on a terminal, or a line per change elsewhere.

use super::{named_or_newest, request};
use crate::context::CommandContext;
use crate::output::Message;
use crate::output::job::{Job, JobChange, has_ended, headline, state, waits};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::{Error, Server};
use tidemill_model::display;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill job watch                    your newest job
  tidemill job watch 3
  tidemill --json job watch 3 | jq -r '.changed[] | .name + \" \" + .state'

Exit code 0 if the job succeeded, 1 if it failed or was cancelled. Ctrl-C ends the command, not the job.
`tidemill events` follows new files.";

/// Maximum number of attempts to reach a lost server, one per second.
const RECONNECTS_MAX: u32 = 60;

/// Follow a job until it ends
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Id of the job [default: your newest]
    job: Option<u64>,
}

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let job = named_or_newest(&server, args.job).await?;
    follow(&server, job, context).await
}

/// Shows a job until it ends; the exit code reports the outcome.
///
/// # Errors
/// If the job does not exist, or the server stays offline.
pub(crate) async fn follow(
    server: &Server,
    job: u64,
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let mut shown = ShownJob::new(context);
    let mut failures = 0;
    loop {
        match follow_stream(server, job, context, &mut shown, &mut failures).await {
            Ok(Some(job)) => {
                shown.clear();
                return finish(&job, context);
            }
            Ok(None) => {}
            Err(error) if is_passing(&error) && failures < RECONNECTS_MAX => {
                if failures == 0 {
                    shown.note(&format!(
                        "{error}; trying again, the job continues when the server is back"
                    ));
                }
            }
            Err(error) => return Err(error),
        }
        failures += 1;
        anyhow::ensure!(
            failures <= RECONNECTS_MAX,
            "the server ended the report on job {job} again and again: {}; see its log",
            server.endpoint()
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Returns the job once it has ended; `None` if the server closed the stream before.
async fn follow_stream(
    server: &Server,
    job: u64,
    context: &CommandContext,
    shown: &mut ShownJob,
    failures: &mut u32,
) -> anyhow::Result<Option<v1::Job>> {
    let explain = |status| server.explain(status);
    let stream = server.jobs().watch(request(job)).await;
    let mut stream = stream.map_err(explain)?.into_inner();
    while let Some(event) = stream.message().await.map_err(explain)? {
        *failures = 0;
        let job = event.job.ok_or(Error::Answer("Watch"))?;
        let changed = shown.take(&job, event.changed);
        shown.tell_waits(&job, context);
        match &mut shown.bars {
            Some(bars) => bars.draw(&job, &shown.tasks, &changed),
            None if context.global.quiet => {}
            None => context.output.step(&JobChange::new(&job, &changed))?,
        }
        if has_ended(&job) {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

fn is_passing(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Error>();
    error.is_some_and(|error| matches!(error, Error::Unreachable { .. }))
}

fn finish(job: &v1::Job, context: &CommandContext) -> anyhow::Result<ExitCode> {
    if !context.global.json {
        context
            .output
            .show(&Message(headline(job), Job::from(job)))?;
    }
    let id = job.job;
    if job.state() == v1::State::Done {
        context.note(format_args!(
            "see also: tidemill job report {id}, tidemill job explain {id}"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    context.note(format_args!(
        "why: tidemill job logs {id}, tidemill job show {id}"
    ));
    Ok(ExitCode::from(crate::FAILED))
}

/// State of a job as last shown.
struct ShownJob {
    tasks: BTreeMap<u64, v1::Task>,
    /// The last reported reason to wait.
    waits: Option<String>,
    bars: Option<Bars>,
}

impl ShownJob {
    fn new(context: &CommandContext) -> Self {
        Self {
            tasks: BTreeMap::new(),
            waits: None,
            bars: context.draws().then(Bars::new),
        }
    }

    /// Stores the tasks of one message; returns those that changed since the last message.
    fn take(&mut self, job: &v1::Job, changed: Vec<v1::Task>) -> Vec<v1::Task> {
        let mut changes = Vec::new();
        for task in job.tasks.iter().cloned().chain(changed) {
            let before = self.tasks.insert(task.task, task.clone());
            let first_and_idle = before.is_none()
                && matches!(task.state(), v1::State::Waiting | v1::State::Unspecified);
            if !first_and_idle
                && before
                    .is_none_or(|before| before.state != task.state || before.tries != task.tries)
            {
                changes.push(task);
            }
        }
        changes
    }

    /// Reports the reason to wait, where no line under bars shows it.
    fn tell_waits(&mut self, job: &v1::Job, context: &CommandContext) {
        let waits = waits(job);
        if waits != self.waits
            && self.bars.is_none()
            && let Some(waits) = &waits
        {
            context.note(format_args!("job {} {}", job.job, display::line(waits)));
        }
        self.waits = waits;
    }

    fn note(&self, text: &str) {
        match &self.bars {
            Some(bars) => drop(bars.multi.println(display::line(text))),
            None => eprintln!("{}", display::line(text)),
        }
    }

    fn clear(&mut self) {
        if let Some(bars) = self.bars.take() {
            bars.finish();
        }
    }
}

/// A bar for every kernel, in the order of the script, and a line with the running tasks.
struct Bars {
    multi: MultiProgress,
    kernels: Vec<(String, ProgressBar)>,
    running: ProgressBar,
}

impl Bars {
    fn new() -> Self {
        let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        let running = multi.add(ProgressBar::new_spinner());
        running.set_style(plain("{spinner} {msg}"));
        running.enable_steady_tick(Duration::from_millis(120));
        Self {
            multi,
            kernels: Vec::new(),
            running,
        }
    }

    fn draw(&mut self, job: &v1::Job, tasks: &BTreeMap<u64, v1::Task>, changed: &[v1::Task]) {
        let mut sums: Vec<(&str, BTreeMap<&str, u64>)> = Vec::new();
        let mut running = Vec::new();
        for task in tasks.values() {
            let index = sums.iter().position(|(kernel, _)| *kernel == task.kernel);
            let index = index.unwrap_or_else(|| {
                sums.push((&task.kernel, BTreeMap::new()));
                sums.len() - 1
            });
            *sums[index].1.entry(state(task.state)).or_default() += 1;
            if task.state() == v1::State::Running {
                running.push(format!("{} on {}", task.name, task.node));
            }
        }
        let width = sums
            .iter()
            .map(|(kernel, _)| kernel.len())
            .max()
            .unwrap_or(0);
        for (kernel, states) in sums {
            let bar = self.bar(kernel, width);
            let count =
                |names: &[&str]| -> u64 { names.iter().filter_map(|name| states.get(name)).sum() };
            bar.set_length(states.values().sum());
            bar.set_position(count(&["done"]));
            let parts = ["running", "sent", "ready", "waiting", "failed", "cancelled"];
            let parts = parts
                .iter()
                .filter_map(|name| Some(format!("{} {name}", states.get(name)?)));
            bar.set_message(parts.collect::<Vec<_>>().join(", "));
        }
        for task in changed
            .iter()
            .filter(|task| !task.error.is_empty() && task.state() != v1::State::Waiting)
        {
            let line = format!("{} {}: {}", task.name, state(task.state), task.error);
            // The terminal may be closed, which is no error.
            let _ = self.multi.println(display::line(&line));
        }
        let mut line = headline(job);
        if !running.is_empty() {
            line = format!("{line}; {}", running.join(", "));
        }
        self.running.set_message(display::line(&line));
    }

    fn bar(&mut self, kernel: &str, width: usize) -> ProgressBar {
        if let Some((_, bar)) = self.kernels.iter().find(|(name, _)| name == kernel) {
            return bar.clone();
        }
        let bar = self.multi.insert_before(&self.running, ProgressBar::new(0));
        bar.set_style(
            plain("  {prefix} {bar:30.green/dim} {pos:>3}/{len:<3} {msg}").progress_chars("━━─"),
        );
        bar.set_prefix(format!("{:<width$}", display::line(kernel)));
        self.kernels.push((kernel.to_owned(), bar.clone()));
        bar
    }

    /// Leaves the bars as they are and removes the spinner.
    fn finish(self) {
        for (_, bar) in &self.kernels {
            bar.abandon();
        }
        self.running.finish_and_clear();
    }
}

/// Returns a style. The templates are constants of this program; an invalid one would show the plain bar.
fn plain(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_shows_only_changes_and_omits_initial_waiting() {
        let task = |task, state: v1::State| v1::Task {
            task,
            state: state.into(),
            ..v1::Task::default()
        };
        let mut shown = ShownJob {
            tasks: BTreeMap::new(),
            waits: None,
            bars: None,
        };
        let job = v1::Job {
            tasks: vec![task(1, v1::State::Waiting), task(2, v1::State::Running)],
            ..v1::Job::default()
        };
        let ids = |tasks: Vec<v1::Task>| tasks.iter().map(|task| task.task).collect::<Vec<_>>();
        assert_eq!(ids(shown.take(&job, Vec::new())), [2]);
        let job = v1::Job::default();
        assert_eq!(
            ids(shown.take(
                &job,
                vec![task(1, v1::State::Waiting), task(2, v1::State::Done)]
            )),
            [2]
        );
        let mut again = task(2, v1::State::Done);
        again.tries = 2;
        assert_eq!(ids(shown.take(&job, vec![again.clone()])), [2]);
        assert!(shown.take(&job, vec![again]).is_empty());
    }

    #[test]
    fn progress_bar_templates_are_valid() {
        for template in [
            "{spinner} {msg}",
            "  {prefix} {bar:30.green/dim} {pos:>3}/{len:<3} {msg}",
        ] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
