//! System calls and pointers of C: this module has all unsafe code of the crate.
//!
//! C programs call these functions with pointers that the functions cannot check; the functions trust the pointers like the C library does.

use libc::{c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};
use tidemill_preload_api::{DEVICE, Stat};

/// Size in bytes of a path with its terminating zero.
pub(crate) const PATH_SPACE: usize = tidemill_preload_api::PATH_BYTES_MAX + 1;

/// Lowest and highest address of a program's memory.
const LOWEST: usize = 4096;
const HIGHEST: usize = 1 << 56;

/// Returns the error number of the last call.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library returns a pointer to the thread's own number.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library returns a pointer to the thread's own number.
    unsafe { *libc::__errno_location() = errno }
}

/// Sets the error number and returns the result of a failed call.
pub(crate) fn fail(errno: c_int) -> c_long {
    set_errno(errno);
    -1
}

pub(crate) fn int(value: c_long) -> c_int {
    c_int::try_from(value).unwrap_or(-1)
}

/// Converts a number to the form of a system call's arguments.
pub(crate) fn word(value: c_int) -> usize {
    isize::try_from(value).unwrap_or(-1).cast_unsigned()
}

/// Executes a system call, which sets the error number.
pub(crate) fn call(number: c_long, words: [usize; 5]) -> c_long {
    let [a, b, c, d, e] = words;
    // SAFETY: the system checks its arguments; pointers are those of the program, or of buffers here.
    unsafe { libc::syscall(number, a, b, c, d, e) }
}

/// Allocates memory of whole pages; returns null if no memory is available.
pub(crate) fn pages(bytes: usize) -> *mut c_void {
    let (access, kind) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: memory without a file, at an address of the system's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        return std::ptr::null_mut();
    }
    at
}

/// Whether a C string's address cannot belong to any program.
pub(crate) fn is_nowhere(text: *const c_char) -> bool {
    !(LOWEST..HIGHEST).contains(&(text as usize))
}

/// Returns the bytes of a C string, without its terminating zero; empty for an invalid pointer.
pub(crate) fn text<'a>(text: *const c_char) -> &'a [u8] {
    // The system refuses pointers that cannot belong to any program.
    if is_nowhere(text) {
        return &[];
    }
    // SAFETY: it is the program's, which promises that it ends with zero and is valid for as long as the call takes.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes()
}

/// Returns a buffer of the program as a mutable slice.
pub(crate) fn memory<'a>(at: *mut c_void, bytes: usize) -> &'a mut [u8] {
    if at.is_null() || bytes == 0 {
        return &mut [];
    }
    // SAFETY: the program promises that the call may fill so many bytes.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), bytes) }
}

/// Returns a buffer of the program as a slice.
pub(crate) fn bytes<'a>(at: *const c_void, bytes: usize) -> &'a [u8] {
    if at.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: the program promises that there are so many bytes.
    unsafe { std::slice::from_raw_parts(at.cast(), bytes) }
}

/// Writes a value to the program's pointer `to`, unless the pointer is null.
pub(crate) fn give<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the program promises that there is space for one value.
        unsafe { to.write(value) }
    }
}

/// Reads the value at the program's pointer; `None` if the pointer is null.
pub(crate) fn value<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: the program promises that there is a value, unless the pointer is null.
    (!from.is_null()).then(|| unsafe { from.read() })
}

/// Returns the elements of an array of C that ends with a null pointer.
pub(crate) fn list<'a>(at: *const *const c_char) -> &'a [*const c_char] {
    if at.is_null() {
        return &[];
    }
    let mut length = 0;
    // SAFETY: the program promises that a null ends it.
    while !unsafe { *at.add(length) }.is_null() {
        length += 1;
    }
    // SAFETY: so many elements were just read.
    unsafe { std::slice::from_raw_parts(at, length) }
}

/// Returns a value of a type of C whose bytes are all zero.
pub(crate) fn zeroed<T: PlainData>() -> T {
    // SAFETY: `PlainData` types are numbers only.
    unsafe { std::mem::zeroed() }
}

/// Types of C that consist of numbers only.
///
/// # Safety
/// A value whose bytes are all zero must be valid.
pub(crate) unsafe trait PlainData {}
// SAFETY: numbers only.
unsafe impl PlainData for libc::stat {}
// SAFETY: numbers only.
unsafe impl PlainData for libc::statx {}
// SAFETY: numbers only.
unsafe impl PlainData for libc::statfs {}
// SAFETY: numbers only.
unsafe impl PlainData for libc::statvfs {}
// SAFETY: numbers only.
unsafe impl PlainData for libc::dirent64 {}
// SAFETY: numbers only.
unsafe impl PlainData for libc::sockaddr_un {}
// SAFETY: numbers and null pointers.
unsafe impl PlainData for libc::msghdr {}

/// The C library's function that has the same name as a function of this library.
#[derive(Debug)]
pub(crate) struct RealFunction(AtomicPtr<c_void>, &'static std::ffi::CStr);

impl RealFunction {
    pub(crate) const fn new(name: &'static std::ffi::CStr) -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), name)
    }

    /// Finds the address of the function. Later calls, also in signal handlers, need no look-up.
    pub(crate) fn find(&self) -> *mut c_void {
        let known = self.0.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.1.as_ptr()) };
        self.0.store(found, Ordering::Relaxed);
        found
    }
}

/// Calls a [`RealFunction`] with up to six arguments; returns -1 and sets `ENOSYS` if the C library has no such function.
pub(crate) fn real(function: &RealFunction, words: [usize; 6]) -> isize {
    let found = function.find();
    if found.is_null() {
        set_errno(libc::ENOSYS);
        return -1;
    }
    type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;
    // SAFETY: all functions called by this take pointers and numbers of at most a word, at most six, in registers, and return one;
    // functions with fewer parameters ignore the other registers.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(found) };
    let [a, b, c, d, e, f] = words;
    // SAFETY: as above; the words are those of the program.
    unsafe { function(a, b, c, d, e, f) }
}

pub(crate) fn stat_of(stat: &Stat) -> libc::stat {
    let mut to: libc::stat = zeroed();
    to.st_dev = DEVICE;
    to.st_ino = stat.ino;
    to.st_mode = low(stat.mode);
    to.st_nlink = stat.nlink;
    to.st_uid = low(stat.uid);
    to.st_gid = low(stat.gid);
    to.st_rdev = stat.rdev;
    to.st_size = stat.size.cast_signed();
    to.st_blksize = 4096;
    to.st_blocks = stat.blocks.cast_signed();
    (to.st_atime, to.st_atime_nsec) = seconds(stat.atime);
    (to.st_mtime, to.st_mtime_nsec) = seconds(stat.mtime);
    (to.st_ctime, to.st_ctime_nsec) = seconds(stat.ctime);
    to
}

/// Returns the lower 32 bits of a number.
pub(crate) fn low(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0)
}

/// Splits nanoseconds into seconds and remaining nanoseconds.
pub(crate) fn seconds(nanos: i64) -> (i64, i64) {
    const SECOND: i64 = 1_000_000_000;
    (nanos.div_euclid(SECOND), nanos.rem_euclid(SECOND))
}

/// Writes a number as decimal digits into `to`. Returns the number of digits.
pub(crate) fn decimal(mut number: u64, to: &mut [u8; 20]) -> usize {
    let mut digits = [0; 20];
    let mut count = 0;
    loop {
        digits[count] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        count += 1;
        if number == 0 {
            break;
        }
    }
    for (to, digit) in to.iter_mut().zip(digits[..count].iter().rev()) {
        *to = *digit;
    }
    count
}

/// Returns the credentials of the caller; with the ids of the real user if `really`.
pub(crate) fn who(really: bool) -> libc::ucred {
    // SAFETY: these only ask the system and can't fail.
    unsafe {
        if really {
            libc::ucred {
                pid: libc::getpid(),
                uid: libc::getuid(),
                gid: libc::getgid(),
            }
        } else {
            libc::ucred {
                pid: libc::getpid(),
                uid: libc::geteuid(),
                gid: libc::getegid(),
            }
        }
    }
}

pub(crate) fn process() -> c_int {
    // SAFETY: it only asks the system and can't fail.
    unsafe { libc::getpid() }
}

/// Attaches the credentials of the caller to a message that has space for them.
pub(crate) fn attach(message: &mut libc::msghdr, who: &libc::ucred) {
    let bytes = u32::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the message's control buffer is larger than one of these, and aligned for it.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let first = libc::CMSG_FIRSTHDR(message);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_CREDENTIALS;
        (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
        libc::CMSG_DATA(first)
            .cast::<libc::ucred>()
            .write_unaligned(*who);
    }
}

/// Returns the descriptor that is attached to a message, or -1 if none is attached.
pub(crate) fn attached(message: &libc::msghdr) -> c_int {
    // SAFETY: the system has filled the control buffer and set its length.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while !next.is_null() {
            if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                return libc::CMSG_DATA(next).cast::<c_int>().read_unaligned();
            }
            next = libc::CMSG_NXTHDR(message, next);
        }
    }
    -1
}

/// Returns the value of an environment variable.
pub(crate) fn variable<'a>(name: &std::ffi::CStr) -> &'a [u8] {
    // SAFETY: the name ends with zero; the value is only read at once, before the program runs.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    text(value)
}

/// Registers a function that is called in every child of `fork`.
pub(crate) fn at_fork(child: unsafe extern "C" fn()) {
    // SAFETY: a function that takes nothing.
    unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Adds a string `NAME=VALUE` to the environment, without copying it.
pub(crate) fn put_variable(text: *mut c_char) {
    // SAFETY: it is valid for as long as the program runs.
    unsafe { libc::putenv(text) };
}

/// Converts the result of a function of the C library to a pointer.
pub(crate) fn pointer(value: isize) -> *mut c_void {
    if value == -1 {
        // The function does not exist.
        return std::ptr::null_mut();
    }
    std::ptr::with_exposed_provenance_mut(value.cast_unsigned())
}

pub(crate) fn long(value: isize) -> c_long {
    c_long::try_from(value).unwrap_or(-1)
}

pub(crate) fn isize_of(value: c_long) -> isize {
    isize::try_from(value).unwrap_or(-1)
}

/// Allocates memory that the program frees with `free`.
pub(crate) fn allocated(bytes: usize) -> *mut c_void {
    // SAFETY: any number of bytes can be requested.
    unsafe { libc::malloc(bytes) }
}

/// Returns a reference to the value at a pointer that this library created.
pub(crate) fn reference<'a, T>(from: *mut T) -> &'a mut T {
    // SAFETY: it was made here and is not freed; a listing is used by one thread at a time, as POSIX requires.
    unsafe { &mut *from }
}

/// Takes back ownership of the value at a pointer that this library created.
pub(crate) fn owned<T>(from: *mut T) -> Box<T> {
    // SAFETY: it was made here, by `Box::into_raw`, and is not used afterwards.
    unsafe { Box::from_raw(from) }
}

/// Returns the lower 32 bits of the result of a function of the C library, whose upper bits are undefined.
pub(crate) fn int_of(value: isize) -> c_int {
    let [a, b, c, d, ..] = value.to_le_bytes();
    c_int::from_le_bytes([a, b, c, d])
}

pub(crate) fn environment() -> *const *const c_char {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library maintains it.
    unsafe { environ }
}
