//! Submission: the server parses a script, resolves its paths in the namespace with its owner's rights, and writes an accepted job to the
//! database. A dry run takes the same steps except for the last.

use super::SubmittedJob;
use super::mapper::directory::Below;
use super::mapper::{self, RangedVersion};
use super::mapper_jobs::{MapperJobs, ProgramMappers};
use super::store;
use crate::access::aside;
use crate::attached;
use crate::clock;
use crate::cluster::Cluster;
use crate::files::stream::SourceNodes;
use crate::lease_recall::{LeaseRecalls, OpenState};
use futures_util::future::join_all;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidemill_lang::job::{
    DirectoryLookup, DirectoryMap, ExternalInput, FutureInput, Job, JobError, JobIds, JobProblem,
    KernelKind, ListedName, MapperProgram, MapperResult, Mapping, Outside, PathLookup,
    ResolvedFile, awaited, resolve,
};
use tidemill_meta::budget::{Budget, BudgetTurn};
use tidemill_meta::claims::{Claims, JobClaims};
use tidemill_meta::jobs::output_paths::{self, Anchors, Links};
use tidemill_meta::jobs::records::{self, Heading};
use tidemill_meta::jobs::{outputs, view};
use tidemill_meta::transaction::Tx;
use tidemill_meta::vnode::{READ, SEARCH, WRITE};
use tidemill_meta::{Caller, Connection, Fault, SqliteNames, ids, parts, version};
use tidemill_model::directory;
use tidemill_model::event::{JobSpec, NodeView, OutputSpec, Role};
use tidemill_model::id::{Inode, JobId, NodeId, ObjectId, TaskId};
use tidemill_model::label::Owner;
use tidemill_model::layout::{Layout, Part};
use tidemill_model::object::Placed;
use tidemill_model::resources::NodeOffer;
use tidemill_model::user_kernels::OwnName;
use tidemill_wire::USER_SCRIPT_BYTES_MAX;
use tidemill_wire::v1::Kind;

/// Maximum wait for the nodes' answers to the question which programs are installed there.
const PROGRAMS_WAIT: Duration = Duration::from_secs(3);
/// Number of checks, and the pause between them, for a job with a submission id while another job has claimed its outputs.
const SUBMISSION_ID_LOOKS: u32 = 50;
const SUBMISSION_ID_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of missing inputs that a reply names.
const AWAITED_SHOWN_MAX: usize = 20;
/// First id that dry runs use: the database counts ids from 1, and never reaches this id.
pub(super) const FIRST_DRY_RUN_ID: u64 = 1 << 62;
/// Error message for a mapper that is a program, in requests for which the server runs no program.
const NOT_ASKED: &str =
    "only a submitted job can run a program as its mapper, not the job of a rule";
/// Maximum number of entries of a directory that are compared with patterns.
const LISTED_MAX: u32 = 1_000_000;

/// Reason why a job is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobRefusal {
    /// Errors in the job file that the user can correct, one line each.
    #[error("the job file was refused")]
    Script(Vec<String>),
    /// Outputs that another job has claimed, one line each.
    #[error("another job writes the same outputs")]
    Claimed(Vec<String>),
    /// The job was submitted before with the same submission id, as this job.
    #[error("it was submitted before, as job {0}")]
    Known(JobId),
    /// The server failed, for example because of its database.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A job script, its owner and the options of its submission.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub(crate) caller: Caller,
    pub(crate) script: String,
    pub(crate) source: String,
    /// Scheduling policy that overrides the script's policy, if not empty.
    pub(crate) policy: String,
    /// Whether existing output files get new versions, regardless of the script.
    pub(crate) replace: bool,
    /// Whether all input files must exist, regardless of the script.
    pub(crate) strict: bool,
    /// Whether all tasks run without cached results, regardless of the script.
    pub(crate) no_cache: bool,
    /// Whether the limit on the user's jobs applies.
    pub(crate) bounded: bool,
    /// How the server treats mappers that are programs.
    pub(crate) programs: ProgramMappers,
    /// Symbolic links that the server follows on the paths of outputs.
    pub(crate) links: Links,
}

/// Paths of inputs with the version to read, regardless of the present versions of their files.
pub(crate) type PinnedVersions = BTreeMap<String, ObjectId>;

/// Inputs that a job waits for: some of the inputs, and the number of all.
pub(crate) type AwaitedInputs = (Vec<FutureInput>, usize);

/// A parsed and resolved job that could be accepted.
#[derive(Debug)]
pub(crate) struct ReadJob {
    pub(crate) job: Job,
    pub(crate) accepted: SubmittedJob,
    pub(crate) waits: AwaitedInputs,
    /// Name of the script in error messages and in the job list.
    pub(crate) source: String,
}

/// Accepts a job: when the function returns, the job is in the database.
pub(crate) async fn submit(
    names: &SqliteNames,
    lease_recalls: &LeaseRecalls,
    cluster: &Arc<Cluster>,
    what: Submission,
) -> Result<(SubmittedJob, AwaitedInputs), JobRefusal> {
    submit_given(
        names,
        lease_recalls,
        cluster,
        (what, &PinnedVersions::new()),
        |_, _| Ok(()),
    )
    .await
}

/// Accepts a job as [`submit`] does, for a job that reads certain versions. The writes of `also` are committed together with the job, or
/// neither is committed.
pub(crate) async fn submit_given(
    names: &SqliteNames,
    lease_recalls: &LeaseRecalls,
    cluster: &Arc<Cluster>,
    (what, given): (Submission, &PinnedVersions),
    also: impl FnOnce(&Connection, &SubmittedJob) -> Result<(), Fault> + Send + 'static,
) -> Result<(SubmittedJob, AwaitedInputs), JobRefusal> {
    let (script, issued) = (what.script.clone(), Issue::Reserved);
    let read = read((names, lease_recalls, cluster), what, given, issued).await?;
    let ReadJob {
        job,
        accepted,
        waits,
        source,
    } = read;
    let claim = match claim(&names.shared().claims, &job, &accepted.spec) {
        Ok(claim) => claim,
        Err(by) => return Err(claimed_by_itself(names, &job, &accepted.spec, by).await?),
    };
    let heading = Heading {
        name: job.name.clone(),
        source,
        workdir: job.workdir.clone(),
        script,
        submission_id: job.submission_id.clone(),
        submitted: clock::now_ns(),
    };
    let write = move |db: &Connection| {
        let mut accepted = accepted;
        let known = records::known(
            db,
            accepted.spec.owner.uid,
            heading.submission_id.as_deref(),
        )?;
        if let Some(known) = known {
            return Ok(Err(known));
        }
        store::insert(db, &heading, &mut accepted)?;
        also(db, &accepted)?;
        Ok(Ok(accepted))
    };
    let accepted = names.database().write(write).await?;
    let accepted = accepted.map_err(JobRefusal::Known)?;
    claim.keep();
    Ok((accepted, waits))
}

/// Returns the reason why the server refuses a job whose outputs another job has claimed. The other job may be the same job in a concurrent
/// submission.
async fn claimed_by_itself(
    names: &SqliteNames,
    job: &Job,
    spec: &JobSpec,
    by: Vec<String>,
) -> Result<JobRefusal, Fault> {
    let (uid, submission_id) = (spec.owner.uid, job.submission_id.as_deref());
    for _ in 0..if submission_id.is_some() {
        SUBMISSION_ID_LOOKS
    } else {
        0
    } {
        let known = names
            .database()
            .read(|db| records::known(db, uid, submission_id))?;
        if let Some(known) = known {
            return Ok(JobRefusal::Known(known));
        }
        tokio::time::sleep(SUBMISSION_ID_PAUSE).await;
    }
    Ok(JobRefusal::Claimed(by))
}

/// Returns the job that [`submit`] would accept, or the reason of its refusal. The function writes, reserves and claims nothing.
pub(crate) async fn dry_run(
    names: &SqliteNames,
    lease_recalls: &LeaseRecalls,
    cluster: &Arc<Cluster>,
    what: Submission,
) -> Result<ReadJob, JobRefusal> {
    let given = PinnedVersions::new();
    let read = read(
        (names, lease_recalls, cluster),
        what,
        &given,
        Issue::Pretended,
    )
    .await?;
    let paths = outputs(&read.accepted.spec);
    let borrowed: Vec<&str> = paths.iter().map(String::as_str).collect();
    let taken = names.shared().claims.taken(&borrowed);
    if !taken.is_empty() {
        return Err(JobRefusal::Claimed(claimed(&read.job, &paths, &taken)));
    }
    Ok(read)
}

/// Whether the ids of a job's tasks and outputs are issued permanently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Issue {
    /// The ids are reserved and never issued again.
    Reserved,
    /// The ids of a dry run, which stored data never contains.
    Pretended,
}

async fn read(
    (names, lease_recalls, cluster): (&SqliteNames, &LeaseRecalls, &Arc<Cluster>),
    mut what: Submission,
    given: &PinnedVersions,
    issue: Issue,
) -> Result<ReadJob, JobRefusal> {
    let one = |text: String| JobRefusal::Script(vec![text]);
    if what.bounded && what.script.len() > USER_SCRIPT_BYTES_MAX {
        return Err(one(format!(
            "{}: the script has more than {USER_SCRIPT_BYTES_MAX} bytes; split the job",
            what.source
        )));
    }
    aside(|| attached::plain(names, &mut what.script))?;
    let owner = Owner {
        uid: what.caller.uid,
        gid: what.caller.gid,
    };
    // Credentials that a mount has checked do not cover the files that a script names.
    let caller = outputs::caller(owner, &what.caller.groups);
    let full = what.bounded && !has_space(names, what.caller.uid)?;
    let too_many = || {
        one(format!(
            "{}: you have {} unfinished jobs already: wait until some have ended, or cancel some",
            called(&what),
            names.shared().limits.get().jobs_each
        ))
    };
    let own = (names, cluster);
    let (mut writing, mut asked) = (RefCell::default(), MapperJobs::default());
    let mut found = parsed(own, &caller, (&what, given), (&writing, &asked));
    let open = std::mem::take(writing.get_mut());
    if !open.is_empty() {
        // A file that is still open counts with its sealed version.
        join_all(open.iter().map(|&ino| lease_recalls.settle(0, ino))).await;
        found = parsed(own, &caller, (&what, given), (&writing, &asked));
    }
    if full && found.is_err() {
        // A run of mapper programs is a job, too.
        return Err(too_many());
    }
    while asked
        .ask((names, lease_recalls, cluster), (&what, given))
        .await?
    {
        found = parsed(own, &caller, (&what, given), (&writing, &asked));
    }
    let (job, source) = found?;
    if issue == Issue::Reserved {
        // The job's work may be complete by now, so that a new check would refuse the job.
        let (uid, submission_id) = (what.caller.uid, job.submission_id.as_deref());
        let known = names
            .database()
            .read(|db| records::known(db, uid, submission_id))?;
        if let Some(known) = known {
            return Err(JobRefusal::Known(known));
        }
    }
    if full {
        return Err(too_many());
    }
    let places = places(cluster, &job).await;
    let issued = match issue {
        Issue::Reserved => reserve(names, &job).await?,
        Issue::Pretended => IssuedIds::pretended(),
    };
    let seen = (caller, places, given, what.links);
    let found = resolved((names, lease_recalls), &job, &seen, owner, issued).await?;
    let (mut accepted, waits) = found.map_err(JobRefusal::Script)?;
    accepted.groups.clone_from(&what.caller.groups);
    Ok(ReadJob {
        job,
        accepted,
        waits,
        source,
    })
}

/// Returns the job that a script describes, with the changes of its submission, and the name of the script.
fn parsed(
    (names, cluster): (&SqliteNames, &Arc<Cluster>),
    caller: &Caller,
    (what, given): (&Submission, &PinnedVersions),
    (writing, asked): (&RefCell<BTreeSet<u64>>, &MapperJobs),
) -> Result<(Job, String), JobRefusal> {
    let one = |text: String| JobRefusal::Script(vec![text]);
    let source = called(what);
    let directories = OwnerDirectories {
        names,
        cluster,
        caller,
        given,
        writing,
        asked: matches!(what.programs, ProgramMappers::Run(_)).then_some(asked),
        until: tokio::time::Instant::now() + mapper::HEADERS_MAX,
    };
    let parsed = aside(|| Job::read(&source, what.script.as_bytes(), &directories));
    let mut job = parsed.map_err(|errors| one(errors.to_string()))?;
    if let Some(refusal) = aside(|| attached::refusal(names, paths(&job)))? {
        return Err(one(format!("{source}: {refusal}")));
    }
    job.cache &= !what.no_cache;
    job.replace |= what.replace;
    job.strict |= what.strict;
    if !what.policy.is_empty() {
        job.policy = Some(what.policy.clone());
    }
    if matches!(what.programs, ProgramMappers::Are) {
        let outputs = job.tasks.iter_mut().flat_map(|task| &mut task.outputs);
        outputs.for_each(|output| output.part = true);
    }
    if let Some(policy) = &job.policy {
        tidemill_sched::policy::by_name(policy, 0)
            .map_err(|error| one(format!("{source}: {error}")))?;
    }
    Ok((job, source))
}

/// Returns the paths of all files that a job names: kernels, inputs and outputs.
fn paths(job: &Job) -> impl Iterator<Item = &str> {
    job.tasks.iter().flat_map(|task| {
        let kernels = task.kernels().filter_map(|kernel| kernel.file.as_ref());
        let inputs = task.inputs.iter().chain(kernels);
        let outputs = task.outputs.iter().map(|output| output.path.as_str());
        inputs.map(|input| input.path.as_str()).chain(outputs)
    })
}

/// Returns the name of a script, or `job` if the submission has no name.
fn called(what: &Submission) -> String {
    match what.source.as_str() {
        "" => "job".to_owned(),
        source => source.to_owned(),
    }
}

/// Returns the paths that a job claims, in the order of its outputs.
fn outputs(spec: &JobSpec) -> Vec<String> {
    let paths = spec.tasks.iter().flat_map(|task| &task.outputs);
    paths.filter_map(OutputSpec::claimed).collect()
}

/// Claims the outputs of a job; fails if another job has claimed any of them.
fn claim<'a>(claims: &'a Claims, job: &Job, spec: &JobSpec) -> Result<JobClaims<'a>, Vec<String>> {
    let paths = outputs(spec);
    let borrowed: Vec<&str> = paths.iter().map(String::as_str).collect();
    let claimed_by = |taken| claimed(job, &paths, &taken);
    claims.claim(spec.job, &borrowed).map_err(claimed_by)
}

/// Returns one line for each output that another job is going to write.
fn claimed(job: &Job, paths: &[String], taken: &BTreeMap<String, JobId>) -> Vec<String> {
    let outputs = job.tasks.iter().flat_map(|task| {
        let outputs = task.outputs.iter().filter(|output| !output.part);
        outputs.map(move |output| (task, output))
    });
    let errors = outputs.zip(paths).filter_map(|((task, output), claimed)| {
        let other = *taken.get(claimed)?;
        let error = JobError {
            file: job.file.clone(),
            at: output.at,
            task: Some(task.name.clone()),
            problem: JobProblem::ClaimedOutput {
                path: claimed.clone(),
                job: other,
            },
        };
        Some(error.to_string())
    });
    errors.collect()
}

/// Returns whether a user may have one more unfinished job.
fn has_space(names: &SqliteNames, uid: u32) -> Result<bool, Fault> {
    let jobs = names.database().read(|db| view::unfinished(db, uid))?;
    Ok(jobs < u64::from(names.shared().limits.get().jobs_each))
}

/// Resolves the paths of a job in the namespace. A file is sealed shortly after its writer's `close` has returned, and a user who writes
/// files and then submits a job means the written content. The server therefore first queries the mounts that write inputs of the job. For
/// a file that is still open, the job reads the newest sealed version.
async fn resolved(
    (names, lease_recalls): (&SqliteNames, &LeaseRecalls),
    job: &Job,
    (caller, places, given, links): &(Caller, Vec<NodeOffer>, &PinnedVersions, Links),
    owner: Owner,
    issued: IssuedIds,
) -> Result<Result<(SubmittedJob, AwaitedInputs), Vec<String>>, Fault> {
    let look = |share: Option<BudgetTurn>| {
        let mut issued = issued.clone();
        let read = |db: &Connection| {
            let mut tx = Tx::new(db, names.shared(), caller, 0, clock::now_ns());
            if caller.uid != 0 {
                tx.budget = Budget::of_script();
            }
            let seen = OwnerView {
                tx: &tx,
                places,
                given,
                writing: RefCell::default(),
            };
            let resolved = look_around(job, (&seen, *links), owner, &mut issued)?;
            tx.budget.look_up(1)?;
            Ok((resolved, seen.writing.take()))
        };
        aside(|| names.database().read_with(share.as_ref(), read))
    };
    let (resolved, writing) = look(names.database().turn(caller).await)?;
    let settled = join_all(writing.keys().map(|&ino| lease_recalls.settle(0, ino))).await;
    let mut ended = false;
    let mut unknown = Vec::new();
    for (path, settled) in writing.values().zip(settled) {
        match settled? {
            OpenState::Open => {}
            OpenState::Ended => ended = true,
            OpenState::Unknown => unknown.push(format!("{path}: {}", Fault::Unsettled)),
        }
    }
    if !unknown.is_empty() {
        return Ok(Err(unknown));
    }
    if ended {
        return Ok(look(names.database().turn(caller).await)?.0);
    }
    Ok(resolved)
}

fn look_around(
    job: &Job,
    (seen, links): (&OwnerView<'_>, Links),
    owner: Owner,
    issued: &mut IssuedIds,
) -> Result<Result<(SubmittedJob, AwaitedInputs), Vec<String>>, Fault> {
    let spec = match resolve(job, issued.job, owner, seen, issued) {
        Ok(spec) => spec,
        Err(errors) => return Ok(Err(vec![errors.to_string()])),
    };
    let outputs = spec.tasks.iter().flat_map(|task| &task.outputs);
    let outputs = outputs.filter(|output| !output.part);
    let paths = outputs.map(|output| output.path.as_str());
    let anchors = output_paths::anchors(seen.tx, paths, links)?;
    let errors = unwritable(job, &spec, seen.tx, (&anchors, links));
    if !errors.is_empty() {
        return Ok(Err(errors));
    }
    let lifetimes = job.tasks.iter().map(|task| task.lifetime).collect();
    let waits = awaited(job, &spec, seen, AWAITED_SHOWN_MAX);
    let accepted = SubmittedJob {
        spec,
        groups: Vec::new(),
        cache: job.cache,
        replace: job.replace,
        anchors,
        lifetimes,
        files: BTreeMap::new(),
    };
    Ok(Ok((accepted, waits)))
}

/// Returns one line for each output directory in which the job's owner may not write.
fn unwritable(
    job: &Job,
    spec: &JobSpec,
    tx: &Tx<'_>,
    (anchors, links): (&Anchors, Links),
) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut errors = Vec::new();
    for (task, issued) in job.tasks.iter().zip(&spec.tasks) {
        let outputs = task.outputs.iter().zip(&issued.outputs);
        for (output, issued) in outputs.filter(|(_, issued)| !issued.part) {
            if links == Links::Own
                && let Err(fault) = tx.check_links(&output.path)
            {
                errors.push(format!(
                    "{}:{}: task \"{}\": {fault}",
                    job.file, output.at, task.name
                ));
                continue;
            }
            if issued.is_directory() {
                let found = outputs::directory_obstacle(tx, anchors, &output.path, job.replace);
                if let Ok(Some(message)) = found {
                    errors.push(format!(
                        "{}:{}: task \"{}\": {message}",
                        job.file, output.at, task.name
                    ));
                }
                continue;
            }
            let dir = output.path.rsplit_once('/').map_or("", |(dir, _)| dir);
            // At the root, the name itself may be refused.
            if !seen.insert(dir) && !dir.is_empty() {
                continue;
            }
            if let Ok(Some(message)) = outputs::obstacle(tx, anchors, &output.path, issued.inode.0)
            {
                errors.push(format!(
                    "{}:{}: task \"{}\": {message}",
                    job.file, output.at, task.name
                ));
            }
        }
    }
    errors
}

/// Ids for all tasks and outputs of a job.
#[derive(Clone, Debug)]
struct IssuedIds {
    job: JobId,
    tasks: std::ops::Range<u64>,
    inodes: std::ops::Range<u64>,
}

impl IssuedIds {
    /// Returns ids for a dry run, which are larger than all ids that the server can ever issue.
    fn pretended() -> Self {
        Self {
            job: JobId(0),
            tasks: FIRST_DRY_RUN_ID..u64::MAX,
            inodes: FIRST_DRY_RUN_ID..u64::MAX,
        }
    }
}

impl JobIds for IssuedIds {
    fn task(&mut self) -> TaskId {
        TaskId(self.tasks.next().expect("an id was reserved for each task"))
    }

    fn inodes(&mut self, count: u64) -> Inode {
        Inode(ids::take(&mut self.inodes, count))
    }
}

async fn reserve(names: &SqliteNames, job: &Job) -> Result<IssuedIds, Fault> {
    let tasks = job.tasks.len() as u64;
    let outputs = job
        .tasks
        .iter()
        .flat_map(|task| &task.outputs)
        .map(|output| directory::ids(&output.name))
        .sum::<u64>();
    let work = move |db: &Connection| {
        let job = JobId(ids::reserve(db, "job", 1)?);
        let task = ids::reserve(db, "task", tasks)?;
        let inode = ids::reserve(db, "inode", outputs)?;
        Ok(IssuedIds {
            job,
            tasks: task..task + tasks,
            inodes: inode..inode + outputs,
        })
    };
    names.database().write(work).await
}

/// Returns the nodes of the cluster, up or down. For each node that answers, the result says which of the possible programs and of the
/// requested directories exist on the node.
async fn places(cluster: &Cluster, job: &Job) -> Vec<NodeOffer> {
    let kernels = job
        .tasks
        .iter()
        .flat_map(|task| task.kernels().map(move |kernel| (task, kernel)));
    let programs = kernels
        .filter(|(_, kernel)| match kernel.kind {
            Some(kind) => kind == KernelKind::Program,
            None => {
                let bare = kernel.name.strip_suffix(".so").unwrap_or(&kernel.name);
                !tidemill_compute::is_builtin(bare)
            }
        })
        .flat_map(|(task, kernel)| task.programs(&kernel.name));
    let directories = job
        .tasks
        .iter()
        .flat_map(|task| task.runtime_environment.shown());
    let directories = directories.map(|directory| format!("{directory}/"));
    let names: BTreeSet<String> = programs.chain(directories).collect();
    let mut found: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    if !names.is_empty() {
        let names = names.into_iter().collect();
        found = cluster.find_programs(names, PROGRAMS_WAIT).await;
    }
    let places = cluster.nodes().into_iter().filter_map(|node| {
        let view = NodeView::try_from(&node).ok()?;
        Some(NodeOffer {
            node: NodeId(node.node),
            server_cores: view.role == Role::ServerCores,
            offers: view.offers,
            programs: found
                .remove(&node.node)
                .map(|names| names.into_iter().collect()),
        })
    });
    places.collect()
}

/// Directories that a job's owner may list, each in its state at the time of the lookup.
struct OwnerDirectories<'a> {
    names: &'a SqliteNames,
    cluster: &'a Arc<Cluster>,
    caller: &'a Caller,
    given: &'a PinnedVersions,
    /// Inodes of files that are being written and whose parts the job selects.
    writing: &'a RefCell<BTreeSet<u64>>,
    /// Runs programs that are mappers; `None` if the server runs no such programs.
    asked: Option<&'a MapperJobs>,
    /// Deadline for reading the headers of all inputs.
    until: tokio::time::Instant,
}

impl OwnerDirectories<'_> {
    /// Returns a reader of the version that the lookup found.
    fn version(&self, path: &str, made: &ExternalInput) -> Result<RangedVersion, String> {
        let objects = self
            .cluster
            .objects()
            .ok_or("files can't be read on this server")?;
        let nodes = SourceNodes {
            cluster: self.cluster.clone(),
            shared: self.names.shared().clone(),
            objects: objects.clone(),
        };
        let inode = self.names.database().read(|db| {
            let tx = Tx::new(db, self.names.shared(), self.caller, 0, clock::now_ns());
            Ok(match look(&tx, path).0 {
                PathLookup::Sealed(found) => found.inode.0,
                _ => 0,
            })
        });
        let reading = inode.and_then(|inode| self.names.read_version(self.caller, inode));
        let reading = reading.map_err(|fault| fault.to_string())?;
        if reading.vnode.object != made.object.0 {
            return Err("the file has just changed; submit the job again".to_owned());
        }
        RangedVersion::new(&nodes, reading, self.until)
            .ok_or_else(|| "the file is empty".to_owned())
    }
}

impl DirectoryLookup for OwnerDirectories<'_> {
    fn list(&self, directory: &str) -> Vec<ListedName> {
        let listed = self.names.database().read(|db| {
            let now = clock::now_ns();
            let tx = Tx::new(db, self.names.shared(), self.caller, 0, now);
            tx.entries_in(directory, LISTED_MAX)
        });
        let listed = listed.unwrap_or_else(|fault| {
            tracing::debug!(directory, %fault, "patterns see no file of the directory");
            Vec::new()
        });
        let named = |(name, kind): (Vec<u8>, Kind)| ListedName {
            name: String::from_utf8_lossy(&name).into_owned(),
            is_directory: kind == Kind::Directory,
            is_text: std::str::from_utf8(&name).is_ok(),
        };
        listed.into_iter().map(named).collect()
    }

    fn made_of(&self, path: &str) -> Option<ExternalInput> {
        let made = self.names.database().read(|db| {
            let now = clock::now_ns();
            let tx = Tx::new(db, self.names.shared(), self.caller, 0, now);
            let (look, writing) = match self.given.get(path) {
                Some(&object) => (look_at_version(&tx, object), None),
                None => look(&tx, path),
            };
            self.writing.borrow_mut().extend(writing);
            let PathLookup::Sealed(found) = look else {
                return Ok(None);
            };
            let object = found.placed.object;
            let layout = layout(db, found.placed);
            Ok(Some(ExternalInput { object, layout }))
        });
        made.unwrap_or_else(|fault| {
            tracing::debug!(path, %fault, "the layout of the file is not known");
            None
        })
    }

    fn mapped(
        &self,
        path: &str,
        made: &ExternalInput,
        mapping: &Mapping<'_>,
    ) -> Result<MapperResult, String> {
        let file = self.version(path, made)?;
        mapper::map(&file, file.layout(), mapping)
    }

    fn mapped_directory(
        &self,
        path: &str,
        mapping: &Mapping<'_>,
    ) -> Result<Option<DirectoryMap>, String> {
        let is_directory = self.names.database().read(|db| {
            let tx = Tx::new(db, self.names.shared(), self.caller, 0, clock::now_ns());
            Ok(look(&tx, path).0 == PathLookup::Directory)
        });
        match is_directory.map_err(|fault| fault.to_string())? {
            true => mapper::directory::map(self, path, mapping).map(Some),
            false => Ok(None),
        }
    }

    fn asked(
        &self,
        program: &MapperProgram,
        made: &ExternalInput,
        per_part: bool,
    ) -> Result<MapperResult, String> {
        let asked = self.asked.ok_or(NOT_ASKED)?;
        asked.map(program, made, per_part)
    }

    fn folds(&self, kernel: &str, args: &[String]) -> bool {
        tidemill_compute::fold_builtin(kernel, args).is_ok()
    }

    fn has_own(&self, kernel: &str) -> bool {
        let own = self.names.database().read(|db| {
            let tx = Tx::new(db, self.names.shared(), self.caller, 0, clock::now_ns());
            tx.own_kernels(self.caller.uid)
        });
        let files = own.unwrap_or_default();
        let found = OwnName::parse(kernel).pick(files.iter().map(String::as_str));
        found.is_some()
    }
}

impl Below for OwnerDirectories<'_> {
    fn look(&self, path: &str) -> io::Result<Option<ExternalInput>> {
        if tokio::time::Instant::now() >= self.until {
            return Err(io::Error::other(mapper::slow()));
        }
        let made = self.names.database().read(|db| {
            let tx = Tx::new(db, self.names.shared(), self.caller, 0, clock::now_ns());
            let (look, writing) = look(&tx, path);
            self.writing.borrow_mut().extend(writing);
            Ok(match look {
                PathLookup::Sealed(found) => {
                    let object = found.placed.object;
                    let layout = layout(db, found.placed);
                    Ok(Some(ExternalInput { object, layout }))
                }
                PathLookup::Denied => Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "you may not read it",
                )),
                PathLookup::Nothing
                | PathLookup::Away
                | PathLookup::Directory
                | PathLookup::Unsealed => Ok(None),
            })
        });
        made.map_err(io::Error::other)?
    }

    fn read_at(
        &self,
        path: &str,
        made: &ExternalInput,
        offset: u64,
        into: &mut [u8],
    ) -> io::Result<()> {
        let file = self.version(path, made).map_err(io::Error::other)?;
        tidemill_format::Bytes::read_at(&file, offset, into)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let listed = self.names.database().read(|db| {
            let tx = Tx::new(db, self.names.shared(), self.caller, 0, clock::now_ns());
            tx.names_in(path, LISTED_MAX)
        });
        match listed {
            Ok(names) => Ok(names.into_iter().map(|(name, _)| name).collect()),
            Err(Fault::NotDirectory(_)) => Ok(Vec::new()),
            Err(fault) => Err(io::Error::other(fault)),
        }
    }
}

/// View of the namespace with the rights of a job's owner.
struct OwnerView<'a> {
    tx: &'a Tx<'a>,
    places: &'a [NodeOffer],
    given: &'a PinnedVersions,
    /// Inodes and paths of files that the job reads and that are being written.
    writing: RefCell<BTreeMap<u64, String>>,
}

impl Outside for OwnerView<'_> {
    fn look(&self, path: &str) -> PathLookup {
        if let Some(&object) = self.given.get(path) {
            return look_at_version(self.tx, object);
        }
        let (look, writing) = look(self.tx, path);
        if let Some(ino) = writing {
            self.writing.borrow_mut().insert(ino, path.to_owned());
        }
        look
    }

    fn layout(&self, placed: Placed) -> Layout {
        layout(self.tx.db, placed)
    }

    fn beside(&self, path: &str) -> Vec<String> {
        self.tx.beside(path)
    }

    fn own_kernels(&self, uid: u32) -> Vec<String> {
        self.tx.own_kernels(uid).unwrap_or_default()
    }

    fn is_builtin(&self, name: &str) -> bool {
        tidemill_compute::is_builtin(name)
    }

    fn refuses(&self, name: &str, args: &[String]) -> Option<String> {
        let checked = tidemill_compute::check_arguments(name, args);
        checked.err().map(|error| error.to_string())
    }

    fn places(&self) -> &[NodeOffer] {
        self.places
    }
}

/// Returns the layout of a sealed version, with the first node of each part.
pub(crate) fn layout(db: &Connection, placed: Placed) -> Layout {
    let striped = parts::sealed(db, placed.object.0).unwrap_or_else(|fault| {
        fault.log_delay("the layout of a file is not known");
        None
    });
    match striped {
        Some(layout) => layout,
        None => Layout::Whole(Part::on(placed.object, placed.size, placed.node)),
    }
}

/// Returns the object at a path, and the inode of its file if a version of the file is being written.
fn look(tx: &Tx<'_>, path: &str) -> (PathLookup, Option<u64>) {
    let vnode = match tx.resolve(path.as_bytes(), true) {
        Ok(vnode) => vnode,
        Err(Fault::NotFound(_) | Fault::NotDirectory(_)) => {
            let is_absolute = tx.absolute_link(path.as_bytes()).is_some();
            return (
                if is_absolute {
                    PathLookup::Away
                } else {
                    PathLookup::Nothing
                },
                None,
            );
        }
        Err(_) => return (PathLookup::Denied, None),
    };
    if vnode.kind != Kind::File {
        return (PathLookup::Directory, None);
    }
    if !tx.caller.may(&vnode, READ) {
        return (PathLookup::Denied, None);
    }
    let writing = (vnode.writing != 0).then_some(vnode.ino);
    if vnode.version == 0 {
        return (PathLookup::Unsealed, writing);
    }
    let node = if vnode.has_parts() {
        tx.first_part(vnode.object).unwrap_or(0)
    } else {
        vnode.node().unwrap_or(0)
    };
    let placed = Placed {
        object: ObjectId(vnode.object),
        node: NodeId(node),
        size: vnode.size,
    };
    let executable = if tx.caller.uid == 0 {
        vnode.mode & 0o111 != 0
    } else {
        tx.caller.may(&vnode, SEARCH)
    };
    let found = ResolvedFile {
        inode: Inode(vnode.ino),
        placed,
        writable: tx.caller.may(&vnode, WRITE),
        executable,
    };
    (PathLookup::Sealed(found), writing)
}

/// Returns a version, regardless of its file's name and present version. The caller must keep the version's bytes from being removed.
fn look_at_version(tx: &Tx<'_>, object: ObjectId) -> PathLookup {
    // The job does not wait for a deleted version.
    let Ok(Some(found)) = version::find(tx.db, object.0) else {
        return PathLookup::Denied;
    };
    let vnode = match tx.reach(found.ino) {
        Ok(vnode) if tx.caller.may(&vnode, READ) => vnode,
        _ => return PathLookup::Denied,
    };
    let first_part = || tx.first_part(object.0).unwrap_or(0);
    PathLookup::Sealed(ResolvedFile {
        inode: Inode(found.ino),
        placed: Placed {
            object,
            node: NodeId(found.node.unwrap_or_else(first_part)),
            // The size of a version that is still being written is not known yet; 0 stands for it.
            size: found.size.unwrap_or(0),
        },
        writable: tx.caller.may(&vnode, WRITE),
        executable: false,
    })
}

/// Returns the sealed version of a file that the caller may read.
pub(crate) fn sealed(tx: &Tx<'_>, path: &str) -> Result<Option<Placed>, Fault> {
    match look(tx, path).0 {
        PathLookup::Sealed(found) => Ok(Some(found.placed)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_meta::UserLimits;
    use tidemill_wire::v1::State;

    #[tokio::test]
    async fn job_limit_refuses_jobs_of_user_at_limit_and_accepts_others() {
        let dir = tempfile::tempdir().unwrap();
        let names = SqliteNames::open(&dir.path().join("server.db"), (0, 0)).unwrap();
        let insert = |db: &Connection| {
            let sql = "INSERT INTO job(name, source, workdir, uid, gid, groups, policy, state, submitted, ended, script, \
                       cache, replacing) VALUES ('', '', '/', 7, 7, '[]', '', ?1, 0, 0, '', 0, 0)";
            for _ in 0..5 {
                db.raw()
                    .execute(sql, [records::state_number(State::Running)])?;
            }
            Ok(())
        };
        names.shared().limits.set(UserLimits {
            jobs_each: 5,
            ..UserLimits::default()
        });
        assert!(has_space(&names, 7).unwrap());
        names.database().write(insert).await.unwrap();
        assert!(!has_space(&names, 7).unwrap());
        assert!(has_space(&names, 8).unwrap());
        let end = "UPDATE job SET state = ?1 WHERE job = (SELECT max(job) FROM job)";
        let ended = [records::state_number(State::Done)];
        let end = names
            .database()
            .write(move |db| Ok(db.raw().execute(end, ended)?));
        end.await.unwrap();
        assert!(has_space(&names, 7).unwrap());
    }
}
