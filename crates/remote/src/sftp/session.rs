//! Connection to an SFTP server: OpenSSH's client as a child process, whose standard input and output are the channel. Many requests run
//! concurrently; the number in an answer identifies its request.

use super::wire::{INIT, Packet, ReplyBody, VERSION};
use crate::store::SILENCE;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Maximum length of a packet in bytes; servers send at most slightly more than 256 KiB.
const PACKET_BYTES_MAX: u32 = 1 << 20;
/// Time limit for the SSH client to end.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Maximum number of bytes of the client's messages that are kept.
const PRINTED_BYTES_MAX: usize = 4096;
/// Maximum number of packets of all requests that wait to be sent.
const SENT_MAX: usize = 256;

/// Server and account for a connection.
#[derive(Clone)]
pub(super) struct SftpAccount {
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) user: Option<String>,
    pub(super) identity: Option<PathBuf>,
    pub(super) known_hosts: Option<PathBuf>,
}

type PendingReplies = BTreeMap<u32, oneshot::Sender<ReplyBody>>;

#[derive(Debug, Default)]
struct SessionShared {
    /// Senders for requests that wait for their answers, by number; `None` when the connection has ended.
    waiting: Mutex<Option<PendingReplies>>,
    printed: Mutex<String>,
}

#[derive(Debug)]
pub(super) struct SftpSession {
    shared: Arc<SessionShared>,
    send: mpsc::Sender<Vec<u8>>,
    next: std::sync::atomic::AtomicU32,
    tasks: [JoinHandle<()>; 3],
    /// Protocol extensions beyond version 3 that the server supports.
    able: BTreeSet<String>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn command(target: &SftpAccount) -> Command {
    let mut ssh = Command::new("ssh");
    // No agent, no question and no settings of the user: only the given values are used.
    ssh.env_clear();
    ssh.envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    ssh.args(["-F", "none", "-x", "-a", "-T"]);
    for option in [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "PreferredAuthentications=publickey",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "ConnectTimeout=20",
        "ServerAliveInterval=15",
        "ServerAliveCountMax=3",
    ] {
        ssh.args(["-o", option]);
    }
    let identity = target.identity.as_ref().map(|path| path.display());
    let identity = identity.map_or("none".to_owned(), |path| format!("\"{path}\""));
    ssh.args(["-o", &format!("IdentityFile={identity}")]);
    if let Some(path) = &target.known_hosts {
        let only = format!("UserKnownHostsFile=\"{}\"", path.display());
        ssh.args(["-o", &only, "-o", "GlobalKnownHostsFile=none"]);
    }
    if let Some(port) = target.port {
        ssh.args(["-p", &port.to_string()]);
    }
    if let Some(user) = &target.user {
        ssh.args(["-l", user]);
    }
    ssh.args(["-s", "--", &target.host, "sftp"]);
    ssh.stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    ssh
}

async fn packet(from: &mut ChildStdout) -> std::io::Result<ReplyBody> {
    let count = from.read_u32().await?;
    if count == 0 || count > PACKET_BYTES_MAX {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut packet = vec![0; usize::try_from(count).unwrap_or(0)];
    from.read_exact(&mut packet).await?;
    let mut left = Bytes::from(packet);
    let kind = left.split_to(1)[0];
    Ok(ReplyBody { kind, left })
}

/// Passes each answer to its request, until the connection ends.
async fn answers(mut from: ChildStdout, shared: Arc<SessionShared>, mut child: Child) {
    while let Ok(mut answer) = packet(&mut from).await {
        let Some(number) = answer.number() else { break };
        let waiting = lock(&shared.waiting)
            .as_mut()
            .map(|all| all.remove(&number));
        if let Some(Some(waiting)) = waiting {
            // The caller may have stopped waiting.
            let _ = waiting.send(answer);
        }
    }
    // The client may write its last messages shortly after it has closed the channel.
    let _ = tokio::time::timeout(LAST_WORDS, child.wait()).await;
    *lock(&shared.waiting) = None;
}

async fn send(mut to: ChildStdin, mut packets: mpsc::Receiver<Vec<u8>>) {
    while let Some(packet) = packets.recv().await {
        if to.write_all(&packet).await.is_err() {
            break;
        }
    }
}

async fn listen(mut from: tokio::process::ChildStderr, shared: Arc<SessionShared>) {
    let mut bytes = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let mut printed = lock(&shared.printed);
        if printed.len() < PRINTED_BYTES_MAX {
            printed.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
}

impl SftpSession {
    /// Starts the SSH client and connects to the server.
    ///
    /// # Errors
    /// The messages that the client has printed.
    pub(super) async fn start(target: &SftpAccount) -> Result<Self, String> {
        let mut child = command(target).spawn().map_err(|error| {
            format!("the program ssh could not be started ({error}): install OpenSSH's client")
        })?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut to), Some(mut from), Some(says)) = pipes else {
            return Err("no pipes".into());
        };
        let shared = Arc::new(SessionShared::default());
        let listening = tokio::spawn(listen(says, shared.clone()));
        let hello = async {
            to.write_all(&Packet::new(INIT).number(3).sent(None))
                .await?;
            packet(&mut from).await
        };
        let hello = tokio::time::timeout(SILENCE, hello).await;
        let able = match hello {
            Err(_) => Err("no answer in 60 s".to_owned()),
            Ok(Err(error)) => {
                let _ = tokio::time::timeout(LAST_WORDS, child.wait()).await;
                drop(child);
                let _ = tokio::time::timeout(LAST_WORDS, listening).await;
                let printed = lock(&shared.printed).trim().to_owned();
                return Err(if printed.is_empty() {
                    error.to_string()
                } else {
                    printed
                });
            }
            Ok(Ok(answer)) => {
                extensions(answer).ok_or("the server does not speak SFTP version 3".into())
            }
        }?;
        *lock(&shared.waiting) = Some(PendingReplies::new());
        let (packets, sending) = mpsc::channel(SENT_MAX);
        let answering = tokio::spawn(answers(from, shared.clone(), child));
        Ok(Self {
            shared,
            send: packets,
            next: 0.into(),
            tasks: [answering, tokio::spawn(send(to, sending)), listening],
            able,
        })
    }

    pub(super) fn can(&self, extension: &str) -> bool {
        self.able.contains(extension)
    }

    pub(super) fn is_up(&self) -> bool {
        lock(&self.shared.waiting).is_some()
    }

    fn end(&self) {
        *lock(&self.shared.waiting) = None;
        self.tasks.iter().for_each(JoinHandle::abort);
    }

    fn expect(&self) -> Option<(u32, oneshot::Receiver<ReplyBody>)> {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (to, answer) = oneshot::channel();
        lock(&self.shared.waiting).as_mut()?.insert(number, to);
        Some((number, answer))
    }

    /// Sends a request and waits for the server's answer.
    ///
    /// # Errors
    /// The connection has ended or ends, or the server does not answer.
    pub(super) async fn ask(&self, packet: Packet) -> Result<ReplyBody, String> {
        let ended = || {
            let printed = lock(&self.shared.printed).trim().to_owned();
            format!("the connection has ended {printed}")
        };
        let (number, answer) = self.expect().ok_or_else(ended)?;
        let asked = async {
            let sent = self.send.send(packet.sent(Some(number))).await;
            sent.map_err(|_| ended())?;
            answer.await.map_err(|_| ended())
        };
        match tokio::time::timeout(SILENCE, asked).await {
            Ok(answer) => answer,
            Err(_) => {
                self.end();
                Err("no answer in 60 s".into())
            }
        }
    }

    /// Sends a request whose answer is ignored.
    pub(super) fn tell(&self, packet: Packet) {
        if let Some((number, _)) = self.expect() {
            let sent = self.send.try_send(packet.sent(Some(number)));
            if let Err(TrySendError::Full(packet)) = sent
                && let Ok(runtime) = Handle::try_current()
            {
                // The packet is sent after the waiting ones. The task ends with the connection.
                let send = self.send.clone();
                runtime.spawn(async move { send.send(packet).await });
            }
        }
    }
}

impl Drop for SftpSession {
    fn drop(&mut self) {
        self.end();
    }
}

fn extensions(mut answer: ReplyBody) -> Option<BTreeSet<String>> {
    if answer.kind != VERSION || answer.number()? < 3 {
        return None;
    }
    let mut able = BTreeSet::new();
    while let Some(name) = answer.bytes() {
        answer.bytes()?;
        able.insert(String::from_utf8_lossy(&name).into_owned());
    }
    Some(able)
}
