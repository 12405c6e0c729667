//! Makes the private folder of a run, and looks its outputs over afterwards.
//!
//! The folder holds the inputs and, later, the outputs under the names of the job, and a reserved folder
//! `.tidemill` for temporary files. It belongs to the task's user; nobody else can look into it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink,
};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};

use crate::builtin;
use crate::error::{OutputError, PrepareError};
use crate::program::{interpreter, may};
use crate::run::{Code, InputsAs, Run, Stage, User};
use crate::spare::Spares;

/// The part of a private folder that is not for inputs and outputs.
pub const RESERVED: &str = ".tidemill";

/// Temporary files of the kernel, within [`RESERVED`].
pub(crate) const TEMPORARY: &str = "tmp";

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

/// A run whose private folder is ready; [`crate::Launcher::spawn`] starts it.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) run: Run,
    /// The code that is executed or loaded, which may be a copy.
    pub(crate) code: Code,
    pub(crate) folder: OwnedFd,
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: Option<File>,
    /// What was compiled of its modules, in the order of its stages.
    pub(crate) modules: Vec<File>,
    /// Whether it compiles the module on its standard input rather than running it.
    pub(crate) compiles: bool,
    /// Device and inode of what lies in the folder before the kernel runs.
    pub(crate) given: BTreeSet<(u64, u64)>,
}

/// Makes the private folder of `run` and all that lies in it.
///
/// # Errors
/// If a name cannot be used, a file is missing, or the folder is there already or cannot be made. What was
/// made until then stays for the caller to remove.
pub(crate) fn prepare(run: Run, spares: &Spares) -> Result<Prepared, PrepareError> {
    check_names(&run)?;
    check_code(&run)?;
    let user = effective_user(&run);
    let mut folder = PrivateFolder {
        root: run.folder.clone(),
        user: run.user,
        made: BTreeSet::new(),
    };
    if !spares.take(&run) {
        make_folder(&run.folder)?;
        folder.make_sub(RESERVED)?;
        folder.make_sub(&format!("{RESERVED}/{TEMPORARY}"))?;
    }
    let mut given = BTreeSet::new();
    let mut stdin = None;
    for input in &run.inputs {
        let error = |source| PrepareError::Input {
            name: input.name.clone(),
            path: input.path.clone(),
            source,
        };
        let data = plain_file(&input.path).map_err(error)?;
        folder.make_parents(&input.name)?;
        let link = run.folder.join(&input.name);
        match run.inputs_as {
            InputsAs::HardLink => {
                if data.uid() == user.uid || may(&data, user, WRITE) {
                    let (name, path) = (input.name.clone(), input.path.clone());
                    return Err(PrepareError::WritableInput { name, path });
                }
                fs::hard_link(&input.path, &link).map_err(error)?;
            }
            InputsAs::Symlink => symlink(&input.path, &link).map_err(error)?,
        }
        given.insert((data.dev(), data.ino()));
        if run.stdin.as_ref() == Some(&input.name) {
            stdin = Some(File::open(&input.path).map_err(error)?);
        }
    }
    for output in &run.outputs {
        folder.make_parents(output)?;
    }
    let stdout = run
        .stdout
        .as_ref()
        .map(|name| folder.make_file(name))
        .transpose()?;
    let code = usable_code(&run, user, &folder, &mut given)?;
    folder.hand_over()?;
    let make = |source: rustix::io::Errno| PrepareError::Make {
        path: run.folder.clone(),
        source: source.into(),
    };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let folder = rustix::fs::open(&run.folder, flags, Mode::empty()).map_err(make)?;
    Ok(Prepared {
        code,
        folder,
        stdin,
        stdout,
        modules: Vec::new(),
        compiles: false,
        given,
        run,
    })
}

impl Prepared {
    /// What is to run.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Looks over an output after the kernel has ended, and gives its size in bytes. Afterwards the file
    /// `folder/name` can be renamed away: it is a plain file with no other name, reached through no link.
    ///
    /// # Errors
    /// If the kernel did not write it, or made something else than a file of that name.
    pub fn output(&self, name: &str) -> Result<u64, OutputError> {
        let io = |source: io::Error| OutputError::Io {
            name: name.to_owned(),
            source,
        };
        let within =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat2(&self.folder, name, flags, Mode::empty(), within) {
            Ok(file) => file,
            Err(rustix::io::Errno::NOENT) => return Err(OutputError::Missing(name.to_owned())),
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                return Err(OutputError::NotAFile(name.to_owned()));
            }
            Err(error) => return Err(io(error.into())),
        };
        let data =
            rustix::fs::statat(&file, "", AtFlags::EMPTY_PATH).map_err(|error| io(error.into()))?;
        if FileType::from_raw_mode(data.st_mode) != FileType::RegularFile {
            return Err(OutputError::NotAFile(name.to_owned()));
        }
        if data.st_nlink > 1 {
            // The kernel made a second name, perhaps of an input: the output must be a file of its own.
            let path = self.run.folder.join(name);
            let copy = self.run.folder.join(RESERVED).join("output");
            fs::copy(&path, &copy)
                .and_then(|_| fs::rename(&copy, &path))
                .map_err(io)?;
        }
        Ok(data.st_size.cast_unsigned())
    }
}

/// The user whose rights the kernel will have.
fn effective_user(run: &Run) -> User {
    run.user.unwrap_or(User {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    })
}

fn check_names(run: &Run) -> Result<(), PrepareError> {
    let paths = run
        .inputs
        .iter()
        .map(|input| &input.path)
        .chain(&run.readable)
        .chain([&run.folder]);
    if let Some(path) = paths.into_iter().find(|path| !path.is_absolute()) {
        return Err(PrepareError::NotAbsolute(path.clone()));
    }
    let mut files = BTreeSet::new();
    for name in run
        .inputs
        .iter()
        .map(|input| &input.name)
        .chain(&run.outputs)
    {
        if !valid(name) {
            return Err(PrepareError::Name(name.clone()));
        }
        if !files.insert(name.as_str()) {
            return Err(PrepareError::NameTwice(name.clone()));
        }
    }
    for name in &files {
        let folders = name.match_indices('/').map(|(end, _)| &name[..end]);
        if let Some(twice) = folders.into_iter().find(|folder| files.contains(folder)) {
            return Err(PrepareError::NameTwice(twice.to_owned()));
        }
    }
    let unknown = |stream, name: &String, list| PrepareError::Stream {
        stream,
        name: name.clone(),
        list,
    };
    if let Some(name) = &run.stdin
        && !run.inputs.iter().any(|input| input.name == *name)
    {
        return Err(unknown("stdin", name, "inputs"));
    }
    match &run.stdout {
        Some(name) if !run.outputs.contains(name) => Err(unknown("stdout", name, "outputs")),
        _ => Ok(()),
    }
}

/// Whether a name stays within the private folder and out of its reserved part.
fn valid(name: &str) -> bool {
    let mut parts = name.split('/');
    !name.contains('\0')
        && !name.split('/').any(|part| matches!(part, "" | "." | ".."))
        && parts.next() != Some(RESERVED)
}

fn check_code(run: &Run) -> Result<(), PrepareError> {
    if matches!(run.code, Code::Stack(_)) && (run.outputs.len() != 1 || run.stdout.is_none()) {
        return Err(PrepareError::StackOutput(run.outputs.len()));
    }
    run.code.parts().try_for_each(check_part)
}

fn check_part(code: &Code) -> Result<(), PrepareError> {
    match code {
        Code::Stack(_) => Err(PrepareError::NestedStack),
        Code::Builtin(name) if builtin::is_builtin(name) => Ok(()),
        Code::Builtin(name) => Err(PrepareError::UnknownBuiltin {
            name: name.clone(),
            known: builtin::builtin_names().join(", "),
        }),
        Code::Native(path) | Code::Wasm(path) | Code::Program(path) if !path.is_absolute() => {
            Err(PrepareError::NotAbsolute(path.clone()))
        }
        Code::Native(path) | Code::Wasm(path) | Code::Program(path) => match fs::metadata(path) {
            Ok(data) if data.is_file() => Ok(()),
            Ok(_) => Err(PrepareError::Code {
                path: path.clone(),
                source: io::Error::other("it is not a plain file"),
            }),
            Err(source) => Err(PrepareError::Code {
                path: path.clone(),
                source,
            }),
        },
    }
}

fn plain_file(path: &Path) -> io::Result<Metadata> {
    let data = fs::symlink_metadata(path)?;
    if data.is_file() {
        Ok(data)
    } else {
        Err(io::Error::other("it is not a plain file"))
    }
}

/// The code in a form that the task's user can execute: a copy where the file itself may not be executed,
/// as is so with sealed objects.
fn usable_code(
    run: &Run,
    user: User,
    folder: &PrivateFolder,
    given: &mut BTreeSet<(u64, u64)>,
) -> Result<Code, PrepareError> {
    let mut usable = |code: &Code| match code {
        Code::Program(path) => usable_program(path, run, user, folder, given),
        code => Ok(code.clone()),
    };
    let Code::Stack(stages) = &run.code else {
        return usable(&run.code);
    };
    let stages = stages.iter().map(|stage| {
        let (code, args) = (usable(&stage.code)?, stage.args.clone());
        Ok(Stage { code, args })
    });
    Ok(Code::Stack(stages.collect::<Result<_, _>>()?))
}

fn usable_program(
    path: &PathBuf,
    run: &Run,
    user: User,
    folder: &PrivateFolder,
    given: &mut BTreeSet<(u64, u64)>,
) -> Result<Code, PrepareError> {
    let error = |source| PrepareError::Code {
        path: path.clone(),
        source,
    };
    if let Some(interpreter) = interpreter(path).map_err(error)?
        && !Path::new(&interpreter).exists()
    {
        return Err(PrepareError::Interpreter {
            path: path.clone(),
            interpreter,
        });
    }
    let data = fs::metadata(path).map_err(error)?;
    if may(&data, user, READ | EXECUTE) {
        return Ok(Code::Program(path.clone()));
    }
    // The copy bears the name that the task knows, as that is what scripts see of themselves.
    let known = run
        .inputs
        .iter()
        .find(|input| input.path == *path || run.folder.join(&input.name) == *path);
    let name = known
        .map_or(path.as_path(), |input| Path::new(&input.name))
        .file_name();
    let reserved = run.folder.join(RESERVED);
    let mut copy = reserved.join(name.unwrap_or("program".as_ref()));
    for number in 1.. {
        if !copy.exists() {
            break;
        }
        copy = reserved.join(format!("program-{number}"));
    }
    fs::copy(path, &copy).map_err(error)?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).map_err(error)?;
    folder.give(&copy)?;
    let data = fs::metadata(&copy).map_err(error)?;
    given.insert((data.dev(), data.ino()));
    Ok(Code::Program(copy))
}

fn make_folder(path: &Path) -> Result<(), PrepareError> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.map_err(|source| PrepareError::Make {
        path: path.to_owned(),
        source,
    })
}

/// A folder being filled. It is handed to the task's user last, so that nobody interferes meanwhile.
struct PrivateFolder {
    root: PathBuf,
    user: Option<User>,
    made: BTreeSet<String>,
}

impl PrivateFolder {
    fn make_sub(&mut self, name: &str) -> Result<(), PrepareError> {
        if self.made.insert(name.to_owned()) {
            make_folder(&self.root.join(name))?;
            self.give(&self.root.join(name))?;
        }
        Ok(())
    }

    fn make_parents(&mut self, name: &str) -> Result<(), PrepareError> {
        name.match_indices('/')
            .try_for_each(|(end, _)| self.make_sub(&name[..end]))
    }

    fn make_file(&self, name: &str) -> Result<File, PrepareError> {
        let path = self.root.join(name);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(&path);
        let file = file.map_err(|source| PrepareError::Make {
            path: path.clone(),
            source,
        })?;
        self.give(&path)?;
        Ok(file)
    }

    fn give(&self, path: &Path) -> Result<(), PrepareError> {
        let Some(User { uid, gid }) = self.user else {
            return Ok(());
        };
        let given = chown(path, Some(uid), Some(gid));
        given.map_err(|source| PrepareError::Make {
            path: path.to_owned(),
            source,
        })
    }

    fn hand_over(&self) -> Result<(), PrepareError> {
        self.give(&self.root)
    }
}

/// The variables that every kernel gets, and those that the run adds.
pub(crate) fn environment(run: &Run, path: &str) -> BTreeMap<String, String> {
    let folder = run.folder.to_string_lossy().into_owned();
    let mut all = BTreeMap::from([
        ("PATH".to_owned(), path.to_owned()),
        (
            "TMPDIR".to_owned(),
            format!("{folder}/{RESERVED}/{TEMPORARY}"),
        ),
        ("PWD".to_owned(), folder.clone()),
        ("HOME".to_owned(), folder),
        ("LANG".to_owned(), "C".to_owned()),
    ]);
    all.extend(run.environment.iter().cloned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_are_refused() {
        for name in ["a", "a/b", "a.b/c d", "..a", "a/.tidemill", ".tidemillx"] {
            assert!(valid(name), "{name}");
        }
        for name in [
            "",
            "/a",
            "a/",
            "a//b",
            "../a",
            "a/../b",
            ".",
            "a/.",
            ".tidemill",
            ".tidemill/x",
            "a\0",
        ] {
            assert!(!valid(name), "{name}");
        }
    }
}
