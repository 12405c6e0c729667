//! Files that a mount has open for writing. When it opens one, the other mounts are told before it goes on, so
//! that nobody believes any more what was known of that file. Who asks for it then is not answered before the
//! writing mount has said whether it is still open there: a mount seals shortly *after* `close` has returned;
//! whoever looks in between gets what was closed all the same, or an error if nobody can say.
//!
//! Costs nothing where there is one mount and nobody else looks at a file that is being written.

use crate::locks::Locks;
use crate::names::{Change, Changes, Fault, Names, Request, Written};
use futures_util::future::join_all;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

/// How long somebody waits for a mount's word, or for the seal of what it has closed. A mount that died is
/// given up, and what it wrote is sealed, in less.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a mount may take to forget a file that another one opens for writing. One that takes longer hangs.
const RECEIPT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a mount may take to let another one write what it writes. It is asked again while that waits.
const SHARE_PATIENCE: Duration = Duration::from_secs(2);
/// How long it takes until it is known of all of several files, at most: each of the first is told of by then.
const ALL_PATIENCE: Duration = Duration::from_secs(16);
/// Files that mounts are asked about at once.
const ASKED_MAX: usize = 1024;
/// The errno of a file that somebody else writes.
const BUSY: i32 = Errno::TXTBSY.raw_os_error();
/// Questions under way at once; who comes beyond is told to try again.
const QUESTIONS_MAX: usize = 4096;

/// The stream of a mount.
pub(crate) type Line = mpsc::Sender<Result<v1::Invalidation, Status>>;

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Recalls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    names: Arc<dyn Names>,
    locks: Locks,
    runtime: Handle,
    /// Streams of the mounts that are there, each with a number of its own.
    lines: Mutex<BTreeMap<u64, (u64, Line)>>,
    /// Signalled when a mount comes.
    arrived: Notify,
    questions: Mutex<BTreeMap<u64, oneshot::Sender<bool>>>,
    next: AtomicU64,
}

/// A mount that can be asked, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reachable {
    recalls: Recalls,
    session: u64,
    number: u64,
}

impl Drop for Reachable {
    fn drop(&mut self) {
        let mut lines = self.recalls.0.lines.lock();
        if lines
            .get(&self.session)
            .is_some_and(|(number, _)| *number == self.number)
        {
            lines.remove(&self.session);
        }
    }
}

/// A question under way; forgotten when it is dropped.
struct Question<'a> {
    recalls: &'a Recalls,
    number: u64,
    answer: oneshot::Receiver<bool>,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.recalls.0.questions.lock().remove(&self.number);
    }
}

/// What of a request is needed when it is answered.
#[derive(Clone, Copy)]
struct Asked {
    session: u64,
    /// The file that it begins to write, if that is all it does.
    writes: Option<u64>,
}

impl Asked {
    fn of(request: &Request) -> Self {
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

/// What is known of a file that was being written when it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Its writer has it open: the version before is the newest that was closed.
    Open,
    /// What was being written is sealed or given up.
    Ended,
    /// Nobody could say in time.
    Unknown,
}

impl Recalls {
    /// To be called within the runtime that carries the questions.
    pub(crate) fn new(names: Arc<dyn Names>, locks: Locks) -> Self {
        Self(Arc::new(Inner {
            names,
            locks,
            runtime: Handle::current(),
            lines: Mutex::default(),
            arrived: Notify::new(),
            questions: Mutex::default(),
            next: AtomicU64::new(1),
        }))
    }

    /// The locks of mounts.
    pub(crate) fn locks(&self) -> &Locks {
        &self.0.locks
    }

    fn number(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A mount has opened its stream and can be asked from now on.
    pub(crate) fn reach(&self, session: u64, line: Line) -> Reachable {
        let number = self.number();
        self.0.lines.lock().insert(session, (number, line));
        self.0.arrived.notify_waiters();
        Reachable {
            recalls: self.clone(),
            session,
            number,
        }
    }

    /// As [`Names::apply`], but what somebody else is writing is settled first.
    pub(crate) async fn apply(&self, request: Request) -> Result<Vec<v1::NameResult>, Fault> {
        if let Some(answered) = self.answered(&request) {
            return answered;
        }
        if Locks::are_asked(&request) {
            return self.0.locks.take(&request).await;
        }
        let again = asks(&request).then(|| request.clone());
        let opening = self.opening(&request);
        let asked = Asked::of(&request);
        let publishes = publishes(&request);
        let invites = asked.writes.map(|ino| (ino, request.clone()));
        if let Some(ino) = pieces_of_closed(&request).or(self.joins(asked)?)
            && self.settle_all(asked.session, ino).await? == Settled::Unknown
        {
            return Err(Fault::Unsettled);
        }
        let mut results = self.0.names.apply(request).await?;
        if let Some((ino, request)) = invites.filter(|_| is_busy(&results))
            && self.invite(asked.session, ino).await?
        {
            results = self.0.names.apply(request).await?;
        }
        self.tell_others(&opening).await;
        if publishes {
            self.wait_told(asked.session).await;
        }
        if let Some(request) = again {
            results = self.settled(request, results).await?;
        }
        self.add_company(asked, &mut results)?;
        Ok(results)
    }

    /// As [`Self::apply`], for threads outside the runtime.
    pub(crate) fn apply_blocking(&self, request: Request) -> Result<Vec<v1::NameResult>, Fault> {
        if let Some(answered) = self.answered(&request) {
            return answered;
        }
        if Locks::are_asked(&request) {
            return self.0.runtime.block_on(self.0.locks.take(&request));
        }
        let again = asks(&request).then(|| request.clone());
        let opening = self.opening(&request);
        let asked = Asked::of(&request);
        if asked.writes.is_some() || pieces_of_closed(&request).is_some() || publishes(&request) {
            return self.0.runtime.block_on(self.apply(request));
        }
        let mut results = self.0.names.apply_blocking(request)?;
        if !opening.is_empty() {
            self.0.runtime.block_on(self.tell_others(&opening));
        }
        if let Some(request) = again.filter(|_| written(&results).next().is_some()) {
            results = self.0.runtime.block_on(self.settled(request, results))?;
        }
        self.add_company(asked, &mut results)?;
        Ok(results)
    }

    /// Says in an answer whether other mounts are there and have locks. Where one of them writes the file that was to
    /// be written, and the file has locks, it is asked to seal what it can.
    fn add_company(&self, asked: Asked, results: &mut [v1::NameResult]) -> Result<(), Fault> {
        let Asked { session, writes } = asked;
        if session == 0 {
            return Ok(());
        }
        let locks = &self.0.locks;
        // Those that are coming back, too.
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

    /// The file that others write together, if the request is to write it, too: what was closed is told before, so that it
    /// doesn't lie over what is written from now on.
    fn joins(&self, asked: Asked) -> Result<Option<u64>, Fault> {
        let Some(ino) = asked.writes else {
            return Ok(None);
        };
        let writers = self.0.names.written(ino)?;
        let is_open = writers.iter().any(|writer| writer.together);
        Ok(is_open.then_some(ino))
    }

    /// The files that a request opens for writing, and the mounts that have to know before it is answered.
    fn opening(&self, request: &Request) -> Vec<(u64, Line)> {
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
        let others: Vec<&Line> = others.map(|(_, (_, line))| line).collect();
        inodes
            .flat_map(|ino| others.iter().map(move |&line| (ino, line.clone())))
            .collect()
    }

    /// Waits until other mounts have forgotten what they knew of files that are about to be written.
    async fn tell_others(&self, opening: &[(u64, Line)]) {
        let receipts = opening.iter().map(|(ino, line)| async move {
            let message = |receipt| v1::Invalidation {
                receipt,
                ino: *ino,
                ..v1::Invalidation::default()
            };
            // A mount whose stream is full hangs, or is told to forget everything.
            if let Ok(Some(mut question)) = self.send(line, message) {
                let _ = tokio::time::timeout(RECEIPT_PATIENCE, &mut question.answer).await;
            }
        });
        join_all(receipts).await;
    }

    /// Waits until other mounts, and their kernels, have heard of all that was changed up to now.
    async fn wait_told(&self, session: u64) {
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

    /// Takes a mount's answer, if the request is one.
    fn answered(&self, request: &Request) -> Option<Result<Vec<v1::NameResult>, Fault>> {
        let [
            v1::NameOp {
                op: Some(Op::Answer(answer)),
            },
        ] = &request.ops[..]
        else {
            return None;
        };
        if !request.caller.trusted {
            return Some(Err(Fault::Malformed("only mounts answer questions")));
        }
        if let Some(waiting) = self.0.questions.lock().remove(&answer.question) {
            // Whoever asked may have gone away.
            let _ = waiting.send(answer.open);
        }
        let result = Some(Answer::Empty(v1::Empty {}));
        Some(Ok(vec![v1::NameResult { result }]))
    }

    async fn settled(
        &self,
        request: Request,
        results: Vec<v1::NameResult>,
    ) -> Result<Vec<v1::NameResult>, Fault> {
        let session = request.session;
        let settled = written(&results).map(|ino| self.settle(session, ino));
        let settled = join_all(settled).await;
        let (mut ended, mut unknown) = (false, false);
        for settled in settled {
            match settled? {
                Settled::Open => {}
                Settled::Ended => ended = true,
                Settled::Unknown => unknown = true,
            }
        }
        let mut results = if ended {
            self.0.names.apply(request.clone()).await?
        } else {
            results
        };
        // Attributes may be those of the version before. What is in the file may not.
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

    /// Asks the mount that writes a file alone to let another one write it, too. Says whether it answered, or has sealed it.
    async fn invite(&self, session: u64, ino: u64) -> Result<bool, Fault> {
        if self.0.locks.are_known(ino) {
            return Ok(false);
        }
        // Before it is looked at, so that no seal can fall between.
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
            // What was closed there is not answered for: its seal comes instead.
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

    /// Waits until it is known whether a version that mounts write is still open there; if it is not, until
    /// it is sealed. `session` asks.
    pub(crate) async fn settle(&self, session: u64, ino: u64) -> Result<Settled, Fault> {
        let writers = self.0.names.written(ino)?;
        // Who writes it, too, asks for what others have written by itself.
        if session != 0 && writers.iter().any(|writer| writer.session == session) {
            return Ok(Settled::Open);
        }
        self.settle_all(session, ino).await
    }

    /// As [`Self::settle`], of several files, for who is no mount: what was closed a moment ago is sealed then. Gives those of
    /// which nobody could say in time, so that they may be closed and not sealed.
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
                if settled? == Settled::Unknown {
                    unknown.push(ino);
                }
            }
        }
        Ok(unknown)
    }

    /// As [`Self::settle`], of all writers but the mount that asks.
    async fn settle_all(&self, session: u64, ino: u64) -> Result<Settled, Fault> {
        let writers = self.0.names.written(ino)?;
        let settled = writers
            .iter()
            .map(|&writer| self.settle_one(session, ino, writer));
        let mut all = Settled::Ended;
        for settled in join_all(settled).await {
            all = match (all, settled?) {
                (Settled::Unknown, _) | (_, Settled::Unknown) => Settled::Unknown,
                (Settled::Open, _) | (_, Settled::Open) => Settled::Open,
                (Settled::Ended, Settled::Ended) => Settled::Ended,
            };
        }
        Ok(all)
    }

    async fn settle_one(&self, session: u64, ino: u64, first: Written) -> Result<Settled, Fault> {
        let deadline = Instant::now() + PATIENCE;
        if first.session == 0 || first.session == session {
            return Ok(Settled::Open);
        }
        loop {
            // Before it is looked at again, so that nothing can fall between.
            let mut changes = self.0.names.changes();
            let arrived = self.0.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            let writers = self.0.names.written(ino)?;
            let is_first =
                |writer: &Written| (writer.object, writer.session) == (first.object, first.session);
            if !writers.iter().any(is_first) {
                // Its mount may have let others write the same.
                let together = writers.iter().any(|writer| writer.session == first.session);
                let state = if together {
                    Settled::Open
                } else {
                    Settled::Ended
                };
                return Ok(state);
            }
            let mut question = self.ask(first, ino, false)?;
            tokio::select! {
                open = answer_of(question.as_mut()) => {
                    if open {
                        return Ok(Settled::Open);
                    }
                    // It is closed: the seal comes by itself.
                    tokio::select! {
                        changed = change_of(&mut changes, ino) => changed?,
                        () = tokio::time::sleep_until(deadline) => return Ok(Settled::Unknown),
                    }
                }
                changed = change_of(&mut changes, ino) => changed?,
                () = &mut arrived => {}
                () = tokio::time::sleep_until(deadline) => return Ok(Settled::Unknown),
            }
        }
    }

    /// Asks the mount that writes a version, if it is there.
    fn ask(&self, version: Written, ino: u64, share: bool) -> Result<Option<Question<'_>>, Fault> {
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

    /// Sends a mount a message with a number that it is to answer. `None`: it does not read its stream.
    fn send(
        &self,
        line: &Line,
        message: impl Fn(u64) -> v1::Invalidation,
    ) -> Result<Option<Question<'_>>, Fault> {
        let question = self.question()?;
        let message = message(question.number);
        Ok(line.try_send(Ok(message)).is_ok().then_some(question))
    }

    /// A question under way.
    fn question(&self) -> Result<Question<'_>, Fault> {
        let number = self.number();
        let (sender, answer) = oneshot::channel();
        let mut questions = self.0.questions.lock();
        if questions.len() >= QUESTIONS_MAX {
            return Err(Fault::Unsettled);
        }
        questions.insert(number, sender);
        Ok(Question {
            recalls: self,
            number,
            answer,
        })
    }
}

/// What the mount says: whether the file is open for writing. Never, if it was not asked or has gone away.
async fn answer_of(question: Option<&mut Question<'_>>) -> bool {
    if let Some(question) = question
        && let Ok(open) = (&mut question.answer).await
    {
        return open;
    }
    std::future::pending().await
}

/// Waits for a change of the inode.
async fn change_of(changes: &mut Changes, ino: u64) -> Result<(), Fault> {
    use tokio::sync::broadcast::error::RecvError;
    loop {
        match changes.next().await {
            Ok(changed) => {
                let of_ino = |change: &Change| matches!(change, Change::Node(other) | Change::Closed(other) if *other == ino);
                if changed.changes.iter().any(of_ino) {
                    return Ok(());
                }
            }
            Err(RecvError::Lagged(_)) => return Ok(()),
            Err(RecvError::Closed) => return Err(Fault::Closed),
        }
    }
}

/// The file of which a mount wants to know what others have written and closed, if that is all that is asked.
fn pieces_of_closed(request: &Request) -> Option<u64> {
    match &request.ops[..] {
        [
            v1::NameOp {
                op: Some(Op::Pieces(pieces)),
            },
        ] if pieces.closed => Some(pieces.ino),
        _ => None,
    }
}

/// Whether it makes visible what was written.
fn publishes(request: &Request) -> bool {
    let publishes = |op: &v1::NameOp| matches!(op.op, Some(Op::Publish(_)));
    request.ops.iter().any(publishes)
}

/// Whether somebody else writes what was to be written.
fn is_busy(results: &[v1::NameResult]) -> bool {
    let error = |result: &v1::NameResult| match &result.result {
        Some(Answer::Error(error)) => error.errno == BUSY,
        _ => false,
    };
    results.last().is_some_and(error)
}

/// Whether a request asks for what a file holds or how long it is.
fn asks(request: &Request) -> bool {
    let asks = |op: &v1::NameOp| {
        matches!(
            op.op,
            Some(Op::Lookup(_) | Op::Resolve(_) | Op::GetAttr(_) | Op::Open(_))
        )
    };
    request.ops.iter().all(asks)
}

/// Files in an answer that somebody writes.
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
    use crate::names::{Caller, SqliteNames, ids};
    use crate::session::Sessions;
    use tidemill_core::id::ElementId;

    #[tokio::test(start_paused = true)]
    async fn recall_lists_any_number_of_unsettled_files() {
        let count = 1030;
        let folder = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&folder.path().join("server.db"), (0, 0)).unwrap();
        names.add_element(ElementId(3));
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
        // The first is written by who is no mount, the others by one that says nothing.
        for (session, ops) in [(5, ops.split_off(1)), (0, ops)] {
            let request = Request {
                caller: Caller::root(),
                session,
                ops,
                ..Request::default()
            };
            let answers = names.apply(request).await.unwrap();
            let opened = |one: &v1::NameResult| matches!(one.result, Some(Answer::Opened(_)));
            assert!(answers.iter().all(opened), "{:?}", answers.last());
        }
        let names: Arc<dyn Names> = Arc::new(names);
        let sessions = Sessions::new(Duration::from_secs(3600));
        let recalls = Recalls::new(names.clone(), Locks::new(names, sessions).unwrap());
        let begun = Instant::now();
        assert_eq!(recalls.unsettled(&inodes).await.unwrap(), inodes[1..]);
        // Who asks gives a request up after 20 s.
        assert!(begun.elapsed() < PATIENCE + PATIENCE / 4);
    }
}
