//! Kernels: lists, tests and measurements.

use super::table::{Text, columns};
use super::{Report, dash, records};
use crate::calibration::{Calibration, KernelSpeed};
use crate::format::{self, Bytes, Span};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use tidemill_compute::BuiltinKernel;
use tidemill_model::user_kernels::OwnName;

records! {
    /// Kernels: built-in kernels, and kernels that users have stored in the cluster.
    Kernels {
        /// Names of the built-in kernels.
        builtin: Vec<&'static str>,
        kernels: Vec<Builtin>, own: Vec<StoredKernel>,
        /// Whether the text has only the names.
        #[serde(skip)]
        quiet: bool,
    }

    /// Built-in kernel.
    Builtin from of: BuiltinKernel {
        name: &'static str,
        /// Number of the version.
        revision: u32,
        help: &'static str,
        usage: String = of.usage(),
        args: Vec<KernelArg> = of.args().map(|arg| KernelArg {
            key: arg.key,
            values: arg.values,
            default: arg.default,
            help: arg.help,
        }).collect(),
        /// Whether the results of parts of the input can be merged.
        fold: bool = of.is_fold(),
        /// Whether the kernel reads its input once, from the begin to the end.
        stream: bool = of.is_stream(),
    }

    /// Argument of a kernel.
    KernelArg { key: &'static str, values: &'static str, default: &'static str, help: &'static str }

    /// Version of a kernel that a user has stored in the cluster.
    StoredKernel {
        name: String, version: Option<u64>,
        /// Name of the file.
        file: String,
        path: String, bytes: Bytes, uid: u32,
        /// Whether all users may use the kernel.
        shared: bool,
        /// Hash of the file; null if the caller may not read the file.
        hash: Option<String>,
    }
}

impl StoredKernel {
    /// Makes the result for a file in the directory of a user.
    pub(crate) fn new(directory: &str, file: String, (uid, mode, bytes): (u32, u32, u64)) -> Self {
        let name = OwnName::parse(&file);
        Self {
            name: format!("{}{}", name.stem, name.ending),
            version: name.version,
            path: format!("{directory}/{uid}/{file}"),
            bytes: Bytes(bytes),
            uid,
            shared: mode & 0o004 != 0,
            hash: None,
            file,
        }
    }
}

columns! { one: StoredKernel {
    left "KERNEL" => one.file,
    right "SIZE" => one.bytes,
    right "OWNER" => one.uid,
    left "FOR" => if one.shared { "everybody" } else { "its owner" },
    left "HASH" => one.hash.as_deref().unwrap_or("may not be read").chars().take(16).collect::<String>(),
} }

impl Report for Kernels {
    fn text(&self, out: &mut Text) {
        if self.quiet {
            return writeln!(out, "{}", self.builtin.join("\n"));
        }
        for kernel in &self.kernels {
            writeln!(out, "{}: {}", kernel.name, kernel.help);
            if kernel.args.is_empty() {
                writeln!(out, "    {}", kernel.usage);
            }
            for arg in &kernel.args {
                write!(out, "    {}={}", arg.key, arg.values);
                if !arg.default.is_empty() {
                    write!(out, " [{}]", arg.default);
                }
                writeln!(out, "  {}", arg.help);
            }
        }
        if !self.own.is_empty() {
            writeln!(out, "\nstored in the cluster:");
            out.table(&self.own);
        }
    }
}

records! {
    /// Run of a kernel on this machine.
    KernelRun {
        kernel: String, success: bool,
        /// Outcome in words.
        message: String,
        wall_ns: Span,
        /// Processor time.
        cpu_ns: Span,
        /// Maximum memory.
        memory_bytes: Bytes,
        input_bytes: Bytes, written_bytes: Bytes, outputs: Vec<KernelOutput>, stdout: String, stderr: String,
        /// Whether the text has only the outputs.
        #[serde(skip)]
        quiet: bool,
    }

    /// Output of a kernel.
    KernelOutput {
        name: String, bytes: Bytes,
        /// Content, if it is short and text.
        text: Option<String>,
    }
}

columns! { run: KernelRun {
    left "KERNEL" => run.kernel,
    right "TIME" => run.wall_ns,
    right "PROCESSOR" => run.cpu_ns,
    right "MEMORY" => run.memory_bytes,
    right "READ" => run.input_bytes,
    right "RATE" => format!("{:.2} GB/s", run.bytes_per_ns()),
} }

impl KernelRun {
    #[expect(clippy::cast_precision_loss, reason = "display only")]
    fn bytes_per_ns(&self) -> f64 {
        self.input_bytes.0 as f64 / self.wall_ns.0.max(1) as f64
    }
}

impl Report for KernelRun {
    fn text(&self, out: &mut Text) {
        let contents = self
            .outputs
            .iter()
            .filter_map(|output| output.text.as_deref());
        let contents: String = [&*self.stdout, &*self.stderr]
            .into_iter()
            .chain(contents)
            .collect();
        out.push(&contents);
        if !contents.is_empty() && !contents.ends_with('\n') {
            writeln!(out);
        }
        if self.quiet {
            return;
        }
        out.table([self]);
        for output in &self.outputs {
            writeln!(out, "{}: {}", output.name, output.bytes);
        }
        if !self.success {
            writeln!(out, "{}", self.message);
        }
    }
}

/// Rates that a measurement found.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MeasuredRates(pub(crate) Calibration);

/// Rate of a kernel at a place: a row of the table.
pub(crate) struct MeasuredRate {
    speed: KernelSpeed,
    place: String,
    ratio: Option<f64>,
}

columns! { one: MeasuredRate {
    left "KERNEL" => one.speed.name,
    left "WHERE" => one.place,
    right "START" => Span(one.speed.start_ns),
    right "ONE CORE" => rate(one.speed.bytes_per_sec),
    right "ALL CORES" => dash(&one.speed.all_cores_bytes_per_sec.map(rate)),
    right "OUT/IN" => dash(&one.ratio.map(|ratio| match ratio {
        // A result of a few bytes counts as 0 bytes per byte of input.
        0.0..1e-4 => "0".to_owned(),
        _ => tidemill_plan::units::significant(ratio),
    })),
} }

impl Report for MeasuredRates {
    fn text(&self, out: &mut Text) {
        let (mut ratios, mut rows) = (BTreeMap::new(), Vec::new());
        let mut add = |speed: &KernelSpeed, place: String, ratio| {
            let speed = speed.clone();
            rows.push(MeasuredRate {
                speed,
                place,
                ratio,
            });
        };
        for kernel in &self.0.kernels {
            #[expect(clippy::cast_precision_loss, reason = "display only")]
            let ratio = kernel.output_bytes as f64 / kernel.input_bytes as f64;
            ratios.insert(&kernel.name, ratio);
            add(kernel, "this machine".into(), Some(ratio));
        }
        for node in &self.0.nodes {
            for kernel in &node.kernels {
                add(
                    kernel,
                    format!("node {}", node.id),
                    ratios.get(&kernel.name).copied(),
                );
            }
        }
        out.table(&rows);
        for node in &self.0.nodes {
            writeln!(
                out,
                "from node {} to this machine: {}, {} until a small file is read",
                node.id,
                rate(node.link_bytes_per_sec),
                format::span(node.link_latency_ns)
            );
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "display only; casts saturate"
)]
fn rate(bytes: f64) -> String {
    format!("{}/s", format::bytes(bytes as u64))
}
