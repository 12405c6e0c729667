//! `tidemill plan offload`: whether a kernel should run here, on the node that holds its input, or on both.
//!
//! The equations are in `tidemill_plan::advisor`. This module looks up their numbers and prints the answer.

mod known;
mod load;

pub(super) use known::nanos;

use crate::calibration::Calibration;
use crate::context::CommandContext;
use crate::format::ByteSize;
use crate::output::plan::OffloadAdvice;
use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use known::{CaseFacts, ClusterNode};
use load::Loads;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_plan::advisor::{Case, CorePower, ExecutionSide, Powers, advise};
use tidemill_plan::units::{BytesPerSecond, JoulesPerByte, Seconds, Watts};

const EXAMPLES: &str = "Examples:
  tidemill plan offload max /raw/values.f64              a file of the cluster, on the node that holds it
  tidemill plan offload grep --size 20G                  a file of this size, on the node with the least work
  tidemill plan offload max --size 1G --node-speed 0.25 --link '1 Gbit/s'     no cluster is needed
  tidemill --json plan offload od /raw/a --result node | jq -r .best

First measure the kernel: tidemill kernel bench --nodes NAME. docs/advisor-equations.md has the equations.";

/// Advise where a kernel should run: on this machine, on the node that holds its input, or split between both
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(override_usage = "tidemill plan offload [OPTIONS] <KERNEL> <FILE|--size <SIZE>>")]
pub(super) struct Args {
    /// Name of the kernel, as `tidemill kernel bench` measured it
    kernel: String,
    /// Path of the input in the cluster
    #[arg(required_unless_present = "size", conflicts_with = "size")]
    file: Option<std::ffi::OsString>,
    /// Size of the input, instead of a file
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Place where the result is wanted
    #[arg(long, value_enum, default_value_t = ResultPlace::Client)]
    result: ResultPlace,
    /// Id of the node for an input of --size [default: the node with the least work]
    #[arg(long, value_name = "ID", conflicts_with = "file")]
    node: Option<u32>,
    /// Speed of the node's cores relative to this machine's [default: measured]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    node_speed: Option<f64>,
    /// Rate of the link, such as '1 Gbit/s' [default: measured]
    #[arg(long, value_name = "RATE")]
    link: Option<BytesPerSecond>,
    /// Latency of the link, such as '1 ms' [default: measured, else none]
    #[arg(long, value_name = "TIME")]
    latency: Option<Seconds>,
    /// Bytes of result for each byte of input [default: measured]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    output_ratio: Option<f64>,
    /// Treat the kernel as splittable: results of parts make the result of the whole [default: known of built-in kernels, else not]
    #[arg(long)]
    splittable: bool,
    /// Assume that client and node are idle
    #[arg(long)]
    no_load: bool,
    /// Power of a core of the node, busy and waiting, such as 0.75 W,22.5 mW. The command reports energy if you give the power of both node
    /// and client
    #[arg(long, value_name = "BUSY,IDLE", value_parser = power, requires = "client_power")]
    node_power: Option<CorePower>,
    /// Power of a core of this machine, busy and waiting, such as 23.75 W,7.875 W
    #[arg(long, value_name = "BUSY,IDLE", value_parser = power, requires = "node_power")]
    client_power: Option<CorePower>,
    /// Energy of transferring bytes, such as 10 pJ/bit [default: not counted]
    #[arg(long, value_name = "ENERGY", requires = "node_power")]
    link_energy: Option<JoulesPerByte>,
    /// Calibration file of `tidemill kernel bench` [default: DIR/calibration.toml]
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
}

/// Place of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ResultPlace {
    /// On this machine
    Client,
    /// On the node, as a file of the cluster
    Node,
}

pub(super) fn factor(text: &str) -> Result<f64, String> {
    let value = text.parse().ok();
    let value = value.filter(|value: &f64| *value > 0.0 && value.is_finite());
    value.ok_or_else(|| "a factor is a number above zero".to_owned())
}

pub(super) fn ratio(text: &str) -> Result<f64, String> {
    let value = text.parse().ok();
    let value = value.filter(|value: &f64| *value >= 0.0 && value.is_finite());
    value.ok_or_else(|| "a ratio is a number, zero or more".to_owned())
}

fn power(text: &str) -> Result<CorePower, String> {
    let (busy, idle) = text
        .split_once(',')
        .ok_or("two powers with a comma between them, as 20 W,5 W")?;
    let watts = |text: &str| text.parse().map_err(|error| format!("{error}"));
    let (busy, idle): (Watts, Watts) = (watts(busy)?, watts(idle)?);
    if idle > busy {
        return Err(format!(
            "{idle} when idle is above {busy} when busy; give the busy power first"
        ));
    }
    Ok(CorePower { busy, idle })
}

/// Returns the power of client and node, if the flags give it.
fn powers(args: &Args) -> Option<Powers> {
    Some(Powers {
        node: args.node_power?,
        client: args.client_power?,
        link: args.link_energy.unwrap_or(JoulesPerByte::new(0.0)),
    })
}

/// Built-in kernels whose results of parts make the result of the whole: the greatest, the least, sums.
const SPLITTABLE: [&str; 4] = ["grep", "max", "min", "wordcount"];

pub(super) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let path = args.calibration.clone();
    let path = path.unwrap_or_else(|| context.cluster.calibration());
    let calibration = Calibration::load(&path)?;
    let cluster = cluster(&args, context).await?;
    let measured = calibration.kernel(&args.kernel).with_context(|| {
        let (name, path) = (&args.kernel, path.display());
        format!("kernel {name} is not in {path}: measure it with `tidemill kernel bench {name}`")
    })?;
    let loads = match args.no_load {
        true => Loads::none(calibration.cores, cluster.as_ref()),
        false => Loads::look(calibration.cores, cluster.as_ref()).await?,
    };
    let known = CaseFacts::gather(&args, measured, &calibration, cluster.as_ref(), &loads)?;
    let splittable = args.splittable || SPLITTABLE.contains(&args.kernel.as_str());
    let case = Case {
        input: known.input,
        output_ratio: known.output_ratio,
        splittable,
        result: match args.result {
            ResultPlace::Client => ExecutionSide::Client,
            ResultPlace::Node => ExecutionSide::Node,
        },
        node: known.node,
        client: known.client,
        link: known.link,
        powers: powers(&args),
    };
    let advice = advise(&case)?;
    let advice = OffloadAdvice::new(&args.kernel, &case, &advice, known.sources);
    context.output.finish(&advice)
}

/// Returns the cluster, if one is needed or available.
async fn cluster(args: &Args, context: &CommandContext) -> anyhow::Result<Option<ClusterNode>> {
    if let Some(file) = &args.file {
        return Ok(Some(ClusterNode::of_file(context, file).await?));
    }
    if args.node.is_none() && args.node_speed.is_some() && args.link.is_some() {
        return Ok(None);
    }
    let found = ClusterNode::of_node(context, args.node).await;
    ensure!(
        args.node.is_none() || !matches!(found, Ok(None)),
        "node {}: not a storage node that is online; see `tidemill status`",
        args.node.unwrap_or_default()
    );
    match found {
        Err(error) if args.node.is_some() => Err(error),
        // Without a cluster, the calibration must suffice.
        other => Ok(other.unwrap_or(None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offload_flags_refuse_invalid_numbers() {
        assert!(factor("0").is_err() && factor("inf").is_err() && factor("x").is_err());
        assert!(ratio("-1").is_err() && ratio("0").is_ok());
        assert_eq!(
            power("20 W,500 mW"),
            Ok(CorePower {
                busy: Watts::new(20.0),
                idle: Watts::new(0.5)
            })
        );
        assert!(power("20 W").is_err() && power("20 J,3 W").is_err());
        assert!(power("3 W,20 W").is_err() && power("3 W,0 W").is_ok());
    }

    #[test]
    fn every_splittable_kernel_is_built_in() {
        assert!(
            SPLITTABLE
                .iter()
                .all(|name| tidemill_compute::is_builtin(name))
        );
    }
}
