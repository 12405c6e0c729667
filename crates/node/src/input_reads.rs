//! Reads of inputs that a kernel does not have as files. The kernel sends requests through a pipe, and a thread of this process answers the
//! requests until the kernel has ended (`docs/own-kernels.md`). So the sandbox needs no network, and the kernel gets only bytes of its
//! inputs.
//!
//! A kernel cannot overload the thread through the pipes: the thread handles one request of at most 4 KiB at a time, and has at most one
//! answer of up to 4 MiB in memory.

use crate::executor::ExecutorParts;
use crate::fetch::FetchError;
use crate::labels::Live;
use crate::part_reader::Spans;
use crate::record_starts::{read_window, spans_of};
use crate::task::{failure, input_locations, is_unsealed, local};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use tidemill_model::label::{Analysis, Failure, FailureKind};

/// Maximum length in bytes of a request, including the end of its line: one write of this length to a pipe is atomic.
const REQUEST_BYTES_MAX: usize = 4096;

const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Time to wait for the pipes before the thread checks whether the kernel still runs.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Error numbers of answers, as on Linux.
const NO_ENTRY: i32 = 2;
const INPUT_OUTPUT: i32 = 5;
const INVALID: i32 = 22;

/// Reason why the thread refuses a request.
struct ReadRefusal {
    errno: i32,
    why: String,
}

/// Server of a kernel's reads of its inputs.
#[derive(Debug)]
pub(crate) struct ReadServer<'a> {
    parts: &'a ExecutorParts,
    live: &'a Live,
    analysis: &'a Analysis,
    transferred_bytes: AtomicU64,
    read_bytes: AtomicU64,
    lost: Mutex<Option<Failure>>,
}

impl<'a> ReadServer<'a> {
    pub(crate) fn new(parts: &'a ExecutorParts, live: &'a Live, analysis: &'a Analysis) -> Self {
        Self {
            parts,
            live,
            analysis,
            transferred_bytes: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            lost: Mutex::default(),
        }
    }

    /// Returns the number of bytes that were fetched from other nodes.
    pub(crate) fn transferred_bytes(&self) -> u64 {
        self.transferred_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that the kernel received.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Returns the reason why requested bytes were not available; a second call returns `None`.
    pub(crate) fn lost(&self) -> Option<Failure> {
        self.lost.lock().take()
    }

    /// Answers the kernel's requests while the function `run` runs.
    ///
    /// # Errors
    /// The thread can't be started.
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
            // An empty line wakes the thread. If the pipe is full, the thread is not waiting.
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
                Err(ReadRefusal { errno, why }) => {
                    bytes.clear();
                    format!("-{errno} {}\n", tidemill_model::display::line(why))
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
    ) -> Result<(), ReadRefusal> {
        let (offset, length, name) = parsed(line).ok_or_else(|| ReadRefusal {
            errno: INVALID,
            why: format!(
                "a request is \"OFFSET LENGTH NAME\" in one line of at most {REQUEST_BYTES_MAX} bytes"
            ),
        })?;
        let mut inputs = self.analysis.inputs.iter().enumerate();
        let (index, input) = inputs
            .find(|(_, input)| input.name == name)
            .ok_or_else(|| ReadRefusal {
                errno: NO_ENTRY,
                why: format!("the task has no input {name:?}"),
            })?;
        let streaming = self.live.ways.get(index).is_some_and(|way| way.streaming);
        if streaming && is_unsealed(self.parts, input.object) {
            return Err(ReadRefusal {
                errno: INVALID,
                why: format!("{name:?} is still being written"),
            });
        }
        let mut read = || -> Result<u64, FetchError> {
            let locations = input_locations((self.parts, self.live), index, input)?;
            let size = locations.layout.size();
            let end = offset
                .saturating_add(length.min(ANSWER_BYTES_MAX))
                .min(size);
            let window = offset.min(end)..end;
            let here = |object| Some(local(self.parts, object)?.0);
            let ahead = spans_of(&locations, window.clone()).map(|(_, span)| span);
            let mut spans = Spans::new(&self.parts.fetcher, &locations, (&here, over), ahead);
            read_window(&locations, &mut spans, window, bytes)
        };
        match read() {
            Ok(transferred) => {
                self.transferred_bytes
                    .fetch_add(transferred, Ordering::Relaxed);
                let read = bytes.len() as u64;
                self.read_bytes.fetch_add(read, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                let why = format!("input `{name}`: {error}");
                if !matches!(error, FetchError::Cancelled) {
                    let lost = || failure(FailureKind::Input, why.clone());
                    self.lost.lock().get_or_insert_with(lost);
                }
                let errno = INPUT_OUTPUT;
                Err(ReadRefusal { errno, why })
            }
        }
    }
}

/// Decodes a request line: offset, number of bytes, and name of the input.
fn parsed(line: &[u8]) -> Option<(u64, u64, &str)> {
    let line = str::from_utf8(line).ok()?;
    let (offset, rest) = line.split_once(' ')?;
    let (length, name) = rest.split_once(' ')?;
    Some((offset.parse().ok()?, length.parse().ok()?, name))
}

/// Returns the next request line; `None` at the end. A line that is too long is returned in parts, which are invalid requests.
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

/// Sends bytes to the kernel; `None` if the kernel no longer reads them.
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

/// Waits for a limited time for a pipe that is not ready; `None` if `error` is another error.
fn wait(pipe: &File, flags: PollFlags, error: &io::Error) -> Option<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Some(()),
        io::ErrorKind::WouldBlock => {
            // The caller retries in any case.
            let _ = poll(&mut [PollFd::new(pipe, flags)], Some(&LOOK_EVERY));
            Some(())
        }
        _ => None,
    }
}
