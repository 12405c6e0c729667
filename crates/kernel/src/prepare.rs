//! Makes the private folder of a run.
//!
//! The folder holds the inputs and, later, the outputs under the names of the job, and a reserved folder
//! `.tidemill` for temporary files. In the end it belongs to the user that the kernel runs as; nobody else can look into it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{
    DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown, symlink,
};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use crate::builtin;
use crate::error::{OutputError, PrepareError};
use crate::private::{self, Made};
use crate::program::{interpreter, may, open_as, open_to_all};
use crate::run::{Code, InputsAs, Run, RunInput, Stage, User};
use crate::sandbox::ids::Ids;
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
    /// Its user as the system knows it, which the folder belongs to.
    pub(crate) user: Option<User>,
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
pub(crate) fn prepare(run: Run, ids: Ids, spares: &Spares) -> Result<Prepared, PrepareError> {
    check_names(&run)?;
    check_code(&run)?;
    let outside = run.user.map(|user| ids.outside(user)).transpose()?;
    let user = outside.unwrap_or_else(own_user);
    let temporary = format!("{RESERVED}/{TEMPORARY}");
    let mut folder = PrivateFolder {
        root: run.folder.clone(),
        user: outside,
        made: BTreeSet::from([RESERVED.to_owned(), temporary]),
    };
    // Where others have the user of kernels they may hold what a folder had before.
    let alone = run.user.is_none() || ids == Ids::OfKernels;
    if !(alone && spares.take(&run)) {
        make_folder(&run.folder)?;
        for name in &folder.made {
            make_folder(&run.folder.join(name))?;
        }
    }
    let mut given = BTreeSet::new();
    let stdin = link_inputs(&run, user, &mut folder, &mut given)?;
    for output in &run.outputs {
        folder.make_parents(output)?;
    }
    let stdout = run
        .stdout
        .as_ref()
        .map(|name| folder.new_file(&run.folder.join(name)))
        .transpose()?;
    let code = usable_code(&run, user, &folder, &mut given)?;
    let open = private::open_folder(CWD, &run.folder).map_err(|source| PrepareError::Make {
        path: run.folder.clone(),
        source,
    })?;
    folder.hand_over()?;
    Ok(Prepared {
        user: outside,
        code,
        folder: open,
        stdin,
        stdout,
        modules: Vec::new(),
        compiles: false,
        given,
        run,
    })
}

/// Puts the inputs where the kernel looks for them; gives the one that is its standard input, open.
fn link_inputs(
    run: &Run,
    user: User,
    folder: &mut PrivateFolder,
    given: &mut BTreeSet<(u64, u64)>,
) -> Result<Option<File>, PrepareError> {
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
                let changes = |user: User| data.uid() == user.uid || may(&data, user, WRITE);
                // Neither the kernel nor its owner outside.
                if changes(user) || run.user.is_some_and(changes) {
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
    Ok(stdin)
}

impl Prepared {
    /// What is to run.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Closes its own ends of the kernel's standard streams once that has ended: an output that one of them went to is then
    /// open for writing nowhere.
    pub fn close_streams(&mut self) {
        (self.stdin, self.stdout) = (None, None);
    }

    /// Takes an output after the kernel has ended, and with it the folders that it lies in: nobody else can change them
    /// any more. It is a plain file with no other name, reached through no link.
    ///
    /// # Errors
    /// If the kernel did not write it, or made something else than a file of that name.
    pub fn output(&self, name: &str) -> Result<Made, OutputError> {
        private::take(&self.folder, name)
    }
}

fn own_user() -> User {
    User {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
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
        Code::Native(path) => Ok(Code::Native(usable_object(path, run))),
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

/// Where a kernel finds a shared object: the folder of objects is closed to users, a link in the private one is not.
fn usable_object(path: &Path, run: &Run) -> PathBuf {
    let linked = run.inputs_as == InputsAs::HardLink;
    let input = run.inputs.iter().find(|input| input.path == path);
    let link = input
        .filter(|_| linked)
        .map(|input| run.folder.join(&input.name));
    link.unwrap_or_else(|| path.to_owned())
}

/// Opens a program that may be run for the run's user. What is among the inputs is; a program of the host if this user may
/// read and execute it.
fn open_program(path: &Path, run: &Run) -> Result<File, PrepareError> {
    let is_input = |input: &RunInput| input.path == path || run.folder.join(&input.name) == path;
    let trusted = run.inputs.iter().any(is_input) || open_to_all(path);
    let opened = match run.user {
        Some(user) if !trusted => {
            let forbidden = |uid| PrepareError::Forbidden {
                path: path.to_owned(),
                uid,
            };
            return open_as(user, path).map_err(|_| forbidden(user.uid));
        }
        _ => File::open(path),
    };
    opened.map_err(|source| PrepareError::Code {
        path: path.to_owned(),
        source,
    })
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
    let mut file = open_program(path, run)?;
    if let Some(interpreter) = interpreter(&file).map_err(error)?
        && !Path::new(&interpreter).exists()
    {
        return Err(PrepareError::Interpreter {
            path: path.clone(),
            interpreter,
        });
    }
    let data = file.metadata().map_err(error)?;
    let reaches = run.user.is_none() || run.user == Some(user) || open_to_all(path);
    if reaches && may(&data, user, READ | EXECUTE) {
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
    let mut new = folder.new_file(&copy)?;
    io::copy(&mut file, &mut new).map_err(error)?;
    new.set_permissions(Permissions::from_mode(0o755))
        .map_err(error)?;
    let data = new.metadata().map_err(error)?;
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

/// A folder being filled. It is handed to its user last, with all folders in it, so that nobody interferes meanwhile.
struct PrivateFolder {
    root: PathBuf,
    /// As the system knows it.
    user: Option<User>,
    /// The folders in it.
    made: BTreeSet<String>,
}

impl PrivateFolder {
    fn make_sub(&mut self, name: &str) -> Result<(), PrepareError> {
        if self.made.insert(name.to_owned()) {
            make_folder(&self.root.join(name))?;
        }
        Ok(())
    }

    fn make_parents(&mut self, name: &str) -> Result<(), PrepareError> {
        name.match_indices('/')
            .try_for_each(|(end, _)| self.make_sub(&name[..end]))
    }

    /// Makes a file of its user.
    fn new_file(&self, path: &Path) -> Result<File, PrepareError> {
        let make = |source| PrepareError::Make {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o644);
        let file = options.open(path).map_err(make)?;
        if let Some(User { uid, gid }) = self.user {
            fchown(&file, Some(uid), Some(gid)).map_err(make)?;
        }
        Ok(file)
    }

    fn hand_over(&self) -> Result<(), PrepareError> {
        let Some(User { uid, gid }) = self.user else {
            return Ok(());
        };
        let inner = self.made.iter().map(|name| self.root.join(name));
        for path in inner.chain([self.root.clone()]) {
            let given = chown(&path, Some(uid), Some(gid));
            given.map_err(|source| PrepareError::Make { path, source })?;
        }
        Ok(())
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
