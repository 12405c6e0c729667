//! The C interface: `include/tidemill_label.h` (next: `label/src/app.rs`).
//!
//! Handles are boxes that C owns: a constructor returns a box, a destructor takes it. An error sets `errno` and a text of the thread.

use crate::analysis::FileAnalysis;
use crate::app::{App, LabelRequest, RegistrationOptions, Ticket};
use crate::error::Error;
use crate::events::Subscription;
use crate::intent::Intent;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::ptr;
use std::time::Duration;

const DURABLE: c_uint = 1;
const TRUNCATE: c_uint = 2;
const NOWAIT: c_uint = 4;
const IF_DONE: c_uint = 8;
const IF_FAILED: c_uint = 16;
/// Size in bytes of the longest address with its terminating zero: `TIDEMILL_ADDRESS_BYTES`.
const ADDRESS_BYTES: usize = 4160;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

fn say(error: &Error) {
    let text = error.to_string().replace('\0', " ");
    LAST_ERROR.with_borrow_mut(|reported| *reported = CString::new(text).unwrap_or_default());
    // SAFETY: the address is valid for as long as the thread lives.
    unsafe { *__errno_location() = error.errno() };
}

fn handle<T>(made: Result<T, Error>) -> *mut T {
    match made {
        Ok(made) => Box::into_raw(Box::new(made)),
        Err(error) => {
            say(&error);
            ptr::null_mut()
        }
    }
}

/// Returns a string of C as a `str`.
///
/// # Safety
/// `text` is null or ends with a zero, and is valid for as long as the returned reference.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::Invalid(format!("{what} is NULL")));
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Error::Invalid(format!("{what} is not UTF-8")))
}

/// Returns the text of the last error of this thread; valid until the next error.
#[unsafe(no_mangle)]
pub extern "C" fn tidemill_label_error() -> *const c_char {
    LAST_ERROR.with_borrow(|reported| reported.as_ptr())
}

/// Registers an application, like [`App::register`]. `mount` may be null, `capacity` may be 0.
///
/// # Safety
/// The strings are null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_app_register(
    name: *const c_char,
    mount: *const c_char,
    capacity: u64,
) -> *mut App {
    // SAFETY: as the caller promises.
    unsafe { tidemill_app_register_for(name, mount, capacity, Intent::None as c_uint) }
}

/// Registers an application with an intent, like [`tidemill_app_register`].
///
/// # Safety
/// The strings are null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_app_register_for(
    name: *const c_char,
    mount: *const c_char,
    capacity: u64,
    intent: c_uint,
) -> *mut App {
    // SAFETY: as the caller promises.
    let (name, mount) = unsafe {
        (
            text(name, "name"),
            (!mount.is_null()).then(|| text(mount, "mount")),
        )
    };
    handle((|| {
        let unknown = || Error::Invalid(format!("{intent} is not an intent"));
        let settings = RegistrationOptions {
            mount: mount.transpose()?.map(PathBuf::from),
            capacity,
            intent: Intent::of(intent).ok_or_else(unknown)?,
            ..RegistrationOptions::default()
        };
        App::register(name?, &settings)
    })())
}

/// Closes the application handle; the application's published labels are carried out all the same.
///
/// # Safety
/// `app` is null or a result of [`tidemill_app_register`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_app_close(app: *mut App) {
    if !app.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(app) });
    }
}

/// Publishes a label; the common part of all functions that publish labels.
///
/// # Safety
/// `app` is null or a valid handle; `after` is null or a label handle that was not freed; strings end with a zero.
unsafe fn publish(
    app: *const App,
    label: Result<LabelRequest<'_>, Error>,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    let (app, after) = unsafe { (app.as_ref(), after.as_ref()) };
    handle((|| {
        let app = app.ok_or_else(|| Error::Invalid("app is NULL".into()))?;
        let mut label = label?;
        if flags & !(DURABLE | TRUNCATE | NOWAIT | IF_DONE | IF_FAILED) != 0 {
            return Err(Error::Invalid(format!(
                "{flags:#x} are not flags of labels"
            )));
        }
        if flags & DURABLE != 0 {
            label = label.durable();
        }
        if flags & TRUNCATE != 0 {
            label = label.truncate();
        }
        if flags & NOWAIT != 0 {
            label = label.impatient();
        }
        let condition = flags & (IF_DONE | IF_FAILED);
        label = match (after, condition) {
            (None, 0) => label,
            (Some(after), 0) => label.after(after),
            (Some(after), IF_DONE) => label.if_done(after),
            (Some(after), IF_FAILED) => label.if_failed(after),
            _ => {
                let why = "IF_DONE and IF_FAILED need a label to depend on";
                return Err(Error::Invalid(why.into()));
            }
        };
        app.publish(&label)
    })())
}

/// Returns a buffer of C as a slice.
///
/// # Safety
/// The pointer refers to `size` bytes that are valid for as long as the returned slice.
unsafe fn bytes<'a>(bytes: *const c_void, size: usize) -> Result<&'a [u8], Error> {
    if size == 0 {
        return Ok(&[]);
    }
    if bytes.is_null() {
        return Err(Error::Invalid(format!("{size} bytes at NULL")));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), size) })
}

/// Publishes a write, like [`LabelRequest::write`].
///
/// # Safety
/// `app` is a valid handle, strings end with a zero, `data` has `size` bytes, `after` is null or a label handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_write(
    app: *const App,
    to: *const c_char,
    offset: u64,
    data: *const c_void,
    size: usize,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        let label =
            text(to, "to").and_then(|to| Ok(LabelRequest::write(to, offset, bytes(data, size)?)));
        publish(app, label, flags, after)
    }
}

/// Publishes a put, like [`LabelRequest::put`].
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_put(
    app: *const App,
    to: *const c_char,
    data: *const c_void,
    size: usize,
    flags: c_uint,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        let label = text(to, "to").and_then(|to| Ok(LabelRequest::put(to, bytes(data, size)?)));
        publish(app, label, flags, ptr::null())
    }
}

/// Reads a file into a buffer, like [`App::get_into`].
///
/// # Safety
/// `app` is a valid handle, `from` ends with a zero, `buffer` has space for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_app_get(
    app: *const App,
    from: *const c_char,
    buffer: *mut c_void,
    size: usize,
    wait_ms: u64,
) -> i64 {
    // SAFETY: as the caller promises.
    let (app, from, into) = unsafe {
        let into: &mut [u8] = if size == 0 || buffer.is_null() {
            &mut []
        } else {
            std::slice::from_raw_parts_mut(buffer.cast(), size)
        };
        (app.as_ref(), text(from, "from"), into)
    };
    let got = app.ok_or_else(|| Error::Invalid("app is NULL".into()));
    let wait = Duration::from_millis(wait_ms);
    match got.and_then(|app| app.get_into(from?, into, wait)) {
        Ok(size) => i64::try_from(size).unwrap_or(i64::MAX),
        Err(error) => {
            say(&error);
            -1
        }
    }
}

/// Publishes an append, like [`LabelRequest::append`].
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_append(
    app: *const App,
    to: *const c_char,
    data: *const c_void,
    size: usize,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        let label = text(to, "to").and_then(|to| Ok(LabelRequest::append(to, bytes(data, size)?)));
        publish(app, label, flags, after)
    }
}

/// Publishes a read, like [`LabelRequest::read`].
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_read(
    app: *const App,
    from: *const c_char,
    offset: u64,
    size: u64,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        let label = text(from, "from").map(|from| LabelRequest::read(from, offset, size));
        publish(app, label, flags, after)
    }
}

/// Publishes the deletion of a file, like [`LabelRequest::delete`].
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_delete(
    app: *const App,
    path: *const c_char,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        publish(
            app,
            text(path, "path").map(LabelRequest::delete),
            flags,
            after,
        )
    }
}

/// Publishes a rename, like [`LabelRequest::rename`].
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_rename(
    app: *const App,
    path: *const c_char,
    to: *const c_char,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        let label =
            text(path, "path").and_then(|path| Ok(LabelRequest::rename(path, text(to, "to")?)));
        publish(app, label, flags, after)
    }
}

/// Publishes the copy of a file, like [`LabelRequest::copy`].
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_copy(
    app: *const App,
    path: *const c_char,
    to: *const c_char,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        let label =
            text(path, "path").and_then(|path| Ok(LabelRequest::copy(path, text(to, "to")?)));
        publish(app, label, flags, after)
    }
}

/// `tidemill_analysis` of C: its strings, and its lists of strings that end with a null pointer.
#[derive(Debug)]
#[repr(C)]
pub struct CAnalysis {
    kernel: *const c_char,
    args: *const *const c_char,
    inputs: *const *const c_char,
    outputs: *const *const c_char,
    stdin: *const c_char,
    stdout: *const c_char,
    policy: *const c_char,
}

/// Returns a list of strings of C.
///
/// # Safety
/// `all` is null, or a list of strings that ends with a null pointer and is valid for as long as the result.
unsafe fn texts<'a>(all: *const *const c_char) -> Result<Vec<&'a str>, Error> {
    let mut texts = Vec::new();
    let mut at = all;
    // SAFETY: as the caller promises.
    while !at.is_null() && unsafe { !(*at).is_null() } {
        // SAFETY: as the caller promises.
        unsafe {
            texts.push(text(*at, "a text of the analysis")?);
            at = at.add(1);
        }
    }
    Ok(texts)
}

/// Publishes the run of a kernel, like [`LabelRequest::analyse`], with [`LabelRequest::result`] for its first output.
///
/// # Safety
/// The conditions of [`tidemill_label_write`]; `analysis` is null, or as the header describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_analyse(
    app: *const App,
    analysis: *const CAnalysis,
    result: usize,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    let reported = unsafe { analysis.as_ref() }.map(|reported| unsafe {
        let some = |one: *const c_char| (!one.is_null()).then(|| text(one, "a file")).transpose();
        Ok((
            (text(reported.kernel, "kernel")?, some(reported.policy)?),
            (
                texts(reported.args)?,
                texts(reported.inputs)?,
                texts(reported.outputs)?,
            ),
            (some(reported.stdin)?, some(reported.stdout)?),
        ))
    });
    let none = || Err(Error::Invalid("analysis is NULL".into()));
    let ((kernel, policy), (args, inputs, outputs), (stdin, stdout)) =
        match reported.unwrap_or_else(none) {
            Ok(reported) => reported,
            Err(error) => return handle(Err(error)),
        };
    let analysis = FileAnalysis {
        kernel,
        args: &args,
        inputs: &inputs,
        outputs: &outputs,
        stdin,
        stdout,
        policy,
    };
    let label = LabelRequest::analyse(&analysis);
    let label = match outputs.first() {
        Some(output) if result > 0 => label.result(output, result as u64),
        _ => label,
    };
    // SAFETY: as the caller promises.
    unsafe { publish(app, Ok(label), flags, after) }
}

/// Publishes a job, like [`LabelRequest::job`], with [`LabelRequest::result`] if `result` is not null.
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_job(
    app: *const App,
    script: *const c_char,
    result: *const c_char,
    size: usize,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        let label = text(script, "script").map(LabelRequest::job);
        let label = match result.is_null() {
            true => label,
            false => label.and_then(|label| Ok(label.result(text(result, "result")?, size as u64))),
        };
        publish(app, label, flags, after)
    }
}

/// Publishes a wait for a file, like [`LabelRequest::file_event`], or for file events after the cursor `since` if `since` is not null.
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_await(
    app: *const App,
    pattern: *const c_char,
    since: *const c_char,
    flags: c_uint,
    after: *const Ticket,
) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe {
        let label = text(pattern, "pattern").map(LabelRequest::file_event);
        let label = match since.is_null() {
            true => label,
            false => label.and_then(|label| Ok(label.since(text(since, "since")?))),
        };
        publish(app, label, flags, after)
    }
}

/// Creates a subscription to file events, like [`App::subscribe`].
///
/// # Safety
/// `app` is null or a valid handle; strings are null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_subscribe(
    app: *const App,
    pattern: *const c_char,
    since: *const c_char,
) -> *mut Subscription {
    // SAFETY: as the caller promises.
    let (app, pattern, since) = unsafe {
        (
            app.as_ref(),
            text(pattern, "pattern"),
            (!since.is_null()).then(|| text(since, "since")),
        )
    };
    handle((|| {
        let app = app.ok_or_else(|| Error::Invalid("app is NULL".into()))?;
        app.subscribe(pattern?, since.transpose()?)
    })())
}

/// Copies a string and a terminating zero into the buffer of C, if both fit.
///
/// # Safety
/// `to` is null, or has space for `size` bytes.
unsafe fn give(text: &str, to: *mut c_char, size: usize) -> Result<i64, Error> {
    if text.len() >= size || to.is_null() {
        return Err(Error::Invalid(format!(
            "{} bytes and a zero don't fit into {size}",
            text.len()
        )));
    }
    // SAFETY: as the caller promises.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        *to.add(text.len()) = 0;
    }
    Ok(i64::try_from(text.len()).unwrap_or(i64::MAX))
}

fn number(given: Result<i64, Error>) -> i64 {
    given.unwrap_or_else(|error| {
        say(&error);
        -1
    })
}

/// Waits for a file event, like [`Subscription::next`]; writes its address and a zero. Returns the address's length without the zero, or
/// -1. `limit_ms` below 0: no limit.
///
/// # Safety
/// `subscription` is a result of [`tidemill_subscribe`] and is used by one thread at a time; `path` has space for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_subscription_next(
    subscription: *mut Subscription,
    path: *mut c_char,
    size: usize,
    limit_ms: i64,
) -> i64 {
    // SAFETY: as the caller promises.
    let subscription = unsafe { subscription.as_mut() };
    number((|| {
        let none = || Error::Invalid("subscription is NULL".into());
        if size < ADDRESS_BYTES {
            return Err(Error::Invalid(format!(
                "an address needs {ADDRESS_BYTES} bytes, not {size}"
            )));
        }
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        let event = subscription.ok_or_else(none)?.next(limit)?;
        // SAFETY: as the caller promises.
        unsafe { give(&event.path, path, size) }
    })())
}

/// Writes the cursor of [`Subscription::cursor`] and a zero. Returns the cursor's length without the zero, or -1.
///
/// # Safety
/// The conditions of [`tidemill_subscription_next`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_subscription_cursor(
    subscription: *const Subscription,
    cursor: *mut c_char,
    size: usize,
) -> i64 {
    // SAFETY: as the caller promises.
    let subscription = unsafe { subscription.as_ref() };
    number((|| {
        let none = || Error::Invalid("subscription is NULL".into());
        // SAFETY: as the caller promises.
        unsafe { give(subscription.ok_or_else(none)?.cursor(), cursor, size) }
    })())
}

/// Closes a subscription.
///
/// # Safety
/// `subscription` is null or a result of [`tidemill_subscribe`], and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_subscription_close(subscription: *mut Subscription) {
    if !subscription.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(subscription) });
    }
}

/// Publishes a fence, like [`LabelRequest::fence`].
///
/// # Safety
/// The conditions of [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_fence(app: *const App) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe { publish(app, Ok(LabelRequest::fence()), 0, ptr::null()) }
}

/// Returns whether the label has ended, like [`Ticket::test`].
///
/// # Safety
/// `label` is a label handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_test(label: *const Ticket) -> c_int {
    // SAFETY: as the caller promises.
    c_int::from(unsafe { label.as_ref() }.is_none_or(Ticket::test))
}

/// Cancels the label, like [`Ticket::cancel`].
///
/// # Safety
/// `label` is a label handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_cancel(label: *const Ticket) -> c_int {
    // SAFETY: as the caller promises.
    c_int::from(unsafe { label.as_ref() }.is_some_and(Ticket::cancel))
}

/// Waits like [`Ticket::wait`] and frees the label handle. Copies up to `size` read bytes, and returns their number, or -1.
///
/// # Safety
/// `label` is a label handle that was not freed; `buffer` has space for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_wait(
    label: *mut Ticket,
    buffer: *mut c_void,
    size: usize,
) -> i64 {
    if label.is_null() {
        say(&Error::Invalid("label is NULL".into()));
        return -1;
    }
    // SAFETY: as the caller promises.
    let label = *unsafe { Box::from_raw(label) };
    match label.wait() {
        Ok(bytes) => {
            let copied = if buffer.is_null() {
                0
            } else {
                bytes.len().min(size)
            };
            // SAFETY: as the caller promises.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), copied) };
            i64::try_from(bytes.len()).unwrap_or(i64::MAX)
        }
        Err(error) => {
            say(&error);
            -1
        }
    }
}

/// Callback of [`tidemill_label_on_done`]: called with `arg`, the bytes that the label read and their number, or -1 and the errno.
type CCallback = unsafe extern "C" fn(*mut c_void, *const c_void, i64, c_int);

/// Argument `arg` of a callback of C; the caller is responsible for its use in another thread.
struct CallbackArgument(*mut c_void);

// SAFETY: it is passed on and never dereferenced.
unsafe impl Send for CallbackArgument {}

/// Sets the callback of a label, like [`Ticket::on_done`], and frees the label handle.
///
/// # Safety
/// `label` is a label handle that was not freed; `done` may be called in another thread with `arg`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_on_done(
    label: *mut Ticket,
    done: Option<CCallback>,
    arg: *mut c_void,
) -> c_int {
    let (false, Some(done)) = (label.is_null(), done) else {
        say(&Error::Invalid("label or done is NULL".into()));
        return -1;
    };
    // SAFETY: as the caller promises.
    let label = *unsafe { Box::from_raw(label) };
    let arg = CallbackArgument(arg);
    label.on_done(move |outcome| {
        let CallbackArgument(arg) = { arg };
        let (bytes, size, errno) = match &outcome {
            Ok(bytes) => (
                bytes.as_ptr(),
                i64::try_from(bytes.len()).unwrap_or(i64::MAX),
                0,
            ),
            Err(error) => {
                say(error);
                (ptr::null(), -1, error.errno())
            }
        };
        // SAFETY: as the caller promises; the bytes are valid until it returns.
        unsafe { done(arg, bytes.cast(), size, errno) };
    });
    0
}

/// Frees a label handle without waiting for the label; the label is carried out all the same.
///
/// # Safety
/// `label` is null or a label handle that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_forget(label: *mut Ticket) {
    if !label.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(label) });
    }
}

/// Waits until all published labels are stored. Returns 0, or -1 after an error.
///
/// # Safety
/// `app` is a valid handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_app_flush(app: *const App) -> c_int {
    // SAFETY: as the caller promises.
    let app = unsafe { app.as_ref() };
    let none = || Error::Invalid("app is NULL".into());
    match app.ok_or_else(none).and_then(App::flush) {
        Ok(()) => 0,
        Err(error) => {
            say(&error);
            -1
        }
    }
}
