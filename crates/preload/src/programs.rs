//! Starts of programs: a started program gets the working directory and this library, and may be stored in the cluster.

use crate::c::{self, RealFunction};
use crate::open::opened;
use crate::target::{self, ResolvedPath};
use libc::{c_char, c_int, c_void, pid_t};

/// Maximum number of variables that the library adds to an environment.
const ADDED: usize = 5;
/// Maximum length in bytes of the first line of a script, as on Linux.
const LINE_BYTES_MAX: usize = 256;
/// Maximum depth of interpreters that are scripts.
const DEPTH_MAX: u32 = 4;
/// Default value of `PATH`.
const PATH: &[u8] = b"/bin:/usr/bin";
/// Number of bytes of a program that are copied at once.
const COPY_BYTES: usize = 1 << 16;

static SPAWN: RealFunction = RealFunction::new(c"posix_spawn");

pub(crate) fn find() {
    SPAWN.find();
}

type Strings = *const *const c_char;

/// Memory of whole pages, whose allocation needs no lock.
struct PageMemory {
    at: *mut c_void,
    bytes: usize,
}

impl PageMemory {
    fn new(bytes: usize) -> Option<Self> {
        let at = c::pages(bytes);
        (!at.is_null()).then_some(Self { at, bytes })
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        let saved = c::errno();
        c::call(libc::SYS_munmap, [self.at as usize, self.bytes, 0, 0, 0]);
        c::set_errno(saved);
    }
}

/// An environment with the variables that a program under this library needs.
struct Environment {
    pages: PageMemory,
}

/// Prefixes of the library's environment variables.
const OURS: [&[u8]; 5] = [
    b"TIDEMILL_PRELOAD_CWD=",
    b"TIDEMILL_PRELOAD_SOCKET=",
    b"TIDEMILL_PRELOAD_PREFIX=",
    b"TIDEMILL_PRELOAD_ASYNC=",
    b"LD_PRELOAD=",
];

impl Environment {
    fn new(given: Strings) -> Option<Self> {
        let given = c::list(given);
        let slots = given.len() + ADDED + 1;
        let texts = slots * size_of::<*const c_char>();
        let library = target::library();
        let space = 3 * c::PATH_SPACE + library.len() + 512;
        let pages = PageMemory::new(texts + space)?;
        let list: *mut *const c_char = pages.at.cast();
        let memory = c::memory(pages.at, pages.bytes);
        let mut next = texts;
        let mut count = 0;
        let mut has_library = false;
        for &variable in given {
            let text = c::text(variable);
            if OURS[..4].iter().any(|name| text.starts_with(name)) {
                continue;
            }
            has_library |= text.starts_with(OURS[4]);
            c::give(list.wrapping_add(count), variable);
            count += 1;
        }
        let mut add = |parts: [&[u8]; 2]| {
            let start = next;
            for part in parts {
                memory[next..][..part.len()].copy_from_slice(part);
                next += part.len();
            }
            next += 1;
            let at: *const c_char = memory[start..].as_ptr().cast();
            c::give(list.wrapping_add(count), at);
            count += 1;
        };
        let mut directory = [0; c::PATH_SPACE];
        let length = target::working(&mut directory);
        add([OURS[0], &directory[..length]]);
        let mut socket = [0; 108];
        let length = target::socket(&mut socket);
        add([OURS[1], &socket[..length]]);
        let mut prefix = [0; 300];
        let length = target::prefix(&mut prefix);
        add([OURS[2], &prefix[..length]]);
        add([
            OURS[3],
            if target::writes_asynchronously() {
                b"1"
            } else {
                b""
            },
        ]);
        if !has_library {
            add([OURS[4], library]);
        }
        c::give(list.wrapping_add(count), std::ptr::null());
        Some(Self { pages })
    }

    fn list(&self) -> Strings {
        self.pages.at.cast_const().cast()
    }
}

fn execute(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let words = [
        path as usize,
        arguments as usize,
        environment as usize,
        0,
        0,
    ];
    c::int(c::call(libc::SYS_execve, words))
}

/// Runs a program in place of this program; `given` is the new program's environment.
fn run(path: *const c_char, arguments: Strings, given: Strings) -> c_int {
    if !target::is_on() {
        return execute(path, arguments, given);
    }
    let Some(environment) = Environment::new(given) else {
        return c::int(c::fail(libc::ENOMEM));
    };
    launch(path, arguments, environment.list(), 0)
}

fn is_host(path: *const c_char) -> bool {
    let mut space = [0; 2 * c::PATH_SPACE];
    matches!(
        target::of(libc::AT_FDCWD, c::text(path), &mut space),
        Ok(ResolvedPath::Host)
    )
}

/// Runs a program, which may be stored in the cluster, in place of this program.
fn launch(path: *const c_char, arguments: Strings, environment: Strings, depth: u32) -> c_int {
    if is_host(path) {
        return execute(path, arguments, environment);
    }
    if depth > DEPTH_MAX {
        return c::int(c::fail(libc::ELOOP));
    }
    let program = match fetched(path) {
        Ok(program) => program,
        Err(errno) => return c::int(c::fail(errno)),
    };
    let mut line = [0; LINE_BYTES_MAX];
    if let Some((interpreter, argument)) = interpreter_of(program, &mut line) {
        shut(program);
        return interpreted(
            (interpreter, argument),
            path,
            (arguments, environment),
            depth,
        );
    }
    let words = [
        c::word(program),
        c"".as_ptr() as usize,
        arguments as usize,
        environment as usize,
        c::word(libc::AT_EMPTY_PATH),
    ];
    let failed = c::int(c::call(libc::SYS_execveat, words));
    let errno = c::errno();
    shut(program);
    c::set_errno(errno);
    failed
}

fn shut(descriptor: c_int) {
    c::call(libc::SYS_close, [c::word(descriptor), 0, 0, 0, 0]);
}

/// Returns the descriptor of a copy in memory of a program in the cluster, because an object file cannot be run.
fn fetched(path: *const c_char) -> Result<c_int, c_int> {
    if crate::attributes::runnable(path) != 0 {
        return Err(c::errno());
    }
    let file = opened(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC, 0);
    if file < 0 {
        return Err(c::errno());
    }
    let words = [
        c"program".as_ptr() as usize,
        usize::try_from(libc::MFD_CLOEXEC | libc::MFD_EXEC).unwrap_or(0),
        0,
        0,
        0,
    ];
    let mut copy = c::call(libc::SYS_memfd_create, words);
    if copy < 0 {
        // A kernel without the flag that marks programs.
        let flags = usize::try_from(libc::MFD_CLOEXEC).unwrap_or(0);
        copy = c::call(libc::SYS_memfd_create, [words[0], flags, 0, 0, 0]);
    }
    let copy = c::int(copy);
    let mut failed = if copy < 0 { Some(c::errno()) } else { None };
    while failed.is_none() {
        let words = [c::word(copy), c::word(file), 0, COPY_BYTES, 0];
        match c::call(libc::SYS_sendfile, words) {
            0 => break,
            count if count < 0 && c::errno() != libc::EINTR => failed = Some(c::errno()),
            _ => {}
        }
    }
    shut(file);
    match failed {
        Some(errno) => {
            shut(copy);
            Err(errno)
        }
        None => Ok(copy),
    }
}

/// Returns the interpreter that a script's first line names, and the interpreter's argument.
fn interpreter_of(program: c_int, line: &mut [u8; LINE_BYTES_MAX]) -> Option<(&[u8], &[u8])> {
    let words = [
        c::word(program),
        line.as_mut_ptr() as usize,
        line.len() - 1,
        0,
        0,
    ];
    let count = usize::try_from(c::call(libc::SYS_pread64, words)).ok()?;
    let text = line[..count].strip_prefix(b"#!")?;
    let end = text.iter().position(|&byte| byte == b'\n');
    let text = text[..end.unwrap_or(text.len())].trim_ascii();
    let space = text.iter().position(u8::is_ascii_whitespace);
    let (name, argument) = text.split_at(space.unwrap_or(text.len()));
    (!name.is_empty()).then_some((name, argument.trim_ascii_start()))
}

/// Runs the interpreter of a script, which opens the script by its path.
fn interpreted(
    (interpreter, argument): (&[u8], &[u8]),
    path: *const c_char,
    (arguments, environment): (Strings, Strings),
    depth: u32,
) -> c_int {
    let given = c::list(arguments);
    let slots = given.len() + 4;
    let Some(pages) = PageMemory::new(slots * size_of::<*const c_char>() + 2 * LINE_BYTES_MAX)
    else {
        return c::int(c::fail(libc::ENOMEM));
    };
    let memory = c::memory(pages.at, pages.bytes);
    let list: *mut *const c_char = pages.at.cast();
    let mut next = slots * size_of::<*const c_char>();
    let mut copied = |text: &[u8]| {
        let start = next;
        memory[next..][..text.len()].copy_from_slice(text);
        next += text.len() + 1;
        memory[start..].as_ptr().cast::<c_char>()
    };
    let program = copied(interpreter);
    let argument = (!argument.is_empty()).then(|| copied(argument));
    let words = [Some(program), argument, Some(path)];
    let mut count = 0;
    for word in words.into_iter().flatten() {
        c::give(list.wrapping_add(count), word);
        count += 1;
    }
    for &word in given.iter().skip(1) {
        c::give(list.wrapping_add(count), word);
        count += 1;
    }
    c::give(list.wrapping_add(count), std::ptr::null());
    launch(program, list.cast_const(), environment, depth + 1)
}

#[unsafe(no_mangle)]
extern "C" fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    run(path, arguments, environment)
}

#[unsafe(no_mangle)]
extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    run(path, arguments, c::environment())
}

/// Calls `attempt` for a program in every directory of `PATH`, until it succeeds.
fn searched(file: *const c_char, mut attempt: impl FnMut(*const c_char) -> c_int) -> c_int {
    let name = c::text(file);
    if name.is_empty() {
        return c::int(c::fail(libc::ENOENT));
    }
    if name.contains(&b'/') {
        return attempt(file);
    }
    let path = c::variable(c"PATH");
    let path = if path.is_empty() { PATH } else { path };
    let mut denied = false;
    for directory in path.split(|&byte| byte == b':') {
        let mut whole = [0_u8; 2 * c::PATH_SPACE];
        if directory.len() + name.len() + 2 > whole.len() {
            continue;
        }
        let mut length = directory.len();
        whole[..length].copy_from_slice(directory);
        if length > 0 {
            whole[length] = b'/';
            length += 1;
        }
        whole[length..][..name.len()].copy_from_slice(name);
        let done = attempt(whole.as_ptr().cast());
        if done >= 0 {
            return done;
        }
        match c::errno() {
            libc::EACCES => denied = true,
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            _ => return done,
        }
    }
    let errno = if denied { libc::EACCES } else { libc::ENOENT };
    c::int(c::fail(errno))
}

/// Runs a program like `execvp`: the shell runs a file of an unknown format.
fn run_searched(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    searched(file, |path| {
        let failed = run(path, arguments, environment);
        if c::errno() != libc::ENOEXEC {
            return failed;
        }
        let Some(whole) = Environment::new(environment) else {
            return failed;
        };
        let shell = (&b"/bin/sh"[..], &b""[..]);
        interpreted(shell, path, (arguments, whole.list()), 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    run_searched(file, arguments, c::environment())
}

#[unsafe(no_mangle)]
extern "C" fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    run_searched(file, arguments, environment)
}

/// Starts a program as a child process. Returns an error number, like `posix_spawn`.
fn spawn(
    path: *const c_char,
    (pid, actions, attributes): (*mut pid_t, *const c_void, *const c_void),
    (arguments, given): (Strings, Strings),
) -> c_int {
    let start = |path: *const c_char, environment: Strings| {
        let words = [
            pid as usize,
            path as usize,
            actions as usize,
            attributes as usize,
            arguments as usize,
            environment as usize,
        ];
        c::int_of(c::real(&SPAWN, words))
    };
    if !target::is_on() {
        return start(path, given);
    }
    let Some(environment) = Environment::new(given) else {
        return libc::ENOMEM;
    };
    if is_host(path) {
        return start(path, environment.list());
    }
    // The shell runs it: it finds programs in the cluster.
    if crate::attributes::runnable(path) != 0 {
        return c::errno();
    }
    let script = c"exec \"$0\" \"$@\"".as_ptr();
    let words = c::list(arguments);
    let slots = words.len() + 5;
    let Some(pages) = PageMemory::new(slots * size_of::<*const c_char>()) else {
        return libc::ENOMEM;
    };
    let list: *mut *const c_char = pages.at.cast();
    let first = [c"sh".as_ptr(), c"-c".as_ptr(), script, path];
    let all = first.into_iter().chain(words.iter().skip(1).copied());
    for (at, word) in all.chain([std::ptr::null()]).enumerate() {
        c::give(list.wrapping_add(at), word);
    }
    let words = [
        pid as usize,
        c"/bin/sh".as_ptr() as usize,
        actions as usize,
        attributes as usize,
        list as usize,
        environment.list() as usize,
    ];
    c::int_of(c::real(&SPAWN, words))
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    spawn(path, (pid, actions, attributes), (arguments, environment))
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    let done = searched(file, |path| {
        let how = (pid, actions, attributes);
        match spawn(path, how, (arguments, environment)) {
            0 => 0,
            errno => c::int(c::fail(errno)),
        }
    });
    if done == 0 { 0 } else { c::errno() }
}
