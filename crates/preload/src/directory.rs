//! Directories: the working directory, listings, paths without symbolic links (next: `mount/src/preload/answer.rs`).

use crate::c::{self, RealFunction};
use crate::connection::{self, RequestOutcome};
use crate::open;
use crate::target::{self, DescriptorKind, PathCall, ResolvedPath};
use libc::{DIR, c_char, c_int, c_long, c_void, size_t};
use tidemill_preload_api::{ENTRY_BYTES, Entry, LISTING_BYTES_MAX, Op, Request};

const HERE: c_int = libc::AT_FDCWD;
/// First bytes of a listing that this library created; a listing of the C library begins with a descriptor.
const OURS: u64 = 0x7469_6465_6d69_6c6c;

/// Maximum number of hard links of a file that programs may expect.
const LINKS_MAX: c_long = 127;

static OPENDIR: RealFunction = RealFunction::new(c"opendir");
static FDOPENDIR: RealFunction = RealFunction::new(c"fdopendir");
static READDIR: RealFunction = RealFunction::new(c"readdir64");
static READDIR_R: RealFunction = RealFunction::new(c"readdir64_r");
static CLOSEDIR: RealFunction = RealFunction::new(c"closedir");
static REWINDDIR: RealFunction = RealFunction::new(c"rewinddir");
static SEEKDIR: RealFunction = RealFunction::new(c"seekdir");
static TELLDIR: RealFunction = RealFunction::new(c"telldir");
static DIRFD: RealFunction = RealFunction::new(c"dirfd");
static GETCWD: RealFunction = RealFunction::new(c"getcwd");
static REALPATH: RealFunction = RealFunction::new(c"realpath");
static SCANDIR: RealFunction = RealFunction::new(c"scandir64");
static PATHCONF: RealFunction = RealFunction::new(c"pathconf");

pub(crate) fn find() {
    let all = [
        &OPENDIR, &FDOPENDIR, &READDIR, &READDIR_R, &CLOSEDIR, &REWINDDIR, &SEEKDIR, &TELLDIR,
        &DIRFD, &GETCWD, &REALPATH, &SCANDIR, &PATHCONF,
    ];
    for function in all {
        function.find();
    }
}

/// Requests the path in the cluster without symbolic links. Returns its length; for a path on the host, the result of `host` as an error.
fn resolve(
    at: c_int,
    path: *const c_char,
    directory: bool,
    to: &mut [u8],
    host: impl Fn(c_int, *const c_char) -> c_long,
) -> Result<usize, c_long> {
    let mut length = 0;
    let call = PathCall::new(Op::Resolve, at, path);
    let call = call.with(|request| request.mode = directory.into());
    let done = call.make(to, host, |got, _| {
        length = got.length;
        0
    });
    if length > 0 { Ok(length) } else { Err(done) }
}

#[unsafe(no_mangle)]
extern "C" fn chdir(path: *const c_char) -> c_int {
    let mut to = [0; c::PATH_SPACE];
    let host = |_, path: *const c_char| c::call(libc::SYS_chdir, [path as usize, 0, 0, 0, 0]);
    match resolve(HERE, path, true, &mut to, host) {
        Ok(length) => {
            target::set_working(&to[..length]);
            0
        }
        Err(done) => {
            if done == 0 && target::is_on() {
                target::set_working(&[]);
            }
            c::int(done)
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn fchdir(descriptor: c_int) -> c_int {
    let mut to = [0; c::PATH_SPACE];
    let request = Request {
        op: Op::Resolve as u64,
        mode: 1,
        ..Request::default()
    };
    let asked = match target::kind(descriptor) {
        DescriptorKind::Directory(_) => {
            target::about(descriptor, request, [&[], &[], &[]], &mut to)
        }
        _ => None,
    };
    match asked {
        Some(Ok(got)) => {
            target::set_working(&to[..got.length]);
            0
        }
        Some(Err(errno)) => c::int(c::fail(errno)),
        None => {
            let done = c::call(libc::SYS_fchdir, [c::word(descriptor), 0, 0, 0, 0]);
            if done == 0 && target::is_on() {
                target::set_working(&[]);
            }
            c::int(done)
        }
    }
}

/// Joins the prefix and a path in the cluster to one path in `to`. Returns the length of the path.
fn outer(inside: &[u8], to: &mut target::PathBuffer) -> usize {
    let mut prefix = [0; 300];
    let length = target::prefix(&mut prefix);
    to[..length].copy_from_slice(&prefix[..length]);
    let inside = if inside == b"/" { b"" } else { inside };
    to[length..][..inside.len()].copy_from_slice(inside);
    length + inside.len()
}

/// Copies a text to a program that has `bytes` of space at `to`; if `to` is null, the program gets new memory.
fn hand(text: &[u8], to: *mut c_char, bytes: size_t) -> *mut c_char {
    if !to.is_null() && bytes <= text.len() {
        c::set_errno(if bytes == 0 {
            libc::EINVAL
        } else {
            libc::ERANGE
        });
        return std::ptr::null_mut();
    }
    if to.is_null() && bytes != 0 && bytes <= text.len() {
        c::set_errno(libc::ERANGE);
        return std::ptr::null_mut();
    }
    let to = if to.is_null() {
        c::allocated(bytes.max(text.len() + 1)).cast()
    } else {
        to
    };
    let space = c::memory(to.cast(), text.len() + 1);
    if let Some((end, space)) = space.split_last_mut() {
        space.copy_from_slice(text);
        *end = 0;
    }
    to
}

#[unsafe(no_mangle)]
extern "C" fn getcwd(to: *mut c_char, bytes: size_t) -> *mut c_char {
    let mut inside = [0; c::PATH_SPACE];
    let length = target::working(&mut inside);
    if length == 0 {
        let words = [to as usize, bytes, 0, 0, 0, 0];
        return c::pointer(c::real(&GETCWD, words)).cast();
    }
    let mut path = [0; 2 * c::PATH_SPACE];
    let length = outer(&inside[..length], &mut path);
    hand(&path[..length], to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn __getcwd_chk(to: *mut c_char, bytes: size_t, _: size_t) -> *mut c_char {
    getcwd(to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn get_current_dir_name() -> *mut c_char {
    getcwd(std::ptr::null_mut(), 0)
}

fn real_path(path: *const c_char, to: *mut c_char) -> *mut c_char {
    let mut inside = [0; c::PATH_SPACE];
    // For a path that leaves the cluster, the C library resolves the rest.
    let host = |_, path: *const c_char| {
        let words = [path as usize, to as usize, 0, 0, 0, 0];
        c::long(c::real(&REALPATH, words))
    };
    let mut joined = [0; 2 * c::PATH_SPACE];
    match target::of(HERE, c::text(path), &mut joined) {
        Ok(ResolvedPath::Host) => return c::pointer(c::isize_of(host(HERE, path))).cast(),
        Ok(ResolvedPath::Cluster(..)) => {}
        Err(errno) => {
            c::set_errno(errno);
            return std::ptr::null_mut();
        }
    }
    match resolve(HERE, path, false, &mut inside, host) {
        Ok(length) => {
            let mut whole = [0; 2 * c::PATH_SPACE];
            let length = outer(&inside[..length], &mut whole);
            hand(&whole[..length], to, c::PATH_SPACE)
        }
        Err(-1) => std::ptr::null_mut(),
        Err(pointer) => c::pointer(c::isize_of(pointer)).cast(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    if path.is_null() {
        c::set_errno(libc::EINVAL);
        return std::ptr::null_mut();
    }
    real_path(path, to)
}

#[unsafe(no_mangle)]
extern "C" fn __realpath_chk(path: *const c_char, to: *mut c_char, _: size_t) -> *mut c_char {
    realpath(path, to)
}

#[unsafe(no_mangle)]
extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    realpath(path, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
extern "C" fn pathconf(path: *const c_char, name: c_int) -> c_long {
    let host = |_, path: *const c_char| {
        let words = [path as usize, c::word(name), 0, 0, 0, 0];
        c::long(c::real(&PATHCONF, words))
    };
    // The cluster allows the same as the system; the number of names of a file is that of a mount.
    PathCall::new(Op::Access, HERE, path).make(&mut [], host, |_, _| match name {
        libc::_PC_LINK_MAX => LINKS_MAX,
        _ => host(HERE, c"/".as_ptr()),
    })
}

/// Listing of a directory of the cluster, with all entries from the time when the listing began.
#[repr(C)]
struct ClusterListing {
    ours: u64,
    descriptor: c_int,
    ino: u64,
    entries: Vec<u8>,
    begun: bool,
    /// Offset of the next entry in the listing.
    at: usize,
    shown: libc::dirent64,
}

impl ClusterListing {
    fn made(descriptor: c_int, ino: u64) -> *mut DIR {
        let listing = Self {
            ours: OURS,
            descriptor,
            ino,
            entries: Vec::new(),
            begun: false,
            at: 0,
            shown: c::zeroed(),
        };
        Box::into_raw(Box::new(listing)).cast()
    }

    fn fill(&mut self) -> Result<(), c_int> {
        self.entries.clear();
        self.at = 0;
        let mut from = 0;
        loop {
            let request = Request {
                op: Op::List as u64,
                base: self.ino,
                a: from,
                ..Request::default()
            };
            let before = self.entries.len();
            self.entries.resize(before + LISTING_BYTES_MAX, 0);
            let outcome = connection::ask(request, [&[], &[], &[]], &mut self.entries[before..]);
            let got = match outcome {
                RequestOutcome::Done(got) => got,
                RequestOutcome::Failed(errno) => return Err(errno),
                RequestOutcome::Leaves(_) => return Err(libc::EXDEV),
            };
            self.entries.truncate(before + got.length);
            from = got.answer.value;
            if from == 0 {
                self.begun = true;
                return Ok(());
            }
        }
    }

    fn next(&mut self) -> *mut libc::dirent64 {
        if !self.begun
            && let Err(errno) = self.fill()
        {
            c::set_errno(errno);
            return std::ptr::null_mut();
        }
        let Some((entry, _)) = Entry::decode(&self.entries[self.at..]) else {
            return std::ptr::null_mut();
        };
        self.at += ENTRY_BYTES + entry.name.len();
        self.shown = c::zeroed();
        self.shown.d_ino = entry.ino;
        self.shown.d_off = i64::try_from(self.at).unwrap_or(i64::MAX);
        self.shown.d_type = entry.kind;
        let length = entry.name.len().min(self.shown.d_name.len() - 1);
        for (to, byte) in self.shown.d_name.iter_mut().zip(&entry.name[..length]) {
            *to = byte.cast_signed();
        }
        let head = std::mem::offset_of!(libc::dirent64, d_name);
        let bytes = (head + length + 1).next_multiple_of(8);
        self.shown.d_reclen = u16::try_from(bytes).unwrap_or(u16::MAX);
        &raw mut self.shown
    }
}

/// Returns the listing of a `DIR` pointer, if this library created the listing.
fn ours<'a>(directory: *mut DIR) -> Option<&'a mut ClusterListing> {
    let begins: u64 = c::value(directory.cast())?;
    (begins == OURS).then(|| c::reference(directory.cast::<ClusterListing>()))
}

#[unsafe(no_mangle)]
extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let mut space = [0; 2 * c::PATH_SPACE];
    if let Ok(ResolvedPath::Host) = target::of(HERE, c::text(path), &mut space) {
        return c::pointer(c::real(&OPENDIR, [path as usize, 0, 0, 0, 0, 0])).cast();
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let descriptor = open::opened(HERE, path, flags, 0);
    if descriptor < 0 {
        return std::ptr::null_mut();
    }
    fdopendir(descriptor)
}

#[unsafe(no_mangle)]
extern "C" fn fdopendir(descriptor: c_int) -> *mut DIR {
    match target::kind(descriptor) {
        DescriptorKind::Directory(ino) => {
            let words = [
                c::word(descriptor),
                c::word(libc::F_SETFD),
                c::word(libc::FD_CLOEXEC),
                0,
                0,
            ];
            c::call(libc::SYS_fcntl, words);
            ClusterListing::made(descriptor, ino)
        }
        _ => c::pointer(c::real(&FDOPENDIR, [c::word(descriptor), 0, 0, 0, 0, 0])).cast(),
    }
}

fn next_entry(directory: *mut DIR) -> *mut libc::dirent64 {
    match ours(directory) {
        Some(listing) => listing.next(),
        None => c::pointer(c::real(&READDIR, [directory as usize, 0, 0, 0, 0, 0])).cast(),
    }
}

// Entries of both widths are the same on 64-bit systems.

#[unsafe(no_mangle)]
extern "C" fn readdir(directory: *mut DIR) -> *mut libc::dirent64 {
    next_entry(directory)
}

#[unsafe(no_mangle)]
extern "C" fn readdir64(directory: *mut DIR) -> *mut libc::dirent64 {
    next_entry(directory)
}

fn next_into(
    directory: *mut DIR,
    to: *mut libc::dirent64,
    result: *mut *mut libc::dirent64,
) -> c_int {
    let Some(listing) = ours(directory) else {
        let words = [directory as usize, to as usize, result as usize, 0, 0, 0];
        return c::int_of(c::real(&READDIR_R, words));
    };
    c::set_errno(0);
    match c::value(listing.next()) {
        Some(entry) => {
            c::give(to, entry);
            c::give(result, to);
            0
        }
        None => {
            c::give(result, std::ptr::null_mut());
            c::errno()
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn readdir_r(
    directory: *mut DIR,
    to: *mut libc::dirent64,
    result: *mut *mut libc::dirent64,
) -> c_int {
    next_into(directory, to, result)
}

#[unsafe(no_mangle)]
extern "C" fn readdir64_r(
    directory: *mut DIR,
    to: *mut libc::dirent64,
    result: *mut *mut libc::dirent64,
) -> c_int {
    next_into(directory, to, result)
}

#[unsafe(no_mangle)]
extern "C" fn closedir(directory: *mut DIR) -> c_int {
    if ours(directory).is_none() {
        return c::int_of(c::real(&CLOSEDIR, [directory as usize, 0, 0, 0, 0, 0]));
    }
    let mut listing = c::owned(directory.cast::<ClusterListing>());
    listing.ours = 0;
    let words = [c::word(listing.descriptor), 0, 0, 0, 0];
    c::int(c::call(libc::SYS_close, words))
}

#[unsafe(no_mangle)]
extern "C" fn rewinddir(directory: *mut DIR) {
    match ours(directory) {
        Some(listing) => listing.begun = false,
        None => {
            c::real(&REWINDDIR, [directory as usize, 0, 0, 0, 0, 0]);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn seekdir(directory: *mut DIR, to: c_long) {
    match ours(directory) {
        Some(listing) => {
            listing.at = usize::try_from(to).unwrap_or(0).min(listing.entries.len());
        }
        None => {
            let to = c::isize_of(to).cast_unsigned();
            c::real(&SEEKDIR, [directory as usize, to, 0, 0, 0, 0]);
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn telldir(directory: *mut DIR) -> c_long {
    match ours(directory) {
        Some(listing) => c_long::try_from(listing.at).unwrap_or(-1),
        None => c::long(c::real(&TELLDIR, [directory as usize, 0, 0, 0, 0, 0])),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dirfd(directory: *mut DIR) -> c_int {
    match ours(directory) {
        Some(listing) => listing.descriptor,
        None => c::int_of(c::real(&DIRFD, [directory as usize, 0, 0, 0, 0, 0])),
    }
}

type ScanFilter = Option<extern "C" fn(*const c_void) -> c_int>;
type Compare = Option<extern "C" fn(*const c_void, *const c_void) -> c_int>;

/// Lists a directory like `scandir`, which lists inside the C library.
fn scanned(
    path: *const c_char,
    to: *mut *mut *mut libc::dirent64,
    select: ScanFilter,
    compare: Compare,
) -> c_int {
    let mut space = [0; 2 * c::PATH_SPACE];
    if let Ok(ResolvedPath::Host) = target::of(HERE, c::text(path), &mut space) {
        let select = select.map_or(0, |select| select as usize);
        let compare = compare.map_or(0, |compare| compare as usize);
        let words = [path as usize, to as usize, select, compare, 0, 0];
        return c::int_of(c::real(&SCANDIR, words));
    }
    let directory = opendir(path);
    if directory.is_null() {
        return -1;
    }
    let mut chosen: Vec<*mut libc::dirent64> = Vec::new();
    c::set_errno(0);
    while let Some(entry) = c::value(next_entry(directory).cast_const()) {
        let wanted = select.is_none_or(|select| select((&raw const entry).cast()) != 0);
        if wanted {
            let copy: *mut libc::dirent64 = c::allocated(size_of::<libc::dirent64>()).cast();
            c::give(copy, entry);
            chosen.push(copy);
        }
        c::set_errno(0);
    }
    let errno = c::errno();
    closedir(directory);
    if errno != 0 {
        return c::int(c::fail(errno));
    }
    if let Some(compare) = compare {
        chosen.sort_by(|one, other| {
            let order = compare((&raw const *one).cast(), (&raw const *other).cast());
            order.cmp(&0)
        });
    }
    let bytes = (chosen.len() * size_of::<*mut libc::dirent64>()).max(1);
    let list: *mut *mut libc::dirent64 = c::allocated(bytes).cast();
    for (at, entry) in chosen.iter().enumerate() {
        c::give(list.wrapping_add(at), *entry);
    }
    c::give(to, list);
    c_int::try_from(chosen.len()).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
extern "C" fn scandir(
    path: *const c_char,
    to: *mut *mut *mut libc::dirent64,
    select: ScanFilter,
    compare: Compare,
) -> c_int {
    scanned(path, to, select, compare)
}

#[unsafe(no_mangle)]
extern "C" fn scandir64(
    path: *const c_char,
    to: *mut *mut *mut libc::dirent64,
    select: ScanFilter,
    compare: Compare,
) -> c_int {
    scanned(path, to, select, compare)
}
