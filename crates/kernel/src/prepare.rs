//! Makes the private folder of a run.
//!
//! The folder holds the inputs and, later, the outputs under the names of the job, and a reserved folder
//! `.tidemill` for temporary files. In the end it belongs to the user that the kernel runs as; nobody else can look into it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{
    DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, fchown, symlink,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::CWD;

use crate::builtin;
use crate::code::{self, EXECUTE, Opened, WRITE, input_of, may};
use crate::error::{OutputError, PrepareError};
use crate::folder::{self, FolderBounds};
use crate::peers::Network;
use crate::private::{self, Made, OWN_USER};
use crate::run::{Code, InputsAs, READ_VARIABLE, Run, Stage, User};
use crate::sandbox::ids::Ids;
use crate::spare::Spares;

/// The part of a private folder that is not for inputs and outputs.
pub const RESERVED: &str = ".tidemill";

/// Temporary files of the kernel, within [`RESERVED`].
pub(crate) const TEMPORARY: &str = "tmp";

/// What the names of the pipes begin with by which it asks and is answered, within [`RESERVED`].
const READ: &str = "read";

/// A run whose private folder is ready; [`crate::Launcher::spawn`] starts it.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) run: Run,
    /// Its user as the system knows it, which the folder belongs to.
    pub(crate) user: Option<User>,
    /// The code that is executed or loaded, which may be a copy.
    pub(crate) code: Code,
    /// The files of it that lie outside of the folder.
    pub(crate) files: Vec<File>,
    hash: String,
    pub(crate) folder: Arc<OwnedFd>,
    pub(crate) streams: Mutex<Streams>,
    /// Where it asks, and where it is answered.
    pipes: Mutex<Option<[File; 2]>>,
    /// What was compiled of its modules, in the order of its stages.
    pub(crate) modules: Vec<File>,
    /// Whether it compiles the module on its standard input rather than running it.
    pub(crate) compiles: bool,
    /// Whether it reduces arrays as its standard input, a socket, says.
    pub(crate) reduces: bool,
    /// The network that it has with its peers.
    pub(crate) network: Option<Arc<Network>>,
    /// Device and inode of what lies in the folder before the kernel runs.
    pub(crate) given: BTreeSet<(u64, u64)>,
}

/// This process's own ends of a kernel's standard streams, where they are files.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: Option<File>,
}

/// Makes the private folder of `run`, whose files of code are `opened`, and all that lies in it. Without `spares` it
/// is a new one, and does not become one.
///
/// # Errors
/// If a name cannot be used, a file is missing, or the folder is there already or cannot be made. What was
/// made until then stays for the caller to remove.
pub(crate) fn prepare(
    run: Run,
    ids: Ids,
    spares: Option<&Spares>,
    opened: Vec<Opened>,
) -> Result<Prepared, PrepareError> {
    let outside = run.user.map(|user| ids.outside(user)).transpose()?;
    let user = outside.unwrap_or(*OWN_USER);
    let folder = PrivateFolder {
        root: run.folder.clone(),
        user: outside,
        made: folders_of(&run),
    };
    // Where others have the user of kernels they may hold what a folder had before.
    let alone = run.user.is_none() || ids == Ids::OfKernels;
    if !spares.is_some_and(|spares| alone && spares.take(&run, &folder.made)) {
        make_folder(&run.folder)?;
        for name in &folder.made {
            make_folder(&run.folder.join(name))?;
        }
    }
    let mut given = BTreeSet::new();
    let stdin = link_inputs(&run, user, &mut given)?;
    let stdout = run
        .stdout
        .as_ref()
        .map(|name| folder.new_file(&run.folder.join(name)))
        .transpose()?;
    let pipes = run.asks.then(|| folder.pipes()).transpose()?;
    let hash = code::hash(&run.code, &opened);
    let (code, files) = usable_code(&run, opened, &folder, &mut given)?;
    let open = private::open_folder(CWD, &run.folder).map_err(|source| PrepareError::Make {
        path: run.folder.clone(),
        source,
    })?;
    folder.hand_over()?;
    Ok(Prepared {
        user: outside,
        code,
        files,
        hash,
        folder: Arc::new(open),
        streams: Mutex::new(Streams { stdin, stdout }),
        pipes: Mutex::new(pipes),
        modules: Vec::new(),
        compiles: false,
        reduces: false,
        network: None,
        given,
        run,
    })
}

/// Puts the inputs where the kernel looks for them; gives the one that is its standard input, open.
fn link_inputs(
    run: &Run,
    user: User,
    given: &mut BTreeSet<(u64, u64)>,
) -> Result<Option<File>, PrepareError> {
    let mut stdin = None;
    for input in &run.inputs {
        let error = |source| PrepareError::Input {
            name: input.name.clone(),
            path: input.path.clone(),
            source,
        };
        let data = fs::symlink_metadata(&input.path).map_err(error)?;
        // Whoever runs it may feed it by a pipe.
        if !data.file_type().is_fifo() {
            plain_file(&input.path).map_err(error)?;
        }
        let link = run.folder.join(&input.name);
        match run.inputs_as {
            InputsAs::HardLink => {
                let changes = |user: User| data.uid() == user.uid || may(&data, user, WRITE);
                // Neither the kernel nor its owner outside.
                if changes(user) || run.user.is_some_and(changes) {
                    let (name, path) = (input.name.clone(), input.path.clone());
                    return Err(PrepareError::WritableInput { name, path });
                }
                match fs::hard_link(&input.path, &link) {
                    // It is in memory, in a folder that kernels pass through.
                    Err(other) if other.kind() == std::io::ErrorKind::CrossesDevices => {
                        if run.user.is_some() {
                            passes(user, &input.path).map_err(error)?;
                        }
                        symlink(&input.path, &link).map_err(error)?;
                    }
                    linked => linked.map_err(error)?,
                }
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

/// Refuses a file in memory that the user can't come to.
fn passes(user: User, path: &Path) -> io::Result<()> {
    let above: Vec<_> = path.ancestors().skip(1).collect();
    for folder in above.into_iter().rev() {
        if !may(&folder.metadata()?, user, EXECUTE) {
            let folder = folder.display();
            return Err(io::Error::other(format!(
                "it is in memory, and users can't pass through {folder} any more: `chmod o+x {folder}`"
            )));
        }
    }
    Ok(())
}

impl Prepared {
    /// What is to run.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Makes it one of several processes, which has this network and finds who started them at the other end of its standard
    /// input.
    pub fn join(&mut self, network: Arc<Network>, starter: OwnedFd) {
        self.network = Some(network);
        self.streams.get_mut().stdin = Some(starter.into());
    }

    /// The hash of its code, in hexadecimal.
    #[must_use]
    pub fn code_hash(&self) -> &str {
        &self.hash
    }

    /// Takes an output after the kernel has ended, and with it the folders that it lies in: nobody else can change them
    /// any more. It is a plain file with no other name, reached through no link.
    ///
    /// # Errors
    /// If the kernel did not write it, or made something else than a file of that name.
    pub fn output(&self, name: &str) -> Result<Made, OutputError> {
        // One that is a stream is then open for writing nowhere, though the kernel was never started.
        self.close_streams();
        private::take(&self.folder, name)
    }

    /// All files in the folder that is the output `name`, which ends in a slash, in order of their names: names, to be
    /// taken by [`Self::output`], and lengths in bytes. Folders in which no file lies are passed over.
    ///
    /// # Errors
    /// If it is no folder any more, holds no file, or something that can't be kept, or more than `most`.
    pub fn output_files(
        &self,
        name: &str,
        most: FolderBounds,
    ) -> Result<Vec<(String, u64)>, OutputError> {
        self.close_streams();
        folder::list(&self.folder, name, most)
    }

    /// The pipes of a run that may ask, the one that it writes to first: open for both, so that neither end ever waits for the
    /// other to be opened, and without blocking.
    pub fn take_pipes(&self) -> Option<[File; 2]> {
        self.pipes.lock().take()
    }

    /// The kernel has its streams: this process needs its own ends no more.
    pub(crate) fn close_streams(&self) {
        *self.streams.lock() = Streams::default();
    }
}

/// What can be told of a run before anything is looked at.
pub(crate) fn check(run: &Run) -> Result<(), PrepareError> {
    check_names(run)?;
    check_code(run)
}

fn check_names(run: &Run) -> Result<(), PrepareError> {
    let paths = run
        .inputs
        .iter()
        .map(|input| &input.path)
        .chain(&run.readable)
        .chain(&run.shown)
        .chain(&run.path)
        .chain([&run.folder]);
    if let Some(path) = paths.into_iter().find(|path| !path.is_absolute()) {
        return Err(PrepareError::NotAbsolute(path.clone()));
    }
    let mut files = BTreeSet::new();
    let inputs = run.inputs.iter().map(|input| input.name.as_str());
    // Folders are made, so that a slash at the end says no more than the name does.
    let outputs = run.outputs.iter();
    let outputs = outputs.map(|name| name.strip_suffix('/').unwrap_or(name));
    for name in inputs.chain(outputs) {
        if !valid(name) {
            return Err(PrepareError::Name(name.to_owned()));
        }
        if !files.insert(name) {
            return Err(PrepareError::NameTwice(name.to_owned()));
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
        Some(name) if !run.outputs.contains(name) || name.ends_with('/') => {
            Err(unknown("stdout", name, "outputs"))
        }
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

/// Whether there can be such code.
pub(crate) fn check_code(run: &Run) -> Result<(), PrepareError> {
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
        Code::Native(_) | Code::Wasm(_) | Code::Program(_) => Ok(()),
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

/// The code in a form that the task's user can execute, with the files of it that are not in the folder: a program that this
/// user does not reach, as is so with sealed objects, is copied.
fn usable_code(
    run: &Run,
    opened: Vec<Opened>,
    folder: &PrivateFolder,
    given: &mut BTreeSet<(u64, u64)>,
) -> Result<(Code, Vec<File>), PrepareError> {
    let (mut opened, mut files) = (opened.into_iter(), Vec::new());
    let mut usable = |code: &Code| {
        let Some((path, one)) = code.file().and_then(|path| Some((path, opened.next()?))) else {
            return Ok(code.clone());
        };
        let code = match code {
            Code::Program(_) if !one.reached => {
                return copy_program(path, one.file, run, folder, given).map(Code::Program);
            }
            Code::Native(_) => Code::Native(usable_object(path, run)),
            code => code.clone(),
        };
        files.push(one.file);
        Ok(code)
    };
    let code = match &run.code {
        Code::Stack(stages) => {
            let stages = stages.iter().map(|stage| {
                let (code, args) = (usable(&stage.code)?, stage.args.clone());
                Ok(Stage { code, args })
            });
            Code::Stack(stages.collect::<Result<_, _>>()?)
        }
        single => usable(single)?,
    };
    Ok((code, files))
}

/// Where a kernel finds a shared object: the folder of objects is closed to users, a link in the private one is not.
fn usable_object(path: &Path, run: &Run) -> PathBuf {
    let linked = run.inputs_as == InputsAs::HardLink;
    let input = input_of(run, path).filter(|_| linked);
    input.map_or_else(|| path.to_owned(), |input| run.folder.join(&input.name))
}

/// Copies a program into the reserved part of the folder.
fn copy_program(
    path: &Path,
    mut file: File,
    run: &Run,
    folder: &PrivateFolder,
    given: &mut BTreeSet<(u64, u64)>,
) -> Result<PathBuf, PrepareError> {
    let error = |source| PrepareError::Code {
        path: path.to_owned(),
        source,
    };
    // The copy bears the name that the task knows, as that is what scripts see of themselves.
    let known = input_of(run, path);
    let name = known
        .map_or(path, |input| Path::new(&input.name))
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
    Ok(copy)
}

/// The folders in the private one of a run, each behind those that it lies in: the reserved ones and those of names.
fn folders_of(run: &Run) -> BTreeSet<String> {
    let temporary = format!("{RESERVED}/{TEMPORARY}");
    let mut folders = BTreeSet::from([RESERVED.to_owned(), temporary]);
    let inputs = run.inputs.iter().map(|input| &input.name);
    for name in inputs.chain(&run.outputs) {
        // The slash at the end of an output that is a folder makes it one of its own parents.
        let parents = name.match_indices('/').map(|(end, _)| &name[..end]);
        folders.extend(parents.map(str::to_owned));
    }
    folders
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

    /// Makes the pipes by which the kernel asks and is answered.
    fn pipes(&self) -> Result<[File; 2], PrepareError> {
        let pipe = |end: &str| {
            let path = self.root.join(RESERVED).join(format!("{READ}.{end}"));
            let open = || -> io::Result<File> {
                let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
                rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, mode, 0)?;
                let mut options = OpenOptions::new();
                options
                    .read(true)
                    .write(true)
                    .custom_flags(libc::O_NONBLOCK);
                let file = options.open(&path)?;
                if let Some(User { uid, gid }) = self.user {
                    fchown(&file, Some(uid), Some(gid))?;
                }
                Ok(file)
            };
            open().map_err(|source| PrepareError::Make {
                path: path.clone(),
                source,
            })
        };
        Ok([pipe("ask")?, pipe("answer")?])
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
    if run.asks {
        let pipes = run.folder.join(RESERVED).join(READ);
        all.insert(
            READ_VARIABLE.to_owned(),
            pipes.to_string_lossy().into_owned(),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_run_folder_are_refused() {
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
