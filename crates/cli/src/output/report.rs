//! Costs of a job: for each kernel, and in bytes transferred compared with the same job on one client.

use super::{View, energy, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use tidemill_wire::v1;

/// Sum of the tasks of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelSum {
    tasks: u64,
    wall_ns: u64,
    cpu_ns: u64,
    read_bytes: u64,
    written_bytes: u64,
    transferred_bytes: u64,
    /// Number of outputs for other tasks of the job that were requested in memory, and number of bytes that were in memory.
    memory_outputs: u64,
    in_memory_bytes: u64,
}

/// Output of `tidemill job report`, made from the records that nodes keep of each task.
#[derive(Debug)]
pub(crate) struct ReportView {
    job: v1::Job,
    kernels: Vec<(String, KernelSum)>,
    total: KernelSum,
    /// Number of bytes transferred to nodes of role `server-cores`.
    to_server_cores_bytes: u64,
    /// Files whose size was requested: inputs that no task made, outputs that no task reads.
    inputs: FileSum,
    results: FileSum,
}

/// Number of files, and their present sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileSum {
    files: usize,
    bytes: u64,
    /// Number of deleted files.
    unknown: usize,
}

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

impl ReportView {
    /// Makes a report. `sizes` contains the known sizes of the files that [`edges`] returns; `server_cores` are the nodes of role `server-cores`.
    pub(crate) fn new(
        job: v1::Job,
        sizes: &BTreeMap<String, u64>,
        server_cores: &BTreeSet<u32>,
    ) -> Self {
        let mut kernels: Vec<(String, KernelSum)> = Vec::new();
        let (mut total, mut to_server_cores_bytes) = (KernelSum::default(), 0);
        for task in &job.tasks {
            let index = kernels
                .iter()
                .position(|(kernel, _)| *kernel == task.kernel);
            let index = index.unwrap_or_else(|| {
                kernels.push((task.kernel.clone(), KernelSum::default()));
                kernels.len() - 1
            });
            kernels[index].1.add(task);
            total.add(task);
            if server_cores.contains(&task.node) {
                to_server_cores_bytes += task.transferred_bytes;
            }
        }
        let (inputs, results) = edges(&job);
        let sum = |paths: &BTreeSet<String>| FileSum {
            files: paths.len(),
            bytes: paths.iter().filter_map(|path| sizes.get(path)).sum(),
            unknown: paths
                .iter()
                .filter(|path| !sizes.contains_key(*path))
                .count(),
        };
        Self {
            kernels,
            total,
            to_server_cores_bytes,
            inputs: sum(&inputs),
            results: sum(&results),
            job,
        }
    }

    /// Returns the number of bytes that a client without a cache would transfer: all inputs of every task, and all outputs back.
    fn offline(&self) -> u64 {
        self.total.read_bytes + self.total.written_bytes
    }

    /// Returns the number of bytes that a client with an unlimited cache would transfer: outer inputs once, and all outputs back.
    fn offline_cached(&self) -> u64 {
        self.inputs.bytes + self.total.written_bytes
    }

    /// Returns the number of bytes that were sent from storage nodes to anything except other storage nodes, plus the results.
    fn left(&self) -> u64 {
        self.to_server_cores_bytes + self.results.bytes
    }

    fn kernel_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = ["KERNEL", "TASKS", "TIME", "CPU", "IN", "OUT", "TRANSFER"];
        let mut rows = table(&header, &[1, 2, 3, 4, 5, 6]);
        let total = [("total".to_owned(), self.total.clone())];
        for (kernel, sum) in self.kernels.iter().chain(&total) {
            rows.add_row([
                kernel.clone(),
                sum.tasks.to_string(),
                format::span(sum.wall_ns),
                format::span(sum.cpu_ns),
                format::bytes(sum.read_bytes),
                format::bytes(sum.written_bytes),
                format::bytes(sum.transferred_bytes),
            ]);
        }
        write_table(out, &rows)
    }
}

impl KernelSum {
    fn add(&mut self, task: &v1::Task) {
        self.tasks += 1;
        if task.start > 0 {
            self.wall_ns += u64::try_from(task.end - task.start).unwrap_or(0);
        }
        self.cpu_ns += task.cpu_ns;
        self.read_bytes += task.read_bytes;
        self.written_bytes += task.written_bytes;
        self.transferred_bytes += task.transferred_bytes;
        self.memory_outputs += task.memory_outputs;
        self.in_memory_bytes += task.in_memory_bytes;
    }

    fn json(&self) -> Value {
        json!({
            "tasks": self.tasks,
            "wall_ns": self.wall_ns,
            "cpu_ns": self.cpu_ns,
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
            "transferred_bytes": self.transferred_bytes,
            "memory_outputs": self.memory_outputs,
            "in_memory_bytes": self.in_memory_bytes,
        })
    }
}

impl FileSum {
    fn text(&self, what: &str) -> String {
        let files = format::count(self.files as u64, what);
        match self.unknown {
            0 => files,
            unknown => format!("{files}, {unknown} of them are deleted and not counted"),
        }
    }

    fn json(&self) -> Value {
        json!({ "files": self.files, "bytes": self.bytes, "unknown": self.unknown })
    }
}

impl ReportView {
    /// Returns a text about files between tasks that were requested in memory.
    fn memory_outputs(&self) -> Option<String> {
        let files = format::count(self.total.memory_outputs, "file");
        let some = self.total.memory_outputs > 0;
        some.then(|| format!("of {files} between tasks; the rest were on disks"))
    }
}

impl View for ReportView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}\n", super::job::headline(&self.job))?;
        self.kernel_table(out)?;
        writeln!(
            out,
            "TIME is from the first fetch of inputs to the seal of outputs, summed over tasks."
        )?;
        writeln!(
            out,
            "TRANSFER is the number of bytes that nodes fetched from each other, as measured.\n"
        )?;
        let mut line = |what: &str, bytes: u64, how: &str| {
            writeln!(out, "  {what:<28}{:>9}   {how}", format::bytes(bytes))
        };
        let (read, written) = (
            format::bytes(self.total.read_bytes),
            format::bytes(self.total.written_bytes),
        );
        line(
            "between nodes",
            self.total.transferred_bytes,
            "stays inside the cluster",
        )?;
        line(
            "  of it to the server cores",
            self.to_server_cores_bytes,
            "fetched by nodes of role server-cores",
        )?;
        if let Some(how) = self.memory_outputs() {
            line("passed in memory", self.total.in_memory_bytes, &how)?;
        }
        line(
            "results, if you read them all",
            self.results.bytes,
            &format!("{}, read by no task", self.results.text("file")),
        )?;
        line(
            "left the storage",
            self.left(),
            "to the server cores + results",
        )?;
        line(
            "offline, nothing cached",
            self.offline(),
            &format!("{read} inputs of every task + {written} outputs"),
        )?;
        let inputs = format!(
            "{} in {}, each read once + {written} outputs",
            format::bytes(self.inputs.bytes),
            self.inputs.text("file"),
        );
        line("offline, everything cached", self.offline_cached(), &inputs)?;
        writeln!(
            out,
            "\nOffline is the same job run on one client: computed from the tasks' records, not run."
        )?;
        if self.offline() > 0 && self.offline_cached() > 0 {
            writeln!(
                out,
                "Left the storage: {} of offline (nothing cached), {} of offline (everything cached).",
                percent(self.left(), self.offline()),
                percent(self.left(), self.offline_cached()),
            )?;
        }
        if let Some(energy) = energy::text(self.job.energy.as_ref()) {
            writeln!(out, "\nIts tasks drew {energy}.")?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let kernels = self.kernels.iter().map(|(kernel, sum)| {
            let mut value = sum.json();
            value["kernel"] = kernel.clone().into();
            value
        });
        json!({
            "job": self.job.job,
            "name": self.job.name,
            "state": super::cluster::state(self.job.state),
            "kernels": kernels.collect::<Vec<_>>(),
            "total": self.total.json(),
            "to_server_cores_bytes": self.to_server_cores_bytes,
            "inputs": self.inputs.json(),
            "results": self.results.json(),
            "left_bytes": self.left(),
            "offline_bytes": self.offline(),
            "offline_cached_bytes": self.offline_cached(),
            "energy": energy::value(self.job.energy.as_ref()),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "display only")]
fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
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
        let report = ReportView::new(job(), &sizes, &[9].into());
        assert_eq!(report.total.transferred_bytes, 120);
        assert_eq!(report.to_server_cores_bytes, 110);
        assert_eq!(report.offline(), 430 + 120);
        assert_eq!(report.offline_cached(), 310 + 120);
        assert_eq!(
            report.results,
            FileSum {
                files: 2,
                bytes: 7,
                unknown: 1
            }
        );
        assert_eq!(report.left(), 117);
        let kernels: Vec<_> = report
            .kernels
            .iter()
            .map(|(name, sum)| (name.as_str(), sum.tasks))
            .collect();
        assert_eq!(kernels, [("m", 2), ("r", 1)]);
    }
}
