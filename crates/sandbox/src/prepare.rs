//! Makes the private directory of a run.
//!
//! The private directory contains the inputs and, later, the outputs under the names of the job, and a reserved directory `.tidemill` for
//! temporary files. In the end the directory belongs to the user as which the kernel runs; no other user can read it.

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

use crate::code::{self, CodeFile, EXECUTE, WRITE, input_of, may};
use crate::directory::{self, DirectoryBounds};
use crate::error::{OutputError, PrepareError};
use crate::peers::RankNetwork;
use crate::private::{self, OWN_USER, PrivateFile};
use crate::run::{CodeSource, InputsAs, READ_VARIABLE, Run, RunStage, User};
use crate::sandbox::ids::Ids;
use crate::spare::Spares;
use tidemill_compute::{builtin_names, is_builtin};

/// Reserved part of a private directory, without inputs and outputs.
pub const RESERVED: &str = ".tidemill";

/// Directory of the kernel's temporary files, within [`RESERVED`].
pub(crate) const TEMPORARY: &str = "tmp";

/// Prefix of the names of the pipes for the kernel's questions and the answers, within [`RESERVED`].
const READ: &str = "read";

/// A run whose private directory is ready; [`crate::Launcher::spawn`] starts it.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) run: Run,
    /// Owner of the private directory, in the user numbers of the host.
    pub(crate) user: Option<User>,
    /// Code that is executed or loaded; it may be a copy.
    pub(crate) code: CodeSource,
    /// Open code files that are outside of the private directory.
    pub(crate) files: Vec<File>,
    hash: String,
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) streams: Mutex<Streams>,
    /// Pipes for questions of the kernel and for answers.
    pipes: Mutex<Option<[File; 2]>>,
    /// Compiled modules, in the order of the stages.
    pub(crate) modules: Vec<File>,
    /// Whether the run compiles the module on its standard input instead of executing it.
    pub(crate) compiles: bool,
    /// Whether the run reduces arrays on orders from its standard input, a socket.
    pub(crate) reduces: bool,
    /// Network that the run shares with its peers.
    pub(crate) network: Option<Arc<RankNetwork>>,
    /// Device and inode of each file in the private directory before the kernel runs.
    pub(crate) given: BTreeSet<(u64, u64)>,
}

/// This process's own ends of a kernel's standard streams, if they are files.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: Option<File>,
}

/// Makes the private directory of `run`, whose code files are `opened`, with all its contents. Without `spares` the directory is a new one,
/// and does not become a spare directory.
///
/// # Errors
/// If a name cannot be used, a file is missing, or the directory exists already or cannot be made. The caller must remove the parts that
/// were made until then.
pub(crate) fn prepare(
    run: Run,
    ids: Ids,
    spares: Option<&Spares>,
    opened: Vec<CodeFile>,
) -> Result<Prepared, PrepareError> {
    let outside = run.user.map(|user| ids.outside(user)).transpose()?;
    let user = outside.unwrap_or(*OWN_USER);
    let directory = PrivateDirectory {
        root: run.directory.clone(),
        user: outside,
        made: directories_of(&run),
    };
    // If other processes have the kernel's user, they may hold former contents of the directory open.
    let alone = run.user.is_none() || ids == Ids::OfKernels;
    if !spares.is_some_and(|spares| alone && spares.take(&run, &directory.made)) {
        make_directory(&run.directory)?;
        for name in &directory.made {
            make_directory(&run.directory.join(name))?;
        }
    }
    let mut given = BTreeSet::new();
    let stdin = link_inputs(&run, user, &mut given)?;
    let stdout = run
        .stdout
        .as_ref()
        .map(|name| directory.new_file(&run.directory.join(name)))
        .transpose()?;
    let pipes = run.asks.then(|| directory.pipes()).transpose()?;
    let hash = code::hash(&run.code, &opened);
    let (code, files) = usable_code(&run, opened, &directory, &mut given)?;
    let open =
        private::open_directory(CWD, &run.directory).map_err(|source| PrepareError::Make {
            path: run.directory.clone(),
            source,
        })?;
    directory.hand_over()?;
    Ok(Prepared {
        user: outside,
        code,
        files,
        hash,
        directory: Arc::new(open),
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

/// Puts the inputs at the paths that the kernel uses. Returns the open input that is the kernel's standard input, if any.
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
        // The program that starts the run may feed the input through a pipe.
        if !data.file_type().is_fifo() {
            plain_file(&input.path).map_err(error)?;
        }
        let link = run.directory.join(&input.name);
        match run.inputs_as {
            InputsAs::HardLink => {
                let changes = |user: User| data.uid() == user.uid || may(&data, user, WRITE);
                // Neither the kernel's user nor its owner on the host may be able to change the input.
                if changes(user) || run.user.is_some_and(changes) {
                    let (name, path) = (input.name.clone(), input.path.clone());
                    return Err(PrepareError::WritableInput { name, path });
                }
                match fs::hard_link(&input.path, &link) {
                    // The input is in memory, in a directory that kernels may traverse.
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

/// Refuses a file in memory that the user of the run cannot reach.
fn passes(user: User, path: &Path) -> io::Result<()> {
    let above: Vec<_> = path.ancestors().skip(1).collect();
    for directory in above.into_iter().rev() {
        if !may(&directory.metadata()?, user, EXECUTE) {
            let directory = directory.display();
            return Err(io::Error::other(format!(
                "it is in memory, and users can't pass through {directory} any more: `chmod o+x {directory}`"
            )));
        }
    }
    Ok(())
}

impl Prepared {
    /// Returns the run that was prepared.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Makes the run one rank of several. The run gets this network, and its standard input is connected to its starter.
    pub fn join(&mut self, network: Arc<RankNetwork>, starter: OwnedFd) {
        self.network = Some(network);
        self.streams.get_mut().stdin = Some(starter.into());
    }

    /// Returns the hash of the run's code, in hexadecimal.
    #[must_use]
    pub fn code_hash(&self) -> &str {
        &self.hash
    }

    /// Takes an output after the kernel has ended, and with it the directories on its path: no other user can change them any more. The
    /// output is a plain file with no other name, reached through no link.
    ///
    /// # Errors
    /// If the kernel did not write the output, or made another kind of file with its name.
    pub fn output(&self, name: &str) -> Result<PrivateFile, OutputError> {
        // An output that is a stream is then not open for writing anywhere, even if the kernel was never started.
        self.close_streams();
        private::take(&self.directory, name)
    }

    /// Returns all files in the output directory `name`, which ends in a slash, in order of their names. Each entry has a name, which can
    /// be passed to [`Self::output`], and a length in bytes. Directories without files are skipped.
    ///
    /// # Errors
    /// If the output is no longer a directory, contains no file, contains an entry that cannot be used, or contains more entries than
    /// `most`.
    pub fn output_files(
        &self,
        name: &str,
        most: DirectoryBounds,
    ) -> Result<Vec<(String, u64)>, OutputError> {
        self.close_streams();
        directory::list(&self.directory, name, most)
    }

    /// Returns the pipes of a run that may ask questions; the kernel writes to the first. Each pipe is open for reading and writing,
    /// without blocking, so neither end ever waits for the other to be opened.
    pub fn take_pipes(&self) -> Option<[File; 2]> {
        self.pipes.lock().take()
    }

    /// Closes this process's own ends of the kernel's streams, once the kernel has them.
    pub(crate) fn close_streams(&self) {
        *self.streams.lock() = Streams::default();
    }
}

/// Checks the description of a run without access to any file.
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
        .chain([&run.directory]);
    if let Some(path) = paths.into_iter().find(|path| !path.is_absolute()) {
        return Err(PrepareError::NotAbsolute(path.clone()));
    }
    let mut files = BTreeSet::new();
    let inputs = run.inputs.iter().map(|input| input.name.as_str());
    // Directories are created, so a slash at the end adds nothing to the name.
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
        let directories = name.match_indices('/').map(|(end, _)| &name[..end]);
        if let Some(twice) = directories
            .into_iter()
            .find(|directory| files.contains(directory))
        {
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

/// Returns whether a name stays within the private directory and out of its reserved part.
fn valid(name: &str) -> bool {
    let mut parts = name.split('/');
    !name.contains('\0')
        && !name.split('/').any(|part| matches!(part, "" | "." | ".."))
        && parts.next() != Some(RESERVED)
}

/// Checks that code as the run describes it can exist.
pub(crate) fn check_code(run: &Run) -> Result<(), PrepareError> {
    if matches!(run.code, CodeSource::Pipeline(_))
        && (run.outputs.len() != 1 || run.stdout.is_none())
    {
        return Err(PrepareError::PipelineOutput(run.outputs.len()));
    }
    run.code.parts().try_for_each(check_part)
}

fn check_part(code: &CodeSource) -> Result<(), PrepareError> {
    match code {
        CodeSource::Pipeline(_) => Err(PrepareError::NestedPipeline),
        CodeSource::Builtin(name) if is_builtin(name) => Ok(()),
        CodeSource::Builtin(name) => Err(PrepareError::UnknownBuiltin {
            name: name.clone(),
            known: builtin_names().join(", "),
        }),
        CodeSource::Native(path) | CodeSource::Wasm(path) | CodeSource::Program(path)
            if !path.is_absolute() =>
        {
            Err(PrepareError::NotAbsolute(path.clone()))
        }
        CodeSource::Native(_) | CodeSource::Wasm(_) | CodeSource::Program(_) => Ok(()),
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

/// Returns the code in a form that the task's user can execute, with its files outside of the private directory. A program that this user
/// cannot reach, such as a sealed object, is copied.
fn usable_code(
    run: &Run,
    opened: Vec<CodeFile>,
    directory: &PrivateDirectory,
    given: &mut BTreeSet<(u64, u64)>,
) -> Result<(CodeSource, Vec<File>), PrepareError> {
    let (mut opened, mut files) = (opened.into_iter(), Vec::new());
    let mut usable = |code: &CodeSource| {
        let Some((path, one)) = code.file().and_then(|path| Some((path, opened.next()?))) else {
            return Ok(code.clone());
        };
        let code = match code {
            CodeSource::Program(_) if !one.reached => {
                return copy_program(path, one.file, run, directory, given)
                    .map(CodeSource::Program);
            }
            CodeSource::Native(_) => CodeSource::Native(usable_object(path, run)),
            code => code.clone(),
        };
        files.push(one.file);
        Ok(code)
    };
    let code = match &run.code {
        CodeSource::Pipeline(stages) => {
            let stages = stages.iter().map(|stage| {
                let (code, args) = (usable(&stage.code)?, stage.args.clone());
                Ok(RunStage { code, args })
            });
            CodeSource::Pipeline(stages.collect::<Result<_, _>>()?)
        }
        single => usable(single)?,
    };
    Ok((code, files))
}

/// Returns the path at which a kernel finds a shared object: the directory of objects is closed to users, but a link in the private
/// directory is not.
fn usable_object(path: &Path, run: &Run) -> PathBuf {
    let linked = run.inputs_as == InputsAs::HardLink;
    let input = input_of(run, path).filter(|_| linked);
    input.map_or_else(|| path.to_owned(), |input| run.directory.join(&input.name))
}

/// Copies a program into the reserved part of the private directory.
fn copy_program(
    path: &Path,
    mut file: File,
    run: &Run,
    directory: &PrivateDirectory,
    given: &mut BTreeSet<(u64, u64)>,
) -> Result<PathBuf, PrepareError> {
    let error = |source| PrepareError::Code {
        path: path.to_owned(),
        source,
    };
    // The copy has the name that the task knows, because scripts see this name.
    let known = input_of(run, path);
    let name = known
        .map_or(path, |input| Path::new(&input.name))
        .file_name();
    let reserved = run.directory.join(RESERVED);
    let mut copy = reserved.join(name.unwrap_or("program".as_ref()));
    for number in 1.. {
        if !copy.exists() {
            break;
        }
        copy = reserved.join(format!("program-{number}"));
    }
    let mut new = directory.new_file(&copy)?;
    io::copy(&mut file, &mut new).map_err(error)?;
    new.set_permissions(Permissions::from_mode(0o755))
        .map_err(error)?;
    let data = new.metadata().map_err(error)?;
    given.insert((data.dev(), data.ino()));
    Ok(copy)
}

/// Returns the directories inside a run's private directory, each after its parents: the reserved ones, and those of inputs and outputs.
fn directories_of(run: &Run) -> BTreeSet<String> {
    let temporary = format!("{RESERVED}/{TEMPORARY}");
    let mut directories = BTreeSet::from([RESERVED.to_owned(), temporary]);
    let inputs = run.inputs.iter().map(|input| &input.name);
    for name in inputs.chain(&run.outputs) {
        // The slash at the end of an output that is a directory makes the directory its own parent here.
        let parents = name.match_indices('/').map(|(end, _)| &name[..end]);
        directories.extend(parents.map(str::to_owned));
    }
    directories
}

fn make_directory(path: &Path) -> Result<(), PrepareError> {
    let made = DirBuilder::new().mode(0o700).create(path);
    made.map_err(|source| PrepareError::Make {
        path: path.to_owned(),
        source,
    })
}

/// A private directory that is being filled. The run's user gets the directory last, with all directories in it, so that no process of that
/// user interferes before.
struct PrivateDirectory {
    root: PathBuf,
    /// User of the run in the user numbers of the host.
    user: Option<User>,
    /// Paths of the directories in the private directory.
    made: BTreeSet<String>,
}

impl PrivateDirectory {
    /// Makes a file that belongs to the private directory's user.
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

    /// Makes the pipes for the kernel's questions and for the answers.
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

/// Returns the environment variables that every kernel gets, and those that the run adds.
pub(crate) fn environment(run: &Run, path: &str) -> BTreeMap<String, String> {
    let directory = run.directory.to_string_lossy().into_owned();
    let mut all = BTreeMap::from([
        ("PATH".to_owned(), path.to_owned()),
        (
            "TMPDIR".to_owned(),
            format!("{directory}/{RESERVED}/{TEMPORARY}"),
        ),
        ("PWD".to_owned(), directory.clone()),
        ("HOME".to_owned(), directory),
        ("LANG".to_owned(), "C".to_owned()),
    ]);
    all.extend(run.environment.iter().cloned());
    if run.asks {
        let pipes = run.directory.join(RESERVED).join(READ);
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
    fn prepare_refuses_names_outside_private_directory() {
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
