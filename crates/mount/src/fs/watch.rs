//! Changes by other clients. The server reports the changes, and the module invalidates the caches of the mount and of the Linux kernel
//! (next: `mount/src/session.rs`).

use super::table::{AliasObject, VersionPhase};
use super::{Caller, Fs, control, deadline};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::TrySendError;
use std::time::Duration;
use tidemill_model::display::escaped;
use tidemill_wire::control::DIRECTORY;
use tidemill_wire::v1::{self, LockNews, lock_news::What, name_op::Op};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;

/// Pause before the mount opens a lost stream of the server again.
const PAUSE: Duration = Duration::from_millis(200);
/// Time for which an answer to a request of the server is useful.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);
/// Maximum number of waiting notices to the Linux kernel; beyond this number all caches are invalidated instead.
const NOTICES_MAX: usize = 65_536;

/// The Linux kernel's caches, for invalidation. Calls may block while the kernel uses the inode, so only a separate thread makes them,
/// never a thread that answers the kernel.
pub(crate) trait KernelCache: Send + 'static {
    fn forget_entry(&self, parent: u64, name: &OsStr);
    fn forget_inode(&self, number: u64);
    /// Invalidates the attributes of an inode and keeps its pages. Does not block.
    fn forget_attributes(&self, number: u64);
}

/// Source of information about closed files, for a file system without the Linux kernel.
pub(crate) trait Closes: std::fmt::Debug + Send + Sync {
    /// Waits until the mount has recorded every close of the file that returned before.
    fn settle(&self, ino: u64);
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Notice {
    Entry(u64, Vec<u8>),
    Inode(u64),
    /// The server requests a confirmation, with this number, when all earlier notices have been delivered.
    Receipt(u64),
    /// The server sent a message about locks, to be handled after all earlier notices: its number on this mount, the message, and the
    /// number of the stream.
    Lock(u64, LockNews, u64),
}

/// Queue of notices to the Linux kernel.
#[derive(Debug)]
pub(crate) struct KernelNotices {
    queue: std::sync::mpsc::SyncSender<Notice>,
    waiting: Arc<Mutex<HashSet<Notice>>>,
    last: AtomicU64,
}

impl KernelNotices {
    /// Starts the thread that sends notices to the Linux kernel. The thread ends with the last [`KernelNotices`].
    pub(crate) fn start(
        kernel: impl KernelCache,
        receipt: impl Fn(u64) + Send + 'static,
        lock: impl Fn(LockNews, u64) + Send + 'static,
    ) -> std::io::Result<Self> {
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
                    Notice::Receipt(number) => receipt(number),
                    Notice::Lock(_, news, stream) => lock(news, stream),
                }
            }
        };
        std::thread::Builder::new()
            .name("kernel-notices".into())
            .spawn(run)?;
        let last = AtomicU64::new(0);
        Ok(Self {
            queue,
            waiting,
            last,
        })
    }

    /// Queues a notice. Returns whether the notice is in the queue now.
    fn send(&self, notice: Notice) -> bool {
        if !self.waiting.lock().insert(notice.clone()) {
            return true;
        }
        let reported = self.queue.try_send(notice);
        if let Err(TrySendError::Full(notice) | TrySendError::Disconnected(notice)) = &reported {
            self.waiting.lock().remove(notice);
            tracing::warn!(
                "the Linux kernel can't be notified of a change: its cache is stale for up to a minute"
            );
        }
        reported.is_ok()
    }
}

impl Fs {
    /// Receives the server's messages until the runtime ends.
    pub(crate) async fn watch(self: Arc<Self>, notices: KernelNotices, first: mpsc::Sender<()>) {
        self.on_everything(u64::MAX, &notices);
        let mut hears = false;
        loop {
            let request = v1::WatchRequest {
                session: self.backend.session(),
                host: rustix::system::uname()
                    .nodename()
                    .to_string_lossy()
                    .into_owned(),
                path: escaped(self.mountpoint.as_os_str().as_bytes()),
            };
            match self.backend.server.names().watch(request).await {
                Ok(stream) => {
                    let mut stream = stream.into_inner();
                    loop {
                        let message = tokio::select! {
                            message = stream.next() => message,
                            // Cached values may be wrong: handled as a broken stream.
                            () = self.backend.doubted() => break,
                        };
                        let Some(Ok(message)) = message else { break };
                        if message.session != 0 {
                            self.backend.set_session(message.session);
                            // From here on the server reports all changes by others.
                            self.on_everything(self.table.tick(), &notices);
                            hears = true;
                            // The mount waits for the first session only.
                            let _ = first.try_send(());
                            self.sealer.retry();
                            self.rejoin_locks();
                        }
                        if message.question != 0 {
                            let asked = (message.question, message.share);
                            self.on_question(asked, message.ino);
                        } else if !self.on_invalidation(&message, &notices) {
                            break;
                        }
                    }
                    tracing::info!("the server's stream of changes ended; opening it again");
                }
                Err(status) => tracing::debug!("no stream of changes: {status}"),
            }
            // Changes from now on are not reported: no cached value is used until a new stream has begun.
            if std::mem::take(&mut hears) {
                self.on_everything(u64::MAX, &notices);
            }
            self.backend.forget_nodes();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Handles a request of the server about a file that is being written on this mount and that another client wants. The mount seals a
    /// closed version; if the file is open, the mount answers so.
    fn on_question(self: &Arc<Self>, asked: (u64, bool), ino: u64) {
        let fs = self.clone();
        // A thread of its own: all threads that wait for servers may be waiting for this answer.
        let spawned = std::thread::Builder::new()
            .name("question".into())
            .spawn(move || deadline::serve(|| fs.answer(asked, ino)));
        if let Err(error) = spawned {
            tracing::warn!(ino, "a request of the server can't be answered: {error}");
        }
    }

    fn answer(&self, (question, share): (u64, bool), ino: u64) {
        let heard = self.wait_for_releases(question, ino);
        if share && heard {
            self.share(ino);
        }
        // The asking client sees all writes up to now.
        let vnode = self.table.get(ino);
        let object = vnode.and_then(|vnode| vnode.state.lock().open_multi_writer());
        if let Some(multi_writer) = object.as_ref().and_then(|object| object.multi_writer())
            && let Err(error) = multi_writer.publish()
        {
            tracing::warn!(ino, "new bytes can't be made visible: {error}");
        }
        let phase = self.table.get(ino).and_then(|vnode| {
            let state = vnode.state.lock();
            state.writing.as_ref().map(|writing| writing.phase)
        });
        if phase == Some(VersionPhase::Sealing) {
            return self.sealer.hurry();
        }
        // Otherwise the mount cannot tell whether the file is closed: it is sealed soon, or when the mount has ended.
        if heard || phase.is_none() {
            self.tell(question, phase.is_some());
        }
    }

    /// Answers the server's message with this number.
    pub(crate) fn tell(&self, question: u64, open: bool) {
        let backend = self.backend.clone();
        let until = deadline::now() + ANSWER_PATIENCE;
        self.backend.runtime.spawn(async move {
            let op = Op::Answer(v1::Answer { question, open });
            let asked = backend.apply_async(Caller::default(), vec![op], Some(until));
            if let Err(error) = asked.await {
                tracing::debug!("the answer did not reach the server: {error}");
            }
        });
    }

    /// Waits until the mount has recorded every close that returned before. The Linux kernel delivers requests in order. So the closes are
    /// recorded when a later request has arrived: a look-up of a name that only this function looks up. Returns whether the look-up
    /// arrived, which is false if the file system was detached concurrently.
    fn wait_for_releases(&self, question: u64, ino: u64) -> bool {
        if let Some(closes) = self.closes.get() {
            closes.settle(ino);
            return true;
        }
        let name = OsStr::from_bytes(DIRECTORY);
        let nodes = self.mountpoint.join(name).join("nodes");
        self.control.asked.lock().insert(question, false);
        // The name does not exist.
        let _ = std::fs::symlink_metadata(nodes.join(control::question(question)));
        let heard = self.control.asked.lock().remove(&question);
        heard == Some(true)
    }

    /// Applies an invalidation of the server. Returns whether that was possible.
    fn on_invalidation(
        self: &Arc<Self>,
        message: &v1::Invalidation,
        notices: &KernelNotices,
    ) -> bool {
        if message.everything {
            self.on_everything(self.table.tick(), notices);
        }
        if message.ino != 0 {
            let gate = self.table.gate.write();
            self.table.foreign_change(message.ino);
            drop(gate);
            self.notice_inode(message.ino, notices);
        }
        if let Some(lock) = message.lock {
            if matches!(lock.what(), What::Locked | What::Recall) {
                // Others lock the file now.
                self.table.foreign_change(lock.ino);
                self.notice_inode(lock.ino, notices);
            }
            if lock.what() == What::Publish {
                // Out of order, so that it does not wait for a kernel that waits for this call.
                self.publish_soon(lock.ino);
            } else {
                let number = notices.last.fetch_add(1, Ordering::Relaxed);
                if !notices.send(Notice::Lock(number, lock, self.locks.stream())) {
                    return false;
                }
            }
        }
        if message.receipt != 0 {
            notices.send(Notice::Receipt(message.receipt));
        }
        if message.parent != 0 {
            let gate = self.table.gate.write();
            self.table.foreign_entry(message.parent, &message.name);
            drop(gate);
            notices.send(Notice::Entry(message.parent, message.name.clone()));
        }
        true
    }

    fn notice_inode(&self, ino: u64, notices: &KernelNotices) {
        let aliases = self.table.get(ino).map_or(vec![0], |vnode| {
            let state = vnode.state.lock();
            let multi_writer = |bound: &AliasObject| bound.object.multi_writer().is_some();
            let others = state.bound.iter().filter(|(_, bound)| multi_writer(bound));
            let others = others.map(|(&alias, _)| alias);
            others
                .filter(|&alias| alias != state.alias)
                .chain([state.alias])
                .collect()
        });
        for alias in aliases {
            notices.send(Notice::Inode(super::InodeKey { ino, alias }.pack()));
        }
    }

    /// Invalidates all answers to requests from before the time `heard`.
    fn on_everything(&self, heard: u64, notices: &KernelNotices) {
        let gate = self.table.gate.write();
        let (inodes, entries) = self.table.doubt(heard);
        drop(gate);
        for ino in inodes {
            self.notice_inode(ino, notices);
        }
        for (parent, name) in entries {
            notices.send(Notice::Entry(parent, name));
        }
    }
}
