//! Costs of a job: for each kernel, and in bytes transferred compared with the same job on one client.

use super::energy::Energy;
use super::table::{Text, columns};
use super::{Report, maybe, records};
use crate::format::{self, Bytes, Span};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_wire::v1;

records! {
    /// Costs of a job, from the records that nodes keep of each task.
    JobReport {
        job: u64, name: String, state: &'static str, kernels: Vec<KernelCosts>, total: Costs,
        /// Bytes that nodes of role `server-cores` fetched.
        to_server_cores_bytes: Bytes,
        /// Inputs that no task of the job makes.
        inputs: FileSum,
        /// Outputs that no task of the job reads.
        results: FileSum,
        /// Bytes that left the storage nodes: to the server cores, and the results.
        left_bytes: Bytes,
        /// Bytes that a client without a cache would transfer: all inputs of every task, and all outputs back.
        offline_bytes: Bytes,
        /// Bytes that a client with an unlimited cache would transfer: inputs once, and all outputs back.
        offline_cached_bytes: Bytes,
        energy: Option<Energy>,
        #[serde(skip)]
        headline: String,
    }

    /// Costs of the tasks of a kernel.
    KernelCosts { kernel: String, #[serde(flatten)] costs: Costs }

    /// Sums over tasks.
    #[derive(Default)]
    Costs {
        tasks: u64,
        /// Time from the first fetch of inputs to the seal of outputs.
        wall_ns: Span,
        /// Processor time.
        cpu_ns: Span,
        read_bytes: Bytes, written_bytes: Bytes, transferred_bytes: Bytes,
        /// Number of outputs for other tasks of the job that were requested in memory, and their bytes in memory.
        memory_outputs: u64,
        in_memory_bytes: Bytes,
    }

    /// Number of files, and their present sizes.
    #[derive(Default, PartialEq, Eq)]
    FileSum {
        files: usize, bytes: Bytes,
        /// Number of deleted files.
        unknown: usize,
    }
}

columns! { one: KernelCosts {
    left "KERNEL" => one.kernel,
    right "TASKS" => one.costs.tasks,
    right "TIME" => one.costs.wall_ns,
    right "CPU" => one.costs.cpu_ns,
    right "IN" => one.costs.read_bytes,
    right "OUT" => one.costs.written_bytes,
    right "TRANSFER" => one.costs.transferred_bytes,
} }

/// Returns the paths at the edge of a job: (inputs that no task of it makes, outputs that no task of it reads).
pub(crate) fn edges(job: &v1::Job) -> (BTreeSet<String>, BTreeSet<String>) {
    let path = |name: &String| {
        if name.starts_with('/') {
            name.clone()
        } else {
            format!("{}/{name}", job.workdir.trim_end_matches('/'))
        }
    };
    let all = |names: fn(&v1::Task) -> &Vec<String>| -> BTreeSet<String> {
        job.tasks
            .iter()
            .flat_map(|task| names(task).iter().map(path))
            .collect()
    };
    let (read, made) = (all(|task| &task.inputs), all(|task| &task.outputs));
    (
        read.difference(&made).cloned().collect(),
        made.difference(&read).cloned().collect(),
    )
}

impl JobReport {
    /// Makes a report. `sizes` contains the known sizes of the files that [`edges`] returns; `server_cores` are the nodes of role
    /// `server-cores`.
    pub(crate) fn new(
        job: &v1::Job,
        sizes: &BTreeMap<String, u64>,
        server_cores: &BTreeSet<u32>,
    ) -> Self {
        let mut kernels: Vec<KernelCosts> = Vec::new();
        let (mut total, mut to_server_cores) = (Costs::default(), 0);
        for task in &job.tasks {
            let index = kernels.iter().position(|one| one.kernel == task.kernel);
            let index = index.unwrap_or_else(|| {
                let (kernel, costs) = (task.kernel.clone(), Costs::default());
                kernels.push(KernelCosts { kernel, costs });
                kernels.len() - 1
            });
            kernels[index].costs.add(task);
            total.add(task);
            if server_cores.contains(&task.node) {
                to_server_cores += task.transferred_bytes;
            }
        }
        let (inputs, results) = edges(job);
        let sum = |paths: &BTreeSet<String>| FileSum {
            files: paths.len(),
            bytes: Bytes(paths.iter().filter_map(|path| sizes.get(path)).sum()),
            unknown: paths
                .iter()
                .filter(|path| !sizes.contains_key(*path))
                .count(),
        };
        let (inputs, results) = (sum(&inputs), sum(&results));
        Self {
            job: job.job,
            name: job.name.clone(),
            state: super::job::state(job.state),
            kernels,
            to_server_cores_bytes: Bytes(to_server_cores),
            left_bytes: Bytes(to_server_cores + results.bytes.0),
            offline_bytes: Bytes(total.read_bytes.0 + total.written_bytes.0),
            offline_cached_bytes: Bytes(inputs.bytes.0 + total.written_bytes.0),
            total,
            inputs,
            results,
            energy: maybe(&job.energy),
            headline: super::job::headline(job),
        }
    }
}

impl Costs {
    fn add(&mut self, task: &v1::Task) {
        self.tasks += 1;
        if task.start > 0 {
            self.wall_ns.0 += u64::try_from(task.end - task.start).unwrap_or(0);
        }
        self.cpu_ns.0 += task.cpu_ns;
        self.read_bytes.0 += task.read_bytes;
        self.written_bytes.0 += task.written_bytes;
        self.transferred_bytes.0 += task.transferred_bytes;
        self.memory_outputs += task.memory_outputs;
        self.in_memory_bytes.0 += task.in_memory_bytes;
    }
}

impl FileSum {
    fn text(&self) -> String {
        let files = format::count(self.files as u64, "file");
        match self.unknown {
            0 => files,
            unknown => format!("{files}, {unknown} of them are deleted and not counted"),
        }
    }
}

impl Report for JobReport {
    fn text(&self, out: &mut Text) {
        writeln!(out, "{}\n", self.headline);
        let (kernel, costs) = ("total".to_owned(), self.total.clone());
        out.table(self.kernels.iter().chain(&[KernelCosts { kernel, costs }]));
        writeln!(
            out,
            "TIME is from the first fetch of inputs to the seal of outputs, summed over tasks."
        );
        writeln!(
            out,
            "TRANSFER is the number of bytes that nodes fetched from each other, as measured.\n"
        );
        let mut line =
            |what: &str, bytes: Bytes, how: &str| writeln!(out, "  {what:<28}{bytes:>9}   {how}");
        let (read, written) = (self.total.read_bytes, self.total.written_bytes);
        line(
            "between nodes",
            self.total.transferred_bytes,
            "stays inside the cluster",
        );
        line(
            "  of it to the server cores",
            self.to_server_cores_bytes,
            "fetched by nodes of role server-cores",
        );
        if self.total.memory_outputs > 0 {
            let files = format::count(self.total.memory_outputs, "file");
            let how = format!("of {files} between tasks; the rest were on disks");
            line("passed in memory", self.total.in_memory_bytes, &how);
        }
        let results = format!("{}, read by no task", self.results.text());
        line(
            "results, if you read them all",
            self.results.bytes,
            &results,
        );
        line(
            "left the storage",
            self.left_bytes,
            "to the server cores + results",
        );
        let every = format!("{read} inputs of every task + {written} outputs");
        line("offline, nothing cached", self.offline_bytes, &every);
        let once = format!(
            "{} in {}, each read once + {written} outputs",
            self.inputs.bytes,
            self.inputs.text()
        );
        line(
            "offline, everything cached",
            self.offline_cached_bytes,
            &once,
        );
        writeln!(
            out,
            "\nOffline is the same job run on one client: computed from the tasks' records, not run."
        );
        if self.offline_bytes.0 > 0 && self.offline_cached_bytes.0 > 0 {
            writeln!(
                out,
                "Left the storage: {} of offline (nothing cached), {} of offline (everything cached).",
                percent(self.left_bytes, self.offline_bytes),
                percent(self.left_bytes, self.offline_cached_bytes),
            );
        }
        if let Some(energy) = self.energy.as_ref().and_then(Energy::text) {
            writeln!(out, "\nEnergy of its tasks: {energy}.");
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "display only")]
fn percent(part: Bytes, whole: Bytes) -> String {
    format!("{:.1} %", part.0 as f64 * 100.0 / whole.0 as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(name: &str, node: u32, inputs: &[&str], outputs: &[&str], bytes: [u64; 3]) -> v1::Task {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let [read_bytes, written_bytes, transferred_bytes] = bytes;
        v1::Task {
            name: name.into(),
            kernel: name[..1].into(),
            node,
            inputs: owned(inputs),
            outputs: owned(outputs),
            read_bytes,
            written_bytes,
            transferred_bytes,
            ..v1::Task::default()
        }
    }

    /// Returns a job of two maps over one outer file each, a shared header, and a reduce on the server cores.
    fn job() -> v1::Job {
        v1::Job {
            workdir: "/w".into(),
            tasks: vec![
                task("m1", 0, &["a", "h"], &["x"], [110, 50, 10]),
                task("m2", 1, &["/w/b", "h"], &["y", "y_log"], [210, 63, 0]),
                task("r", 9, &["x", "y"], &["z"], [110, 7, 110]),
            ],
            ..v1::Job::default()
        }
    }

    #[test]
    fn report_counts_outer_inputs_once_and_final_outputs_only() {
        let (inputs, results) = edges(&job());
        assert_eq!(inputs, ["/w/a", "/w/b", "/w/h"].map(String::from).into());
        assert_eq!(results, ["/w/y_log", "/w/z"].map(String::from).into());
    }

    #[test]
    fn report_computes_left_and_offline_bytes() {
        let sizes = [("/w/a", 100), ("/w/b", 200), ("/w/h", 10), ("/w/z", 7)];
        let sizes = sizes.map(|(path, size)| (path.to_owned(), size)).into();
        let report = JobReport::new(&job(), &sizes, &[9].into());
        assert_eq!(report.total.transferred_bytes, Bytes(120));
        assert_eq!(report.to_server_cores_bytes, Bytes(110));
        assert_eq!(report.offline_bytes, Bytes(430 + 120));
        assert_eq!(report.offline_cached_bytes, Bytes(310 + 120));
        assert_eq!(
            report.results,
            FileSum {
                files: 2,
                bytes: Bytes(7),
                unknown: 1
            }
        );
        assert_eq!(report.left_bytes, Bytes(117));
        let kernels: Vec<_> = report
            .kernels
            .iter()
            .map(|one| (one.kernel.as_str(), one.costs.tasks))
            .collect();
        assert_eq!(kernels, [("m", 2), ("r", 1)]);
    }
}
