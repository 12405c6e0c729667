//! Results that are one sentence for people: see [`Message`](super::Message).

use super::token::Token;
use super::{exact, given, list, records};
use crate::files::ClusterPath;
use crate::format::{Bytes, Time};
use tidemill_server::recovery::{LostFoundEntry, Recovered};
use tidemill_wire::v1;

records! {
    /// Failure of a command.
    Failure {
        error: String,
        /// Name of the state that caused the failure, as in `docs/troubleshooting.md`; absent if the state has no name.
        #[serde(skip_serializing_if = "Option::is_none")]
        state: Option<&'static str>,
    }

    /// Started cluster.
    StartedCluster {
        /// Directory of the cluster.
        dir: String,
        endpoint: String,
        /// Mount point.
        mount: Option<String>,
        nodes: Vec<u32>,
        /// Names of the started processes.
        started: Vec<String>,
        already_running: Vec<String>,
    }

    /// Stopped cluster.
    StoppedCluster { dir: String, stopped: Vec<String> }

    /// Entry that `tidemill rm` would remove.
    PlannedRemoval { dry_run: bool, path: ClusterPath, kind: &'static str }

    /// Number of files, and their bytes.
    FileCount { files: u64, bytes: Bytes }

    /// Files that `tidemill migrate --rewrite` would write again.
    PlannedRewrite { dry_run: bool, files: u64, bytes: Bytes }

    /// File that would be copied.
    PlannedCopy { dry_run: bool, from: String, to: String, bytes: Bytes }

    /// File that would be deleted.
    PlannedDeletion { dry_run: bool, delete: String }

    /// Outcome of copying files.
    CopySummary {
        /// Number of copied files, and their bytes.
        files: u64,
        bytes: Bytes,
        /// Number of files that existed already, unchanged.
        same: u64,
        deleted: u64,
        /// Number of paths that are not files, or have no valid name.
        skipped: u64,
        failed: u64, dry_run: bool,
    }

    /// Files that `tidemill exec` wrote asynchronously.
    StoredFiles {
        /// Number of files that could not be stored.
        failed: u64,
        not_stored: Vec<FileNotStored>,
    }

    /// File that could not be stored.
    FileNotStored {
        path: String, why: String,
        /// Local file with the bytes.
        bytes_in: String,
    }

    /// Submitted job, or a refused job.
    Submission {
        /// Id of the job; null if the job was refused.
        job: Option<u64>,
        /// Errors of a refused job.
        errors: Vec<String>,
        awaited: Vec<AwaitedInput>,
    }

    /// Missing input of a job.
    AwaitedInput from of: v1::AwaitedInput {
        path: String, task: String,
        /// Most similar name that exists.
        nearest: Option<String> = given(&of.nearest),
    }

    /// Deleted jobs.
    DeletedJobs {
        /// Whether nothing was deleted; absent if the jobs were deleted.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        dry_run: bool,
        deleted: Vec<u64>,
    }

    /// Job file in the format TOML.
    ConvertedJob { toml: String }

    /// Number of rule runs that are queued again.
    RetriedRuns { rule_runs: u64 }

    /// Closed batch of a hook.
    ClosedBatch {
        batch: u64,
        /// `ending` without `--wait`.
        state: String,
        /// Reason of a failure; absent without `--wait`.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }

    /// Directory with a new rule.
    RuleDirectory { directory: ClusterPath }

    /// Directory of a new kernel.
    NewKernel { directory: String }

    /// Files of a built kernel.
    BuiltKernel {
        made: Vec<String>,
        /// Reason why there is no WebAssembly module; null if there is.
        no_wasm: Option<String>,
    }

    /// Kernel that was added to the cluster.
    AddedKernel {
        path: String,
        /// Whether the content is new.
        new: bool,
        hash: String,
        /// Whether all users may use the kernel.
        shared: bool,
    }

    /// Files of deleted kernels.
    DeletedKernels { deleted: Vec<String> }

    /// Test of merge invariance.
    MergeInvariance {
        holds: bool,
        /// Number of cuts of the input.
        cuts: u64,
    }

    /// Event of a file: its new version is sealed.
    FileEvent from of: v1::FileEvent {
        path: String, version: u64, object: u64, size: Bytes, mtime: Time, uid: u32,
        /// Position for `--since`.
        cursor: String,
    }

    /// Lease of a workspace.
    WorkspaceLease {
        workspace: String,
        /// Number of the lease holder.
        member: u64,
    }

    /// Outcome of a request to a remote.
    RemoteCheck { remote: String, answers: bool }

    /// Node whose drain was stopped.
    NodeDraining { node: u32, draining: bool }

    /// Space that the drain of a node needs.
    DrainPlan { dry_run: bool, node: u32, used_bytes: Bytes, other_nodes: u64, free_bytes: Bytes }

    /// Removed node.
    RemovedNode { node: u32, files_lost: u64 }

    /// Consequences of removing a node.
    RemovalPlan {
        dry_run: bool, node: u32, up: bool, drained: bool,
        /// Whether files may be lost.
        lose: bool,
        /// Number of files of the cluster without an online replica.
        files_unavailable: u64,
    }

    /// Node that was suspended or resumed.
    SuspendedNode { node: u32, suspended: bool }

    /// Files that were copied from the packs of a lost node.
    RecoveredFiles {
        files: u64, bytes: Bytes,
        /// Number of files that existed already, unchanged.
        same: u64,
        failed: u64,
    }

    /// Copied files of the log of the server's database.
    Backup {
        files: u64, bytes: Bytes,
        /// Moment of the last copied state; 0 if nothing was copied.
        time: Time,
    }

    /// Metadata that was recovered.
    RecoveredDatabase {
        /// State that was restored from the log; absent: no source has a log.
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<RestoredLog>,
        /// Whether nothing was changed.
        dry_run: bool,
        /// Numbers of the nodes whose objects were compared.
        members: Vec<u32>,
        /// Numbers of removed nodes.
        removed: Vec<u32>,
        /// Nodes that were not read, though nodes with higher numbers were.
        absent: Vec<u32>,
        /// Files that are not in the log, and were added from nodes.
        added: Vec<String>,
        /// Files that were added in `/lost+found`.
        lost_and_found: Vec<LostAndFound>,
        /// Number of tasks without a log whose lineage was added from nodes.
        tasks: usize,
        /// Files that have lost their bytes.
        missing: Vec<String>,
        /// Objects on nodes that belong to no file.
        unknown: u64,
        /// Files of the server's directory.
        attached: Vec<String>,
        /// Whether something is missing.
        incomplete: bool,
    }

    /// State that was restored from the log of the server's database.
    RestoredLog {
        /// Moment of the restored state.
        time: Time, term: u64, segment: u64,
        /// Whether a later server wrote a log without a usable snapshot.
        later: bool,
        /// First and last segment that are not complete.
        missing_segments: Option<(u64, u64)>,
        /// Files of the log that can't be used, with the reasons.
        unusable: Vec<String>,
    }

    /// File that could not get its own place.
    LostAndFound from of: LostFoundEntry { path: String = exact(&of.path), was: String = exact(&of.was) }

    /// New token: its secret, or the local file with the secret.
    CreatedToken {
        token: Token,
        #[serde(skip_serializing_if = "Option::is_none")]
        credential: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<String>,
    }

    /// Valid configuration file; null if there is no file.
    ConfigurationCheck { file: Option<String>, valid: bool }

    /// Directory with the manual pages.
    ManualPages { directory: String }
}

impl RecoveredDatabase {
    /// Describes a recovery.
    pub(crate) fn of(recovered: &Recovered, dry_run: bool) -> Self {
        let log = recovered.restored.as_ref().map(|restored| {
            let unusable = restored.unusable.iter();
            let unusable = unusable.map(|(path, problem)| format!("{}: {problem}", exact(path)));
            RestoredLog {
                time: Time(restored.time),
                term: restored.last.term,
                segment: restored.last.number,
                later: restored.later,
                missing_segments: restored.gap,
                unusable: unusable.collect(),
            }
        });
        Self {
            log,
            dry_run,
            members: recovered.nodes.clone(),
            removed: recovered.removed.clone(),
            absent: recovered.absent.clone(),
            added: recovered.added.iter().map(exact).collect(),
            lost_and_found: list(&recovered.lost_and_found),
            tasks: recovered.tasks,
            missing: recovered.missing.iter().map(exact).collect(),
            unknown: recovered.unknown,
            attached: recovered.attached.clone(),
            incomplete: recovered.is_incomplete(),
        }
    }
}
