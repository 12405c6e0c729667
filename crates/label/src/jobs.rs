//! Labels that are jobs of the cluster. The module submits, watches and cancels them through the mount's control directory, as any user can
//! (next: `mount/src/fs/control/submit.rs`).

use crate::agent::Tell;
use crate::analysis::{Paths, TEXT_MAX, quoted};
use crate::log::{Drew, Log, LogRecord, RecordStatus};
use crate::root::{MountRoot, patiently};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum number of jobs of an application that run at the same time.
const JOBS_MAX: usize = 64;
/// Pause before the state of a job is read again; it grows by half each time, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Maximum time until a mount sees the result of a job.
const HEARD_AFTER: Duration = Duration::from_secs(5);
/// Maximum size in bytes of a file of the control directory that is read.
const CONTROL_MAX: u64 = 64 << 20;

/// Path of the control directory, below the mountpoint.
pub(crate) const CONTROL: &str = ".tidemill";

/// Failure of a job: an errno, and the reason.
type JobFailure = (i32, String);

enum JobEnd {
    Done(u64),
    Cancelled,
    Failed(JobFailure),
}

/// A job that runs for a label.
struct RunningJob {
    after: u64,
    paths: Paths,
    thread: JoinHandle<()>,
}

#[derive(Default)]
pub(crate) struct Jobs(Vec<RunningJob>);

impl Jobs {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops jobs that have ended.
    pub(crate) fn look(&mut self) {
        self.0.retain(|job| !job.thread.is_finished());
    }

    /// Whether a label has to wait for a running job: because the label depends on the job, because it uses a file that the job creates, or
    /// because it keeps its order with all labels.
    pub(crate) fn hold_up(&self, log: &Log, record: &LogRecord) -> bool {
        let jobs = &self.0;
        if jobs.is_empty() {
            return false;
        }
        let makes = |paths: &[Vec<u8>]| {
            let mut made = jobs.iter().flat_map(|job| &job.paths.outputs);
            made.any(|output| paths.contains(output))
        };
        record.is_alone()
            || jobs.iter().any(|job| job.after == record.after)
            || if record.is_job() {
                let paths = Paths::of(log.paths(record));
                jobs.len() >= JOBS_MAX || makes(&paths.inputs) || makes(&paths.outputs)
            } else {
                makes(&[log.paths(record).to_vec()])
            }
    }

    /// Submits a job, and starts a thread that waits for the job. The inputs must be in closed files.
    pub(crate) fn start(
        &mut self,
        log: &Arc<Log>,
        root: &Arc<MountRoot>,
        record: &LogRecord,
        tell: Tell,
    ) {
        let control = ControlDirectory::new(root.clone());
        let (log, record) = (log.clone(), *record);
        let job = match control.submit(&log, &record) {
            Ok(job) => job,
            Err(failure) => return settle(&log, &record, JobEnd::Failed(failure), tell),
        };
        let paths = Paths::of(log.paths(&record));
        let after = record.as_after();
        let result = paths.result.clone();
        let thread = std::thread::spawn(move || {
            let end = control.wait(&log, &record, (job, result.as_deref()));
            settle(&log, &record, end, tell);
            log.notify();
            // Other labels may wait for it.
            log.wake();
        });
        self.0.push(RunningJob {
            after,
            paths,
            thread,
        });
    }
}

fn settle(log: &Log, record: &LogRecord, end: JobEnd, tell: Tell) {
    match end {
        JobEnd::Done(bytes) => log.settle(record.at, Ok(bytes)),
        JobEnd::Cancelled => log.settle_as(record.at, RecordStatus::Cancelled, 0),
        JobEnd::Failed((errno, why)) => {
            tell(&format!(
                "{}: label {} (a job): {why}",
                log.name(),
                record.id
            ));
            let answer = log.answer(record);
            // The zero after it exists already: a record is longer than its content.
            let length = why
                .len()
                .min(answer.len())
                .min(usize::try_from(TEXT_MAX).unwrap_or(0));
            answer.fill(0);
            answer[..length].copy_from_slice(&why.as_bytes()[..length]);
            log.settle(record.at, Err(errno));
        }
    }
}

fn failed(error: &Error, what: &str) -> JobFailure {
    let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    (errno, format!("{what}: {error}"))
}

/// The control directory, as this user sees it.
struct ControlDirectory {
    root: Arc<MountRoot>,
    directory: PathBuf,
}

impl ControlDirectory {
    fn new(root: Arc<MountRoot>) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self {
            root,
            directory: format!("{CONTROL}/{user}").into(),
        }
    }

    fn read(&self, name: &str) -> Result<String> {
        patiently(|| {
            let file = self
                .root
                .open_file(&self.directory.join(name), OFlags::RDONLY)?;
            let mut text = Vec::new();
            file.take(CONTROL_MAX).read_to_end(&mut text)?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        })
    }

    fn say(&self, name: &str, line: &str) -> Result<()> {
        patiently(|| {
            let path = self.directory.join(name);
            let mut file = self.root.open_file(&path, OFlags::WRONLY)?;
            file.write_all(format!("{line}\n").as_bytes())
        })
    }

    /// Submits the job of a label, or finds the job if it is already submitted: its key makes repeated submissions one job.
    fn submit(&self, log: &Log, record: &LogRecord) -> std::result::Result<u64, JobFailure> {
        let path = log.path().with_extension(format!("{}.job", record.id));
        let shown = path.display().to_string();
        let kept = keep(&path, log, record);
        kept.map_err(|error| failed(&error, &format!("can't write {shown}")))?;
        let submitted = self.say("submit", &shown);
        let _ = std::fs::remove_file(&path);
        match submitted {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                let why = self.read("last-error").unwrap_or_default();
                // Another submission of the user may have been refused in the meantime.
                let why = match why.contains(&shown) {
                    true => why
                        .replace(&format!("{shown}:"), "script:")
                        .trim()
                        .to_owned(),
                    false => "the cluster refused the job".to_owned(),
                };
                return Err((Errno::INVAL.raw_os_error(), why));
            }
            Err(error) => return Err(failed(&error, "can't submit the job")),
        }
        let known = self.read("joblist");
        let known = known.map_err(|error| failed(&error, "can't read the list of jobs"))?;
        let mut jobs = known.lines().filter_map(|line| line.rsplit_once(' '));
        let job = jobs.find(|(source, _)| *source == shown);
        job.and_then(|(_, job)| job.parse().ok()).ok_or_else(|| {
            let why = format!("the job of {shown} was submitted but is not in the list of jobs");
            (Errno::IO.raw_os_error(), why)
        })
    }

    /// Waits until a job has ended; cancels the job when the label is cancelled.
    fn wait(&self, log: &Log, record: &LogRecord, (job, result): (u64, Option<&[u8]>)) -> JobEnd {
        let (mut pause, mut reported) = (PAUSE_MIN, false);
        loop {
            let text = match self.read(&format!("{job}-status")) {
                Ok(text) => text,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let why = format!("job {job} was deleted before its outcome was known");
                    return JobEnd::Failed((Errno::NOENT.raw_os_error(), why));
                }
                Err(error) => return JobEnd::Failed(failed(&error, &format!("job {job}"))),
            };
            if matches!(state(&text), "done" | "cancelled" | "failed") {
                log.drew(record.at, drew(&text));
            }
            match state(&text) {
                "done" => return self.done(log, record, (job, result)),
                "cancelled" => return JobEnd::Cancelled,
                "failed" => {
                    let why = format!("job {job}: {}", error(&text));
                    return JobEnd::Failed((Errno::IO.raw_os_error(), why));
                }
                _ => {}
            }
            if !reported && log.status(record.at).0 == RecordStatus::Stopping {
                // The job may have ended at this moment.
                let _ = self.say("cancel", &job.to_string());
                reported = true;
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(PAUSE_MAX);
        }
    }

    fn done(&self, log: &Log, record: &LogRecord, (job, result): (u64, Option<&[u8]>)) -> JobEnd {
        let Some(result) = result else {
            return JobEnd::Done(0);
        };
        let path = Path::new(OsStr::from_bytes(result));
        let into = log.answer(record);
        let mut read = || {
            patiently(|| {
                let file = self.root.open_file(path, OFlags::RDONLY)?;
                crate::execute::read_at(&file, into, 0)
            })
        };
        // The mount may see a new name a moment after the job's own file reports its end.
        let (begun, mut pause) = (Instant::now(), PAUSE_MIN);
        let read = loop {
            match read() {
                Err(error) if is_not_heard_of(&error, begun) => std::thread::sleep(pause),
                read => break read,
            }
            pause = (pause * 3 / 2).min(PAUSE_MAX);
        };
        match read {
            Ok(bytes) => JobEnd::Done(bytes as u64),
            Err(error) => {
                let what = format!("job {job} is done, and its result {}", path.display());
                JobEnd::Failed(failed(&error, &what))
            }
        }
    }
}

fn is_not_heard_of(error: &Error, begun: Instant) -> bool {
    error.kind() == ErrorKind::NotFound && begun.elapsed() < HEARD_AFTER
}

/// Writes the script of a label to a file that the mount can read.
fn keep(path: &Path, log: &Log, record: &LogRecord) -> Result<File> {
    let mut how = OpenOptions::new();
    let how = how.write(true).create(true).truncate(true).mode(0o600);
    let mut file = how.open(path)?;
    let stem = log.path().file_stem().unwrap_or_default();
    let submission_id = format!("label {} {}", stem.to_string_lossy(), record.id);
    file.write_all(log.data(record))?;
    file.write_all(format!("\nsubmission-id = {};\n", quoted(&submission_id)).as_bytes())?;
    Ok(file)
}

/// Returns the state of a job from the text of its status file.
fn state(text: &str) -> &str {
    let line = text.lines().find_map(|line| line.strip_prefix("state "));
    line.unwrap_or_default().trim()
}

/// Returns the energy of a job's runs from its status file, which has a line for the energy after the first run.
fn drew(text: &str) -> Drew {
    let line = text.lines().find_map(|line| line.strip_prefix("energy "));
    let mut numbers = line.into_iter().flat_map(str::split_whitespace);
    let mut number = || numbers.find_map(|word| word.parse().ok()).unwrap_or(0);
    Drew {
        microjoules: number(),
        runs: number(),
        unknown: number(),
    }
}

/// Returns the error of the first failed task from the status file: the text in the column of errors.
fn error(text: &str) -> String {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("task "));
    let column = lines.next().and_then(|head| {
        let at = head.rfind("error")?;
        Some(head[..at].chars().count())
    });
    let Some(column) = column else {
        return "it failed".into();
    };
    let reported = lines.find_map(|line| {
        let error: String = line.chars().skip(column).collect();
        (!error.is_empty()).then_some(error)
    });
    reported.unwrap_or_else(|| "it failed".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_status_file_parses_state_error_and_energy() {
        let text = "job      3\nname     state x\nstate    failed\n\n\
                    energy   1250 microjoules above idle in 3 runs, estimated; 1 runs not known\n\
                    task    kernel  state   node  ms  read  written  error\n\
                    error   k       done    0     1   0     0\n\
                    ä       k       failed  0     1   0     0        exit status 3\n";
        assert_eq!(
            (state(text), error(text).as_str()),
            ("failed", "exit status 3")
        );
        let expected = Drew {
            microjoules: 1250,
            runs: 3,
            unknown: 1,
        };
        assert_eq!((drew(text), drew("")), (expected, Drew::default()));
        assert_eq!((state(""), error("").as_str()), ("", "it failed"));
    }
}
