//! The gRPC service of jobs, which sends accepted jobs to the driver (next: `server/src/jobs/driver.rs`).

use super::driver::Signals;
use super::mapper_jobs::{ProgramAccess, ProgramMappers};
use super::submit::{AwaitedInputs, JobRefusal, Submission, dry_run, submit};
use super::{DriverMessage, finished, plan, trace};
use crate::access::Access;
use crate::cluster::Cluster;
use crate::lease_recall::LeaseRecalls;
use crate::namespace_service::refused;
use futures_util::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_client::concurrency_limit::{Busy, UserPermits};
use tidemill_meta::Connection;
use tidemill_meta::jobs::output_paths::Links;
use tidemill_meta::jobs::records;
use tidemill_meta::jobs::view::{self, JobFilter};
use tidemill_meta::{Caller, Fault, SqliteNames};
use tidemill_model::backoff::Backoff;
use tidemill_model::glob::Pattern;
use tidemill_model::id::JobId;
use tidemill_wire::convert::state_name;
use tidemill_wire::v1::{self, State};
use tonic::{Request, Response, Status};

/// Pauses between events of one watched job. The first pauses are shorter, so that a client that watches a short job does not wait longer
/// than the job takes.
const WATCH: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(100));
/// Number of tasks whose logs are read from the database at once.
const LOGS_MAX: u32 = 64;
/// Maximum wait for the driver's answer when a job is planned.
const PLAN_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of jobs that one request deletes by their numbers.
const DELETED_MAX: usize = 10_000;
/// Maximum number of jobs in one list.
const JOBS_MAX: u32 = 10_000;

/// The gRPC service of jobs.
#[derive(Clone, Debug)]
pub(crate) struct JobService {
    pub(crate) names: Arc<SqliteNames>,
    pub(crate) lease_recalls: LeaseRecalls,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) access: Arc<Access>,
    pub(crate) driver: std::sync::mpsc::Sender<DriverMessage>,
    pub(crate) signals: Signals,
    /// Permits by which the scripts of one user are processed one after the other, since a script may keep a processor busy for a while.
    pub(crate) submissions: Arc<UserPermits>,
}

impl JobService {
    fn tell(&self, message: DriverMessage) -> Result<(), Status> {
        self.driver
            .send(message)
            .map_err(|_| refused(&Fault::Closed))
    }

    /// Stores a job and sends it to the driver.
    async fn accept(&self, submission: Submission) -> Result<v1::SubmitReply, Status> {
        if self.names.shared().low.load(Ordering::Relaxed) {
            return Err(refused(&Fault::Low));
        }
        match submit(&self.names, &self.lease_recalls, &self.cluster, submission).await {
            Ok((accepted, waits)) => {
                let job = accepted.spec.job.0;
                self.tell(DriverMessage::Submitted(Box::new(accepted)))?;
                Ok(replied(job, waits))
            }
            Err(why) => not_accepted(why),
        }
    }

    /// Checks a job as [`Self::accept`] does, without storing the job.
    async fn plan(&self, submission: Submission) -> Result<v1::SubmitReply, Status> {
        let read = match dry_run(&self.names, &self.lease_recalls, &self.cluster, submission).await
        {
            Ok(read) => read,
            Err(why) => return not_accepted(why),
        };
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.tell(DriverMessage::Plan(Box::new(read.accepted.clone()), answer))?;
        let cluster_view = tokio::time::timeout(PLAN_WAIT, answered).await;
        let cluster_view = cluster_view.ok().and_then(Result::ok).ok_or_else(|| {
            Status::unavailable("the server is too busy to plan a job; try again")
        })?;
        let up = self.cluster.up();
        let names = self.names.clone();
        // A large job takes a while.
        let plan = move || {
            let planned = names
                .database()
                .read(|db| plan::planned(db, &read, cluster_view, &up));
            let mut reply = replied(0, read.waits);
            reply.planned = Some(planned?);
            Ok(reply)
        };
        let planned = tokio::task::spawn_blocking(plan).await;
        let planned = planned.map_err(|_| refused(&Fault::Closed))?;
        planned.map_err(|fault: Fault| refused(&fault))
    }

    /// Returns the job with this number, if the caller may see the job.
    async fn own<T: Sync>(
        &self,
        request: &Request<T>,
        credentials: Option<&v1::Credentials>,
        id: u64,
    ) -> Result<v1::Job, Status> {
        let caller = self.access.caller(request, credentials)?;
        let database = self.names.database();
        let read = |db: &Connection| view::job(db, id, &self.signals.started);
        let job = database.read_for(&caller, read).await;
        let job = job.map_err(|fault| refused(&fault))?;
        let job = job.ok_or_else(|| unknown(id))?;
        if may_see(&caller, &job) {
            Ok(job)
        } else {
            Err(not_yours(id, job.uid))
        }
    }

    async fn event(
        &self,
        caller: &Caller,
        job: u64,
        after: i64,
    ) -> Result<(v1::JobEvent, i64), Fault> {
        let read = |db: &Connection| {
            let started = &self.signals.started;
            let (changed, last) = view::tasks(db, job, after, started)?;
            Ok((
                v1::JobEvent {
                    job: view::job(db, job, started)?,
                    changed,
                },
                last,
            ))
        };
        self.names.database().read_for(caller, read).await
    }
}

fn replied(job: u64, (awaited, total): AwaitedInputs) -> v1::SubmitReply {
    let awaited = awaited.into_iter().map(|one| v1::AwaitedInput {
        path: one.path,
        task: one.task,
        nearest: one.nearest.unwrap_or_default(),
    });
    v1::SubmitReply {
        job,
        errors: Vec::new(),
        awaited: awaited.collect(),
        awaited_total: u32::try_from(total).unwrap_or(u32::MAX),
        planned: None,
    }
}

fn not_accepted(why: JobRefusal) -> Result<v1::SubmitReply, Status> {
    match why {
        JobRefusal::Script(errors) | JobRefusal::Claimed(errors) => {
            let lines = errors.iter().flat_map(|text| text.lines());
            let errors = lines.map(str::to_owned).collect();
            Ok(v1::SubmitReply {
                errors,
                ..v1::SubmitReply::default()
            })
        }
        JobRefusal::Known(job) => Ok(replied(job.0, AwaitedInputs::default())),
        JobRefusal::Fault(fault) => Err(refused(&fault)),
    }
}

fn may_see(caller: &Caller, job: &v1::Job) -> bool {
    caller.uid == 0 || caller.uid == job.uid
}

fn unknown(job: u64) -> Status {
    Status::not_found(format!("job {job} does not exist; see `tidemill job list`"))
}

fn not_yours(job: u64, uid: u32) -> Status {
    Status::permission_denied(format!("job {job} belongs to user {uid}"))
}

/// Fails if the job does not belong to the caller, or has not ended.
fn may_delete(caller: &Caller, job: u64, found: Option<(u32, bool)>) -> Result<(), Status> {
    let (uid, running) = found.ok_or_else(|| unknown(job))?;
    if caller.uid != 0 && caller.uid != uid {
        return Err(not_yours(job, uid));
    }
    if running {
        return Err(Status::failed_precondition(format!(
            "job {job} has not ended; wait for it (`tidemill job watch {job}`) or end it (`tidemill job cancel {job}`)"
        )));
    }
    Ok(())
}

fn ended(job: &v1::Job) -> bool {
    matches!(
        State::try_from(job.state),
        Ok(State::Done | State::Failed | State::Cancelled)
    )
}

type Logs = Pin<Box<dyn Stream<Item = Result<v1::Task, Status>> + Send>>;
type Events = Pin<Box<dyn Stream<Item = Result<v1::JobEvent, Status>> + Send>>;

#[tonic::async_trait]
impl v1::jobs_server::Jobs for JobService {
    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitReply>, Status> {
        let caller = self
            .access
            .caller(&request, request.get_ref().credentials.as_ref())?;
        let v1::SubmitRequest {
            script,
            source,
            policy,
            replace,
            no_cache,
            strict,
            dry_run,
            ..
        } = request.into_inner();
        let bounded = !self.access.is_administrator(caller.uid);
        let busy = |busy: Busy| Status::resource_exhausted(busy.to_string());
        let turn = if bounded {
            Some(self.submissions.take(caller.uid).await.map_err(busy)?)
        } else {
            None
        };
        let asks = ProgramAccess {
            driver: self.driver.clone(),
            signals: self.signals.clone(),
        };
        let submission = Submission {
            bounded,
            programs: ProgramMappers::Run(asks),
            links: Links::All,
            caller,
            script,
            source,
            policy,
            replace,
            no_cache,
            strict,
        };
        let service = self.clone();
        // The client may disconnect before the job is stored; the job is accepted in any case.
        let accepted = tokio::spawn(async move {
            let reply = if dry_run {
                service.plan(submission).await
            } else {
                service.accept(submission).await
            };
            drop(turn);
            reply
        });
        let reply = accepted.await.unwrap_or(Err(refused(&Fault::Closed)));
        reply.map(Response::new)
    }

    async fn list(
        &self,
        request: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsReply>, Status> {
        let caller = self
            .access
            .caller(&request, request.get_ref().credentials.as_ref())?;
        let v1::ListJobsRequest {
            everyone,
            limit,
            states,
            name,
            ..
        } = request.into_inner();
        if everyone && caller.uid != 0 && !caller.administrator {
            return Err(Status::permission_denied(
                "only administrators may see the jobs of all users",
            ));
        }
        let limit = if limit == 0 { JOBS_MAX } else { limit };
        let pattern = |name: &String| {
            Pattern::new(name)
                .map_err(|error| Status::invalid_argument(format!("pattern {name:?}: {error}")))
        };
        let name = Some(&name).filter(|name| !name.is_empty());
        let name = name.map(pattern).transpose()?;
        let wanted = JobFilter {
            uid: (!everyone).then_some(caller.uid),
            limit: limit.min(JOBS_MAX),
            states,
            name,
        };
        let database = self.names.database();
        let read = |db: &Connection| view::jobs(db, &wanted, &self.signals.started);
        let jobs = database.read_for(&caller, read).await;
        let jobs = jobs.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::ListJobsReply { jobs }))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteJobsRequest>,
    ) -> Result<Response<v1::DeleteJobsReply>, Status> {
        let message = request.get_ref();
        let caller = self.access.caller(&request, message.credentials.as_ref())?;
        let mut jobs = message.jobs.clone();
        jobs.sort_unstable();
        jobs.dedup();
        if jobs.len() > DELETED_MAX {
            return Err(Status::invalid_argument(format!(
                "{} jobs are too many for one request: delete at most {DELETED_MAX} at once",
                jobs.len()
            )));
        }
        let before = message.ended_before;
        let database = self.names.database();
        let states = database.read_for(&caller, |db| {
            Ok((
                records::states(db, &jobs)?,
                records::ended(db, Some(caller.uid), before)?,
            ))
        });
        let (states, ended) = states.await.map_err(|fault| refused(&fault))?;
        for (&job, state) in jobs.iter().zip(states) {
            may_delete(&caller, job, state)?;
        }
        jobs.extend(ended);
        jobs.sort_unstable();
        jobs.dedup();
        let deleted = finished::delete(database, jobs).await;
        let jobs = deleted.map_err(|fault| refused(&fault))?;
        Ok(Response::new(v1::DeleteJobsReply { jobs }))
    }

    async fn get(&self, request: Request<v1::GetJobRequest>) -> Result<Response<v1::Job>, Status> {
        let message = request.get_ref();
        let mut job = self
            .own(&request, message.credentials.as_ref(), message.job)
            .await?;
        let caller = self.access.caller(&request, message.credentials.as_ref())?;
        let database = self.names.database();
        let read = |db: &Connection| view::tasks(db, job.job, -1, &self.signals.started);
        let tasks = database.read_for(&caller, read).await;
        job.tasks = tasks.map_err(|fault| refused(&fault))?.0;
        Ok(Response::new(job))
    }

    type WatchStream = Events;

    async fn watch(&self, request: Request<v1::GetJobRequest>) -> Result<Response<Events>, Status> {
        let message = request.get_ref();
        let id = self
            .own(&request, message.credentials.as_ref(), message.job)
            .await?
            .job;
        let caller = self.access.caller(&request, message.credentials.as_ref())?;
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let service = self.clone();
        let mut changes = self.signals.changes.subscribe();
        tokio::spawn(async move {
            let mut after = -1;
            let mut pauses = WATCH;
            loop {
                changes.borrow_and_update();
                let event = service.event(&caller, id, after).await;
                let (mut event, last) = match event.map_err(|fault| refused(&fault)) {
                    Ok(event) => event,
                    Err(status) => {
                        let _ = sender.send(Err(status)).await;
                        return;
                    }
                };
                let over = event.job.as_ref().is_none_or(ended);
                if after < 0
                    && let Some(job) = &mut event.job
                {
                    job.tasks = std::mem::take(&mut event.changed);
                }
                let news = after < 0 || over || !event.changed.is_empty();
                after = last;
                if news && sender.send(Ok(event)).await.is_err() || over {
                    return;
                }
                tokio::time::sleep(pauses.pause()).await;
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(
            tokio_stream::wrappers::ReceiverStream::new(receiver),
        )))
    }

    async fn cancel(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::Job>, Status> {
        let message = request.get_ref();
        let mut job = self
            .own(&request, message.credentials.as_ref(), message.job)
            .await?;
        let mut changes = self.signals.changes.subscribe();
        if !ended(&job) {
            self.tell(DriverMessage::Cancel(JobId(job.job)))?;
        }
        while !ended(&job) {
            changes
                .changed()
                .await
                .map_err(|_| refused(&Fault::Closed))?;
            let credentials = request.get_ref().credentials.as_ref();
            job = self.own(&request, credentials, job.job).await?;
        }
        Ok(Response::new(job))
    }

    async fn explain(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::ExplainReply>, Status> {
        let message = request.get_ref();
        let job = self
            .own(&request, message.credentials.as_ref(), message.job)
            .await?
            .job;
        let caller = self.access.caller(&request, message.credentials.as_ref())?;
        let database = self.names.database();
        let decisions = database.read_for(&caller, |db| view::decisions(db, job));
        Ok(Response::new(v1::ExplainReply {
            decisions: decisions.await.map_err(|fault| refused(&fault))?,
        }))
    }

    async fn trace(
        &self,
        request: Request<v1::GetJobRequest>,
    ) -> Result<Response<v1::JobTrace>, Status> {
        let message = request.get_ref();
        let job = self
            .own(&request, message.credentials.as_ref(), message.job)
            .await?;
        if job.state != i32::from(State::Done) {
            let state = State::try_from(job.state).unwrap_or(State::Unspecified);
            return Err(Status::failed_precondition(format!(
                "job {} is {}: only a job that has succeeded has a trace",
                job.job,
                state_name(state)
            )));
        }
        let caller = self.access.caller(&request, message.credentials.as_ref())?;
        let names = self.names.clone();
        let share = names.database().turn(&caller).await;
        // A large job takes a while to read.
        let read = move || {
            let database = names.database();
            database.read_with(share.as_ref(), |db| trace::trace(db, job))
        };
        let trace = tokio::task::spawn_blocking(read).await;
        let trace = trace.map_err(|_| refused(&Fault::Closed))?;
        Ok(Response::new(trace.map_err(|fault| refused(&fault))?))
    }

    type LogsStream = Logs;

    async fn logs(&self, request: Request<v1::GetJobRequest>) -> Result<Response<Logs>, Status> {
        let message = request.get_ref();
        let job = self
            .own(&request, message.credentials.as_ref(), message.job)
            .await?
            .job;
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let caller = self.access.caller(&request, message.credentials.as_ref())?;
        let names = self.names.clone();
        tokio::spawn(async move {
            let mut after = 0;
            loop {
                let database = names.database();
                let logs = database.read_for(&caller, |db| view::logs(db, job, after, LOGS_MAX));
                let logs = match logs.await {
                    Ok(logs) if logs.is_empty() => return,
                    Ok(logs) => logs,
                    Err(fault) => {
                        // The result is the same if the client has disconnected.
                        let _ = sender.send(Err(refused(&fault))).await;
                        return;
                    }
                };
                for log in logs {
                    after = log.task;
                    if sender.send(Ok(log)).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(
            tokio_stream::wrappers::ReceiverStream::new(receiver),
        )))
    }
}
