//! What a kernel reads of its inputs beside what it finds of them as files: it asks by a pipe, and a thread of this process answers
//! until it has ended (`docs/own-kernels.md`). So the sandbox needs no network, and the kernel gets no bytes but those of its inputs.
//!
//! Whatever the kernel does with its ends of the pipes: one request is looked at at a time, of at most 4 KiB, and one answer of at most
//! 4 MiB is held.

use crate::executor::Parts;
use crate::labels::Live;
use crate::pull::PullError;
use crate::seams::{read_window, spans_of};
use crate::spans::Spans;
use crate::task::{failure, lies, local};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use tidemill_core::label::{Analysis, Failure, FailureKind};

/// Longest request, with the end of its line: what one write to a pipe puts there as a whole.
const REQUEST_BYTES_MAX: usize = 4096;

/// Bytes of one answer.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// How long the pipes are waited for before it is looked again whether the kernel is still there.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Errors of requests, as Linux numbers them.
const NO_ENTRY: i32 = 2;
const INPUT_OUTPUT: i32 = 5;
const INVALID: i32 = 22;

/// Why a request has no bytes for an answer.
struct Refused {
    errno: i32,
    why: String,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reads<'a> {
    parts: &'a Parts,
    live: &'a Live,
    analysis: &'a Analysis,
    moved_bytes: AtomicU64,
    read_bytes: AtomicU64,
    lost: Mutex<Option<Failure>>,
}

impl<'a> Reads<'a> {
    pub(crate) fn new(parts: &'a Parts, live: &'a Live, analysis: &'a Analysis) -> Self {
        Self {
            parts,
            live,
            analysis,
            moved_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            lost: Mutex::default(),
        }
    }

    /// Bytes that came from other elements.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that the kernel was given.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Why bytes could not be had that it asked for.
    pub(crate) fn lost(&self) -> Option<Failure> {
        self.lost.lock().take()
    }

    /// Answers for as long as `run` takes.
    ///
    /// # Errors
    /// If there can be no thread that does.
    pub(crate) fn meanwhile<T>(
        &self,
        [ask, answer]: [File; 2],
        run: impl FnOnce() -> T,
    ) -> io::Result<T> {
        let (ended, mut wake) = (AtomicBool::new(false), ask.try_clone()?);
        thread::scope(|scope| {
            let serve = || self.serve((ask, answer), &ended);
            let served = thread::Builder::new().name("reads".into());
            let served = served.spawn_scoped(scope, serve)?;
            let result = run();
            ended.store(true, Ordering::Release);
            // An empty line; where the pipe is full nobody waits for more.
            let _ = wake.write(b"\n");
            let _ = served.join();
            Ok(result)
        })
    }

    fn serve(&self, (mut ask, mut answer): (File, File), ended: &AtomicBool) {
        let over = || ended.load(Ordering::Acquire) || self.live.control.is_cancelled();
        let (mut asked, mut bytes) = (Vec::new(), Vec::new());
        while let Some(line) = next_line(&mut ask, &mut asked, &over) {
            if line.is_empty() {
                continue;
            }
            let answered = self.answer(&line, &mut bytes, &over);
            let head = match &answered {
                Ok(()) => format!("{}\n", bytes.len()),
                Err(Refused { errno, why }) => {
                    bytes.clear();
                    format!("-{errno} {}\n", tidemill_core::shown::line(why))
                }
            };
            let sent = send(&mut answer, head.as_bytes(), &over)
                .and_then(|()| send(&mut answer, &bytes, &over));
            if sent.is_none() {
                return;
            }
        }
    }

    fn answer(
        &self,
        line: &[u8],
        bytes: &mut Vec<u8>,
        over: &dyn Fn() -> bool,
    ) -> Result<(), Refused> {
        let (offset, length, name) = parsed(line).ok_or_else(|| Refused {
            errno: INVALID,
            why: format!(
                "a request is \"OFFSET LENGTH NAME\" in one line of at most {REQUEST_BYTES_MAX} bytes"
            ),
        })?;
        let mut inputs = self.analysis.inputs.iter().enumerate();
        let (index, input) = inputs
            .find(|(_, input)| input.name == name)
            .ok_or_else(|| Refused {
                errno: NO_ENTRY,
                why: format!("the task has no input {name:?}"),
            })?;
        let growing = self.live.ways.get(index).is_some_and(|way| way.growing);
        if growing && local(self.parts, input.object).is_none() {
            return Err(Refused {
                errno: INVALID,
                why: format!("{name:?} is still being written"),
            });
        }
        let mut read = || -> Result<u64, PullError> {
            let lies = lies((self.parts, self.live), index, input)?;
            let size = lies.layout.size();
            let end = offset
                .saturating_add(length.min(ANSWER_BYTES_MAX))
                .min(size);
            let window = offset.min(end)..end;
            let here = |object| Some(local(self.parts, object)?.0);
            let ahead = spans_of(&lies, window.clone()).map(|(_, span)| span);
            let mut spans = Spans::new(&self.parts.pulls, &lies, (&here, over), ahead);
            read_window(&lies, &mut spans, window, bytes)
        };
        match read() {
            Ok(moved) => {
                self.moved_bytes.fetch_add(moved, Ordering::Relaxed);
                let read = bytes.len() as u64;
                self.read_bytes.fetch_add(read, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                let why = format!("input `{name}`: {error}");
                if !matches!(error, PullError::Cancelled) {
                    let lost = || failure(FailureKind::Input, why.clone());
                    self.lost.lock().get_or_insert_with(lost);
                }
                let errno = INPUT_OUTPUT;
                Err(Refused { errno, why })
            }
        }
    }
}

/// Where it asks from, how many bytes, and of what.
fn parsed(line: &[u8]) -> Option<(u64, u64, &str)> {
    let line = str::from_utf8(line).ok()?;
    let (offset, rest) = line.split_once(' ')?;
    let (length, name) = rest.split_once(' ')?;
    Some((offset.parse().ok()?, length.parse().ok()?, name))
}

/// The next line of what was asked; one that is too long comes in parts, which are no requests. `None`: nobody asks any more.
fn next_line(ask: &mut File, asked: &mut Vec<u8>, over: &dyn Fn() -> bool) -> Option<Vec<u8>> {
    loop {
        if over() {
            return None;
        }
        if let Some(end) = asked.iter().position(|byte| *byte == b'\n') {
            let mut line: Vec<u8> = asked.drain(..=end).collect();
            line.pop();
            return Some(line);
        }
        if asked.len() >= REQUEST_BYTES_MAX {
            return Some(std::mem::take(asked));
        }
        let mut more = [0; REQUEST_BYTES_MAX];
        match ask.read(&mut more) {
            Ok(count) => asked.extend_from_slice(&more[..count]),
            Err(error) => wait(ask, PollFlags::IN, &error)?,
        }
    }
}

/// Hands bytes over; `None`: nobody takes them any more.
fn send(to: &mut File, mut bytes: &[u8], over: &dyn Fn() -> bool) -> Option<()> {
    while !bytes.is_empty() {
        if over() {
            return None;
        }
        match to.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) => wait(to, PollFlags::OUT, &error)?,
        }
    }
    Some(())
}

/// Waits a while for a pipe that is not ready.
fn wait(pipe: &File, flags: PollFlags, error: &io::Error) -> Option<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Some(()),
        io::ErrorKind::WouldBlock => {
            // It is looked again, whatever comes of it.
            let _ = poll(&mut [PollFd::new(pipe, flags)], Some(&LOOK_EVERY));
            Some(())
        }
        _ => None,
    }
}
