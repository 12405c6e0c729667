//! Files that other mounts replace by renames while programs here open them.
//!
//! The kernel opens the inode that it has looked up. If that is removed by then, it looks the name up once more, and gives up
//! if the next inode is removed, too. So for a moment after such an open, a look-up opens the file that it finds and keeps it
//! open until the kernel has come.

use super::object::Object;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long after a failed open look-ups open files.
const MOMENT: Duration = Duration::from_secs(1);
/// Files that are kept open at most.
const HELD_MAX: usize = 16;

/// Files that look-ups have opened.
#[derive(Debug, Default)]
pub(super) struct Replaced(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    until: Option<Instant>,
    objects: VecDeque<(u64, Arc<Object>)>,
}

impl Replaced {
    /// An open has failed because its inode was removed.
    pub(super) fn note(&self) {
        self.0.lock().until = Some(Instant::now() + MOMENT);
    }

    /// Whether look-ups open files now. If not, all files are let go.
    pub(super) fn is_expected(&self) -> bool {
        let mut held = self.0.lock();
        let Some(until) = held.until else {
            return false;
        };
        if Instant::now() < until {
            return true;
        }
        *held = Held::default();
        false
    }

    /// Keeps a file open.
    pub(super) fn hold(&self, ino: u64, object: Arc<Object>) {
        let mut held = self.0.lock();
        held.objects.retain(|(other, _)| *other != ino);
        held.objects.push_back((ino, object));
        if held.objects.len() > HELD_MAX {
            held.objects.pop_front();
        }
    }

    /// Whether a file is kept open.
    pub(super) fn holds(&self, ino: u64) -> bool {
        let held = self.0.lock();
        held.objects.iter().any(|(other, _)| *other == ino)
    }

    /// The kernel has opened the file.
    pub(super) fn opened(&self, ino: u64) {
        let mut held = self.0.lock();
        held.objects.retain(|(other, _)| *other != ino);
    }
}
