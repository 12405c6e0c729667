//! Mappers that are programs of users. Each program runs as a task of a separate job, with its owner's rights and in the sandbox of
//! kernels, while the server still reads the job that needs the mapper. The output of the program has no name, and the server reads the
//! output (next: `server/src/jobs/mapper/printed.rs`).
//!
//! The server does not store the waiting job. If the server is killed before the programs have answered, it has not accepted the waiting
//! job, and the job of the programs ends like any other job.

use super::DriverMessage;
use super::driver::Signals;
use super::mapper::printed;
use super::submit::{JobRefusal, PinnedVersions, Submission, submit_given};
use crate::cluster::Cluster;
use crate::files::VersionStream;
use crate::files::stream::SourceNodes;
use crate::lease_recall::LeaseRecalls;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use tidemill_lang::job::{ExternalInput, MapperProgram, MapperResult, PRINTED_BYTES_MAX};
use tidemill_lang::script;
use tidemill_meta::jobs::data;
use tidemill_meta::jobs::view::{self, StartedTasks};
use tidemill_meta::shared::NamesShared;
use tidemill_meta::{Connection, Fault, SqliteNames};
use tidemill_model::display;
use tidemill_model::id::{JobId, ObjectId};
use tidemill_model::layout::{Layout, Part};
use tidemill_wire::v1::{self, State};
use tokio::time::Instant;

/// Maximum number of mapper programs for one job.
const PROGRAMS_MAX: usize = 256;
/// Maximum time for all mapper programs of one job together, including the time until nodes have space for the programs.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Maximum number of characters of a program's output in an error message.
const SHOWN_MAX: usize = 400;

/// How the server treats mappers that are programs while it reads a job.
#[derive(Clone, Debug)]
pub(crate) enum ProgramMappers {
    /// The server runs the programs.
    Run(ProgramAccess),
    /// The server refuses such mappers, since other jobs would have to wait for the programs.
    Refused,
    /// The job's own tasks are the mapper programs, and their outputs get no names.
    Are,
}

/// Access to the driver and its signals that running a program requires.
#[derive(Clone, Debug)]
pub(crate) struct ProgramAccess {
    pub(crate) driver: Sender<DriverMessage>,
    pub(crate) signals: Signals,
}

/// Key of a program's output: a version, and the program that is run on the version.
type ProgramKey = (ObjectId, String);

/// Outputs of mapper programs, and the programs that the server has not run yet.
#[derive(Debug, Default)]
pub(super) struct MapperJobs {
    answers: BTreeMap<ProgramKey, Result<Vec<u8>, String>>,
    wanted: RefCell<BTreeMap<ProgramKey, MapperProgram>>,
}

impl MapperJobs {
    /// Returns the map that a program printed for a version.
    ///
    /// # Errors
    /// The error in the map; or any text if the program has not been run yet.
    pub(super) fn map(
        &self,
        program: &MapperProgram,
        made: &ExternalInput,
        per_part: bool,
    ) -> Result<MapperResult, String> {
        let key = (made.object, program.key());
        let words = display::line(&program.words);
        let Some(answer) = self.answers.get(&key) else {
            self.wanted.borrow_mut().insert(key, program.clone());
            return Err(format!("\"{words}\" has not been asked yet"));
        };
        let failure = |why: String| format!("\"{words}\": {why}");
        let text = answer.as_ref().map_err(|why| failure(why.clone()))?;
        printed::map(text, &made.layout, per_part).map_err(|why| {
            let begin = String::from_utf8_lossy(&text[..text.len().min(SHOWN_MAX * 4)]);
            failure(format!(
                "its output is not a map: {why}; it begins with {}",
                excerpt(&begin, false)
            ))
        })
    }

    /// Runs the mapper programs that have not run yet; returns whether any program was left to run.
    pub(super) async fn ask(
        &mut self,
        around: (&SqliteNames, &LeaseRecalls, &Arc<Cluster>),
        (of, given): (&Submission, &PinnedVersions),
    ) -> Result<bool, JobRefusal> {
        let wanted = std::mem::take(self.wanted.get_mut());
        let ProgramMappers::Run(asks) = &of.programs else {
            return Ok(false);
        };
        if wanted.is_empty() {
            return Ok(false);
        }
        if self.answers.len() + wanted.len() > PROGRAMS_MAX {
            let why = format!(
                "{}: more than {PROGRAMS_MAX} mappers of a job are programs; split it",
                of.source
            );
            return Err(JobRefusal::Script(vec![why]));
        }
        let submission = submission(of, wanted.values())?;
        let mut given = given.clone();
        given.extend(
            wanted
                .iter()
                .map(|((object, _), program)| (program.path.clone(), *object)),
        );
        let (names, lease_recalls, cluster) = around;
        let kept = Box::pin(submit_given(
            names,
            lease_recalls,
            cluster,
            (submission, &given),
            |_, _| Ok(()),
        ));
        let (accepted, _) = kept.await?;
        let job = accepted.spec.job;
        let changes = asks.signals.changes.subscribe();
        let _ = asks
            .driver
            .send(DriverMessage::Submitted(Box::new(accepted)));
        let run = ProgramRun {
            names,
            cluster,
            asks,
            job,
            pinned: Pinned {
                shared: names.shared(),
                all: BTreeMap::new(),
            },
        };
        let answers = run.answers(changes).await?;
        self.answers.extend(wanted.into_keys().zip(answers));
        Ok(true)
    }
}

/// Returns the job that runs these programs, for the user of the job that needs their outputs.
fn submission<'a>(
    of: &Submission,
    programs: impl Iterator<Item = &'a MapperProgram>,
) -> Result<Submission, JobRefusal> {
    let script = script::parse(&of.source, of.script.as_bytes());
    let script = script.map_err(|error| JobRefusal::Script(vec![error.to_string()]))?;
    Ok(Submission {
        caller: of.caller.clone(),
        script: MapperProgram::job(&script, programs).to_string(),
        source: format!("{} (mappers)", of.source),
        policy: "input-locality".to_owned(),
        replace: false,
        strict: true,
        no_cache: true,
        bounded: false,
        programs: ProgramMappers::Are,
        links: of.links,
    })
}

/// Pinned outputs of tasks: no other code removes the outputs while this value exists.
struct Pinned<'a> {
    shared: &'a Arc<NamesShared>,
    /// Outputs by the number of their task.
    all: BTreeMap<u64, Part>,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for part in self.all.values() {
            self.shared.unpin(part.object.0);
        }
    }
}

impl Pinned<'_> {
    /// Pins new outputs of a job. The job keeps its outputs until the job has ended, and their removal starts only after a pause.
    fn look(&mut self, db: &Connection, job: JobId) -> Result<(), Fault> {
        for (task, placed) in data::outputs_of_job(db, job)? {
            self.all.entry(task.0).or_insert_with(|| {
                self.shared.pin(placed.object.0);
                Part::on(placed.object, placed.size, placed.node)
            });
        }
        Ok(())
    }
}

/// A job whose tasks are mapper programs.
struct ProgramRun<'a> {
    names: &'a SqliteNames,
    cluster: &'a Arc<Cluster>,
    asks: &'a ProgramAccess,
    job: JobId,
    pinned: Pinned<'a>,
}

impl ProgramRun<'_> {
    /// Waits until all programs have ended, and returns their outputs in the order of the programs.
    async fn answers(
        mut self,
        mut changes: tokio::sync::watch::Receiver<i64>,
    ) -> Result<Vec<Result<Vec<u8>, String>>, JobRefusal> {
        let (job, until) = (self.job, Instant::now() + WAIT_MAX);
        loop {
            changes.borrow_and_update();
            let pinned = &mut self.pinned;
            let running = self.names.database().read(|db| {
                pinned.look(db, job)?;
                let found = view::job(db, job.0, &StartedTasks::default())?;
                Ok(found.is_some_and(|job| job.state() == State::Running))
            })?;
            if !running {
                break;
            }
            match tokio::time::timeout_at(until, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Fault::Closed.into()),
                Err(_) => {
                    let _ = self.asks.driver.send(DriverMessage::Cancel(job));
                    let why = format!(
                        "some of its mappers have not ended after {} s, and were cancelled: see `tidemill job show {job}`, and submit it again",
                        WAIT_MAX.as_secs()
                    );
                    return Err(JobRefusal::Script(vec![why]));
                }
            }
        }
        let tasks = self.names.database().read(|db| {
            view::logs(
                db,
                job.0,
                0,
                u32::try_from(PROGRAMS_MAX).unwrap_or(u32::MAX),
            )
        })?;
        let mut answers = Vec::with_capacity(tasks.len());
        for task in tasks {
            answers.push(self.answer(&task).await);
        }
        Ok(answers)
    }

    async fn answer(&self, task: &v1::Task) -> Result<Vec<u8>, String> {
        let job = self.job;
        if task.state != i32::from(State::Done) {
            let printed = match task.stderr.trim() {
                "" => task.stdout.trim(),
                printed => printed,
            };
            let why = match task.error.trim() {
                "" => "it did not run to its end",
                why => why,
            };
            return Err(format!(
                "{why}; it printed {} (`tidemill job logs {job}`)",
                excerpt(printed, true)
            ));
        }
        let deleted = || format!("its output in job {job} is deleted; submit the job again");
        let part = self.pinned.all.get(&task.task).ok_or_else(deleted)?;
        if part.size > PRINTED_BYTES_MAX {
            return Err(format!("it printed more than {PRINTED_BYTES_MAX} bytes"));
        }
        let objects = self
            .cluster
            .objects()
            .ok_or("files can't be read on this server")?;
        let nodes = SourceNodes {
            cluster: self.cluster.clone(),
            shared: self.names.shared().clone(),
            objects: objects.clone(),
        };
        let size = part.size;
        let source = VersionStream::of_kept(&nodes, Layout::Whole(part.clone()));
        let bytes = source
            .window(0..size)
            .await
            .map_err(|error| error.to_string())?;
        match bytes.len() as u64 == size {
            true => Ok(bytes.to_vec()),
            false => Err(deleted()),
        }
    }
}

/// Returns a part of a text in one line: the end of the text if `end` is set, otherwise the beginning.
fn excerpt(text: &str, end: bool) -> String {
    let count = text.chars().count();
    let skipped = if end {
        count.saturating_sub(SHOWN_MAX)
    } else {
        0
    };
    let some: String = text.chars().skip(skipped).take(SHOWN_MAX).collect();
    match some.is_empty() {
        true => "nothing".to_owned(),
        false => format!("{some:?}"),
    }
}
