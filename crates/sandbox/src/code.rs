//! Opened code of a run. The launcher opens each code file once, with the rights of the run's user, and then uses only the open file. The
//! owner of a program's directory can change the target of the program's name at any moment.

use std::ffi::{CStr, CString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::LazyLock;

use rustix::fs::{CWD, ResolveFlags};
use rustix::process::Gid;

use crate::error::PrepareError;
use crate::private::{OWN_USER, open_plain};
use crate::program::{hash_open, pipeline_hash};
use crate::run::{CodeSource, Run, RunInput, User};
use crate::sandbox::ids::Ids;
use tidemill_compute::builtin_hash;

const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

/// Maximum length of a script's first line that the operating system reads, in bytes.
const FIRST_LINE_BYTES: usize = 256;

/// An open code file.
#[derive(Debug)]
pub(crate) struct CodeFile {
    /// Open file, at its beginning.
    pub(crate) file: File,
    /// blake3 hash of the file's content in hexadecimal.
    pub(crate) hash: String,
    /// Whether the kernel's user can execute the file at its own path.
    pub(crate) reached: bool,
}

/// Opens the code files of a run, in their order. The run's user needs no right to read code that is an input of the run. The user must
/// be able to read all other code, and to execute programs.
///
/// # Errors
/// If the user has no right to a file, or if a file is no plain file.
pub(crate) fn open(run: &Run, ids: Ids) -> Result<Vec<CodeFile>, PrepareError> {
    let files = run.code.parts().filter_map(|code| {
        let path = code.file()?;
        Some(open_one(
            path,
            matches!(code, CodeSource::Program(_)),
            run,
            ids,
        ))
    });
    files.collect()
}

fn open_one(path: &Path, executed: bool, run: &Run, ids: Ids) -> Result<CodeFile, PrepareError> {
    let error = |source| PrepareError::Code {
        path: path.to_owned(),
        source,
    };
    let (file, reached) = match run.user {
        Some(user) if input_of(run, path).is_none() => {
            let kernel = ids.outside(user)?;
            open_as(user, kernel, path, executed).map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => PrepareError::Forbidden {
                    path: path.to_owned(),
                    uid: user.uid,
                },
                _ => error(source),
            })?
        }
        user => {
            let (file, data) = open_code(path).map_err(error)?;
            let reached = user.is_none() && may(&data, *OWN_USER, READ | EXECUTE);
            (file, reached)
        }
    };
    if executed
        && let Some(interpreter) = interpreter(&file).map_err(error)?
        && !Path::new(&interpreter).exists()
    {
        return Err(PrepareError::Interpreter {
            path: path.to_owned(),
            interpreter,
        });
    }
    Ok(CodeFile {
        hash: hash_open(&file).map_err(error)?,
        file,
        reached,
    })
}

/// Returns the run's input that is the file at `path`, if any.
pub(crate) fn input_of<'a>(run: &'a Run, path: &Path) -> Option<&'a RunInput> {
    run.inputs.iter().find(|input| input.path == path)
}

/// Returns the hash of a run's code with these code files, in hexadecimal.
pub(crate) fn hash(code: &CodeSource, files: &[CodeFile]) -> String {
    let mut files = files.iter();
    let part = |part: &CodeSource| match part {
        CodeSource::Builtin(name) => builtin_hash(name),
        _ => files.next().map(|file| file.hash.clone()),
    };
    let mut parts: Vec<String> = code.parts().filter_map(part).collect();
    match code {
        CodeSource::Pipeline(_) => pipeline_hash(&parts),
        _ => parts.pop().unwrap_or_default(),
    }
}

fn open_code(path: &Path) -> io::Result<(File, Metadata)> {
    // Magic links are refused: a name below `/proc` must not lead to an open file of this process.
    open_plain(CWD, path, ResolveFlags::NO_MAGICLINKS)
}

/// Opens code with the rights of a user, of whose groups only the primary group counts. The second value is true if the kernel's user can
/// reach the file at its path.
fn open_as(user: User, kernel: User, path: &Path, executed: bool) -> io::Result<(File, bool)> {
    let rights = Rights::of(user)?;
    let (file, _) = open_code(path)?;
    if executed {
        may_execute(&file, c"")?;
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let reached = user == kernel
        || (rights.become_those_of(kernel)).is_ok_and(|()| may_execute(CWD, &path).is_ok());
    Ok((file, reached))
}

/// Checks that this thread may read and execute a file.
fn may_execute(at: impl AsFd, path: &CStr) -> io::Result<()> {
    let (call, at) = (libc::SYS_faccessat2, at.as_fd().as_raw_fd());
    let (mode, flags) = (
        libc::R_OK | libc::X_OK,
        libc::AT_EACCESS | libc::AT_EMPTY_PATH,
    );
    // SAFETY: reads a path that is terminated, and asks for the rights of this thread.
    match unsafe { libc::syscall(call, at, path.as_ptr(), mode, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Rights of this thread over files, until this value is dropped. If this process does not run as root, the thread keeps its own rights.
struct Rights;

/// Supplementary groups of this process.
static OWN_GROUPS: LazyLock<Vec<Gid>> =
    LazyLock::new(|| rustix::process::getgroups().unwrap_or_default());

impl Rights {
    fn of(user: User) -> io::Result<Self> {
        if OWN_USER.uid == 0 {
            LazyLock::force(&OWN_GROUPS);
            rustix::thread::set_thread_groups(&[])?;
        }
        let rights = Self;
        rights.become_those_of(user)?;
        Ok(rights)
    }

    fn become_those_of(&self, user: User) -> io::Result<()> {
        if OWN_USER.uid == 0 {
            take(user)
        } else {
            Ok(())
        }
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        let groups = || Ok(rustix::thread::set_thread_groups(&OWN_GROUPS)?);
        if OWN_USER.uid == 0 && take(*OWN_USER).and_then(|()| groups()).is_err() {
            // The next user of this thread would act with the rights of somebody else.
            std::process::abort();
        }
    }
}

/// Gives this thread a user's rights over files.
fn take(user: User) -> io::Result<()> {
    // SAFETY: bare system calls with numbers, which concern this thread only.
    let now = unsafe {
        libc::syscall(libc::SYS_setfsgid, user.gid);
        libc::syscall(libc::SYS_setfsuid, user.uid);
        // Both calls return the previous number. A call with an invalid number changes nothing.
        [libc::SYS_setfsuid, libc::SYS_setfsgid].map(|call| libc::syscall(call, u32::MAX))
    };
    if now == [i64::from(user.uid), i64::from(user.gid)] {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// Returns whether `user` may use a file for all of `bits` (4 read, 2 write, 1 execute), without capabilities.
pub(crate) fn may(data: &Metadata, user: User, bits: u32) -> bool {
    let shift = if data.uid() == user.uid {
        6
    } else if data.gid() == user.gid {
        3
    } else {
        0
    };
    (data.mode() >> shift) & bits == bits
}

/// Returns the interpreter that a script names in its first line; `None` if the file is no script.
fn interpreter(file: &File) -> io::Result<Option<String>> {
    let mut line = [0; FIRST_LINE_BYTES];
    let length = file.read_at(&mut line, 0)?;
    let line = &line[..length];
    let Some(rest) = line.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let rest = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let name = String::from_utf8_lossy(rest);
    Ok(Some(
        name.split_ascii_whitespace()
            .next()
            .unwrap_or_default()
            .to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_interpreter_is_read_from_first_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("script");
        std::fs::write(&file, "#! /usr/bin/env python3\nprint()\n").unwrap();
        let read = || interpreter(&File::open(&file).unwrap()).unwrap();
        assert_eq!(read().as_deref(), Some("/usr/bin/env"));
        std::fs::write(&file, "echo").unwrap();
        assert_eq!(read(), None);
    }

    #[test]
    fn open_as_restores_own_rights() {
        let groups = || rustix::process::getgroups().unwrap();
        let before = groups();
        let directory = tempfile::tempdir().unwrap();
        let closed = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(directory.path(), closed).unwrap();
        let user = User {
            uid: 1000,
            gid: 1000,
        };
        let refused = open_as(user, user, &directory.path().join("none"), true).unwrap_err();
        let expected = if OWN_USER.uid == 0 {
            io::ErrorKind::PermissionDenied
        } else {
            io::ErrorKind::NotFound
        };
        assert_eq!(refused.kind(), expected);
        assert_eq!(groups(), before);
        std::fs::write(directory.path().join("own"), "x").unwrap();
        let own = std::fs::metadata(directory.path().join("own")).unwrap();
        assert_eq!((own.uid(), own.gid()), (OWN_USER.uid, OWN_USER.gid));
    }
}
