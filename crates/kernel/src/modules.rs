//! Compiled modules, kept by the content of the module and by what else they depend on.
//!
//! What lies here is run as it is, so it is trusted only in a folder that this program's user made and nobody else
//! can write to. Modules are compiled in a child that is confined like a kernel: what it is given comes from users.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};

use crate::child;
use crate::code::Opened;
use crate::error::PrepareError;
use crate::launcher::Launcher;
use crate::prepare::Prepared;
use crate::private::{OWN_USER, remove_folder};
use crate::run::{Code, InputsAs, Limits, Run};

/// Compiled modules that are kept.
const MODULES_MAX: usize = 256;

/// Their bytes in all. The one just compiled stays however large it is.
const MODULE_BYTES_MAX: u64 = 1 << 30;

/// Bounds on compiling one.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(60);
const COMPILE_MEMORY_BYTES_MAX: u64 = 2 << 30;
const COMPILED_BYTES_MAX: u64 = 512 << 20;

/// Files of compiled modules end so.
const ENDING: &str = "cwasm";

/// The name of what it makes in the compiler's private folder.
const COMPILED: &str = "compiled";

/// The compiled modules of one [`Launcher`].
#[derive(Debug)]
pub(crate) struct Modules {
    folder: PathBuf,
    /// One at a time is compiled: it takes a core, and two runs of one new module want the same result.
    compiling: Mutex<()>,
    next: AtomicU64,
}

impl Modules {
    /// See [`crate::Settings::modules`].
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        let folder = folder.unwrap_or_else(|| {
            std::env::temp_dir().join(format!("tidemill-modules-{}", OWN_USER.uid))
        });
        Self {
            folder,
            compiling: Mutex::new(()),
            next: AtomicU64::new(0),
        }
    }

    /// The compiled form of the module at a path that was opened, compiled now if it was not before.
    pub(crate) fn open(
        &self,
        launcher: &Launcher,
        path: &Path,
        module: &Opened,
    ) -> Result<File, PrepareError> {
        let code = |source| PrepareError::Code {
            path: path.to_owned(),
            source,
        };
        let engine = child::compatibility().ok_or(PrepareError::NoWasm)?;
        self.make_folder()?;
        let hash = &module.hash;
        let kept = self.folder.join(format!("{hash}-{engine:016x}.{ENDING}"));
        if let Some(file) = open_own(&kept).map_err(code)? {
            return Ok(file);
        }
        let _alone = self.compiling.lock();
        if let Some(file) = open_own(&kept).map_err(code)? {
            return Ok(file);
        }
        let module = module.file.try_clone().map_err(code)?;
        self.compile(launcher, path, module, &kept)?;
        self.prune(&kept);
        open_own(&kept)
            .map_err(code)?
            .ok_or_else(|| code(io::ErrorKind::NotFound.into()))
    }

    fn make_folder(&self) -> Result<(), PrepareError> {
        let path = || self.folder.clone();
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(PrepareError::Make {
                    path: path(),
                    source: error,
                });
            }
            _ => {}
        }
        match fs::symlink_metadata(&self.folder) {
            Ok(data) if data.is_dir() && is_own(&data) => Ok(()),
            _ => Err(PrepareError::ModuleFolder {
                path: path(),
                uid: OWN_USER.uid,
            }),
        }
    }

    fn compile(
        &self,
        launcher: &Launcher,
        path: &Path,
        module: File,
        kept: &Path,
    ) -> Result<(), PrepareError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = (self.folder).join(format!("compile-{}-{number}", std::process::id()));
        // No user: it must not run as one who could reach into it and so into what others will run.
        let mut run = Run::new(Code::Wasm(path.to_owned()), &folder);
        // It has this process's user, whose files it must not change.
        run.inputs_as = InputsAs::Symlink;
        run.outputs.push(COMPILED.into());
        run.stdout = Some(COMPILED.into());
        run.limits = Limits {
            time: COMPILE_TIME_MAX,
            memory_bytes: COMPILE_MEMORY_BYTES_MAX,
            output_bytes: COMPILED_BYTES_MAX,
            ..Limits::default()
        };
        let prepared = launcher.prepare_compiler(run, module);
        let made = prepared.and_then(|prepared| compile(launcher, path, &prepared, kept));
        if let Err(error) = remove_folder(&folder) {
            tracing::warn!(%error, folder = %folder.display(), "cannot remove the folder of a compiler");
        }
        made
    }

    /// Removes those not used for longest until the rest is within bounds. Processes that have one open keep it.
    fn prune(&self, newest: &Path) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == ENDING) && path != newest)
            .filter_map(|path| {
                let data = fs::symlink_metadata(&path).ok()?;
                Some((data.modified().ok()?, data.len(), path))
            })
            .collect();
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(_, length, _)| length).sum();
        let mut count = kept.len() + 1;
        for (_, length, path) in kept {
            if count <= MODULES_MAX && bytes <= MODULE_BYTES_MAX {
                break;
            }
            count -= 1;
            bytes -= length;
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(%error, path = %path.display(), "cannot remove a compiled module");
            }
        }
    }
}

/// Has a module compiled by a prepared child, and keeps what that made.
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
        let said = exit.stderr.text();
        let reason = match said.trim() {
            "" => exit.message(&prepared.run().limits),
            said => said.to_owned(),
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

/// Whether something is this user's, and nobody else can write to it.
fn is_own(data: &Metadata) -> bool {
    data.uid() == OWN_USER.uid && data.mode() & 0o022 == 0
}

/// Opens a compiled module and notes that it was used; `None` if there is none that can be trusted.
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
    // The time of change serves as that of use, which many file systems do not keep.
    let _ = file.set_modified(SystemTime::now());
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(folder: &Path, name: &str, bytes: u64, age_secs: u64) -> PathBuf {
        let path = folder.join(format!("{name}.{ENDING}"));
        let file = File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        let used = SystemTime::now() - Duration::from_secs(age_secs);
        file.set_modified(used).unwrap();
        path
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let modules = Modules::new(Some(folder.path().to_owned()));
        let half = MODULE_BYTES_MAX / 2 + 1;
        let old = kept(folder.path(), "old", half, 30);
        let used = kept(folder.path(), "used", half, 20);
        let new = kept(folder.path(), "new", half, 0);
        modules.prune(&new);
        assert_eq!(
            [&old, &used, &new].map(|path| path.exists()),
            [false, true, true]
        );
        fs::remove_file(&used).unwrap();
        fs::remove_file(&new).unwrap();
        for number in 0..MODULES_MAX as u64 {
            kept(folder.path(), &number.to_string(), 1, 100 + number);
        }
        let last = kept(folder.path(), "last", 1, 0);
        modules.prune(&last);
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, MODULES_MAX);
        assert!(last.exists() && !folder.path().join("255.cwasm").exists());
    }

    #[test]
    fn what_others_can_write_to_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = kept(folder.path(), "module", 1, 0);
        assert!(open_own(&path).unwrap().is_some());
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(open_own(&path).unwrap().is_none());
        let link = folder.path().join("link.cwasm");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open_own(&link).unwrap().is_none());
        let modules = Modules::new(Some(folder.path().to_owned()));
        modules.make_folder().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(
            modules.make_folder(),
            Err(PrepareError::ModuleFolder { .. })
        ));
    }
}
