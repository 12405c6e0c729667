//! Cache of compiled WebAssembly modules. Each entry belongs to the user who runs the module, and its key is the content of the module and
//! all other facts that the compiled form depends on.
//!
//! The entries are run without further checks, so the cache trusts only a directory that this program's user made and that no other user
//! can write to. Modules come from users, so they are compiled in a child that is confined like a kernel. The child gets a copy that no
//! other user can write to; the hash is computed from that copy. So the entry of a hash was made from the bytes that have this hash. No
//! user runs a module that was compiled for another user, and no user waits for all modules that another user compiles.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};

use crate::child;
use crate::code::CodeFile;
use crate::error::PrepareError;
use crate::launcher::Launcher;
use crate::prepare::Prepared;
use crate::private::{OWN_USER, remove_directory};
use crate::run::{CodeSource, InputsAs, Run, RunLimits};

/// Maximum number of compiled modules in the cache.
const MODULES_MAX: usize = 256;

/// Maximum size of the cache of compiled modules, in bytes. The module that was compiled last stays, however large it is.
const COMPILED_BYTES_KEPT: u64 = 1 << 30;

/// Maximum size of a module before compilation, in bytes, as in the compiler, which refuses larger modules.
const SOURCE_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a module that are copied at once.
const PIECE_BYTES: usize = 256 << 10;

/// Maximum number of modules that are compiled at once, each for another user. Each compilation takes a core.
const COMPILING_MAX: usize = 2;

/// Maximum number of users whose last turn to compile is remembered.
const TURNS_KEPT_MAX: usize = 1024;

/// Maximum time of one compilation; the next constants are further limits.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(60);
const COMPILE_MEMORY_BYTES_MAX: u64 = 2 << 30;
const COMPILED_BYTES_MAX: u64 = 512 << 20;

/// Suffix of files of compiled modules.
const ENDING: &str = "cwasm";

/// Name of the output file in the compiler's private directory.
const COMPILED: &str = "compiled";

/// Compiled modules of one [`Launcher`].
#[derive(Debug)]
pub(crate) struct Modules {
    directory: PathBuf,
    turns: CompileTurns,
    next: AtomicU64,
}

/// Users' turns to compile modules. Each user has at most one turn, because two runs of one new module need the same result.
#[derive(Debug, Default)]
struct CompileTurns {
    state: Mutex<CompileQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CompileQueue {
    /// Users for whom a module is being compiled now.
    compiling: Vec<u32>,
    /// Waiting users, in the order of their arrival.
    waiting: BTreeMap<u64, u32>,
    /// Last turn of each user, as the number of that turn.
    last: BTreeMap<u32, u64>,
    count: u64,
}

/// Permission to compile a module, held until it is dropped.
#[derive(Debug)]
struct CompilePermit<'a> {
    turns: &'a CompileTurns,
    user: u32,
}

impl CompileTurns {
    /// Waits for a turn to compile. The next turn is given to the waiting user whose last turn is the oldest.
    fn wait(&self, user: u32) -> CompilePermit<'_> {
        let mut state = self.state.lock();
        let ticket = state.count;
        state.count += 1;
        state.waiting.insert(ticket, user);
        while state.next() != Some(ticket) {
            self.changed.wait(&mut state);
        }
        state.waiting.remove(&ticket);
        state.compiling.push(user);
        if state.last.len() >= TURNS_KEPT_MAX {
            state.last.clear();
        }
        let count = state.count;
        state.last.insert(user, count);
        drop(state);
        self.changed.notify_all();
        CompilePermit { turns: self, user }
    }
}

impl CompileQueue {
    fn next(&self) -> Option<u64> {
        if self.compiling.len() >= COMPILING_MAX {
            return None;
        }
        let free = |user: &u32| !self.compiling.contains(user);
        let last = |user: &u32| self.last.get(user).copied();
        let waiting = self.waiting.iter().filter(|(_, user)| free(user));
        waiting
            .min_by_key(|(ticket, user)| (last(user), **ticket))
            .map(|(ticket, _)| *ticket)
    }
}

impl Drop for CompilePermit<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        let of = state.compiling.iter().position(|user| *user == self.user);
        if let Some(of) = of {
            state.compiling.swap_remove(of);
        }
        drop(state);
        self.turns.changed.notify_all();
    }
}

impl Modules {
    /// Returns the cache in a directory; see [`crate::LauncherSettings::modules`].
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        let directory = directory.unwrap_or_else(|| {
            std::env::temp_dir().join(format!("tidemill-modules-{}", OWN_USER.uid))
        });
        Self {
            directory,
            turns: CompileTurns::default(),
            next: AtomicU64::new(0),
        }
    }

    /// Returns the compiled form of the module at a path that was opened for a user. Compiles the module if it is not in the cache.
    pub(crate) fn open(
        &self,
        launcher: &Launcher,
        user: u32,
        path: &Path,
        module: &CodeFile,
    ) -> Result<File, PrepareError> {
        let code = |source| PrepareError::Code {
            path: path.to_owned(),
            source,
        };
        let engine = child::compatibility().ok_or(PrepareError::NoWasm)?;
        self.make_directory()?;
        let hash = &module.hash;
        let name = format!("{user}-{hash}-{engine:016x}.{ENDING}");
        let kept = self.directory.join(name);
        if let Some(file) = open_own(&kept).map_err(code)? {
            return Ok(file);
        }
        let _turn = self.turns.wait(user);
        if let Some(file) = open_own(&kept).map_err(code)? {
            return Ok(file);
        }
        let module = self.copy(module).map_err(code)?;
        self.compile(launcher, path, module, &kept)?;
        self.prune(&kept);
        open_own(&kept)
            .map_err(code)?
            .ok_or_else(|| code(io::ErrorKind::NotFound.into()))
    }

    fn make_directory(&self) -> Result<(), PrepareError> {
        let path = || self.directory.clone();
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(PrepareError::Make {
                    path: path(),
                    source: error,
                });
            }
            _ => {}
        }
        match fs::symlink_metadata(&self.directory) {
            Ok(data) if data.is_dir() && is_own(&data) => Ok(()),
            _ => Err(PrepareError::ModuleDirectory {
                path: path(),
                uid: OWN_USER.uid,
            }),
        }
    }

    /// Makes a copy of a module that no other user can change. The bytes of the copy have the module's hash.
    fn copy(&self, module: &CodeFile) -> io::Result<File> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = (self.directory).join(format!("module-{}-{number}", std::process::id()));
        let mut how = File::options();
        let mut copy = how.write(true).create_new(true).mode(0o600).open(&path)?;
        let copied = File::open(&path);
        fs::remove_file(&path)?;
        let mut hasher = blake3::Hasher::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut length = 0;
        // If a module is too long, the compiler gets enough bytes to detect that.
        while length <= SOURCE_BYTES_MAX {
            let count = match module.file.read_at(&mut piece, length) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            hasher.update(&piece[..count]);
            copy.write_all(&piece[..count])?;
            length += count as u64;
        }
        if length <= SOURCE_BYTES_MAX && hasher.finalize().to_hex().as_str() != module.hash {
            return Err(io::Error::other("it was changed while it was read"));
        }
        copied
    }

    fn compile(
        &self,
        launcher: &Launcher,
        path: &Path,
        module: File,
        kept: &Path,
    ) -> Result<(), PrepareError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let directory = (self.directory).join(format!("compile-{}-{number}", std::process::id()));
        // The run has no user: the compiler must not run as a user who could reach into it and so into modules that others will run.
        let mut run = Run::new(CodeSource::Wasm(path.to_owned()), &directory);
        // The run has this process's user, whose files it must not change.
        run.inputs_as = InputsAs::Symlink;
        run.outputs.push(COMPILED.into());
        run.stdout = Some(COMPILED.into());
        run.limits = RunLimits {
            time: COMPILE_TIME_MAX,
            memory_bytes: COMPILE_MEMORY_BYTES_MAX,
            output_bytes: COMPILED_BYTES_MAX,
            ..RunLimits::default()
        };
        let prepared = launcher.prepare_compiler(run, module);
        let made = prepared.and_then(|prepared| compile(launcher, path, &prepared, kept));
        if let Err(error) = remove_directory(&directory) {
            tracing::warn!(%error, directory = %directory.display(), "cannot remove the directory of a compiler");
        }
        made
    }

    /// Removes compiled modules until the cache is within its limits: of the user who has the largest share of the exceeded limit, the
    /// module that was unused for longest. Processes that have a module open keep it.
    fn prune(&self, newest: &Path) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        let mut kept: Vec<CachedModule> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == ENDING) && path != newest)
            .filter_map(|path| {
                let data = fs::symlink_metadata(&path).ok()?;
                Some(CachedModule {
                    used: data.modified().ok()?,
                    user: user_of(&path),
                    length: data.len(),
                    path,
                })
            })
            .collect();
        kept.sort();
        let mut users = BTreeMap::<Option<u32>, (usize, u64)>::new();
        for one in &kept {
            let (count, bytes) = users.entry(one.user).or_default();
            *count += 1;
            *bytes += one.length;
        }
        loop {
            let count: usize = users.values().map(|(count, _)| count).sum();
            let bytes: u64 = users.values().map(|(_, bytes)| bytes).sum();
            let most = if bytes > COMPILED_BYTES_KEPT {
                users.iter().max_by_key(|(_, (_, bytes))| *bytes)
            } else if count + 1 > MODULES_MAX {
                users.iter().max_by_key(|(_, (count, _))| *count)
            } else {
                return;
            };
            let user = most.and_then(|(user, _)| *user);
            let Some(oldest) = kept.iter().position(|one| one.user == user) else {
                return;
            };
            let oldest = kept.remove(oldest);
            let (count, bytes) = users.entry(user).or_default();
            *count -= 1;
            *bytes -= oldest.length;
            if let Err(error) = fs::remove_file(&oldest.path) {
                tracing::warn!(%error, path = %oldest.path.display(), "cannot remove a compiled module");
            }
        }
    }
}

/// A compiled module in the cache; the module that was unused for longest is the least.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CachedModule {
    used: SystemTime,
    user: Option<u32>,
    length: u64,
    path: PathBuf,
}

/// Returns the user that a module was compiled for. Modules of former releases were compiled for all users and are not used any more.
fn user_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.split_once('-')?.0.parse().ok()
}

/// Compiles a module in a prepared child process, and stores the result in the cache.
fn compile(
    launcher: &Launcher,
    path: &Path,
    prepared: &Prepared,
    kept: &Path,
) -> Result<(), PrepareError> {
    let failed = |source| PrepareError::Compiler {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let running = launcher.spawn(prepared).map_err(failed)?;
    let exit = running.wait().map_err(|source| PrepareError::Code {
        path: path.to_owned(),
        source,
    })?;
    if !exit.success() {
        let printed = exit.stderr.text();
        let reason = match printed.trim() {
            "" => exit.message(&prepared.run().limits),
            printed => printed.to_owned(),
        };
        return Err(PrepareError::Module {
            path: path.to_owned(),
            reason,
        });
    }
    let made = prepared.output(COMPILED).map_err(io::Error::other);
    let kept_now = made.and_then(|made| {
        made.file().set_permissions(Permissions::from_mode(0o400))?;
        made.move_to(kept)
    });
    kept_now.map_err(|source| PrepareError::Make {
        path: kept.to_owned(),
        source,
    })
}

/// Returns whether a file or directory belongs to this process's user, and no other user can write to it.
fn is_own(data: &Metadata) -> bool {
    data.uid() == OWN_USER.uid && data.mode() & 0o022 == 0
}

/// Opens a compiled module and records that it was used; returns `None` if no trustworthy module exists at the path.
fn open_own(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let data = file.metadata()?;
    if !data.is_file() || !is_own(&data) {
        return Ok(None);
    }
    // The modification time serves as the time of use, which many file systems do not record.
    let _ = file.set_modified(SystemTime::now());
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(directory: &Path, name: &str, bytes: u64, age_secs: u64) -> PathBuf {
        let path = directory.join(format!("{name}.{ENDING}"));
        let file = File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        let used = SystemTime::now() - Duration::from_secs(age_secs);
        file.set_modified(used).unwrap();
        path
    }

    #[test]
    fn module_cache_evicts_least_recently_used_module() {
        let directory = tempfile::tempdir().unwrap();
        let modules = Modules::new(Some(directory.path().to_owned()));
        let half = COMPILED_BYTES_KEPT / 2 + 1;
        let old = kept(directory.path(), "old", half, 30);
        let used = kept(directory.path(), "used", half, 20);
        let new = kept(directory.path(), "new", half, 0);
        modules.prune(&new);
        assert_eq!(
            [&old, &used, &new].map(|path| path.exists()),
            [false, true, true]
        );
        fs::remove_file(&used).unwrap();
        fs::remove_file(&new).unwrap();
        for number in 0..MODULES_MAX as u64 {
            kept(directory.path(), &number.to_string(), 1, 100 + number);
        }
        let last = kept(directory.path(), "last", 1, 0);
        modules.prune(&last);
        let left = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, MODULES_MAX);
        assert!(last.exists() && !directory.path().join("255.cwasm").exists());
    }

    #[test]
    fn module_cache_evicts_first_from_user_with_most_modules() {
        let directory = tempfile::tempdir().unwrap();
        let modules = Modules::new(Some(directory.path().to_owned()));
        let theirs = kept(directory.path(), "7-theirs", 1, 10_000);
        let other = kept(directory.path(), "7-other", COMPILED_BYTES_KEPT / 4, 10_000);
        let former = kept(directory.path(), &"ab".repeat(32), 1, 0);
        for number in 0..MODULES_MAX as u64 + 20 {
            let last = kept(directory.path(), &format!("8-{number}"), 1, 0);
            modules.prune(&last);
        }
        assert!(theirs.exists() && former.exists());
        let last = kept(directory.path(), "8-large", COMPILED_BYTES_KEPT, 0);
        modules.prune(&last);
        assert!(last.exists());
        let last = kept(directory.path(), "8-last", 1, 0);
        modules.prune(&last);
        assert!(!directory.path().join("8-large.cwasm").exists());
        assert!(theirs.exists() && other.exists() && last.exists());
        assert_eq!(
            [user_of(&theirs), user_of(&last), user_of(&former)],
            [Some(7), Some(8), None]
        );
    }

    #[test]
    fn module_copy_has_the_bytes_of_its_hash() {
        let directory = tempfile::tempdir().unwrap();
        let modules = Modules::new(Some(directory.path().join("kept")));
        modules.make_directory().unwrap();
        let path = directory.path().join("module");
        fs::write(&path, "genuine").unwrap();
        let opened = CodeFile {
            file: File::open(&path).unwrap(),
            hash: blake3::hash(b"genuine").to_hex().to_string(),
            reached: true,
        };
        let copy = modules.copy(&opened).unwrap();
        // A user who can write to the module changes it after it was hashed.
        let writer = File::options().write(true).open(&path).unwrap();
        writer.write_all_at(b"forged!", 0).unwrap();
        assert_eq!(io::read_to_string(copy).unwrap(), "genuine");
        assert!(modules.copy(&opened).is_err());
        // No file of the copy stays.
        let left = fs::read_dir(directory.path().join("kept")).unwrap();
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn module_compile_turns_alternate_among_users() {
        let mut state = CompileQueue::default();
        for (ticket, user) in [(0, 5), (1, 5), (2, 6), (3, 6), (4, 7)] {
            state.waiting.insert(ticket, user);
        }
        let mut take = |ticket: u64, ended: Option<u32>| {
            state.compiling.retain(|user| Some(*user) != ended);
            assert_eq!(state.next(), Some(ticket));
            let user = state.waiting.remove(&ticket).unwrap();
            state.compiling.push(user);
            state.last.insert(user, ticket);
            state.next()
        };
        // One module of each user, two at once.
        assert_eq!(take(0, None), Some(2));
        assert_eq!(take(2, None), None);
        // Users without a turn so far are served before the second turn of other users.
        assert_eq!(take(4, Some(5)), None);
        assert_eq!(take(1, Some(6)), None);
        assert_eq!(take(3, Some(7)), None);
    }

    #[test]
    fn modules_of_two_users_compile_concurrently() {
        let turns = CompileTurns::default();
        let first = turns.wait(5);
        let second = turns.wait(6);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(turns.wait(5)));
            drop(second);
            drop(turns.wait(7));
            drop(first);
            waits.join().unwrap();
        });
        assert!(turns.state.lock().compiling.is_empty());
    }

    #[test]
    fn compiled_module_writable_by_others_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = kept(directory.path(), "module", 1, 0);
        assert!(open_own(&path).unwrap().is_some());
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(open_own(&path).unwrap().is_none());
        let link = directory.path().join("link.cwasm");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open_own(&link).unwrap().is_none());
        let modules = Modules::new(Some(directory.path().to_owned()));
        modules.make_directory().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(
            modules.make_directory(),
            Err(PrepareError::ModuleDirectory { .. })
        ));
    }
}
