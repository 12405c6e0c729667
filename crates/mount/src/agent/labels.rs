//! The gRPC service of labels: each registered client has an application of its own, as each process has with the C library.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidemill_label::{
    App, Error, FileAnalysis, FileEvent, Intent, LabelRequest, RegistrationOptions, Subscription,
    Ticket,
};
use tidemill_wire::labels::label::Type;
use tidemill_wire::labels::{self as api, Event, labels_server};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Maximum duration of one wait.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Pause before another check for free space.
const SPACE_PAUSE: Duration = Duration::from_millis(2);
/// Interval at which a waiting call checks that its application still runs.
const SLICE: Duration = Duration::from_secs(1);
/// Maximum number of file events that wait for a client.
const EVENTS_AHEAD: usize = 64;
/// Maximum number of concurrent waiting, publishing or subscribing calls. Each call holds a thread.
const BUSY_MAX: usize = 256;
/// Maximum number of registered applications of clients.
const APPS_MAX: usize = 256;
/// Maximum number of labels that one request may name.
const NAMED_MAX: usize = 65_536;
/// Maximum number of bytes of data or results in one answer. A single label with more bytes is answered alone.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum size in bytes of a file that one request carries whole. The agent holds such a file in memory.
const WHOLE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of bytes of a file in one answer.
const BLOCK_BYTES: usize = 1 << 20;
/// Mode bits that new files do not have, unless the client gives a mask.
const UMASK: u32 = 0o022;

/// The service; see the module.
#[derive(Clone, Debug)]
pub(super) struct AgentLabels {
    directory: PathBuf,
    apps: Arc<Mutex<HashMap<String, Arc<AppClient>>>>,
    busy: Arc<Semaphore>,
}

/// A client's application.
#[derive(Debug)]
struct AppClient {
    app: App,
    /// Labels whose outcomes the client may request.
    tickets: Mutex<HashMap<u64, Arc<Ticket>>>,
    /// Lock of publishing: one call at a time.
    publishes: Mutex<()>,
    disconnected: AtomicBool,
}

/// Ends an application with the call that registered it.
#[derive(Debug)]
struct Registration {
    labels: AgentLabels,
    key: String,
    client: Arc<AppClient>,
    sends: mpsc::Sender<Result<api::Registered, Status>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no data half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(error: &Error) -> Status {
    let text = error.to_string();
    match error {
        Error::Full { .. } | Error::Quota(_) => Status::resource_exhausted(text),
        Error::Mount(_) | Error::Agent { .. } => Status::failed_precondition(text),
        Error::Failed { .. } if is_missing(error) => Status::not_found(text),
        Error::Failed { .. } => Status::unavailable(text),
        Error::Log { .. } | Error::Corrupt { .. } => Status::internal(text),
        _ => Status::invalid_argument(text),
    }
}

/// Returns whether the cause is a missing file.
fn is_missing(error: &Error) -> bool {
    error.errno() == rustix::io::Errno::NOENT.raw_os_error()
}

impl AgentLabels {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            apps: Arc::default(),
            busy: Arc::new(Semaphore::new(BUSY_MAX)),
        }
    }

    fn client(&self, key: &str) -> Result<Arc<AppClient>, Status> {
        let apps = lock(&self.apps);
        apps.get(key).cloned().ok_or_else(|| {
            Status::not_found(format!("no application has registered with the key {key:?}, or it has ended: register first"))
        })
    }

    /// Runs blocking work on a thread of its own.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let Ok(place) = self.busy.clone().try_acquire_owned() else {
            return Err(Status::resource_exhausted(format!(
                "{BUSY_MAX} calls wait, publish or subscribe, which is the maximum: try again later"
            )));
        };
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(place);
            done
        });
        done.await
            .unwrap_or_else(|error| Err(Status::internal(error.to_string())))
    }

    fn register(&self, request: &api::RegisterRequest) -> Result<Arc<AppClient>, Status> {
        let intent = u32::try_from(request.intent).ok().and_then(Intent::of);
        let unknown = || Status::invalid_argument(format!("{} is no intent", request.intent));
        let settings = RegistrationOptions {
            mount: (!request.mount.is_empty()).then(|| request.mount.clone().into()),
            capacity: request.buffer_quota,
            directory: Some(self.directory.clone()),
            intent: intent.ok_or_else(unknown)?,
            umask: Some(request.umask.unwrap_or(UMASK)),
            // This process is the agent.
            no_agent: true,
        };
        // The earlier holder of the key is the same client, after its connection broke.
        if let Some(before) = lock(&self.apps).remove(&request.key) {
            before.disconnected.store(true, Ordering::Relaxed);
        }
        let app = App::register_by_key(&request.name, &request.key, &settings);
        let app = app.map_err(|error| refused(&error))?;
        let kept = app.kept().into_iter();
        let tickets = kept.map(|ticket| (ticket.number(), Arc::new(ticket)));
        let client = Arc::new(AppClient {
            tickets: Mutex::new(tickets.collect()),
            app,
            publishes: Mutex::default(),
            disconnected: AtomicBool::new(false),
        });
        let mut apps = lock(&self.apps);
        if apps.len() >= APPS_MAX {
            return Err(Status::resource_exhausted(format!(
                "{APPS_MAX} applications have registered, which is the maximum"
            )));
        }
        apps.insert(request.key.clone(), client.clone());
        Ok(client)
    }
}

impl Registration {
    /// Waits until the client disconnects or registers again.
    async fn last(self) {
        loop {
            tokio::select! {
                () = self.sends.closed() => break,
                () = tokio::time::sleep(SLICE) => {}
            }
            if self.client.disconnected.load(Ordering::Relaxed) {
                break;
            }
        }
        self.client.disconnected.store(true, Ordering::Relaxed);
        let mut apps = lock(&self.labels.apps);
        if apps
            .get(&self.key)
            .is_some_and(|now| Arc::ptr_eq(now, &self.client))
        {
            apps.remove(&self.key);
        }
    }
}

fn own(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

impl AppClient {
    fn ticket(&self, number: u64) -> Option<Arc<Ticket>> {
        lock(&self.tickets).get(&number).cloned()
    }

    /// Publishes a batch. Returns the number of the last published label.
    fn publish(&self, batch: &api::Batch) -> Result<u64, Status> {
        let _alone = lock(&self.publishes);
        for label in &batch.labels {
            let last = self.app.last();
            if label.number <= last && label.number != 0 {
                continue;
            }
            if label.number != last + 1 {
                return Err(Status::invalid_argument(format!(
                    "label {} does not follow the last one, {last}: they are numbered one by one",
                    label.number
                )));
            }
            self.publish_one(label, batch.nowait)?;
        }
        Ok(self.app.last())
    }

    fn publish_one(&self, label: &api::Label, nowait: bool) -> Result<(), Status> {
        let invalid =
            |what: &str| Status::invalid_argument(format!("label {}: {what}", label.number));
        let most = self.app.label_max();
        if label.data.len() as u64 > most || label.r#type() == Type::Read && label.size > most {
            return Err(invalid(&format!(
                "it has more than {most} bytes: split it into several labels"
            )));
        }
        let analysis = label.analysis.clone().unwrap_or_default();
        let [args, inputs, outputs] =
            [&analysis.args, &analysis.inputs, &analysis.outputs].map(|texts| borrowed(texts));
        let analysis = FileAnalysis {
            kernel: &analysis.kernel,
            args: &args,
            inputs: &inputs,
            outputs: &outputs,
            stdin: own(&analysis.standard_input),
            stdout: own(&analysis.standard_output),
            policy: own(&analysis.policy),
        };
        let mut asked = asked(label, &analysis);
        let after = self.after(label)?;
        asked = match (&after, label.if_done, label.if_failed) {
            (None, false, false) => asked,
            (Some(after), false, false) => asked.after(after),
            (Some(after), true, false) => asked.if_done(after),
            (Some(after), false, true) => asked.if_failed(after),
            _ => {
                return Err(invalid("if_done and if_failed need a label in `after`"));
            }
        };
        if label.durable {
            asked = asked.durable();
        }
        if label.truncate {
            asked = asked.truncate();
        }
        if label.forget {
            asked = asked.forgotten();
        }
        let ticket = self.kept(&asked.impatient(), nowait)?;
        if !label.forget {
            lock(&self.tickets).insert(ticket.number(), Arc::new(ticket));
        }
        Ok(())
    }

    /// Publishes as soon as space is free, while the application that sent the label still runs.
    fn kept(&self, asked: &LabelRequest<'_>, nowait: bool) -> Result<Ticket, Status> {
        loop {
            match self.app.publish(asked) {
                Err(Error::Full { needed, capacity }) if !nowait && needed <= capacity => {
                    if self.disconnected.load(Ordering::Relaxed) {
                        return Err(Status::cancelled("the application has ended"));
                    }
                    std::thread::sleep(SPACE_PAUSE);
                }
                published => return published.map_err(|error| refused(&error)),
            }
        }
    }

    /// Returns the label in `after`, if this label has to wait for it.
    fn after(&self, label: &api::Label) -> Result<Option<Arc<Ticket>>, Status> {
        if label.after == 0 {
            return Ok(None);
        }
        let known = self.ticket(label.after);
        let known = known.or_else(|| self.app.ticket(label.after).map(Arc::new));
        match known {
            Some(known) => Ok(Some(known)),
            None if label.after < label.number && !label.if_done && !label.if_failed => Ok(None),
            None => Err(Status::invalid_argument(format!(
                "label {}: label {} does not exist before it, or its outcome was returned already and is not kept",
                label.number, label.after
            ))),
        }
    }

    fn named(&self, labels: &[u64]) -> Result<Vec<Arc<Ticket>>, Status> {
        if labels.len() > NAMED_MAX {
            return Err(Status::invalid_argument(format!(
                "a request names at most {NAMED_MAX} labels, not {}",
                labels.len()
            )));
        }
        let found = labels.iter().map(|number| {
            self.ticket(*number).ok_or_else(|| {
                Status::not_found(format!(
                    "label {number} was not published, or its outcome was returned already or dropped"
                ))
            })
        });
        found.collect()
    }

    /// Waits for a file, and returns the whole file.
    fn get(&self, request: &api::GetRequest) -> Result<Vec<u8>, Status> {
        let until = Instant::now() + Duration::from_nanos(request.wait_ns).min(WAIT_MAX);
        // Linux commits only the pages that the read fills.
        let mut bytes = vec![0; WHOLE_BYTES_MAX];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self
                .app
                .get_into(&request.path, &mut bytes, left.min(SLICE))
            {
                Err(_) if self.disconnected.load(Ordering::Relaxed) => {
                    return Err(Status::cancelled("the application has ended"));
                }
                Err(error) if is_missing(&error) && left > SLICE => {}
                Err(error) => return Err(refused(&error)),
                Ok(size) if size > WHOLE_BYTES_MAX as u64 => {
                    return Err(Status::out_of_range(format!(
                        "{} has {size} bytes, and at most {WHOLE_BYTES_MAX} can be read at once: read it by labels",
                        request.path
                    )));
                }
                Ok(size) => {
                    bytes.truncate(usize::try_from(size).unwrap_or(WHOLE_BYTES_MAX));
                    return Ok(bytes);
                }
            }
        }
    }

    /// Waits for labels and returns the outcomes of finished labels.
    fn wait(&self, request: &api::WaitRequest) -> Result<api::WaitReply, Status> {
        let tickets = self.named(&request.labels)?;
        let until = Instant::now() + Duration::from_nanos(request.wait_ns).min(WAIT_MAX);
        loop {
            let slice = until.min(Instant::now() + SLICE);
            match tidemill_label::wait_some(&tickets, !request.any, Some(slice)) {
                Err(Error::Timeout) if self.disconnected.load(Ordering::Relaxed) => {
                    return Err(Status::cancelled("the application has ended"));
                }
                Err(Error::Timeout) if slice < until => {}
                Ok(()) | Err(Error::Timeout) => break,
                Err(error) => return Err(refused(&error)),
            }
        }
        let mut reply = api::WaitReply::default();
        let mut bytes = 0;
        for ticket in tickets.iter().filter(|ticket| ticket.test()) {
            let outcome = outcome(ticket);
            bytes += outcome.data.len();
            lock(&self.tickets).remove(&outcome.label);
            reply.outcomes.push(outcome);
            if request.any || bytes >= ANSWER_BYTES_MAX {
                break;
            }
        }
        Ok(reply)
    }
}

/// Forwards file events to a client while the client listens and its application runs.
fn pass_on(
    client: &AppClient,
    mut files: Subscription,
    sends: &mpsc::Sender<Result<Event, Status>>,
) {
    let without_file = |files: &Subscription, missed| Event {
        cursor: files.cursor().to_owned(),
        missed,
        ..Event::default()
    };
    let mut event = Ok(without_file(&files, false));
    loop {
        let failed = event.is_err();
        if sends.blocking_send(event).is_err() || failed {
            return;
        }
        let next = loop {
            match files.next(Some(SLICE)) {
                Err(Error::Timeout) if sends.is_closed() => return,
                Err(Error::Timeout) if !client.disconnected.load(Ordering::Relaxed) => {}
                next => break next,
            }
        };
        event = match next {
            _ if client.disconnected.load(Ordering::Relaxed) => {
                Err(Status::cancelled("the application has ended"))
            }
            Ok(FileEvent {
                path,
                version,
                size,
                cursor,
            }) => Ok(Event {
                path,
                version,
                size,
                cursor,
                missed: false,
            }),
            Err(Error::Missed) => Ok(without_file(&files, true)),
            Err(error) => Err(refused(&error)),
        };
    }
}

/// Converts a requested label, without its dependency.
fn asked<'a>(label: &'a api::Label, analysis: &'a FileAnalysis<'a>) -> LabelRequest<'a> {
    let (path, to) = (label.path.as_str(), label.to.as_str());
    match label.r#type() {
        Type::Fence => LabelRequest::fence(),
        Type::Write => LabelRequest::write(path, label.offset, &label.data),
        Type::Put => LabelRequest::put(path, &label.data),
        Type::Append => LabelRequest::append(path, &label.data),
        Type::Read => LabelRequest::read(path, label.offset, label.size),
        Type::Delete => LabelRequest::delete(path),
        Type::Rename => LabelRequest::rename(path, to),
        Type::Copy => LabelRequest::copy(path, to),
        Type::Analyse => match analysis.outputs.first() {
            Some(output) if label.size > 0 => {
                LabelRequest::analyse(analysis).result(output, label.size)
            }
            _ => LabelRequest::analyse(analysis),
        },
        Type::Job => LabelRequest::job(&label.script).result(path, label.size),
        Type::Await => LabelRequest::file_event(path).since(to),
    }
}

fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn outcome(ticket: &Ticket) -> api::Outcome {
    let label = ticket.number();
    match ticket.take() {
        Ok(data) => api::Outcome {
            label,
            data,
            ..api::Outcome::default()
        },
        Err(error) => api::Outcome {
            label,
            errno: error.errno(),
            error: error.to_string(),
            data: Vec::new(),
        },
    }
}

type ReplyStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl labels_server::Labels for AgentLabels {
    type RegisterStream = ReplyStream<api::Registered>;
    type PublishStream = ReplyStream<api::Published>;
    type SubscribeStream = ReplyStream<Event>;
    type GetStream = ReplyStream<api::DataBlock>;

    async fn register(
        &self,
        request: Request<api::RegisterRequest>,
    ) -> Result<Response<Self::RegisterStream>, Status> {
        let (labels, request) = (self.clone(), request.into_inner());
        let key = request.key.clone();
        let client = self.apart(move || labels.register(&request)).await?;
        let (sends, receives) = mpsc::channel(1);
        let registered = api::Registered {
            published: client.app.last(),
            mount: client.app.mount().display().to_string(),
        };
        // The channel has space for one message.
        let _ = sends.send(Ok(registered)).await;
        let labels = self.clone();
        let registration = Registration {
            labels,
            key,
            client,
            sends,
        };
        tokio::spawn(registration.last());
        Ok(Response::new(Box::pin(ReceiverStream::new(receives))))
    }

    async fn publish(
        &self,
        request: Request<Streaming<api::Batch>>,
    ) -> Result<Response<Self::PublishStream>, Status> {
        let (labels, mut batches) = (self.clone(), request.into_inner());
        let (sends, receives) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                // If a client disconnects in the middle of a batch, the batch counts as not sent.
                let batch = match batches.message().await {
                    Ok(Some(batch)) => Ok(batch),
                    Ok(None) => return,
                    Err(status) => Err(status),
                };
                let published =
                    match batch.and_then(|batch| Ok((labels.client(&batch.key)?, batch))) {
                        Ok((client, batch)) => labels.apart(move || client.publish(&batch)).await,
                        Err(status) => Err(status),
                    };
                let failed = published.is_err();
                let published = published.map(|published| api::Published { published });
                if sends.send(published).await.is_err() || failed {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receives))))
    }

    async fn wait(
        &self,
        request: Request<api::WaitRequest>,
    ) -> Result<Response<api::WaitReply>, Status> {
        let request = request.into_inner();
        let client = self.client(&request.key)?;
        let reply = self.apart(move || client.wait(&request)).await?;
        Ok(Response::new(reply))
    }

    async fn test(
        &self,
        request: Request<api::LabelsRequest>,
    ) -> Result<Response<api::TestReply>, Status> {
        let request = request.into_inner();
        let tickets = self.client(&request.key)?.named(&request.labels)?;
        let yes = tickets.iter().map(|ticket| ticket.test()).collect();
        Ok(Response::new(api::TestReply { yes }))
    }

    async fn cancel(
        &self,
        request: Request<api::LabelsRequest>,
    ) -> Result<Response<api::TestReply>, Status> {
        let request = request.into_inner();
        let tickets = self.client(&request.key)?.named(&request.labels)?;
        let yes = tickets.iter().map(|ticket| ticket.cancel()).collect();
        Ok(Response::new(api::TestReply { yes }))
    }

    async fn forget(
        &self,
        request: Request<api::LabelsRequest>,
    ) -> Result<Response<api::Nothing>, Status> {
        let request = request.into_inner();
        let client = self.client(&request.key)?;
        client.named(&request.labels)?;
        let mut tickets = lock(&client.tickets);
        for number in &request.labels {
            tickets.remove(number);
        }
        Ok(Response::new(api::Nothing {}))
    }

    async fn subscribe(
        &self,
        request: Request<api::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let request = request.into_inner();
        let client = self.client(&request.key)?;
        let (sends, receives) = mpsc::channel(EVENTS_AHEAD);
        let subscribed = self.apart({
            let client = client.clone();
            move || {
                let files = client.app.subscribe(&request.pattern, own(&request.since));
                files.map_err(|error| refused(&error))
            }
        });
        let files = subscribed.await?;
        let labels = self.clone();
        tokio::spawn(async move {
            let tells = sends.clone();
            let reported = labels.apart(move || {
                pass_on(&client, files, &tells);
                Ok(())
            });
            if let Err(status) = reported.await {
                let _ = sends.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receives))))
    }

    async fn get(
        &self,
        request: Request<api::GetRequest>,
    ) -> Result<Response<Self::GetStream>, Status> {
        let request = request.into_inner();
        let client = self.client(&request.key)?;
        let mut left = bytes::Bytes::from(self.apart(move || client.get(&request)).await?);
        let mut first = true;
        let blocks = std::iter::from_fn(move || {
            let more = first || !left.is_empty();
            first = false;
            more.then(|| {
                let data = left.split_to(left.len().min(BLOCK_BYTES)).into();
                Ok(api::DataBlock { data })
            })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(blocks))))
    }

    async fn applications(
        &self,
        _: Request<api::Nothing>,
    ) -> Result<Response<api::ApplicationsReply>, Status> {
        let known = tidemill_label::apps::list(Some(&self.directory));
        let known = known.map_err(|error| refused(&error))?;
        let applications = known.applications.into_iter().map(|app| api::Application {
            name: app.name,
            pid: app.pid,
            runs: app.runs,
            mount: app.mount.display().to_string(),
            labels: app.labels,
            bytes: app.bytes,
            failed: app.failed,
            used: app.used,
            capacity: app.capacity,
        });
        Ok(Response::new(api::ApplicationsReply {
            applications: applications.collect(),
        }))
    }
}
