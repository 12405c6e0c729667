//! Measurements on nodes: data is written to each node, jobs of one task that are pinned to it run one after the other, the data is read
//! back, and everything is removed.

use super::subject::{BenchData, SMALL_BYTES, Subject};
use super::{Inputs, RunTimes, median};
use crate::calibration::{KernelSpeed, NodeSpeed};
use crate::command::{job, rm};
use crate::context::{CommandContext, credentials};
use crate::files;
use crate::output::job::has_ended;
use anyhow::{Context as _, bail, ensure};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tidemill_client::Server;
use tidemill_client::transfer::{PutOptions, Transfer};
use tidemill_model::id::NodeId;
use tidemill_model::replicas;
use tidemill_wire::v1::{self, name_op::Op};

/// Size of the file that the rate of the link is measured with.
const LINK_BYTES: u64 = 32 << 20;

/// Measures kernels on all storage nodes that are up.
///
/// # Errors
/// If the cluster can't be written to or a job fails.
pub(super) async fn measure(
    server: Server,
    subjects: &[Subject],
    inputs: &Inputs,
    directory: &std::ffi::OsStr,
    context: &CommandContext,
) -> anyhow::Result<Vec<NodeSpeed>> {
    let name = format!("bench-kernel-{}", std::process::id());
    let parent = files::path(directory)?;
    let directory = parent.join(&name);
    files::make_directory(&server, &directory, false).await?;
    let bench = NodeBench {
        transfer: Transfer::new(server.clone(), credentials()),
        server,
        directory,
        inputs,
    };
    let measured = bench.all(subjects, context).await;
    let removed = bench.remove(&parent, &name).await;
    let measured = measured?;
    removed.with_context(|| format!("can't remove {}", bench.directory))?;
    Ok(measured)
}

struct NodeBench<'a> {
    server: Server,
    transfer: Transfer,
    directory: files::ClusterPath,
    inputs: &'a Inputs,
}

/// A job of one task.
struct MeasuredJob {
    /// Time from the submission until its end is known.
    job: Duration,
    /// Time of the kernel alone.
    kernel: Duration,
    output_bytes: u64,
}

impl NodeBench<'_> {
    async fn all(
        &self,
        subjects: &[Subject],
        context: &CommandContext,
    ) -> anyhow::Result<Vec<NodeSpeed>> {
        let status = self.server.status().await?;
        let stores = status.nodes.iter();
        let stores = stores.filter(|node| node.up && node.role == "store");
        let mut measured = Vec::new();
        let connected = self.connect(context).await?;
        for node in stores {
            context.note(format_args!("node {}", node.node));
            let mut speed = self.node(node.node, subjects).await?;
            speed.cluster = format!("{:016x}", status.cluster_id);
            speed.connect_ns = connected;
            measured.push(speed);
        }
        ensure!(
            !measured.is_empty(),
            "no storage node is up: `tidemill status` shows them"
        );
        Ok(measured)
    }

    /// Returns the time until a command is connected with the cluster.
    async fn connect(&self, context: &CommandContext) -> anyhow::Result<u64> {
        let mut times = Vec::new();
        for _ in 0..self.inputs.runs {
            let start = Instant::now();
            context.transfer().await?;
            times.push(start.elapsed());
        }
        Ok(u64::try_from(median(&mut times).as_nanos())?)
    }

    async fn node(&self, id: u32, subjects: &[Subject]) -> anyhow::Result<NodeSpeed> {
        for (data, bytes) in self.used(subjects) {
            let local = self.inputs.file(data, bytes)?;
            let path = self.path(id, data, bytes);
            let wanted = PutOptions {
                node: Some(NodeId(id)),
                replicas: Some(replicas::WantedReplicas::ONE),
                ..PutOptions::default()
            };
            self.transfer.put(&local, &path, wanted, |_| ()).await?;
        }
        let mut kernels: Vec<KernelSpeed> = Vec::new();
        for subject in subjects {
            let speed = self.kernel(id, subject).await;
            kernels.push(
                speed.with_context(|| format!("can't measure {} on node {id}", subject.name))?,
            );
        }
        let (link_bytes_per_sec, link_latency_ns) = self.link(id).await?;
        Ok(NodeSpeed {
            cluster: String::new(),
            id,
            link_bytes_per_sec,
            link_latency_ns,
            connect_ns: 0,
            kernels,
        })
    }

    /// Returns the required files: two of each subject, and two for measuring the link.
    fn used(&self, subjects: &[Subject]) -> BTreeSet<(BenchData, u64)> {
        let small = subjects.iter().map(|one| (one.data, SMALL_BYTES));
        let large = subjects.iter().map(|one| (one.data, one.bytes));
        let link = [SMALL_BYTES, LINK_BYTES].map(|bytes| (BenchData::Numbers, bytes));
        small.chain(large).chain(link).collect()
    }

    fn input(id: u32, data: BenchData, bytes: u64) -> String {
        format!("{id}-{}", Inputs::name(data, bytes))
    }

    fn path(&self, id: u32, data: BenchData, bytes: u64) -> files::ClusterPath {
        self.directory.join(Self::input(id, data, bytes))
    }

    async fn kernel(&self, id: u32, subject: &Subject) -> anyhow::Result<KernelSpeed> {
        self.run(id, subject, subject.bytes).await?;
        let share = self.share(id).await?;
        let (mut times, mut starts) = (RunTimes::default(), Vec::new());
        let mut output_bytes = 0;
        for _ in 0..self.inputs.runs {
            let small = self.run(id, subject, SMALL_BYTES).await?;
            starts.push(small.job);
            times.small.push(small.kernel);
            let large = self.run(id, subject, subject.bytes).await?;
            times.large.push(large.kernel);
            output_bytes = large.output_bytes;
        }
        let share = share.max(self.share(id).await?);
        let mut speed = times.speed(subject, self.inputs)?;
        speed.start_ns = u64::try_from(median(&mut starts).as_nanos())?;
        (speed.output_bytes, speed.share) = (output_bytes, share);
        Ok(speed)
    }

    /// Returns the share of a processor that a kernel gets on the node now.
    async fn share(&self, node: u32) -> anyhow::Result<f64> {
        let request = v1::LoadRequest {
            credentials: Some(credentials()),
            node,
        };
        let reply = self.server.cluster().load(request).await;
        let reply = reply.map_err(|status| self.server.explain(status))?;
        Ok(match reply.into_inner().share_milli {
            0 => 1.0,
            milli => f64::from(milli.min(1000)) / 1000.0,
        })
    }

    /// Runs one job to its end.
    async fn run(&self, id: u32, subject: &Subject, bytes: u64) -> anyhow::Result<MeasuredJob> {
        let input = Self::input(id, subject.data, bytes);
        let script = subject.script(self.directory.text("a job")?, &input, id);
        let request = v1::SubmitRequest {
            credentials: Some(credentials()),
            script,
            source: "tidemill kernel bench".into(),
            no_cache: true,
            ..v1::SubmitRequest::default()
        };
        let start = Instant::now();
        let reply = self.server.jobs().submit(request).await;
        let reply = reply
            .map_err(|status| self.server.explain(status))?
            .into_inner();
        ensure!(reply.errors.is_empty(), "{}", reply.errors.join("; "));
        let events = self.server.jobs().watch(job::request(reply.job)).await;
        let mut events = events
            .map_err(|status| self.server.explain(status))?
            .into_inner();
        while events.message().await?.is_some() {}
        let took = start.elapsed();
        let job = job::get(&self.server, reply.job).await?;
        ensure!(
            has_ended(&job),
            "job {} can't be watched to its end",
            job.job
        );
        let Some(task) = job.tasks.first() else {
            bail!("job {} has no task", job.job)
        };
        ensure!(
            job.state() == v1::State::Done,
            "job {}: {}",
            job.job,
            task.error
        );
        let done = v1::DeleteJobsRequest {
            credentials: Some(credentials()),
            jobs: vec![job.job],
            ended_before: 0,
        };
        let deleted = self.server.jobs().delete(done).await;
        deleted.map_err(|status| self.server.explain(status))?;
        let output = v1::Unlink {
            parent: files::inode(&self.server, &self.directory).await?,
            name: super::subject::RESULT.as_bytes().to_vec(),
            ..v1::Unlink::default()
        };
        self.server.one(&credentials(), Op::Unlink(output)).await?;
        let span = |from: i64, to: i64| Duration::from_nanos(u64::try_from(to - from).unwrap_or(0));
        Ok(MeasuredJob {
            job: took,
            kernel: span(task.kernel_start, task.end),
            output_bytes: task.written_bytes,
        })
    }

    /// Returns the rate and latency of reading a file from a node.
    async fn link(&self, id: u32) -> anyhow::Result<(f64, u64)> {
        let directory = tempfile::tempdir().context("can't make a directory for the data")?;
        let local = directory.path().join("got");
        let read = async |bytes: u64| -> anyhow::Result<Duration> {
            let start = Instant::now();
            let path = self.path(id, BenchData::Numbers, bytes);
            self.transfer.get(&path, &local, |_| ()).await?;
            let took = start.elapsed();
            std::fs::remove_file(&local)?;
            Ok(took)
        };
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for _ in 0..self.inputs.runs {
            small.push(read(SMALL_BYTES).await?);
            large.push(read(LINK_BYTES).await?);
        }
        let latency = median(&mut small);
        let moving = median(&mut large).checked_sub(latency);
        let moving = moving
            .filter(|moving| !moving.is_zero())
            .context("reading the large file took no longer than the small one; measure again")?;
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let bytes = (LINK_BYTES - SMALL_BYTES) as f64;
        Ok((
            bytes / moving.as_secs_f64(),
            u64::try_from(latency.as_nanos())?,
        ))
    }

    async fn remove(&self, parent: &files::ClusterPath, name: &str) -> anyhow::Result<()> {
        let ino = files::inode(&self.server, &self.directory).await?;
        rm::empty(&self.server, ino).await?;
        let unlink = v1::Unlink {
            parent: files::inode(&self.server, parent).await?,
            name: name.as_bytes().to_vec(),
            directory: true,
            time: 0,
        };
        self.server.one(&credentials(), Op::Unlink(unlink)).await?;
        Ok(())
    }
}
