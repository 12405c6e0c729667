//! File events, for programs that only know the cluster's mount: `<user>/events`. A write to the file sends a request, and a read waits for
//! the answer, which the server gives (next: `server/src`). Labels that wait for files use this file.
//!
//! A request is one write: the maximum number of file events (0: as many as fit), a cursor (empty: the answer is the current cursor) and a
//! pattern, separated by zero bytes. The answer is the cursor to continue with, then `1` if earlier file events were discarded, else `0`.
//! Path, cursor, version and size of each file event follow. A zero byte ends each field. The answer may have no file events after
//! [`WAIT`]: the program then sends the request again.

use super::super::Fs;
use super::submit::OpenerProcess;
use crate::error::Error;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::time::Duration;
use tidemill_client::Error as ClientError;
use tidemill_wire::v1;

/// Maximum time that a read waits; shorter than an operation's time limit.
const WAIT: Duration = Duration::from_secs(20);
/// Maximum number of waiting reads of one user; each waiting read uses a thread of the mount.
const EACH_MAX: usize = 64;
const ALL_MAX: usize = 256;
/// Maximum length of a request in bytes.
pub(super) const QUESTION_BYTES_MAX: usize = 8 << 10;

#[derive(Debug, Default)]
pub(super) struct WaitingReads(Mutex<HashMap<u32, usize>>);

/// Entry of one waiting read, which is removed when this value is dropped.
struct ReadTicket<'a> {
    waiting: &'a WaitingReads,
    uid: u32,
}

impl WaitingReads {
    fn enter(&self, uid: u32) -> Option<ReadTicket<'_>> {
        let mut users = self.0.lock();
        if users.values().sum::<usize>() >= ALL_MAX {
            return None;
        }
        let own = users.entry(uid).or_default();
        if *own >= EACH_MAX {
            return None;
        }
        *own += 1;
        Some(ReadTicket { waiting: self, uid })
    }
}

impl Drop for ReadTicket<'_> {
    fn drop(&mut self) {
        let mut users = self.waiting.0.lock();
        if let Some(own) = users.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

impl Fs {
    /// Returns the answer to a request for file events.
    pub(super) fn events(&self, opener: &OpenerProcess, question: &[u8]) -> Result<Vec<u8>, Error> {
        let question = std::str::from_utf8(question).map_err(|_| Errno::INVAL)?;
        let mut parts = question.splitn(3, '\0');
        let (Some(limit), Some(since), Some(pattern)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(Errno::INVAL.into());
        };
        let request = v1::EventsRequest {
            credentials: Some(opener.credentials()),
            pattern: pattern.to_owned(),
            since: since.to_owned(),
            wait_ns: u64::try_from(WAIT.as_nanos()).unwrap_or(u64::MAX),
            limit: limit.parse().map_err(|_| Errno::INVAL)?,
        };
        let uid = opener.credentials().uid;
        let waiting = &self.control.waiting;
        let _place = waiting.enter(uid).ok_or(Errno::AGAIN)?;
        let server = &self.backend.server;
        let asked = self.backend.ask_once(async {
            let reply = server.events().next(request).await;
            Ok(reply.map_err(|status| server.explain(status))?.into_inner())
        });
        match asked {
            Ok(reply) => Ok(answer(&reply)),
            Err(error) if error.is_lost() => Err(error.into()),
            Err(error) => {
                let errno = refused(&error);
                let mut errors = self.control.errors.lock();
                errors.insert(uid, format!("{error}\n"));
                Err(errno.into())
            }
        }
    }
}

/// Returns the errno for a refused request: a program may repeat a request that exceeds a limit now, but not a wrong request.
fn refused(error: &ClientError) -> Errno {
    match Errno::from_raw_os_error(error.errno()) {
        Errno::NOSPC => Errno::AGAIN,
        _ => Errno::INVAL,
    }
}

fn answer(reply: &v1::EventsReply) -> Vec<u8> {
    let mut answer = Vec::new();
    let mut say = |text: &str| {
        answer.extend_from_slice(text.as_bytes());
        answer.push(0);
    };
    say(&reply.cursor);
    say(if reply.missed { "1" } else { "0" });
    for one in &reply.events {
        say(&one.path);
        say(&one.cursor);
        say(&one.version.to_string());
        say(&one.size.to_string());
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_event_reads_of_one_user_are_limited() {
        let waiting = WaitingReads::default();
        let own: Vec<_> = (0..EACH_MAX).map(|_| waiting.enter(7).unwrap()).collect();
        assert!(waiting.enter(7).is_none() && waiting.enter(8).is_some());
        let others: Vec<_> = (8..).map_while(|user| waiting.enter(user)).collect();
        assert_eq!(own.len() + others.len(), ALL_MAX);
        drop(own);
        assert!(waiting.enter(7).is_some());
    }
}
