//! How a simulated client asks: it runs as a future that is polled when what it waits for has come. A client that is
//! killed is dropped.

use crate::dice::Dice;
use crate::store::Bytes;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tidemill_wire::route::SealBody;
use tidemill_wire::v1::{Invalidation, NameResult, name_op::Op};

/// What a client asks of the world.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// The server: operations on names.
    Names(Vec<Op>),
    /// The server: an inode and an object id.
    Ids,
    /// The server: a number for this mount.
    Session,
    /// The server: its stream of changes.
    Watch,
    /// The server: a job.
    Submit(Script),
    /// The server: to give up a job.
    Cancel(u64),
    /// An element.
    Element(u32, OfElement),
    /// That time passes, in milliseconds.
    Sleep(u64),
}

/// What a client asks of an element.
#[derive(Clone, Debug)]
pub(crate) enum OfElement {
    Write(u64, Bytes),
    Seal(u64, SealBody),
    Read(u64),
    /// An object is to hold this; what each byte is stands for which write it is of.
    Put(u64, Rc<Vec<u64>>),
    /// What an object holds.
    Fetch(u64),
}

/// A job script and what comes of it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) tasks: Vec<Task>,
}

/// One task of a script.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) kernel: &'static str,
    pub(crate) args: Vec<String>,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    /// What it needs beside a core, as a script says it.
    pub(crate) wants: &'static str,
}

/// The world's answer.
#[derive(Debug)]
pub(crate) enum Answer {
    Names(Vec<NameResult>),
    Ids(u64, u64),
    Session,
    Submitted(Result<u64, String>),
    Done,
    Sealed(u64),
    Read,
    Content(Rc<Vec<u64>>),
    /// The other side did what it was asked, or not: nobody knows.
    Lost,
    /// The other side says that it could not.
    Refused,
}

#[derive(Debug)]
struct Shared {
    asked: VecDeque<(u64, Ask)>,
    answers: BTreeMap<u64, Answer>,
    /// What the stream of changes has brought; `None`: it broke.
    news: VecDeque<Option<Invalidation>>,
    next: u64,
    dice: Dice,
}

/// The client's side.
#[derive(Clone, Debug)]
pub(crate) struct Port(Rc<RefCell<Shared>>);

impl Port {
    pub(crate) fn new(dice: Dice) -> Self {
        let shared = Shared {
            asked: VecDeque::new(),
            answers: BTreeMap::new(),
            news: VecDeque::new(),
            next: 0,
            dice,
        };
        Self(Rc::new(RefCell::new(shared)))
    }

    /// Asks and waits for the answer.
    pub(crate) async fn ask(&self, what: Ask) -> Answer {
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

    /// What the stream of changes brings next; `None`: it broke.
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
        self.ask(Ask::Sleep(ms)).await;
    }

    pub(crate) fn dice<T>(&self, with: impl FnOnce(&mut Dice) -> T) -> T {
        with(&mut self.0.borrow_mut().dice)
    }

    /// What was asked since.
    pub(crate) fn take(&self) -> Option<(u64, Ask)> {
        self.0.borrow_mut().asked.pop_front()
    }

    pub(crate) fn answer(&self, ticket: u64, answer: Answer) {
        self.0.borrow_mut().answers.insert(ticket, answer);
    }
}

/// A client that runs.
pub(crate) struct Running(Pin<Box<dyn Future<Output = ()>>>);

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Running")
    }
}

impl Running {
    pub(crate) fn new(future: impl Future<Output = ()> + 'static) -> Self {
        Self(Box::pin(future))
    }

    /// Goes on as far as it can; whether it has ended.
    pub(crate) fn go_on(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.0.as_mut().poll(&mut context).is_ready()
    }
}
