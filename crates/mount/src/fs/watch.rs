//! What others change: the server tells, the caches here and in the kernel forget.

use super::Fs;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;
use tidemill_wire::v1;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;

/// Pause before a lost stream is opened again.
const PAUSE: Duration = Duration::from_millis(200);
/// Notices to the kernel that may wait; beyond that everything is forgotten instead.
const NOTICES_MAX: usize = 65_536;

/// The kernel's caches, told to forget. Calls may block while the kernel is busy with the inode, so they are
/// made from a thread of their own and never from one that answers the kernel.
pub(crate) trait Kernel: Send + 'static {
    fn forget_entry(&self, parent: u64, name: &OsStr);
    fn forget_inode(&self, number: u64);
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Notice {
    Entry(u64, Vec<u8>),
    Inode(u64),
}

/// Notices on their way to the kernel.
#[derive(Debug)]
pub(crate) struct Notices {
    queue: std::sync::mpsc::SyncSender<Notice>,
    waiting: Arc<Mutex<HashSet<Notice>>>,
}

impl Notices {
    /// Starts the thread that talks to the kernel. It ends with the last [`Notices`].
    pub(crate) fn start(kernel: impl Kernel) -> std::io::Result<Self> {
        let (queue, notices) = std::sync::mpsc::sync_channel::<Notice>(NOTICES_MAX);
        let waiting: Arc<Mutex<HashSet<Notice>>> = Arc::default();
        let taken = waiting.clone();
        let run = move || {
            for notice in notices {
                taken.lock().remove(&notice);
                match notice {
                    Notice::Entry(parent, name) => {
                        kernel.forget_entry(parent, OsStr::from_bytes(&name));
                    }
                    Notice::Inode(number) => kernel.forget_inode(number),
                }
            }
        };
        std::thread::Builder::new()
            .name("kernel-notices".into())
            .spawn(run)?;
        Ok(Self { queue, waiting })
    }

    fn send(&self, notice: Notice) {
        if self.waiting.lock().insert(notice.clone()) && self.queue.try_send(notice).is_err() {
            tracing::warn!(
                "the kernel's cache can't be told of a change: it is believed for up to a minute"
            );
        }
    }
}

impl Fs {
    /// Listens to the server until the runtime ends.
    pub(crate) async fn watch(self: Arc<Self>, notices: Notices, first: mpsc::Sender<()>) {
        loop {
            let request = v1::WatchRequest {
                session: self.backend.session(),
                host: rustix::system::uname()
                    .nodename()
                    .to_string_lossy()
                    .into_owned(),
                path: self.mountpoint.display().to_string(),
            };
            match self.backend.server.names().watch(request).await {
                Ok(stream) => {
                    let mut stream = stream.into_inner();
                    while let Some(Ok(message)) = stream.next().await {
                        if message.session != 0 {
                            self.backend.set_session(message.session);
                            // The mount waits for the first session only.
                            let _ = first.try_send(());
                        }
                        self.on_invalidation(&message, &notices);
                    }
                    tracing::info!("the server's stream of changes ended; opening it again");
                }
                Err(status) => tracing::debug!("no stream of changes: {status}"),
            }
            // What changed meanwhile is not known.
            self.on_everything(&notices);
            self.backend.forget_elements();
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn on_invalidation(&self, message: &v1::Invalidation, notices: &Notices) {
        if message.everything {
            self.on_everything(notices);
        }
        if message.ino != 0 {
            self.on_inode(message.ino, notices);
        }
        if message.parent != 0 {
            let gate = self.table.gate.write();
            self.table.foreign_change(message.parent, true);
            self.table.unname(message.parent, &message.name);
            drop(gate);
            self.on_inode(message.parent, notices);
            notices.send(Notice::Entry(message.parent, message.name.clone()));
        }
    }

    fn on_inode(&self, ino: u64, notices: &Notices) {
        let gate = self.table.gate.write();
        self.table.foreign_change(ino, false);
        drop(gate);
        let alias = self
            .table
            .get(ino)
            .map_or(0, |node| node.state.lock().alias);
        notices.send(Notice::Inode(super::Key { ino, alias }.pack()));
    }

    fn on_everything(&self, notices: &Notices) {
        let (inodes, entries) = self.table.forget_all();
        for ino in inodes {
            self.on_inode(ino, notices);
        }
        for (parent, name) in entries {
            notices.send(Notice::Entry(parent, name));
        }
    }
}
