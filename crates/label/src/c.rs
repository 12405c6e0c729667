//! The C interface: `include/tidemill_label.h` (next: `label/src/app.rs`).
//!
//! Handles are boxes that C owns: a constructor returns a box, a destructor takes it. Errors are `errno` and a text of the thread.

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
/// Size of the longest address with its zero: `TIDEMILL_ADDRESS_BYTES`.
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

/// Returns a text of C.
///
/// # Safety
/// `text` is null or ends with a zero, and is valid for as long as the result.
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

/// [`App::register`]. `mount` may be null, `capacity` 0.
///
/// # Safety
/// Texts are null or end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_app_register(
    name: *const c_char,
    mount: *const c_char,
    capacity: u64,
) -> *mut App {
    // SAFETY: as the caller promises.
    unsafe { tidemill_app_register_for(name, mount, capacity, Intent::None as c_uint) }
}

/// As [`tidemill_app_register`], with the application's intent.
///
/// # Safety
/// Texts are null or end with a zero.
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

/// Ends the application; its published labels are carried out all the same.
///
/// # Safety
/// `app` is null or of [`tidemill_app_register`], and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_app_close(app: *mut App) {
    if !app.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(app) });
    }
}

/// Common part of all functions that publish.
///
/// # Safety
/// `app` is null or lives; `after` is null or a label that was not ended; texts end with a zero.
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

/// Returns bytes of C.
///
/// # Safety
/// The pointer has `size` bytes, for as long as the result.
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

/// [`LabelRequest::write`].
///
/// # Safety
/// As for all: `app` lives, texts end with a zero, `data` has `size` bytes, `after` is null or was not ended.
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

/// [`LabelRequest::put`].
///
/// # Safety
/// As for [`tidemill_label_write`].
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

/// [`App::get_into`].
///
/// # Safety
/// `app` lives, `from` ends with a zero, `buffer` has space for `size` bytes.
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

/// [`LabelRequest::append`].
///
/// # Safety
/// As for [`tidemill_label_write`].
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

/// [`LabelRequest::read`].
///
/// # Safety
/// As for [`tidemill_label_write`].
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

/// [`LabelRequest::delete`].
///
/// # Safety
/// As for [`tidemill_label_write`].
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

/// [`LabelRequest::rename`].
///
/// # Safety
/// As for [`tidemill_label_write`].
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

/// [`LabelRequest::copy`].
///
/// # Safety
/// As for [`tidemill_label_write`].
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

/// `tidemill_analysis` of C: texts, and lists of texts that end with a null.
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

/// Returns a list of texts.
///
/// # Safety
/// `all` is null, or texts and then a null, valid for as long as the result.
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

/// [`LabelRequest::analyse`], and [`LabelRequest::result`] of its first output.
///
/// # Safety
/// As for [`tidemill_label_write`]; `analysis` is null, or as the header describes.
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

/// [`LabelRequest::job`], and [`LabelRequest::result`] if `result` is not null.
///
/// # Safety
/// As for [`tidemill_label_write`].
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

/// [`LabelRequest::file_event`], or for file events after the cursor `since` if that is not null.
///
/// # Safety
/// As for [`tidemill_label_write`].
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

/// [`App::subscribe`].
///
/// # Safety
/// `app` is null or lives; texts are null or end with a zero.
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

/// Copies a text and its zero, if they fit.
///
/// # Safety
/// `to` is null, or has `size` bytes.
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

/// [`Subscription::next`]: writes the address and a zero. Returns the length without the zero, or -1. `limit_ms` below 0: no limit.
///
/// # Safety
/// `subscription` is of [`tidemill_subscribe`] and used by one thread at a time; `path` has `size` bytes.
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

/// [`Subscription::cursor`]: writes the cursor and a zero. Returns the length without the zero, or -1.
///
/// # Safety
/// As for [`tidemill_subscription_next`].
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

/// Ends a subscription.
///
/// # Safety
/// `subscription` is null or of [`tidemill_subscribe`], and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_subscription_close(subscription: *mut Subscription) {
    if !subscription.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(subscription) });
    }
}

/// [`LabelRequest::fence`].
///
/// # Safety
/// As for [`tidemill_label_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_fence(app: *const App) -> *mut Ticket {
    // SAFETY: as the caller promises.
    unsafe { publish(app, Ok(LabelRequest::fence()), 0, ptr::null()) }
}

/// [`Ticket::test`].
///
/// # Safety
/// `label` was not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_test(label: *const Ticket) -> c_int {
    // SAFETY: as the caller promises.
    c_int::from(unsafe { label.as_ref() }.is_none_or(Ticket::test))
}

/// [`Ticket::cancel`].
///
/// # Safety
/// `label` was not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_cancel(label: *const Ticket) -> c_int {
    // SAFETY: as the caller promises.
    c_int::from(unsafe { label.as_ref() }.is_some_and(Ticket::cancel))
}

/// [`Ticket::wait`], which ends the label. Copies up to `size` of the bytes that were read, and returns their number, or -1.
///
/// # Safety
/// `label` was not ended; `buffer` has `size` bytes.
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

/// Callback of [`tidemill_label_on_done`]: called with `arg`, the bytes that were read and their number, or -1 and the errno.
type CCallback = unsafe extern "C" fn(*mut c_void, *const c_void, i64, c_int);

/// Argument of a callback of C; the caller is responsible for its use in another thread.
struct CallbackArgument(*mut c_void);

// SAFETY: it is passed on and never dereferenced.
unsafe impl Send for CallbackArgument {}

/// [`Ticket::on_done`], which ends the label.
///
/// # Safety
/// `label` was not ended; `done` may be called in another thread with `arg`.
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

/// Ends a label without waiting for it; the label is carried out all the same.
///
/// # Safety
/// `label` is null or was not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidemill_label_forget(label: *mut Ticket) {
    if !label.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(label) });
    }
}

/// Waits until all published labels are stored: 0, or -1.
///
/// # Safety
/// `app` lives.
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
