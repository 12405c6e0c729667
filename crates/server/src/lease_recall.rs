//! Files that a mount has open for writing. When a mount opens a file for writing, the server notifies the other mounts before the mount
//! continues, so that no mount uses outdated knowledge of the file. A request for such a file is answered only after the writing mount
//! has reported whether the file is still open. The reason is that a mount seals shortly *after* `close` has returned. A client
//! that looks between the two events still gets the closed content, or an error if no mount can answer.
//!
//! The questions cost nothing if there is one mount and no other client requests a file that is being written.

use crate::locks::Locks;
use futures_util::future::join_all;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_meta::{Change, Changes, Fault, Names, NamesRequest, OpenVersion};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

/// Maximum wait for a mount's answer, or for the seal of a file that the mount has closed. If a mount dies, its open files are sealed in
/// less time.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time limit for a mount to drop its cached knowledge of a file that another mount opens for writing. A slower mount counts as hanging.
const RECEIPT_PATIENCE: Duration = Duration::from_secs(1);
/// Time limit for a mount to agree that another mount writes the same file. The server repeats the question while the request waits.
const SHARE_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum wait until the state of several files is known. The state of each of the first `ASKED_MAX` files is known by then.
const ALL_PATIENCE: Duration = Duration::from_secs(16);
/// Maximum number of files about which the server asks mounts at once.
const ASKED_MAX: usize = 1024;
/// Errno of a request for a file that another client writes.
const BUSY: i32 = Errno::TXTBSY.raw_os_error();
/// Maximum number of questions to mounts in progress. Further callers have to retry.
const QUESTIONS_MAX: usize = 4096;

/// Stream of messages to a mount.
pub(crate) type RecallStream = mpsc::Sender<Result<v1::Invalidation, Status>>;

/// Questions to mounts about open files, as described in the module's documentation. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct LeaseRecalls(Arc<RecallState>);

#[derive(Debug)]
struct RecallState {
    names: Arc<dyn Names>,
    locks: Locks,
    runtime: Handle,
    /// Streams of the connected mounts by session, each with the number of its connection.
    lines: Mutex<BTreeMap<u64, (u64, RecallStream)>>,
    /// Notified when a mount connects.
    arrived: Notify,
    questions: Mutex<BTreeMap<u64, oneshot::Sender<bool>>>,
    next: AtomicU64,
}

/// Registration of a mount's stream; the mount can be asked until this value is dropped.
#[derive(Debug)]
pub(crate) struct Reachable {
    lease_recalls: LeaseRecalls,
    session: u64,
    number: u64,
}

impl Drop for Reachable {
    fn drop(&mut self) {
        let mut lines = self.lease_recalls.0.lines.lock();
        if lines
            .get(&self.session)
            .is_some_and(|(number, _)| *number == self.number)
        {
            lines.remove(&self.session);
        }
    }
}

/// A question to a mount in progress. Dropping this value cancels the question.
struct RecallQuestion<'a> {
    lease_recalls: &'a LeaseRecalls,
    number: u64,
    answer: oneshot::Receiver<bool>,
}

impl Drop for RecallQuestion<'_> {
    fn drop(&mut self) {
        self.lease_recalls.0.questions.lock().remove(&self.number);
    }
}

/// Part of a request that is needed when the server answers the request.
#[derive(Clone, Copy)]
struct RecallRequest {
    session: u64,
    /// Inode of the file that the request opens for writing, if the request has no other operation.
    writes: Option<u64>,
}

impl RecallRequest {
    fn of(request: &NamesRequest) -> Self {
        let writes = match &request.ops[..] {
            [
                v1::NameOp {
                    op: Some(Op::NewVersion(new)),
                },
            ] => Some(new.ino),
            _ => None,
        };
        Self {
            session: request.session,
            writes,
        }
    }
}

/// State of a file version that was being written when a client asked for the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenState {
    /// The writer still has the file open: the newest sealed version is the file's content.
    Open,
    /// The version that was being written is sealed or aborted.
    Ended,
    /// No mount answered in time, so the state is unknown.
    Unknown,
}

impl LeaseRecalls {
    /// Creates the state for questions to mounts. Call this within the runtime that executes the questions.
    pub(crate) fn new(names: Arc<dyn Names>, locks: Locks) -> Self {
        Self(Arc::new(RecallState {
            names,
            locks,
            runtime: Handle::current(),
            lines: Mutex::default(),
            arrived: Notify::new(),
            questions: Mutex::default(),
            next: AtomicU64::new(1),
        }))
    }

    /// Returns the file locks of mounts.
    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    fn number(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Registers the stream that a mount has opened. The server can ask the mount questions from now on.
    pub(crate) fn reach(&self, session: u64, line: RecallStream) -> Reachable {
        let number = self.number();
        self.0.lines.lock().insert(session, (number, line));
        self.0.arrived.notify_waiters();
        Reachable {
            lease_recalls: self.clone(),
            session,
            number,
        }
    }

    /// Applies a request as [`Names::apply`] does, after the state of files is known that other clients are writing.
    pub(crate) async fn apply(&self, request: NamesRequest) -> Result<Vec<v1::NameResult>, Fault> {
        if let Some(answered) = self.answered(&request) {
            return answered;
        }
        if Locks::are_asked(&request) {
            return self.0.locks.take(&request).await;
        }
        let again = asks(&request).then(|| request.clone());
        let opening = self.opening(&request);
        let asked = RecallRequest::of(&request);
        let publishes = publishes(&request);
        let invites = asked.writes.map(|ino| (ino, request.clone()));
        if let Some(ino) = publications_of_closed(&request).or(self.joins(asked)?)
            && self.settle_all(asked.session, ino).await? == OpenState::Unknown
        {
            return Err(Fault::Unsettled);
        }
        let mut results = self.0.names.apply(request).await?;
        if let Some((ino, request)) = invites.filter(|_| is_busy(&results))
            && self.ask_to_share(asked.session, ino).await?
        {
            results = self.0.names.apply(request).await?;
        }
        self.notify_others(&opening).await;
        if publishes {
            self.wait_reported(asked.session).await;
        }
        if let Some(request) = again {
            results = self.settled(request, results).await?;
        }
        self.add_other_mounts(asked, &mut results)?;
        Ok(results)
    }

    /// Applies a request as [`Self::apply`] does, for threads outside the runtime.
    pub(crate) fn apply_blocking(
        &self,
        request: NamesRequest,
    ) -> Result<Vec<v1::NameResult>, Fault> {
        if let Some(answered) = self.answered(&request) {
            return answered;
        }
        if Locks::are_asked(&request) {
            return self.0.runtime.block_on(self.0.locks.take(&request));
        }
        let again = asks(&request).then(|| request.clone());
        let opening = self.opening(&request);
        let asked = RecallRequest::of(&request);
        if asked.writes.is_some()
            || publications_of_closed(&request).is_some()
            || publishes(&request)
        {
            return self.0.runtime.block_on(self.apply(request));
        }
        let mut results = self.0.names.apply_blocking(request)?;
        if !opening.is_empty() {
            self.0.runtime.block_on(self.notify_others(&opening));
        }
        if let Some(request) = again.filter(|_| written(&results).next().is_some()) {
            results = self.0.runtime.block_on(self.settled(request, results))?;
        }
        self.add_other_mounts(asked, &mut results)?;
        Ok(results)
    }

    /// Adds to an answer whether other mounts are connected and hold locks. If another mount writes the file that this mount asked to
    /// write, and the file has locks, the server asks the other mount to seal as much of the file as possible.
    fn add_other_mounts(
        &self,
        asked: RecallRequest,
        results: &mut [v1::NameResult],
    ) -> Result<(), Fault> {
        let RecallRequest { session, writes } = asked;
        if session == 0 {
            return Ok(());
        }
        let locks = &self.0.locks;
        // This includes mounts that are about to reconnect.
        let others = || {
            let here = self.0.lines.lock().keys().any(|&other| other != session);
            here || locks.has_others(session)
        };
        for result in results {
            match &mut result.result {
                Some(Answer::Opened(opened)) => {
                    opened.others = others();
                    locks.mark(session, opened.attr.as_mut());
                }
                Some(Answer::Attr(attr)) => locks.mark(session, Some(attr)),
                Some(Answer::Entry(entry)) => locks.mark(session, entry.attr.as_mut()),
                Some(Answer::Entries(entries)) => {
                    for entry in &mut entries.entries {
                        locks.mark(session, entry.attr.as_mut());
                    }
                }
                Some(Answer::Error(error)) if error.errno == BUSY => {
                    let Some(ino) = writes.filter(|&ino| locks.are_known(ino)) else {
                        continue;
                    };
                    error.errno = Errno::BUSY.raw_os_error();
                    let writers = self.0.names.written(ino)?;
                    for writer in writers.iter().filter(|writer| writer.session != session) {
                        locks.publish(writer.session, ino);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the file that several mounts write together, if the request opens that file for writing, too. The server announces closed
    /// content first, so that closed content does not replace content that is written from now on.
    fn joins(&self, asked: RecallRequest) -> Result<Option<u64>, Fault> {
        let Some(ino) = asked.writes else {
            return Ok(None);
        };
        let writers = self.0.names.written(ino)?;
        let is_open = writers.iter().any(|writer| writer.multi_writer);
        Ok(is_open.then_some(ino))
    }

    /// Returns the files that a request opens for writing, and the streams of the mounts to notify before the server answers the request.
    fn opening(&self, request: &NamesRequest) -> Vec<(u64, RecallStream)> {
        let opens = |op: &v1::NameOp| match &op.op {
            Some(Op::NewVersion(new)) => Some(new.ino),
            _ => None,
        };
        let mut inodes = request.ops.iter().filter_map(opens).peekable();
        if inodes.peek().is_none() {
            return Vec::new();
        }
        let lines = self.0.lines.lock();
        let others = lines
            .iter()
            .filter(|(session, _)| **session != request.session);
        let others: Vec<&RecallStream> = others.map(|(_, (_, line))| line).collect();
        inodes
            .flat_map(|ino| others.iter().map(move |&line| (ino, line.clone())))
            .collect()
    }

    /// Waits until other mounts have dropped their cached knowledge of files that are about to be written.
    async fn notify_others(&self, opening: &[(u64, RecallStream)]) {
        let receipts = opening.iter().map(|(ino, line)| async move {
            let message = |receipt| v1::Invalidation {
                receipt,
                ino: *ino,
                ..v1::Invalidation::default()
            };
            // A mount whose stream is full hangs, or is instructed to forget everything.
            if let Ok(Some(mut question)) = self.send(line, message) {
                let _ = tokio::time::timeout(RECEIPT_PATIENCE, &mut question.answer).await;
            }
        });
        join_all(receipts).await;
    }

    /// Waits until other mounts, and their Linux kernels, have received all changes up to now.
    async fn wait_reported(&self, session: u64) {
        let others: Vec<u64> = self.0.lines.lock().keys().copied().collect();
        let others = others.into_iter().filter(|&other| other != session);
        let receipts = others.map(|other| async move {
            let Ok(mut question) = self.question() else {
                return;
            };
            let message = v1::Invalidation {
                receipt: question.number,
                ..v1::Invalidation::default()
            };
            if self.0.locks.tell_in_order(other, message) {
                let _ = tokio::time::timeout(RECEIPT_PATIENCE, &mut question.answer).await;
            }
        });
        join_all(receipts).await;
    }

    /// Processes a mount's answer to a question. Returns `None` if the request is not an answer.
    fn answered(&self, request: &NamesRequest) -> Option<Result<Vec<v1::NameResult>, Fault>> {
        let [
            v1::NameOp {
                op: Some(Op::Answer(answer)),
            },
        ] = &request.ops[..]
        else {
            return None;
        };
        if !request.caller.administrator {
            return Some(Err(Fault::Malformed("only mounts answer questions")));
        }
        if let Some(waiting) = self.0.questions.lock().remove(&answer.question) {
            // The caller may have disconnected.
            let _ = waiting.send(answer.open);
        }
        let result = Some(Answer::Empty(v1::Empty {}));
        Some(Ok(vec![v1::NameResult { result }]))
    }

    async fn settled(
        &self,
        request: NamesRequest,
        results: Vec<v1::NameResult>,
    ) -> Result<Vec<v1::NameResult>, Fault> {
        let session = request.session;
        let settled = written(&results).map(|ino| self.settle(session, ino));
        let settled = join_all(settled).await;
        let (mut ended, mut unknown) = (false, false);
        for settled in settled {
            match settled? {
                OpenState::Open => {}
                OpenState::Ended => ended = true,
                OpenState::Unknown => unknown = true,
            }
        }
        let mut results = if ended {
            self.0.names.apply(request.clone()).await?
        } else {
            results
        };
        // Attributes may be those of the version before, but the content of the file may not.
        let opens = request.ops.iter().position(|op| {
            matches!(
                op.op,
                Some(Op::Open(_) | Op::GetAttr(v1::GetAttr { content: true, .. }))
            )
        });
        if let (true, Some(at)) = (unknown, opens) {
            results.truncate(at);
            let error = Answer::Error((&Fault::Unsettled).into());
            results.push(v1::NameResult {
                result: Some(error),
            });
        }
        Ok(results)
    }

    /// Asks the only mount that writes a file to let another mount write the file, too. Returns whether the asked mount answered or has
    /// sealed the file.
    async fn ask_to_share(&self, session: u64, ino: u64) -> Result<bool, Fault> {
        if self.0.locks.are_known(ino) {
            return Ok(false);
        }
        // The subscription precedes the look, so that no seal is missed between them.
        let mut changes = self.0.names.changes();
        let writers = self.0.names.written(ino)?;
        let [writer] = writers[..] else {
            return Ok(!writers.is_empty());
        };
        if session == 0 || writer.session == 0 || writer.session == session {
            return Ok(false);
        }
        let Some(mut question) = self.ask(writer, ino, true)? else {
            return Ok(false);
        };
        let deadline = Instant::now() + SHARE_PATIENCE;
        loop {
            // A mount does not answer for a file that was closed there: the seal of the file arrives instead.
            tokio::select! {
                answer = &mut question.answer => return Ok(answer.is_ok()),
                changed = change_of(&mut changes, ino) => changed?,
                () = tokio::time::sleep_until(deadline) => return Ok(false),
            }
            if !self.0.names.written(ino)?.contains(&writer) {
                return Ok(true);
            }
        }
    }

    /// Waits until it is known whether the mounts that write a version still have the version open. If the version is closed, waits until
    /// the version is sealed. `session` is the session of the asking mount.
    pub(crate) async fn settle(&self, session: u64, ino: u64) -> Result<OpenState, Fault> {
        let writers = self.0.names.written(ino)?;
        // A mount that also writes the file asks by itself for the content of other writers.
        if session != 0 && writers.iter().any(|writer| writer.session == session) {
            return Ok(OpenState::Open);
        }
        self.settle_all(session, ino).await
    }

    /// Waits for the state of several files as [`Self::settle`] does, for a caller that is not a mount: files closed a moment ago are then
    /// sealed. Returns the files for which no mount answered in time; these files may be closed and not sealed.
    pub(crate) async fn unsettled(&self, inodes: &[u64]) -> Result<Vec<u64>, Fault> {
        let deadline = Instant::now() + ALL_PATIENCE;
        let mut unknown = Vec::new();
        for some in inodes.chunks(ASKED_MAX) {
            let settled = join_all(some.iter().map(|&ino| self.settle(0, ino)));
            let Ok(settled) = tokio::time::timeout_at(deadline, settled).await else {
                unknown.extend(some);
                continue;
            };
            for (&ino, settled) in some.iter().zip(settled) {
                if settled? == OpenState::Unknown {
                    unknown.push(ino);
                }
            }
        }
        Ok(unknown)
    }

    /// Waits for the state of a file as [`Self::settle`] does, for all writers except the asking mount.
    async fn settle_all(&self, session: u64, ino: u64) -> Result<OpenState, Fault> {
        let writers = self.0.names.written(ino)?;
        let settled = writers
            .iter()
            .map(|&writer| self.settle_one(session, ino, writer));
        let mut all = OpenState::Ended;
        for settled in join_all(settled).await {
            all = match (all, settled?) {
                (OpenState::Unknown, _) | (_, OpenState::Unknown) => OpenState::Unknown,
                (OpenState::Open, _) | (_, OpenState::Open) => OpenState::Open,
                (OpenState::Ended, OpenState::Ended) => OpenState::Ended,
            };
        }
        Ok(all)
    }

    async fn settle_one(
        &self,
        session: u64,
        ino: u64,
        first: OpenVersion,
    ) -> Result<OpenState, Fault> {
        let deadline = Instant::now() + PATIENCE;
        if first.session == 0 || first.session == session {
            return Ok(OpenState::Open);
        }
        loop {
            // The subscription precedes the next look, so that no change is missed between them.
            let mut changes = self.0.names.changes();
            let arrived = self.0.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let writers = self.0.names.written(ino)?;
            let is_first = |writer: &OpenVersion| {
                (writer.object, writer.session) == (first.object, first.session)
            };
            if !writers.iter().any(is_first) {
                // The mount of this version may have let others write the same file.
                let multi_writer = writers.iter().any(|writer| writer.session == first.session);
                let state = if multi_writer {
                    OpenState::Open
                } else {
                    OpenState::Ended
                };
                return Ok(state);
            }
            let mut question = self.ask(first, ino, false)?;
            tokio::select! {
                open = answer_of(question.as_mut()) => {
                    if open {
                        return Ok(OpenState::Open);
                    }
                    // The file is closed: its seal arrives by itself.
                    tokio::select! {
                        changed = change_of(&mut changes, ino) => changed?,
                        () = tokio::time::sleep_until(deadline) => return Ok(OpenState::Unknown),
                    }
                }
                changed = change_of(&mut changes, ino) => changed?,
                () = &mut arrived => {}
                () = tokio::time::sleep_until(deadline) => return Ok(OpenState::Unknown),
            }
        }
    }

    /// Asks the mount that writes a version whether the version is still open, if the mount is connected.
    fn ask(
        &self,
        version: OpenVersion,
        ino: u64,
        share: bool,
    ) -> Result<Option<RecallQuestion<'_>>, Fault> {
        let line = self
            .0
            .lines
            .lock()
            .get(&version.session)
            .map(|(_, line)| line.clone());
        let Some(line) = line else {
            return Ok(None);
        };
        let message = |question| v1::Invalidation {
            question,
            ino,
            share,
            ..v1::Invalidation::default()
        };
        self.send(&line, message)
    }

    /// Sends a mount a message with a number that the mount repeats in its answer. Returns `None` if the mount does not read its stream.
    fn send(
        &self,
        line: &RecallStream,
        message: impl Fn(u64) -> v1::Invalidation,
    ) -> Result<Option<RecallQuestion<'_>>, Fault> {
        let question = self.question()?;
        let message = message(question.number);
        Ok(line.try_send(Ok(message)).is_ok().then_some(question))
    }

    /// Registers a new question to a mount.
    fn question(&self) -> Result<RecallQuestion<'_>, Fault> {
        let number = self.number();
        let (sender, answer) = oneshot::channel();
        let mut questions = self.0.questions.lock();
        if questions.len() >= QUESTIONS_MAX {
            return Err(Fault::Unsettled);
        }
        questions.insert(number, sender);
        Ok(RecallQuestion {
            lease_recalls: self,
            number,
            answer,
        })
    }
}

/// Returns the mount's answer: whether the file is open for writing. Never completes if the mount was not asked or has disconnected.
async fn answer_of(question: Option<&mut RecallQuestion<'_>>) -> bool {
    if let Some(question) = question
        && let Ok(open) = (&mut question.answer).await
    {
        return open;
    }
    std::future::pending().await
}

/// Waits for a namespace change of the inode.
async fn change_of(changes: &mut Changes, ino: u64) -> Result<(), Fault> {
    use tokio::sync::broadcast::error::RecvError;
    loop {
        match changes.next().await {
            Ok(changed) => {
                let of_ino = |change: &Change| matches!(change, Change::Vnode(other) | Change::Closed(other) if *other == ino);
                if changed.changes.iter().any(of_ino) {
                    return Ok(());
                }
            }
            Err(RecvError::Lagged(_)) => return Ok(()),
            Err(RecvError::Closed) => return Err(Fault::Closed),
        }
    }
}

/// Returns the file for which a mount requests the content that other mounts wrote and closed, if the request has no other operation.
fn publications_of_closed(request: &NamesRequest) -> Option<u64> {
    match &request.ops[..] {
        [
            v1::NameOp {
                op: Some(Op::Publications(publications)),
            },
        ] if publications.closed => Some(publications.ino),
        _ => None,
    }
}

/// Whether the request publishes the content that a mount has written.
fn publishes(request: &NamesRequest) -> bool {
    let publishes = |op: &v1::NameOp| matches!(op.op, Some(Op::Publish(_)));
    request.ops.iter().any(publishes)
}

/// Whether the request failed because another client writes the file.
fn is_busy(results: &[v1::NameResult]) -> bool {
    let error = |result: &v1::NameResult| match &result.result {
        Some(Answer::Error(error)) => error.errno == BUSY,
        _ => false,
    };
    results.last().is_some_and(error)
}

/// Whether a request asks for the content or the length of files.
fn asks(request: &NamesRequest) -> bool {
    let asks = |op: &v1::NameOp| {
        matches!(
            op.op,
            Some(Op::Lookup(_) | Op::Resolve(_) | Op::GetAttr(_) | Op::Open(_))
        )
    };
    request.ops.iter().all(asks)
}

/// Returns the inodes of the files in an answer that some client is writing.
fn written(results: &[v1::NameResult]) -> impl Iterator<Item = u64> {
    let attr = |result: &v1::NameResult| match result.result.as_ref()? {
        Answer::Attr(attr) => Some(*attr),
        Answer::Entry(entry) => entry.attr,
        Answer::Opened(opened) => opened.attr,
        _ => None,
    };
    let writing = move |result| {
        attr(result)
            .filter(|attr| attr.writing)
            .map(|attr| attr.ino)
    };
    results.iter().filter_map(writing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Sessions;
    use tidemill_meta::{Caller, SqliteNames, ids};
    use tidemill_model::id::NodeId;

    #[tokio::test(start_paused = true)]
    async fn lease_recall_reports_all_files_that_unreachable_mounts_write() {
        let count = 1030;
        let directory = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&directory.path().join("server.db"), (0, 0)).unwrap();
        names.add_node(NodeId(3));
        let reserved = names
            .database()
            .write(move |db| ids::reserve_for(db, &Caller::root(), count, count));
        let (ino, object) = reserved.await.unwrap();
        let inodes: Vec<u64> = (ino..ino + u64::from(count)).collect();
        let create = |(ino, object): (&u64, u64)| v1::NameOp {
            op: Some(Op::Create(v1::Create {
                parent: 1,
                name: ino.to_string().into_bytes(),
                kind: v1::Kind::File.into(),
                mode: 0o644,
                ino: *ino,
                object,
                ..v1::Create::default()
            })),
        };
        let mut ops: Vec<v1::NameOp> = inodes.iter().zip(object..).map(create).collect();
        // The first file is written by a client that is not a mount, the others by a mount that does not answer.
        for (session, ops) in [(5, ops.split_off(1)), (0, ops)] {
            let request = NamesRequest {
                caller: Caller::root(),
                session,
                ops,
                ..NamesRequest::default()
            };
            let answers = names.apply(request).await.unwrap();
            let opened = |one: &v1::NameResult| matches!(one.result, Some(Answer::Opened(_)));
            assert!(answers.iter().all(opened), "{:?}", answers.last());
        }
        let names: Arc<dyn Names> = Arc::new(names);
        let sessions = Sessions::new(Duration::from_secs(3600), Arc::default());
        let lease_recalls = LeaseRecalls::new(names.clone(), Locks::new(names, sessions).unwrap());
        let begun = Instant::now();
        assert_eq!(lease_recalls.unsettled(&inodes).await.unwrap(), inodes[1..]);
        // A client abandons its request after 20 s.
        assert!(begun.elapsed() < PATIENCE + PATIENCE / 4);
    }
}
