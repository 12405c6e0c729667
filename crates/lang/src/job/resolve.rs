//! Resolution of a job: converts a script to the job that the dispatcher takes. Names become objects, kernels are looked up, and ids are
//! issued. This module accesses the cluster only through [`Outside`] and does no I/O itself.

use super::error::{Errors, JobProblem, ProgramBy};
use super::{InputOrigin, Job, JobErrors, KernelKind, KernelName, ScriptInput, ScriptTask};
use crate::script::ErrorNames;
use std::collections::{BTreeMap, BTreeSet};
use tidemill_model::directory;
use tidemill_model::event::{InputSpec, JobSpec, Origin, OutputSpec, TaskRole, TaskSpec};
use tidemill_model::id::{Inode, JobId, NodeId, TaskId};
use tidemill_model::label::{Kernel, Owner, Pipeline, Stage};
use tidemill_model::layout::Layout;
use tidemill_model::object::Placed;
use tidemill_model::resources::{NodeOffer, TaskRequirements, why_nowhere};
use tidemill_model::similar_names::nearest_path;
use tidemill_model::user_kernels::{self, OwnName};

/// View of the cluster for the job's owner at submission.
pub trait Outside {
    /// Returns the entry at a full path.
    fn look(&self, path: &str) -> PathLookup;
    /// Returns the layout of a version, each part at its first location.
    fn layout(&self, placed: Placed) -> Layout;
    /// Returns the names in the directory that contains a full path, as the owner of the job may list it; the list may be incomplete.
    fn beside(&self, path: &str) -> Vec<String>;
    /// Returns the names of the files in the directory of a user's kernels (`/kernels/UID`, see [`user_kernels`]), as the owner of the job may list it.
    /// Returns an empty list if the directory does not belong to that user, or if other users may write to it.
    fn own_kernels(&self, uid: u32) -> Vec<String>;
    /// Returns whether nodes have this kernel built in.
    fn is_builtin(&self, name: &str) -> bool;
    /// Returns the reason for which a built-in kernel refuses these arguments; `None` if it accepts them.
    fn refuses(&self, name: &str, args: &[String]) -> Option<String>;
    /// Returns the nodes of the cluster, online or not, with those of the job's programs that each has. Empty if this is unknown.
    fn places(&self) -> &[NodeOffer];
}

/// Entry at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathLookup {
    /// No entry.
    Nothing,
    /// No entry: a symbolic link on the path is absolute, and its target does not exist below the cluster's root.
    Away,
    /// A directory or a special file.
    Directory,
    /// A file that the owner of the job may not read.
    Denied,
    /// A file that has no sealed version yet.
    Unsealed,
    /// A file with a sealed version.
    Sealed(ResolvedFile),
}

/// File with a sealed version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedFile {
    /// Inode of the file.
    pub inode: Inode,
    /// Sealed version.
    pub placed: Placed,
    /// Whether the owner of the job may write to it.
    pub writable: bool,
    /// Whether the owner of the job may execute it.
    pub executable: bool,
}

/// Source of ids, which are never reused.
pub trait JobIds {
    /// Returns a new task id.
    fn task(&mut self) -> TaskId;
    /// Returns the first of `count` new consecutive inodes.
    fn inodes(&mut self, count: u64) -> Inode;
}

/// Resolves a job's names in the cluster.
///
/// All tasks that read a file use the same version of it, even if the file is rewritten during the resolution. Ids are issued only if the
/// job has no errors.
///
/// # Errors
/// Unknown kernels and nodes, existing outputs, and inputs that may not be read. If the job is strict, also inputs that do not exist.
/// All errors are reported, in the order of the script.
pub fn resolve(
    job: &Job,
    id: JobId,
    owner: Owner,
    outside: &dyn Outside,
    ids: &mut dyn JobIds,
) -> Result<JobSpec, JobErrors> {
    let mut view = NamespaceView {
        outside,
        uid: owner.uid,
        looks: BTreeMap::new(),
        own: BTreeMap::new(),
    };
    let mut errors = Errors::new(&job.file, ErrorNames::of_job(&[]));
    let mut kernels = Vec::with_capacity(job.tasks.len());
    let mut nowhere = NoNode::new(job, outside.places());
    for task in &job.tasks {
        check(job, task, &mut view, &mut errors);
        let found = kernel(task, &mut view);
        let found = match task.share {
            // The kernel is that of the task instances; an error in it is reported for one of them.
            TaskRole::Join => Ok(found.map_or(
                (Kernel::Builtin(String::new()), Vec::new()),
                |(kernel, _)| (kernel, Vec::new()),
            )),
            TaskRole::All | TaskRole::Instance | TaskRole::Merge => found,
        };
        match found.and_then(|found| makes_directories(task, &found.0).map(|()| found)) {
            Ok(found) => {
                if let Some(why) = nowhere.why(task, &found.0) {
                    errors.add(task.at, Some(&task.name), JobProblem::Nowhere(why));
                }
                kernels.push(found);
            }
            Err(problem) => errors.add(task.kernel.at, Some(&task.name), problem),
        }
    }
    if !errors.is_empty() {
        return Err(errors.into_report());
    }
    let task_ids: Vec<TaskId> = job.tasks.iter().map(|_| ids.task()).collect();
    let tasks = job.tasks.iter().zip(kernels).enumerate();
    let tasks = tasks
        .map(|(index, (task, kernel))| spec(task, kernel, index, &task_ids, &mut view, ids))
        .collect();
    Ok(JobSpec {
        job: id,
        owner,
        policy: job.policy.clone(),
        tasks,
    })
}

/// Reasons for which no node can ever run a task; determined once for all tasks with equal requirements.
struct NoNode<'a> {
    /// Nodes that the job may use. `all` also contains the host's node.
    open: Vec<NodeOffer>,
    all: &'a [NodeOffer],
    known: BTreeMap<(Option<NodeId>, TaskRequirements), Option<String>>,
}

impl<'a> NoNode<'a> {
    fn new(job: &Job, all: &'a [NodeOffer]) -> Self {
        // Other policies send to the host's node only tasks that a storage node could run, too.
        let host = job
            .policy
            .as_deref()
            .is_none_or(|policy| policy == "advised");
        let open = all.iter().filter(|place| host || !place.server_cores);
        Self {
            open: open.cloned().collect(),
            all,
            known: BTreeMap::new(),
        }
    }

    fn why(&mut self, task: &ScriptTask, kernel: &Kernel) -> Option<String> {
        let wants = TaskRequirements {
            needs: task.needs.clone(),
            programs: task.runtime_environment.wanted(kernel),
        };
        if wants == TaskRequirements::default() {
            return None;
        }
        let places = match task.node {
            Some(_) => self.all,
            None => &self.open,
        };
        let why = self.known.entry((task.node, wants));
        let why = why.or_insert_with_key(|(pinned, wants)| why_nowhere(wants, places, *pinned));
        why.clone()
    }
}

/// View of the cluster that looks up each path once.
struct NamespaceView<'a> {
    outside: &'a dyn Outside,
    /// User id of the job's owner.
    uid: u32,
    looks: BTreeMap<String, PathLookup>,
    /// Names of files in users' kernel directories.
    own: BTreeMap<u32, Vec<String>>,
}

impl NamespaceView<'_> {
    fn look(&mut self, path: &str) -> PathLookup {
        if let Some(look) = self.looks.get(path) {
            return *look;
        }
        let look = self.outside.look(path);
        self.looks.insert(path.to_owned(), look);
        look
    }

    /// Returns the path of the kernel that a user keeps under this name.
    fn own(&mut self, uid: u32, name: &str) -> Option<String> {
        let files = self
            .own
            .entry(uid)
            .or_insert_with(|| self.outside.own_kernels(uid));
        let file = OwnName::parse(name).pick(files.iter().map(String::as_str))?;
        Some(format!("{}/{uid}/{file}", user_kernels::DIRECTORY))
    }
}

fn check(job: &Job, task: &ScriptTask, view: &mut NamespaceView<'_>, errors: &mut Errors) {
    for input in &task.inputs {
        if input.source != InputOrigin::Outside {
            continue;
        }
        let path = || input.path.clone();
        let problem = match view.look(&input.path) {
            PathLookup::Nothing if job.strict => JobProblem::MissingInput {
                path: path(),
                nearest: nearest(job, &input.path, view.outside),
            },
            PathLookup::Unsealed if job.strict => JobProblem::Unsealed(path()),
            PathLookup::Directory => JobProblem::DirectoryPath(path()),
            PathLookup::Denied => JobProblem::Denied(path()),
            PathLookup::Away => JobProblem::Away(path()),
            PathLookup::Sealed(found)
                if input
                    .version
                    .is_some_and(|version| version != found.placed.object) =>
            {
                JobProblem::Changed(path())
            }
            PathLookup::Sealed(found) if !input.selection.is_whole() => {
                let layout = view.outside.layout(found.placed);
                let Err(problem) = layout.selected(&input.selection) else {
                    continue;
                };
                JobProblem::Selection {
                    path: path(),
                    problem,
                }
            }
            PathLookup::Nothing | PathLookup::Unsealed | PathLookup::Sealed(_) => continue,
        };
        errors.add(input.at, Some(&task.name), problem);
    }
    for output in task.outputs.iter().filter(|output| !output.part) {
        let path = || output.path.clone();
        let problem = match view.look(&output.path) {
            PathLookup::Nothing | PathLookup::Away => continue,
            PathLookup::Directory if output.is_directory() => {
                let inside = format!("{}/", output.path);
                if job.replace || view.outside.beside(&inside).is_empty() {
                    continue;
                }
                JobProblem::OutputExists(inside)
            }
            _ if output.is_directory() => JobProblem::FileForDirectory(path()),
            PathLookup::Sealed(found) if job.replace && found.writable => continue,
            PathLookup::Sealed(_) if job.replace => JobProblem::Unwritable(path()),
            PathLookup::Unsealed if job.replace => JobProblem::Unsealed(path()),
            _ => JobProblem::OutputExists(path()),
        };
        errors.add(output.at, Some(&task.name), problem);
    }
    let places = view.outside.places();
    let known = |id: &NodeId| places.is_empty() || places.iter().any(|place| place.node == *id);
    if let Some(node) = task.node.filter(|id| !known(id)) {
        errors.add(task.at, Some(&task.name), JobProblem::UnknownNode(node));
    }
}

/// Input that does not exist yet, so that its tasks wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FutureInput {
    /// Full path of the input.
    pub path: String,
    /// Name of the first task that reads it.
    pub task: String,
    /// Full path of the file that may have been meant.
    pub nearest: Option<String>,
}

/// Returns the inputs that a resolved job waits for, at most `max` of them, and their total number.
pub fn awaited(
    job: &Job,
    spec: &JobSpec,
    outside: &dyn Outside,
    max: usize,
) -> (Vec<FutureInput>, usize) {
    let mut paths: BTreeMap<&str, &str> = BTreeMap::new();
    let mut first: Vec<&str> = Vec::new();
    for task in &spec.tasks {
        for input in &task.inputs {
            let path = input.path.as_str();
            if input.origin == Origin::Awaited && !paths.contains_key(path) {
                paths.insert(path, &task.name);
                first.push(path);
            }
        }
    }
    let shown = first.iter().take(max).map(|&path| FutureInput {
        path: path.to_owned(),
        task: paths[path].to_owned(),
        nearest: nearest(job, path, outside),
    });
    (shown.collect(), first.len())
}

/// Returns the path that was probably meant: the path of an existing file, or of an output of the job.
fn nearest(job: &Job, path: &str, outside: &dyn Outside) -> Option<String> {
    let made: BTreeSet<&str> = job
        .tasks
        .iter()
        .flat_map(|task| &task.outputs)
        .map(|output| output.path.as_str())
        .collect();
    let makes = |path: &str| {
        let inside = format!("{path}/");
        let mut below = made.range(inside.as_str()..);
        made.contains(path) || below.next().is_some_and(|one| one.starts_with(&inside))
    };
    let there = |path: &str| {
        makes(path) || !matches!(outside.look(path), PathLookup::Nothing | PathLookup::Away)
    };
    let siblings = |path: &str| {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let in_directory = |path: &&str| {
            let (above, name) = path.rsplit_once('/')?;
            (above == directory).then(|| name.to_owned())
        };
        let mut names = outside.beside(path);
        names.extend(made.iter().filter_map(in_directory));
        names
    };
    let meant = nearest_path(path, there, siblings)?;
    // A job reads files, so a directory is no useful suggestion.
    let file = made.contains(meant.as_str()) || outside.look(&meant) != PathLookup::Directory;
    file.then_some(meant)
}

/// Code of a task, and those of its files that are stored in the cluster.
type KernelFound = (Kernel, Vec<ScriptInput>);

fn kernel(task: &ScriptTask, view: &mut NamespaceView<'_>) -> Result<KernelFound, JobProblem> {
    let mut stages = Vec::new();
    let mut files: Vec<ScriptInput> = Vec::new();
    for stage in &task.stages {
        let (kernel, file) = single(task, &stage.kernel, view)?;
        fits(task, &kernel, &stage.kernel, &stage.args, view)?;
        let args = stage.args.clone();
        stages.push(Stage { kernel, args });
        let Some(file) = file.filter(|file| files.iter().all(|known| known.path != file.path))
        else {
            continue;
        };
        if let Some(other) = files.iter().find(|other| other.name == file.name) {
            return Err(collision(&file.name, &other.path, &file.path));
        }
        files.push(file);
    }
    if stages.is_empty() {
        let (kernel, file) = single(task, &task.kernel, view)?;
        fits(task, &kernel, &task.kernel, &task.args, view)?;
        return Ok((kernel, file.into_iter().collect()));
    }
    let text = task.kernel.name.clone();
    Ok((Kernel::Pipeline(Box::new(Pipeline { text, stages })), files))
}

/// Checks that a built-in kernel gets arguments that it accepts. A script that means the program of the same name passes that program's
/// arguments, or a standard input.
fn fits(
    task: &ScriptTask,
    kernel: &Kernel,
    named: &KernelName,
    args: &[String],
    view: &NamespaceView<'_>,
) -> Result<(), JobProblem> {
    let Kernel::Builtin(builtin) = kernel else {
        return Ok(());
    };
    let is_pipeline = !task.stages.is_empty();
    let no_stdin = "it reads all inputs, but has no standard input: leave \"stdin\" out";
    let no_stdin = (!is_pipeline && task.stdin.is_some()).then(|| no_stdin.to_owned());
    let Some(reason) = view.outside.refuses(builtin, args).or(no_stdin) else {
        return Ok(());
    };
    let by = if is_pipeline {
        ProgramBy::Path
    } else {
        ProgramBy::Type
    };
    // A kernel named `sort.so` can't be meant as a program.
    let may_be_program = named.kind.is_none() && named.name == *builtin;
    let remedy = may_be_program.then_some(by);
    Err(JobProblem::BuiltinRefuses {
        name: builtin.clone(),
        reason,
        remedy,
    })
}

/// Checks that a kernel with an output directory can fill it: the kernel needs files of its own.
fn makes_directories(task: &ScriptTask, kernel: &Kernel) -> Result<(), JobProblem> {
    let kernel = match kernel {
        Kernel::Builtin(_) => "a built-in kernel",
        Kernel::Wasm { .. } => "a module",
        Kernel::Pipeline(_) => "a pipeline of kernels",
        Kernel::Native { .. } | Kernel::Stored { .. } | Kernel::Program(_) => return Ok(()),
    };
    match task.outputs.iter().find(|output| output.is_directory()) {
        None => Ok(()),
        Some(output) => Err(JobProblem::DirectoryBy {
            path: output.path.clone(),
            kernel,
        }),
    }
}

fn collision(name: &str, first: &str, second: &str) -> JobProblem {
    JobProblem::Collision {
        name: name.to_owned(),
        first: first.to_owned(),
        second: second.to_owned(),
    }
}

/// Looks up a kernel: a file in the namespace, else a kernel of the user, else a built-in kernel, else a program. `type` restricts the
/// search.
fn single(
    task: &ScriptTask,
    kernel: &KernelName,
    view: &mut NamespaceView<'_>,
) -> Result<(Kernel, Option<ScriptInput>), JobProblem> {
    let name = &kernel.name;
    let kind = kernel.kind;
    let mut tried = Vec::new();
    if let Some(file) = &kernel.file {
        if let Some(found) = stored(task, file, kind, view)? {
            return Ok((found, Some(file.clone())));
        }
        tried.push(format!("the file \"{}\"", file.path));
        if let Some((uid, name)) = own_name(name, view.uid) {
            if let Some(path) = view.own(uid, name) {
                let file = ScriptInput {
                    name: path.rsplit('/').next().unwrap_or(name).to_owned(),
                    path,
                    ..file.clone()
                };
                if let Some(found) = stored(task, &file, kind, view)? {
                    return Ok((found, Some(file)));
                }
            }
            tried.push(format!(
                "the kernels in \"{}/{uid}\"",
                user_kernels::DIRECTORY
            ));
        }
    }
    if matches!(kind, None | Some(KernelKind::Builtin)) {
        let bare = name.strip_suffix(".so").unwrap_or(name);
        if view.outside.is_builtin(bare) {
            return Ok((Kernel::Builtin(bare.to_owned()), None));
        }
        tried.push(format!("the built-in kernel \"{bare}\""));
    }
    let on_host = !name.contains('/') || name.starts_with('/');
    if matches!(kind, None | Some(KernelKind::Program)) && on_host {
        if let Some(found) = program(task, name, view.outside.places()) {
            return Ok((Kernel::Program(found), None));
        }
        tried.push(format!("the program \"{name}\" on the nodes' hosts"));
    }
    Err(JobProblem::UnknownKernel {
        name: name.clone(),
        tried: tried.join(", then "),
    })
}

/// Returns the name of a program on nodes' hosts, if a node has the program. If no node has reported its programs, a program in
/// one of several directories of `path` has no known name.
fn program(task: &ScriptTask, name: &str, places: &[NodeOffer]) -> Option<String> {
    let listed = || places.iter().filter_map(|place| place.programs.as_ref());
    let mut names = task.programs(name);
    if listed().next().is_none() {
        let only = names.next();
        return only.filter(|_| names.next().is_none());
    }
    names.find(|name| listed().any(|programs| programs.contains(name)))
}

/// Returns the owner and the file name of a user's kernel. A name without a directory means a kernel of the job's owner. A path below the
/// directory of kernels means a kernel of the user in the path.
fn own_name(name: &str, owner: u32) -> Option<(u32, &str)> {
    let (uid, name) = match name.strip_prefix(user_kernels::DIRECTORY) {
        Some(rest) => {
            let (uid, name) = rest.strip_prefix('/')?.split_once('/')?;
            (uid.parse().ok()?, name)
        }
        None => (owner, name),
    };
    (!name.contains('/')).then_some((uid, name))
}

/// Returns the kernel in this file; `None` if there is no such file.
fn stored(
    task: &ScriptTask,
    file: &ScriptInput,
    kind: Option<KernelKind>,
    view: &mut NamespaceView<'_>,
) -> Result<Option<Kernel>, JobProblem> {
    let is = |of, ending| kind == Some(of) || (kind.is_none() && file.path.ends_with(ending));
    let native = is(KernelKind::Native, ".so");
    let wasm = is(KernelKind::Wasm, ".wasm");
    if file.source == InputOrigin::Outside {
        match view.look(&file.path) {
            // A directory with a program's name does not hide the program.
            PathLookup::Nothing => return Ok(None),
            PathLookup::Directory if kind.is_none() => return Ok(None),
            PathLookup::Directory => return Err(JobProblem::DirectoryPath(file.path.clone())),
            PathLookup::Denied => return Err(JobProblem::Denied(file.path.clone())),
            PathLookup::Away => return Err(JobProblem::Away(file.path.clone())),
            PathLookup::Unsealed => return Err(JobProblem::Unsealed(file.path.clone())),
            PathLookup::Sealed(found) if !native && !wasm && !found.executable => {
                let name = file.path.rsplit('/').next().unwrap_or_default();
                let hides = kind.is_none() && view.outside.is_builtin(name);
                let path = file.path.clone();
                return Err(if hides {
                    JobProblem::HidesBuiltin(path)
                } else {
                    JobProblem::NotExecutable(path)
                });
            }
            PathLookup::Sealed(_) => {}
        }
    }
    let inputs = task.inputs.iter().filter(|input| !is_all_of(input, file));
    let inputs = inputs.map(|input| (&input.name, &input.path));
    let outputs = task
        .outputs
        .iter()
        .map(|output| (&output.name, &output.path));
    let outputs = outputs.filter(|(_, path)| **path != file.path);
    let same = inputs.chain(outputs).find(|(name, _)| **name == file.name);
    if let Some((name, path)) = same {
        return Err(collision(name, path, &file.path));
    }
    let input = file.name.clone();
    Ok(Some(if native {
        Kernel::Native { input }
    } else if wasm {
        Kernel::Wasm { input }
    } else {
        Kernel::Stored { input }
    }))
}

/// Returns whether an input is all of a file.
fn is_all_of(input: &ScriptInput, file: &ScriptInput) -> bool {
    input.path == file.path && input.selection.is_whole()
}

fn spec(
    task: &ScriptTask,
    (kernel, files): KernelFound,
    index: usize,
    task_ids: &[TaskId],
    view: &mut NamespaceView<'_>,
    ids: &mut dyn JobIds,
) -> TaskSpec {
    // A kernel that is listed as an input as well is not added again.
    let listed = |file: &&ScriptInput| {
        let mut inputs = task.inputs.iter();
        inputs.any(|input| is_all_of(input, file) && input.name == file.name)
    };
    let extra = files.iter().filter(|file| !listed(file));
    let inputs = task.inputs.iter().chain(extra).map(|input| InputSpec {
        name: input.name.clone(),
        path: input.path.clone(),
        selection: input.selection.clone(),
        streaming: input.streaming
            && input.selection.is_whole()
            && !directory::is_directory(&input.name)
            && matches!(input.source, InputOrigin::Task(..)),
        origin: match input.source {
            InputOrigin::Task(maker, output) => Origin::Task(task_ids[maker], output),
            InputOrigin::Outside => match view.look(&input.path) {
                PathLookup::Sealed(found) => Origin::File(found.placed),
                _ => Origin::Awaited,
            },
        },
    });
    let inputs = inputs.collect();
    let outputs = task.outputs.iter().map(|output| OutputSpec {
        name: output.name.clone(),
        path: output.path.clone(),
        part: output.part,
        memory: output.memory,
        // An existing output was checked to be replaceable.
        inode: match view.look(&output.path) {
            PathLookup::Sealed(found) if !output.is_directory() && !output.part => found.inode,
            _ => ids.inodes(directory::ids(&output.name)),
        },
    });
    let outputs = outputs.collect();
    TaskSpec {
        programs: task.runtime_environment.wanted(&kernel),
        needs: task.needs.clone(),
        task: task_ids[index],
        name: task.name.clone(),
        kernel,
        args: task.args.clone(),
        inputs,
        outputs,
        stdin: task.stdin.clone(),
        stdout: task.stdout.clone(),
        node: task.node,
        retries: task.retries,
        limits: task.limits,
        runtime_environment: task.runtime_environment.clone(),
        share: task.share,
        ended: None,
    }
}
