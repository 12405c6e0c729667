//! Reads a job file by its path, with the rights of the process that opened `submit`, and submits it. Cancels a job by its handle, with
//! the rights of the process that opened `cancel`. Requests are sent to the server (next: `server/src`).

use super::super::{Caller, Fs};
use super::ControlRequest;
use crate::error::Error;
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;
use tidemill_client::Error as ClientError;
use tidemill_client::transfer::Transfer;
use tidemill_wire::v1;

/// Maximum length in bytes of a line written to `submit` and `cancel`.
pub(super) const PATH_BYTES_MAX: usize = 4096;
/// Maximum size of a job file, in bytes.
const SCRIPT_BYTES_MAX: u64 = tidemill_wire::USER_SCRIPT_BYTES_MAX as u64;
/// Maximum time that a submission waits for the seal of files that were just closed.
const SEAL_PATIENCE: Duration = Duration::from_secs(20);

/// State of a process when it opened `submit`, `cancel` or `new-files`. The Linux kernel blocks the process in its call until the mount
/// answers, so its process id is valid during the call; later another process may have the id.
#[derive(Debug)]
pub(super) struct OpenerProcess {
    caller: Caller,
    /// Supplementary groups of the process; empty if it is in another process namespace.
    groups: Vec<u32>,
    /// Working directory of the process, for relative paths.
    cwd: std::io::Result<PathBuf>,
}

impl OpenerProcess {
    /// Returns the state of a process whose `open` is not answered yet.
    pub(super) fn of(caller: Caller) -> Self {
        Self {
            caller,
            groups: groups_of(caller.pid),
            cwd: std::fs::read_link(format!("/proc/{}/cwd", caller.pid)),
        }
    }

    pub(super) fn caller(&self) -> Caller {
        self.caller
    }

    /// Returns the process's credentials, which the server checks.
    pub(super) fn credentials(&self) -> v1::Credentials {
        v1::Credentials {
            uid: self.caller.uid,
            gid: self.caller.gid,
            groups: self.groups.clone(),
            checked: false,
        }
    }
}

/// Reason for a refused line: the errno of the system call, and the text of `last-error`.
struct ControlRefusal {
    errno: Errno,
    why: String,
}

impl From<String> for ControlRefusal {
    fn from(why: String) -> Self {
        let errno = Errno::INVAL;
        Self { errno, why }
    }
}

impl From<ClientError> for ControlRefusal {
    fn from(error: ClientError) -> Self {
        // A request to an unreachable server may be repeated, a wrong request may not.
        let errno = if error.is_lost() {
            Errno::from_raw_os_error(error.errno())
        } else {
            Errno::INVAL
        };
        Self {
            errno,
            why: error.to_string(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ScriptLocation {
    /// Path on this host; if it does not exist on the host, the same path in the namespace.
    Host(PathBuf),
    Namespace(PathBuf),
}

impl Fs {
    /// Submits the job file that a line names, or cancels the job. The error is stored for `last-error`.
    pub(super) fn take_line(
        &self,
        opener: &OpenerProcess,
        (order, uid): (ControlRequest, u32),
        line: &[u8],
    ) -> Result<(), Error> {
        let line = String::from_utf8_lossy(line).trim().to_owned();
        if line.is_empty() {
            return Ok(());
        }
        let outcome = match order {
            ControlRequest::Submit => self.submit(opener, &line),
            ControlRequest::Cancel => self.cancel(opener, &line),
        };
        let mut errors = self.control.errors.lock();
        match outcome {
            Ok(()) => {
                errors.remove(&uid);
                Ok(())
            }
            Err(refusal) => {
                errors.insert(uid, refusal.why + "\n");
                Err(refusal.errno.into())
            }
        }
    }

    fn cancel(&self, opener: &OpenerProcess, handle: &str) -> Result<(), ControlRefusal> {
        let job = handle
            .parse()
            .map_err(|_| format!("{handle}: not the handle of a job; joblist lists the handles"))?;
        let request = v1::GetJobRequest {
            credentials: Some(opener.credentials()),
            job,
        };
        let server = &self.backend.server;
        self.backend.ask_once(async {
            let reply = server.jobs().cancel(request).await;
            reply.map_err(|status| server.explain(status))
        })?;
        Ok(())
    }

    fn submit(&self, opener: &OpenerProcess, path: &str) -> Result<(), ControlRefusal> {
        // The job reads sealed versions, so inputs that were closed a moment ago have to be sealed first.
        self.drain(SEAL_PATIENCE).map_err(|left| ControlRefusal {
            errno: Errno::BUSY,
            why: format!(
                "{} files that were closed are not sealed yet, so that a job might read their previous content ({}); \
                 submit again when .tidemill/status shows none",
                left.versions, left.why
            ),
        })?;
        let place = self.locate(opener, Path::new(path))?;
        let caller = opener.caller;
        let credentials = opener.credentials();
        let (source, script) = match place {
            ScriptLocation::Namespace(path) => {
                let text = self.read_stored(&credentials, &path)?;
                (path, text)
            }
            ScriptLocation::Host(path) => match read_as(caller, &credentials.groups, &path) {
                Ok(text) => (path, text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    let stored = self.read_stored(&credentials, &path);
                    let text = stored.map_err(|_| format!("{}: {error}", path.display()))?;
                    (path, text)
                }
                Err(error) => return Err(format!("{}: {error}", path.display()).into()),
            },
        };
        let script = String::from_utf8(script)
            .map_err(|_| format!("{}: a job file is UTF-8 text", source.display()))?;
        let request = v1::SubmitRequest {
            credentials: Some(credentials),
            script,
            source: source.display().to_string(),
            ..v1::SubmitRequest::default()
        };
        let server = &self.backend.server;
        let submitted = self.backend.ask_once(async {
            let reply = server.jobs().submit(request).await;
            Ok(reply.map_err(|status| server.explain(status))?.into_inner())
        });
        let errors = submitted?.errors;
        if errors.is_empty() {
            Ok(())
        } else {
            Err(errors.join("\n").into())
        }
    }

    /// Makes a path absolute with the opener's working directory, and determines whether the path is in the mount.
    fn locate(&self, opener: &OpenerProcess, path: &Path) -> Result<ScriptLocation, String> {
        let absolute = if path.is_absolute() {
            path.to_owned()
        } else {
            let cwd = opener.cwd.as_ref().map_err(|error| {
                format!(
                    "{}: give an absolute path (your working directory: {error})",
                    path.display()
                )
            })?;
            cwd.join(path)
        };
        let clean = normal(&absolute);
        Ok(match clean.strip_prefix(&self.mountpoint) {
            Ok(inside) => ScriptLocation::Namespace(Path::new("/").join(inside)),
            Err(_) => ScriptLocation::Host(clean),
        })
    }

    fn read_stored(&self, credentials: &v1::Credentials, path: &Path) -> Result<Vec<u8>, String> {
        let mut text = Vec::new();
        let server = self.backend.server.clone();
        let name = path.display().to_string();
        let read = self.backend.ask_once(async {
            let transfer = Transfer::new(server, credentials.clone());
            transfer
                .read(&name, |piece| {
                    if (text.len() + piece.len()) as u64 <= SCRIPT_BYTES_MAX {
                        text.extend_from_slice(&piece);
                    }
                    Ok(())
                })
                .await
        });
        match read {
            Ok(size) if size > SCRIPT_BYTES_MAX => Err(too_large(path)),
            Ok(_) => Ok(text),
            Err(error) => Err(format!("{name}: {error}")),
        }
    }
}

fn too_large(path: &Path) -> String {
    format!(
        "{}: a job file has at most {SCRIPT_BYTES_MAX} bytes",
        path.display()
    )
}

/// Returns the path without `.` and `..`, without looking at the file system.
fn normal(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

/// Returns the supplementary groups of a process; an empty list if it has ended or is in another process namespace.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let numbers = line.unwrap_or_default().split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Reads a regular file of this host with the rights of a user, on a thread that drops all other rights.
fn read_as(caller: Caller, groups: &[u32], path: &Path) -> std::io::Result<Vec<u8>> {
    let (path, groups) = (path.to_owned(), groups.to_vec());
    let reader = std::thread::Builder::new()
        .name("script".into())
        .spawn(move || {
            if rustix::process::geteuid().is_root() && caller.uid != 0 {
                let groups: Vec<_> = groups.into_iter().map(Gid::from_raw).collect();
                let (uid, gid) = (Uid::from_raw(caller.uid), Gid::from_raw(caller.gid));
                rustix::thread::set_thread_groups(&groups)?;
                rustix::thread::set_thread_res_gid(gid, gid, gid)?;
                rustix::thread::set_thread_res_uid(uid, uid, uid)?;
            }
            read_script(&path)
        })?;
    reader
        .join()
        .unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}

fn read_script(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut options = std::fs::OpenOptions::new();
    // A pipe must not block the mount.
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(SCRIPT_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > SCRIPT_BYTES_MAX {
        return Err(std::io::Error::other(too_large(path)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_path_resolves_dots_without_file_system() {
        assert_eq!(normal(Path::new("/a/./b/../c")), Path::new("/a/c"));
        assert_eq!(normal(Path::new("/../a")), Path::new("/a"));
    }

    #[test]
    fn groups_of_process_match_getgroups() {
        let mine = rustix::process::getgroups().unwrap();
        let mut mine: Vec<_> = mine.into_iter().map(rustix::process::Gid::as_raw).collect();
        mine.sort_unstable();
        let mut reported = groups_of(std::process::id());
        reported.sort_unstable();
        assert_eq!(reported, mine);
    }
}
