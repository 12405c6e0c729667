//! Interface between a simulated client and the world. A client runs as a future that is polled when an answer has arrived. A client that
//! is killed is dropped.

use crate::dice::Dice;
use crate::store::ObjectContent;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tidemill_wire::capability::Attributes;
use tidemill_wire::v1::{Invalidation, NameResult, name_op::Op};

/// Request of a client to the world.
#[derive(Clone, Debug)]
pub(crate) enum WorldRequest {
    /// Operations on names, to the server.
    Names(Vec<Op>),
    /// Request for an inode and an object id, to the server.
    Ids,
    /// Request for a session number of this mount, to the server.
    Session,
    /// Request for the stream of changes, to the server.
    Watch,
    /// Submission of a job, to the server.
    Submit(Script),
    /// Cancellation of a job, to the server.
    Cancel(u64),
    /// Request to a node.
    Node(u32, OfNode),
    /// Wait for a time, in milliseconds.
    Sleep(u64),
}

/// Request of a client to a node.
#[derive(Clone, Debug)]
pub(crate) enum OfNode {
    Write(u64, ObjectContent),
    Seal(u64, Attributes),
    Read(u64),
    /// Sets the content of an object; each value identifies the write of the byte.
    Put(u64, Rc<Vec<u64>>),
    /// Requests the content of an object.
    Fetch(u64),
}

/// Job script and its tasks.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) tasks: Vec<SubmittedTask>,
}

/// One task of a script.
#[derive(Clone, Debug)]
pub(crate) struct SubmittedTask {
    pub(crate) kernel: &'static str,
    pub(crate) args: Vec<String>,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    /// Resources that the task needs in addition to a core, in the notation of scripts.
    pub(crate) wants: &'static str,
}

/// Answer of the world to a client's request.
#[derive(Debug)]
pub(crate) enum WorldAnswer {
    Names(Vec<NameResult>),
    Ids(u64, u64),
    Session,
    Submitted(Result<u64, String>),
    Done,
    /// Length of the sealed object, and the receipt for it.
    Sealed(u64, Vec<u8>),
    Read,
    Content(Rc<Vec<u64>>),
    /// No answer: the request may have been executed or not.
    Lost,
    /// The other side reports that it could not execute the request.
    Refused,
}

#[derive(Debug)]
struct PortShared {
    asked: VecDeque<(u64, WorldRequest)>,
    answers: BTreeMap<u64, WorldAnswer>,
    /// Messages of the stream of changes; `None` means that the stream broke.
    news: VecDeque<Option<Invalidation>>,
    next: u64,
    dice: Dice,
}

/// Client's side of the interface to the world.
#[derive(Clone, Debug)]
pub(crate) struct Port(Rc<RefCell<PortShared>>);

impl Port {
    pub(crate) fn new(dice: Dice) -> Self {
        let shared = PortShared {
            asked: VecDeque::new(),
            answers: BTreeMap::new(),
            news: VecDeque::new(),
            next: 0,
            dice,
        };
        Self(Rc::new(RefCell::new(shared)))
    }

    /// Sends a request to the world and waits for the answer.
    pub(crate) async fn ask(&self, what: WorldRequest) -> WorldAnswer {
        let ticket = {
            let mut shared = self.0.borrow_mut();
            shared.next += 1;
            let ticket = shared.next;
            shared.asked.push_back((ticket, what));
            ticket
        };
        std::future::poll_fn(|_| match self.0.borrow_mut().answers.remove(&ticket) {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    /// Waits for the next message of the stream of changes; `None` means that the stream broke.
    pub(crate) async fn news(&self) -> Option<Invalidation> {
        std::future::poll_fn(|_| match self.0.borrow_mut().news.pop_front() {
            Some(news) => Poll::Ready(news),
            None => Poll::Pending,
        })
        .await
    }

    pub(crate) fn tell(&self, news: Option<Invalidation>) {
        self.0.borrow_mut().news.push_back(news);
    }

    pub(crate) async fn sleep(&self, ms: u64) {
        self.ask(WorldRequest::Sleep(ms)).await;
    }

    pub(crate) fn dice<T>(&self, with: impl FnOnce(&mut Dice) -> T) -> T {
        with(&mut self.0.borrow_mut().dice)
    }

    /// Returns the next request that the client sent, with its ticket.
    pub(crate) fn take(&self) -> Option<(u64, WorldRequest)> {
        self.0.borrow_mut().asked.pop_front()
    }

    pub(crate) fn answer(&self, ticket: u64, answer: WorldAnswer) {
        self.0.borrow_mut().answers.insert(ticket, answer);
    }
}

/// A client that runs.
pub(crate) struct RunningClient(Pin<Box<dyn Future<Output = ()>>>);

impl std::fmt::Debug for RunningClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

impl RunningClient {
    pub(crate) fn new(future: impl Future<Output = ()> + 'static) -> Self {
        Self(Box::pin(future))
    }

    /// Polls the client. Returns whether it has ended.
    pub(crate) fn go_on(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.0.as_mut().poll(&mut context).is_ready()
    }
}
