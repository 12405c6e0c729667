//! Small files that are new, many by one call: made, written and closed, with the rights of whoever opened `new-files`.
//!
//! What holds for each of them is what holds for `open` with `O_CREAT | O_EXCL`, `write` and `close`; only the server is asked
//! once for all. A file that can't be is taken back and told, and is no reason not to make the others. The format of what is
//! written is in `docs/formats.md`.

use super::super::entries::Known;
use super::super::names::check_change;
use super::super::object::Object;
use super::super::patience;
use super::super::remote::now_ns;
use super::super::table::{Key, Node, Writing};
use super::super::{Caller, Fs};
use super::submit::Opener;
use crate::error::Error;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidemill_wire::v1::{self, Attr, Kind, name_op::Op, name_result::Result as Answer};

/// What a call begins with, and the version of its format.
const MAGIC: &[u8; 4] = b"TMNF";
const VERSION: u32 = 1;
/// Most files of one call, and most bytes of one of them.
const FILES_MAX: usize = 1024;
const DATA_BYTES_MAX: usize = 64 << 10;
/// Mode bits that a new file can be given.
const MODES: u32 = 0o777;
/// Files of one call that may be refused by the server before the rest is not tried: each is a request of its own.
const REFUSALS_MAX: usize = 8;
/// Versions that are not sealed yet before more is made: each is an open file of the mount's process.
const UNSEALED_MAX: usize = 4096;
/// Files on other hosts that are written at the same time.
const LANES: usize = 8;

/// One file of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NewFile<'a> {
    folder: u64,
    mode: u32,
    name: &'a [u8],
    data: &'a [u8],
}

/// A file that has a name and nobody has written yet.
struct Made<'a> {
    /// Which of the call.
    at: usize,
    file: &'a NewFile<'a>,
    op: Op,
    opened: v1::Opened,
    node: Arc<Node>,
}

/// Takes a number of the call's format.
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

/// The files of a call; `None`: it is none.
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
            folder: u64::from(low) | u64::from(high) << 32,
            mode,
            name: take(bytes, name)?,
            data: take(bytes, data)?,
        });
    }
    bytes.is_empty().then_some(files)
}

impl Fs {
    /// Makes files, writes and closes them; gives of each an errno, 0 if it is there.
    pub(super) fn make_files(&self, opener: &Opener, files: &[NewFile<'_>]) -> Vec<i32> {
        let (caller, time) = (opener.caller(), now_ns());
        let names: Vec<_> = files.iter().map(|file| (file.folder, file.name)).collect();
        let mut outcomes = vec![Errno::AGAIN.raw_os_error(); files.len()];
        if !self.sealer.wait_below(UNSEALED_MAX, patience::deadline()) {
            return outcomes;
        }
        let change = self.table.begin(&names);
        let made = self.make_names(opener, files, (change.asked, time), &mut outcomes);
        let written = self.write_all(caller, &made);
        let mut truths = vec![Known::Unsure; files.len()];
        let (mut done, mut vain) = (Vec::new(), Vec::new());
        for (made, object) in made.iter().zip(written) {
            match object {
                Ok(object) => {
                    truths[made.at] = Known::Is(made.node.ino);
                    outcomes[made.at] = 0;
                    done.push((made, object));
                }
                Err(error) => {
                    outcomes[made.at] = error.errno();
                    vain.push(made);
                }
            }
        }
        self.take_back_all(caller, &vain);
        // Before they are sealed: elements are told paths.
        change.settle(&truths);
        for (made, object) in done {
            self.close_made(caller, &made.node, object);
        }
        let folders: BTreeSet<u64> = made.iter().map(|made| made.file.folder).collect();
        for folder in folders {
            self.touched(folder, time, 0);
            // The kernel made none of these names itself.
            self.forget_attributes(folder);
        }
        for made in &made {
            self.table.let_go(made.node.ino, 1);
        }
        outcomes
    }

    /// Has the server make names, with the rights of who asks.
    fn make_names<'a>(
        &self,
        opener: &Opener,
        files: &'a [NewFile<'a>],
        (asked, time): (u64, i64),
        outcomes: &mut [i32],
    ) -> Vec<Made<'a>> {
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
                        // It may be carried out yet.
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
                        let node = self.begin_made(&opened, asked);
                        let file = &files[at];
                        made.push(Made {
                            at,
                            file,
                            op,
                            opened,
                            node,
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
        check_change(file.folder, file.name, Errno::EXIST)?;
        let folder = Key::unpack(file.folder);
        if folder.is_special() || folder.alias != 0 || folder.ino == 0 {
            return Err(Errno::PERM.into());
        }
        let (ino, object) = self.backend.ids()?;
        Ok(Op::Create(v1::Create {
            parent: file.folder,
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

    /// Whoever opens a file that has its name, and not its bytes, waits for those.
    fn begin_made(&self, opened: &v1::Opened, asked: u64) -> Arc<Node> {
        let attr = opened.attr.unwrap_or_default();
        let node = self.table.hold(attr.ino);
        let mut state = node.state.lock();
        state.writing = Some(Writing::starting());
        // Written here, so known here, as in `create_open`.
        let attr = Attr {
            writing: false,
            ..attr
        };
        self.adopt(&mut state, attr, asked);
        drop(state);
        node
    }

    /// Writes what files are to have where the server has placed them.
    fn write_all(&self, caller: Caller, made: &[Made<'_>]) -> Vec<Result<Arc<Object>, Error>> {
        let room = AtomicU64::new(0);
        let write = |made: &Made<'_>| {
            let bytes = made.file.data.len() as u64;
            let before = room.fetch_add(bytes, Ordering::Relaxed);
            // What each may have is told as if it were the only one.
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
        let here = |made: &Made<'_>| self.backend.is_here(made.opened.element);
        if made.iter().all(here) {
            return made.iter().map(write).collect();
        }
        let (until, lane) = (patience::deadline(), made.len().div_ceil(LANES).max(1));
        std::thread::scope(|scope| {
            let part = |part| scope.spawn(move || patience::until(until, || each(part, &write)));
            let lanes: Vec<_> = made.chunks(lane).map(part).collect();
            let written = lanes.into_iter().zip(made.chunks(lane));
            let written = written.flat_map(|(lane, part)| {
                let lost = |_| part.iter().map(|_| Err(Errno::IO.into())).collect();
                lane.join().unwrap_or_else(lost)
            });
            written.collect()
        })
    }

    /// Nothing becomes of names whose files could not be written.
    fn take_back_all(&self, caller: Caller, vain: &[&Made<'_>]) {
        if vain.is_empty() {
            return;
        }
        let ops: Vec<&Op> = vain.iter().map(|made| &made.op).collect();
        self.backend.take_back_all(caller, &ops);
        for made in vain {
            let mut state = made.node.state.lock();
            state.writing = None;
            state.fresh = None;
            made.node.changed.notify_all();
        }
    }

    /// A file has its bytes, and nobody here writes it any more.
    fn close_made(&self, caller: Caller, node: &Arc<Node>, object: Arc<Object>) {
        let mut state = node.state.lock();
        state.objects.push(Arc::downgrade(&object));
        state.writing = Some(Writing::open(object, 1, None));
        node.changed.notify_all();
        self.left(caller, node, &mut state, true);
    }
}

fn each<'a, T>(made: &[Made<'a>], write: &impl Fn(&Made<'a>) -> T) -> Vec<T> {
    made.iter().map(write).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call with these files.
    fn call(files: &[(u64, u32, &[u8], &[u8])]) -> Vec<u8> {
        let mut call = MAGIC.to_vec();
        let mut put = |number: usize| call.extend(u32::try_from(number).unwrap().to_le_bytes());
        put(1);
        put(files.len());
        for (folder, mode, name, data) in files {
            call.extend(folder.to_le_bytes());
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
        assert_eq!((files[1].folder, files[1].name), (1 << 40, &b"b"[..]));
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
