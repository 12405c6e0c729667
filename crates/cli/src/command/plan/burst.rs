//! `tidemill plan burst`: whether the burst tier can map a burst before the next burst begins. The equations are in
//! `tidemill_plan::advisor::hook`. This module looks up their numbers, flags first, then the calibration, then the cluster's records.

use super::offload::{factor, nanos, ratio};
use crate::calibration::Calibration;
use crate::command::rule;
use crate::context::CommandContext;
use crate::format::ByteSize;
use crate::output::plan::{HookPlan, per_second};
use anyhow::{Context as _, bail, ensure};
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_lang::rule::hook::kernel_of;
use tidemill_model::processor_share::YOUNG;
use tidemill_plan::advisor::hook::{HookCase, advise_hook};
use tidemill_plan::units::{Bytes, BytesPerSecond, Seconds};
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill plan burst extremes --burst 100GB --every 60s       an existing hook of the cluster
  tidemill plan burst '/run/*.f64' --map max --burst 1TB --every 10min --nodes 16 --cores 4 --write-rate '2 GB/s' --kernel-rate '1 GB/s'
  tidemill --json plan burst extremes --burst 100GB --every 60s | jq .keeps_up

First measure the kernel: tidemill kernel bench --nodes NAME. docs/advisor-equations.md has the equations.";

/// Predict whether the burst tier can map each burst of files with a hook before the next burst begins
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Name of an existing hook, or with --map the pattern of files for a planned hook
    #[arg(value_name = "HOOK|PATTERN")]
    hook: String,
    /// Kernel to run on each file, as for `tidemill rule create`
    #[arg(long, value_name = "KERNEL")]
    map: Option<String>,
    /// Time of the map: write, seal or group [default: as for the hook, else write]
    #[arg(long, value_parser = ["write", "seal", "group"])]
    on: Option<String>,
    /// Files after their map: keep, delete or evict [default: as for the hook, else keep]
    #[arg(long, value_parser = ["keep", "delete", "evict"])]
    inputs: Option<String>,
    /// Size of a burst, into all nodes
    #[arg(long, value_name = "SIZE")]
    burst: Option<ByteSize>,
    /// Time from the beginning of one burst to the beginning of the next, such as 60s
    #[arg(long, value_name = "TIME")]
    every: Option<Seconds>,
    /// Files of a burst [default: those of the hook's last batch, else one for each core]
    #[arg(long, value_name = "FILES")]
    files: Option<u32>,
    /// Rate of writes into one node, such as '2 GB/s' [default: the rate of its device, if it is configured]
    #[arg(long, value_name = "RATE")]
    write_rate: Option<BytesPerSecond>,
    /// Input per second of the map on one core of a node [default: measured]
    #[arg(long, value_name = "RATE")]
    kernel_rate: Option<BytesPerSecond>,
    /// Number of nodes of the burst tier that share a burst [default: those that are up]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Cores of each node [default: those that it offers]
    #[arg(long, value_name = "N")]
    cores: Option<u32>,
    /// Percentage of the processors that maps leave to programs that write [default: --burst-share of the server, else 90]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=99))]
    share: Option<u8>,
    /// Rate of the stage-out from one node to nodes of the capacity tier [default: not considered]
    #[arg(long, value_name = "RATE")]
    stage_out_rate: Option<BytesPerSecond>,
    /// Space for bursts on one node [default: its files and its free space]
    #[arg(long, value_name = "SIZE")]
    space: Option<ByteSize>,
    /// Speed of the nodes' cores relative to this machine's [default: measured]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    node_speed: Option<f64>,
    /// Bytes of result for each byte of input [default: measured]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    output_ratio: Option<f64>,
    /// Calibration file of `tidemill kernel bench` [default: DIR/calibration.toml]
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
}

/// Records of the cluster about the tier and the hook.
#[derive(Debug, Default)]
struct Tier {
    cluster: String,
    nodes: Vec<v1::Node>,
    share: Option<u8>,
    hook: Option<v1::Hook>,
}

impl Args {
    /// Returns whether the flags make the cluster's records unnecessary.
    fn is_all(&self) -> bool {
        let numbers = self.nodes.is_some() && self.cores.is_some();
        let rates = self.kernel_rate.is_some() && self.write_rate.is_some();
        self.map.is_some() && numbers && rates
    }

    async fn tier(&self, context: &CommandContext) -> anyhow::Result<Tier> {
        if self.is_all() {
            return Ok(Tier::default());
        }
        let server = context.connect().await?;
        let status = server.status().await?;
        let nodes = status.nodes.into_iter();
        Ok(Tier {
            cluster: format!("{:016x}", status.cluster_id),
            nodes: nodes
                .filter(|node| node.up && node.tier == tidemill_wire::convert::BURST)
                .collect(),
            share: u8::try_from(status.burst_share).ok(),
            hook: match self.map {
                Some(_) => None,
                None => rule::hook(&server, &self.hook).await?.hook,
            },
        })
    }
}

/// Case of a hook, and the sources of its numbers.
#[derive(Debug)]
struct HookFacts {
    map: String,
    inputs: String,
    case: HookCase,
    /// One sentence for each source.
    sources: Vec<String>,
}

pub(super) async fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let tier = args.tier(context).await?;
    let path = args.calibration.clone();
    let path = path.unwrap_or_else(|| context.cluster.calibration());
    // A calibration that does not exist is no error: other sources may have the numbers.
    let calibration = match args.calibration.is_some() || path.exists() {
        true => Some(Calibration::load(&path)?),
        false => None,
    };
    let known = gather(args, &tier, calibration.as_ref())?;
    let advice = advise_hook(&known.case)?;
    let names = [args.hook.clone(), known.map, known.inputs];
    context
        .output
        .show(&HookPlan::new(names, &known.case, advice, known.sources))?;
    Ok(ExitCode::SUCCESS)
}

fn gather(
    args: &Args,
    tier: &Tier,
    calibration: Option<&Calibration>,
) -> anyhow::Result<HookFacts> {
    let there = tier.hook.clone().unwrap_or_default();
    let map = args.map.clone().unwrap_or(there.map);
    let word = |flag: &Option<String>, given: String, default: &str| {
        let given = (!given.is_empty()).then_some(given);
        flag.clone().or(given).unwrap_or_else(|| default.to_owned())
    };
    let on = word(&args.on, there.on, "write");
    let inputs = word(&args.inputs, there.inputs, "keep");
    let mut sources = Vec::new();
    let (nodes, cores) = shape(args, tier)?;
    let (rate, start) = rate((args, &map, &on), tier, calibration, &mut sources)?;
    let batches = there.batches.iter().filter(|batch| batch.state == "done");
    let files = batches
        .map(|batch| u32::try_from(batch.files).unwrap_or(u32::MAX))
        .next();
    let files = args
        .files
        .or(files.filter(|files| *files > 0))
        .unwrap_or_else(|| {
            sources.push("files: taken as one for each core; --files says otherwise".to_owned());
            nodes.saturating_mul(cores)
        });
    let share = args.share.or(tier.share).unwrap_or(90);
    let held = if share == 0 {
        Seconds::ZERO
    } else {
        nanos(YOUNG.0)
    };
    let missing = "a burst has no size and no interval: give --burst SIZE and --every TIME";
    let case = HookCase {
        burst: bytes(args.burst.context(missing)?.0),
        every: args.every.context(missing)?,
        files,
        write: writes(args, tier)?,
        nodes,
        cores,
        rate,
        start,
        on_write: on == "write",
        share: f64::from(share) / 100.0,
        held,
        leaves: leaves(args, (&inputs, &map), calibration, &mut sources),
        stage_out: args.stage_out_rate,
        space: args
            .space
            .map(|space| bytes(space.0))
            .or_else(|| space(tier)),
    };
    Ok(HookFacts {
        map,
        inputs,
        case,
        sources,
    })
}

/// Returns the number of nodes, and the cores of the node with the fewest.
fn shape(args: &Args, tier: &Tier) -> anyhow::Result<(u32, u32)> {
    let there = u32::try_from(tier.nodes.len()).unwrap_or(u32::MAX);
    let cores = tier.nodes.iter().map(|node| node.cores).min();
    let (nodes, cores) = (
        args.nodes.unwrap_or(there),
        args.cores.or(cores).unwrap_or(0),
    );
    ensure!(
        nodes > 0 && cores > 0,
        "no node of the burst tier is online: give --nodes N and --cores N of the planned tier, or start a node \
         (`tidemill node run --tier burst`)"
    );
    Ok((nodes, cores))
}

/// Returns the map's rate on one core, and its start time.
fn rate(
    (args, map, on): (&Args, &str, &str),
    tier: &Tier,
    calibration: Option<&Calibration>,
    sources: &mut Vec<String>,
) -> anyhow::Result<(BytesPerSecond, Seconds)> {
    let name = map.split_whitespace().next().unwrap_or_default();
    let mut say =
        |rate, from: &str| sources.push(format!("map: {} on a core, {from}", per_second(rate)));
    if let Some(rate) = args.kernel_rate {
        say(rate, "as --kernel-rate says");
        return Ok((rate, Seconds::ZERO));
    }
    // A measurement of one kernel does not apply to a pipe of several.
    let single = !map.contains('|');
    let here = calibration
        .filter(|_| single)
        .and_then(|known| known.kernel(name));
    if let (Some(factor), Some(here)) = (args.node_speed, here) {
        let rate = BytesPerSecond::new(here.alone_bytes_per_sec() * factor);
        say(
            rate,
            &format!("{factor} of the client's as --node-speed says"),
        );
        return Ok((rate, nanos(here.start_ns)));
    }
    for node in tier.nodes.iter().filter(|_| single) {
        let known = calibration.and_then(|known| known.node(&tier.cluster, node.node));
        if let Some(known) =
            known.and_then(|known| known.kernels.iter().find(|one| one.name == name))
        {
            let rate = BytesPerSecond::new(known.alone_bytes_per_sec());
            say(
                rate,
                &format!("measured on node {} {}", node.node, known.measured),
            );
            return Ok((rate, nanos(known.start_ns)));
        }
    }
    let histories = |key: &str| {
        let histories = tier.nodes.iter().filter_map(|node| node.history.get(key));
        histories.fold((0, 0, 0), |sum: (u64, u64, u64), one| {
            (
                sum.0 + one.runs,
                sum.1 + one.input_bytes,
                sum.2 + one.total_ns,
            )
        })
    };
    let keys = [kernel_of(map), name.to_owned()];
    let keys = keys.iter().take(if single { 2 } else { 1 });
    let found = keys
        .map(|key| histories(key))
        .find(|(_, read, took)| *read > 0 && *took > 0);
    let Some((runs, read, took)) = found else {
        bail!(
            "map {map}: its rate on the burst tier is not known; measure it with `tidemill kernel bench --nodes {name}`, let it run \
             there once, or give --kernel-rate RATE"
        );
    };
    let rate = bytes(read) / nanos(took);
    let open = match on {
        "write" => {
            ", in which maps that read a file as it was written waited for the writer: --kernel-rate may be more exact"
        }
        _ => "",
    };
    say(rate, &format!("the mean of its {runs} runs so far{open}"));
    // A history counts whole runs: the start is in its rate.
    Ok((rate, Seconds::ZERO))
}

fn writes(args: &Args, tier: &Tier) -> anyhow::Result<BytesPerSecond> {
    let given = tier.nodes.iter().map(|node| node.device_bytes_per_sec);
    let given = given.filter(|rate| *rate > 0).min();
    let given = given.map(|rate| bytes(rate) / Seconds::new(1.0));
    args.write_rate.or(given).context(
        "the write rate of a node of the burst tier is not known: give --write-rate RATE, or start the node with --device-rate",
    )
}

/// Returns the bytes that leave the tier for each byte of input.
fn leaves(
    args: &Args,
    (inputs, map): (&str, &str),
    calibration: Option<&Calibration>,
    sources: &mut Vec<String>,
) -> f64 {
    if inputs != "delete" {
        return 1.0;
    }
    let name = map.split_whitespace().next().unwrap_or_default();
    let known = calibration.and_then(|known| known.kernel(name));
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    let known = known.map(|one| one.output_bytes as f64 / one.input_bytes as f64);
    args.output_ratio.or(known).unwrap_or_else(|| {
        sources.push("results: taken as next to nothing; --output-ratio says otherwise".to_owned());
        0.0
    })
}

/// Returns the capacity of the smallest node.
fn space(tier: &Tier) -> Option<Bytes> {
    let could = |node: &v1::Node| {
        let has = node.burst_files.as_ref().map_or(0, |files| files.bytes);
        has.saturating_add(node.free_bytes)
    };
    tier.nodes.iter().map(could).min().map(bytes)
}

#[expect(clippy::cast_precision_loss, reason = "planning computes in floats")]
fn bytes(count: u64) -> Bytes {
    Bytes::new(count as f64)
}
