//! Resolves paths as the Linux kernel does on a mount (next: `mount/src/fs/names.rs`).

use super::rights::{self, SEARCH};
use crate::error::Error;
use crate::fs::{Caller, Fs, InodeKey, LookupResult, WaitPolicy};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashSet;
use tidemill_model::id::Inode;
use tidemill_wire::v1::Kind;

/// Maximum number of symbolic links in one path, as in Linux.
const LINKS_MAX: u32 = 40;
/// Maximum number of inodes that stay cached without being open.
const KEPT_MAX: usize = 65_536;

/// Reason why a request has no answer.
#[derive(Debug)]
pub(super) enum Fail {
    /// The file system returned an error.
    Error(Error),
    /// The path leaves the cluster and continues with this path on the host.
    Leaves(Vec<u8>),
}

impl<E: Into<Error>> From<E> for Fail {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramPath<'a> {
    /// Inode of the directory at which the path begins, unless it begins with a slash.
    pub(super) base: u64,
    pub(super) text: &'a [u8],
    /// Prefix of absolute symbolic links into the cluster.
    pub(super) prefix: &'a [u8],
}

#[derive(Debug)]
pub(super) struct PathTarget {
    /// Directory that contains the last name; the caller may search it.
    pub(super) parent: LookupResult,
    /// Last name of the path; empty if the path ends without a name of its own, as with `..`.
    pub(super) name: Vec<u8>,
    pub(super) found: Option<LookupResult>,
    /// Whether the path ends with a slash, so that only a directory is allowed.
    pub(super) directory: bool,
}

impl PathTarget {
    /// Returns the file at the path; an error if the path does not exist.
    pub(super) fn there(&self) -> Result<LookupResult, Fail> {
        let found = self.found.ok_or(Errno::NOENT)?;
        if self.directory && found.attr.kind() != Kind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        Ok(found)
    }
}

/// Looks up the names of paths. The walker keeps found inodes cached, as the Linux kernel does.
#[derive(Debug, Default)]
pub(super) struct Walker {
    kept: Mutex<HashSet<u64>>,
}

impl Walker {
    /// Keeps a found inode cached, with the reference that the look-up counted.
    pub(super) fn keep(&self, fs: &Fs, found: &LookupResult) {
        if found.key.is_special() {
            return;
        }
        let mut kept = self.kept.lock();
        if !kept.insert(found.key.ino) {
            drop(kept);
            fs.forget(found.key, 1);
        } else if kept.len() > KEPT_MAX {
            let all = std::mem::take(&mut *kept);
            drop(kept);
            for ino in all {
                fs.forget(InodeKey { ino, alias: 0 }, 1);
            }
        }
    }

    fn look(
        &self,
        fs: &Fs,
        caller: Caller,
        parent: InodeKey,
        name: &[u8],
    ) -> Result<LookupResult, Error> {
        if parent.is_special() {
            return fs.control_lookup(caller, parent.ino, name, WaitPolicy::MayWait);
        }
        if parent.ino == Inode::ROOT.0
            && let Some(found) = fs.control.at_root(name)
        {
            return Ok(found);
        }
        let found = fs.lookup(caller, parent.ino, name, WaitPolicy::MayWait)?;
        self.keep(fs, &found);
        Ok(found)
    }

    /// Returns the current description of an inode.
    pub(super) fn at(fs: &Fs, caller: Caller, key: InodeKey) -> Result<LookupResult, Error> {
        if key.is_special() {
            fs.control_getattr(caller, key.ino, WaitPolicy::MayWait)
        } else {
            fs.getattr(caller, key, WaitPolicy::MayWait)
        }
    }

    /// Resolves a path; with `follow` also a symbolic link at its end.
    pub(super) fn walk(
        &self,
        fs: &Fs,
        caller: Caller,
        path: ProgramPath<'_>,
        follow: bool,
    ) -> Result<PathTarget, Fail> {
        if path.text.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let mut walk = PathWalk::new(fs, caller, path)?;
        while let Some(name) = walk.next.pop() {
            match &name[..] {
                b"" | b"." => {}
                b".." => walk.up(self, path)?,
                _ => {
                    if let Some(place) = walk.down(self, &name, path, follow)? {
                        return Ok(place);
                    }
                }
            }
        }
        Ok(walk.ends_here())
    }
}

/// State of resolving a path.
struct PathWalk<'a> {
    fs: &'a Fs,
    caller: Caller,
    here: LookupResult,
    /// Parent directories, each with the name that continued from it.
    trail: Vec<(LookupResult, Vec<u8>)>,
    /// Remaining names of the path, the next name last.
    next: Vec<Vec<u8>>,
    links: u32,
    directory: bool,
}

fn names(text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    text.rsplit(|&byte| byte == b'/').map(<[u8]>::to_vec)
}

impl<'a> PathWalk<'a> {
    fn new(fs: &'a Fs, caller: Caller, path: ProgramPath<'_>) -> Result<Self, Fail> {
        let base = if path.text.starts_with(b"/") {
            Inode::ROOT.0
        } else {
            path.base
        };
        let here = Walker::at(fs, caller, InodeKey::unpack(base))?;
        Ok(Self {
            fs,
            caller,
            here,
            trail: Vec::new(),
            next: names(path.text).collect(),
            links: 0,
            directory: path.text.ends_with(b"/"),
        })
    }

    fn ends_here(self) -> PathTarget {
        let mut trail = self.trail;
        let (parent, name) = trail.pop().unwrap_or((self.here, Vec::new()));
        PathTarget {
            parent,
            name,
            found: Some(self.here),
            directory: true,
        }
    }

    /// Returns the names after the current name, as a path.
    fn rest(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        for name in self.next.iter().rev() {
            rest.push(b'/');
            rest.extend_from_slice(name);
        }
        rest
    }

    fn searchable(&self) -> Result<(), Fail> {
        if self.here.attr.kind() != Kind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        Ok(rights::may(self.caller, &self.here.attr, SEARCH)?)
    }

    fn up(&mut self, walker: &Walker, path: ProgramPath<'_>) -> Result<(), Fail> {
        self.searchable()?;
        if self.here.key.ino == Inode::ROOT.0 {
            let above = path.prefix.rsplitn(2, |&byte| byte == b'/').nth(1);
            let mut left = above.unwrap_or_default().to_vec();
            left.extend(self.rest());
            if left.is_empty() {
                left.push(b'/');
            }
            return Err(Fail::Leaves(left));
        }
        self.here = match self.trail.pop() {
            Some((above, _)) => above,
            None => walker.look(self.fs, self.caller, self.here.key, b"..")?,
        };
        Ok(())
    }

    /// Continues with a name. Returns the target if the name was the last name.
    fn down(
        &mut self,
        walker: &Walker,
        name: &[u8],
        path: ProgramPath<'_>,
        follow: bool,
    ) -> Result<Option<PathTarget>, Fail> {
        self.searchable()?;
        let last = self.next.iter().all(Vec::is_empty);
        let found = match walker.look(self.fs, self.caller, self.here.key, name) {
            Ok(found) => Some(found),
            Err(error) if last && error.is(Errno::NOENT) => None,
            Err(error) => return Err(error.into()),
        };
        let kind = found.map(|found| found.attr.kind());
        if let Some(found) = found
            && kind == Some(Kind::Symlink)
            && (!last || follow || self.directory)
        {
            self.through(found, path)?;
            return Ok(None);
        }
        if last {
            return Ok(Some(PathTarget {
                parent: self.here,
                name: name.to_vec(),
                found,
                directory: self.directory,
            }));
        }
        let found = found.ok_or(Errno::NOENT)?;
        self.trail.push((self.here, name.to_vec()));
        self.here = found;
        Ok(None)
    }

    fn through(&mut self, link: LookupResult, path: ProgramPath<'_>) -> Result<(), Fail> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = if link.key.is_special() {
            self.fs.control_readlink(link.key.ino)?
        } else {
            self.fs
                .readlink(self.caller, link.key.ino, WaitPolicy::MayWait)?
        };
        // A slash after the link's own name counts as one after its target.
        let ends = self.next.iter().all(Vec::is_empty);
        self.directory |= ends && target.ends_with(b"/");
        if target.starts_with(b"/") {
            let inside = target.strip_prefix(path.prefix);
            let inside = inside.filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
            let Some(inside) = inside else {
                let mut left = target;
                left.extend(self.rest());
                return Err(Fail::Leaves(left));
            };
            let root = InodeKey {
                ino: Inode::ROOT.0,
                alias: 0,
            };
            self.here = Walker::at(self.fs, self.caller, root)?;
            self.trail.clear();
            self.next.extend(names(inside));
        } else {
            self.next.extend(names(&target));
        }
        Ok(())
    }
}
