//! Creation of many small files in one call: each is created, written and closed, with the rights of the process that opened `new-files`.
//! The module sends names to the server and bytes to nodes (next: `mount/src/fs/seal.rs`).
//!
//! Each file behaves as with `open` with `O_CREAT | O_EXCL`, `write` and `close`, but the server gets only one request for all files. A
//! file that cannot be created is undone and reported, and the other files are created all the same. `docs/formats.md` describes the format
//! of the written bytes.

use super::super::deadline;
use super::super::entries::CachedName;
use super::super::names::check_change;
use super::super::object::OpenObject;
use super::super::remote::now_ns;
use super::super::table::{CachedInode, InodeKey, WrittenVersion};
use super::super::{Caller, Fs};
use super::submit::OpenerProcess;
use crate::error::Error;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_wire::v1::{self, Attr, Kind, name_op::Op, name_result::Result as Answer};

/// First bytes of a call, with the version of its format.
const MAGIC: &[u8; 4] = b"TMNF";
const VERSION: u32 = 1;
/// Maximum number of files of one call, and maximum number of bytes of one file.
const FILES_MAX: usize = 1024;
const DATA_BYTES_MAX: usize = 64 << 10;
/// Mode bits that a new file can have.
const MODES: u32 = 0o777;
/// Number of refused files of one call after which the remaining files are refused without a request, because each refusal costs a request.
const REFUSALS_MAX: usize = 8;
/// Number of unsealed versions above which a call waits, because each unsealed version is an open file of the mount's process.
const UNSEALED_MAX: usize = 4096;
/// Number of files on other hosts that are written at the same time.
const LANES: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct NewFile<'a> {
    directory: u64,
    mode: u32,
    name: &'a [u8],
    data: &'a [u8],
}

/// A created file that has no content yet.
struct CreatedFile<'a> {
    /// Index of the file in the call.
    at: usize,
    file: &'a NewFile<'a>,
    op: Op,
    opened: v1::Opened,
    vnode: Arc<CachedInode>,
}

/// Reads a number of the call's format.
fn number(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*number))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

/// Returns the files of a call; `None` if the bytes are not a valid call.
pub(super) fn parse(mut bytes: &[u8]) -> Option<Vec<NewFile<'_>>> {
    let bytes = &mut bytes;
    (take(bytes, 4)? == MAGIC && number(bytes)? == VERSION).then_some(())?;
    let count = usize::try_from(number(bytes)?).ok()?;
    (1..=FILES_MAX).contains(&count).then_some(())?;
    let mut files = Vec::with_capacity(count);
    for _ in 0..count {
        let (low, high) = (number(bytes)?, number(bytes)?);
        let (mode, name, data) = (number(bytes)?, number(bytes)?, number(bytes)?);
        let (name, data) = (usize::try_from(name).ok()?, usize::try_from(data).ok()?);
        (mode & !MODES == 0 && data <= DATA_BYTES_MAX).then_some(())?;
        files.push(NewFile {
            directory: u64::from(low) | u64::from(high) << 32,
            mode,
            name: take(bytes, name)?,
            data: take(bytes, data)?,
        });
    }
    bytes.is_empty().then_some(files)
}

impl Fs {
    /// Creates, writes and closes files. Returns the errno of each file, or 0 for success.
    pub(super) fn make_files(&self, opener: &OpenerProcess, files: &[NewFile<'_>]) -> Vec<i32> {
        let (caller, time) = (opener.caller(), now_ns());
        let names: Vec<_> = files
            .iter()
            .map(|file| (file.directory, file.name))
            .collect();
        let mut outcomes = vec![Errno::AGAIN.raw_os_error(); files.len()];
        if !self.sealer.wait_below(UNSEALED_MAX, deadline::deadline()) {
            return outcomes;
        }
        let change = self.table.begin(&names);
        let made = self.make_names(opener, files, (change.asked, time), &mut outcomes);
        let written = self.write_all(caller, &made);
        let mut truths = vec![CachedName::Unsure; files.len()];
        let (mut done, mut vain) = (Vec::new(), Vec::new());
        for (made, object) in made.iter().zip(written) {
            match object {
                Ok(object) => {
                    truths[made.at] = CachedName::Is(made.vnode.ino);
                    outcomes[made.at] = 0;
                    done.push((made, object));
                }
                Err(error) => {
                    outcomes[made.at] = error.errno();
                    vain.push(made);
                }
            }
        }
        self.undo_all(caller, &vain);
        // Before the seal: nodes receive paths.
        change.settle(&truths);
        for (made, object) in done {
            self.close_made(caller, &made.vnode, object);
        }
        let directories: BTreeSet<u64> = made.iter().map(|made| made.file.directory).collect();
        for directory in directories {
            self.touched(directory, time, 0);
            // The kernel did not create these names itself.
            self.forget_attributes(directory);
        }
        for made in &made {
            self.table.let_go(made.vnode.ino, 1);
        }
        outcomes
    }

    /// Makes the server create the names of files, with the caller's rights.
    fn make_names<'a>(
        &self,
        opener: &OpenerProcess,
        files: &'a [NewFile<'a>],
        (asked, time): (u64, i64),
        outcomes: &mut [i32],
    ) -> Vec<CreatedFile<'a>> {
        let mut rest: Vec<(usize, Op)> = Vec::with_capacity(files.len());
        let here = self.backend.here();
        for (at, file) in files.iter().enumerate() {
            match self.create_op(opener.caller(), file, (time, &here)) {
                Ok(op) => rest.push((at, op)),
                Err(error) => outcomes[at] = error.errno(),
            }
        }
        let mut made = Vec::with_capacity(rest.len());
        let mut refused = 0;
        while !rest.is_empty() && refused < REFUSALS_MAX {
            let ops = rest.iter().map(|(_, op)| op.clone()).collect();
            let answers = match self.backend.apply_as(opener.credentials(), ops) {
                Ok(answers) if !answers.is_empty() => answers,
                Ok(_) => break,
                Err(error) => {
                    for (at, op) in rest {
                        outcomes[at] = error.errno();
                        // The server may still carry it out.
                        self.backend.undo(opener.caller(), &op);
                    }
                    self.backend.doubt();
                    break;
                }
            };
            let behind = rest.split_off(answers.len().min(rest.len()));
            for ((at, op), answer) in std::mem::replace(&mut rest, behind)
                .into_iter()
                .zip(answers)
            {
                match answer {
                    Answer::Opened(opened) => {
                        let vnode = self.begin_made(&opened, asked);
                        let file = &files[at];
                        made.push(CreatedFile {
                            at,
                            file,
                            op,
                            opened,
                            vnode,
                        });
                    }
                    Answer::Error(error) => {
                        outcomes[at] = error.errno;
                        refused += 1;
                    }
                    _ => outcomes[at] = Errno::IO.raw_os_error(),
                }
            }
        }
        made
    }

    fn create_op(
        &self,
        caller: Caller,
        file: &NewFile<'_>,
        (time, here): (i64, &[u32]),
    ) -> Result<Op, Error> {
        check_change(file.directory, file.name, Errno::EXIST)?;
        let directory = InodeKey::unpack(file.directory);
        if directory.is_special() || directory.alias != 0 || directory.ino == 0 {
            return Err(Errno::PERM.into());
        }
        let (ino, object) = self.backend.ids()?;
        Ok(Op::Create(v1::Create {
            parent: file.directory,
            name: file.name.to_vec(),
            kind: Kind::File.into(),
            mode: file.mode,
            ino,
            object,
            uid: caller.uid,
            gid: caller.gid,
            time,
            here: here.to_vec(),
            ..v1::Create::default()
        }))
    }

    /// Marks a created file as being written, so that another opener waits for its bytes.
    fn begin_made(&self, opened: &v1::Opened, asked: u64) -> Arc<CachedInode> {
        let attr = opened.attr.unwrap_or_default();
        let vnode = self.table.hold(attr.ino);
        let mut state = vnode.state.lock();
        state.writing = Some(WrittenVersion::starting());
        // This mount is the writer and knows the content, as in `create_open`.
        let attr = Attr {
            writing: false,
            ..attr
        };
        self.adopt(&mut state, attr, asked);
        drop(state);
        vnode
    }

    /// Writes the content of files to the nodes that the server has chosen.
    fn write_all(
        &self,
        caller: Caller,
        made: &[CreatedFile<'_>],
    ) -> Vec<Result<Arc<OpenObject>, Error>> {
        let space = AtomicU64::new(0);
        let write = |made: &CreatedFile<'_>| {
            let bytes = made.file.data.len() as u64;
            let before = space.fetch_add(bytes, Ordering::Relaxed);
            // The server states the limit of each file as if it were the only one.
            if made
                .opened
                .size_max
                .is_some_and(|most| before + bytes > most)
            {
                return Err(Errno::DQUOT.into());
            }
            let object = self.writable(caller, &made.opened)?;
            if !made.file.data.is_empty() {
                object.write(0, made.file.data)?;
            }
            object.flush()?;
            Ok(Arc::new(object))
        };
        let here = |made: &CreatedFile<'_>| self.backend.is_here(made.opened.node);
        if made.iter().all(here) {
            return made.iter().map(write).collect();
        }
        let (until, lane) = (deadline::deadline(), made.len().div_ceil(LANES).max(1));
        std::thread::scope(|scope| {
            let part = |part| scope.spawn(move || deadline::until(until, || each(part, &write)));
            let lanes: Vec<_> = made.chunks(lane).map(part).collect();
            let written = lanes.into_iter().zip(made.chunks(lane));
            let written = written.flat_map(|(lane, part)| {
                let lost = |_| part.iter().map(|_| Err(Errno::IO.into())).collect();
                lane.join().unwrap_or_else(lost)
            });
            written.collect()
        })
    }

    /// Removes the names of files that could not be written.
    fn undo_all(&self, caller: Caller, vain: &[&CreatedFile<'_>]) {
        if vain.is_empty() {
            return;
        }
        let ops: Vec<&Op> = vain.iter().map(|made| &made.op).collect();
        self.backend.undo_all(caller, &ops);
        for made in vain {
            let mut state = made.vnode.state.lock();
            state.writing = None;
            state.fresh = None;
            made.vnode.changed.notify_all();
        }
    }

    /// Closes a file that has all its bytes, so that no program on this mount writes it any more.
    fn close_made(&self, caller: Caller, vnode: &Arc<CachedInode>, object: Arc<OpenObject>) {
        let mut state = vnode.state.lock();
        state.objects.push(Arc::downgrade(&object));
        state.writing = Some(WrittenVersion::open(object, 1, None));
        vnode.changed.notify_all();
        self.left(caller, vnode, &mut state, true);
    }
}

fn each<'a, T>(made: &[CreatedFile<'a>], write: &impl Fn(&CreatedFile<'a>) -> T) -> Vec<T> {
    made.iter().map(write).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a call with these files.
    fn call(files: &[(u64, u32, &[u8], &[u8])]) -> Vec<u8> {
        let mut call = MAGIC.to_vec();
        let mut put = |number: usize| call.extend(u32::try_from(number).unwrap().to_le_bytes());
        put(1);
        put(files.len());
        for (directory, mode, name, data) in files {
            call.extend(directory.to_le_bytes());
            for number in [*mode as usize, name.len(), data.len()] {
                call.extend(u32::try_from(number).unwrap().to_le_bytes());
            }
            call.extend_from_slice(name);
            call.extend_from_slice(data);
        }
        call
    }

    #[test]
    fn malformed_new_files_call_is_refused_whole() {
        let good = call(&[(1, 0o644, b"a", b"bytes"), (1 << 40, 0o600, b"b", b"")]);
        let files = parse(&good).unwrap();
        assert_eq!((files[1].directory, files[1].name), (1 << 40, &b"b"[..]));
        assert_eq!((files[0].mode, files[0].data), (0o644, &b"bytes"[..]));
        for length in 0..good.len() {
            assert!(parse(&good[..length]).is_none(), "cut at {length}");
        }
        assert!(parse(&[&good[..], b"x"].concat()).is_none());
        assert!(parse(&call(&[])).is_none());
        assert!(parse(&call(&[(1, 0o4755, b"a", b"")])).is_none());
        let large = vec![0; DATA_BYTES_MAX + 1];
        assert!(parse(&call(&[(1, 0o644, b"a", &large)])).is_none());
        let many = vec![(1, 0o644, &b"a"[..], &b""[..]); FILES_MAX + 1];
        assert!(parse(&call(&many)).is_none());
        for at in 0..12 {
            let mut other = good.clone();
            other[at] ^= 0x80;
            assert!(parse(&other).is_none(), "byte {at}");
        }
    }
}
