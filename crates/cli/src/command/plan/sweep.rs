//! `tidemill plan sweep`: one job on clusters of many shapes, as one table and one plot.

use super::job::{SimulationArgs, write};
use crate::context::CommandContext;
use crate::output::plan::Sweep;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_plan::sim::sweep::{self, Shapes};
use tidemill_plan::sim::{CORES_MAX, NODES_MAX};

const EXAMPLES: &str = "Examples:
  tidemill plan sweep montage.trace.json --plot fig10.svg     1 to 8 nodes of 1 to 12 cores, as in the paper
  tidemill plan sweep job.toml --costs costs.toml --platform cluster.ini --nodes 1-4 --cores 1-4 --policy wa
  tidemill --json plan sweep montage.trace.json | jq 'min_by(.makespan_ns)'

All nodes are like the first node of the platform. The sweep varies their number and their cores.";

/// Simulate a job on clusters of 1 to 8 nodes with 1 to 12 cores under several policies: one table, one plot
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    of: SimulationArgs,
    /// Numbers of nodes, such as 4 or 1-8
    #[arg(long, value_name = "RANGE", default_value = "1-8", value_parser = nodes)]
    nodes: RangeInclusive<u32>,
    /// Numbers of cores of each node, such as 4 or 1-12
    #[arg(long, value_name = "RANGE", default_value = "1-12", value_parser = cores)]
    cores: RangeInclusive<u32>,
    /// Policies to try; give the flag again for more [default: round-robin, write-amplification]
    #[arg(long = "policy", value_parser = super::policy)]
    policies: Vec<String>,
    /// File for the plot, SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn nodes(text: &str) -> Result<RangeInclusive<u32>, String> {
    range(text, NODES_MAX)
}

fn cores(text: &str) -> Result<RangeInclusive<u32>, String> {
    range(text, CORES_MAX)
}

fn range(text: &str, max: u32) -> Result<RangeInclusive<u32>, String> {
    let number = |text: &str| {
        let number = text
            .parse()
            .ok()
            .filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| format!("`{text}` is not a number from 1 to {max}"))
    };
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (number(from)?, number(to)?);
    if from > to {
        return Err(format!("{from} is more than {to}; write {to}-{from}"));
    }
    Ok(from..=to)
}

pub(crate) fn run(args: &Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let planned = args.of.read()?;
    let usual = Shapes::default();
    let policies = if args.policies.is_empty() {
        usual.policies
    } else {
        args.policies.clone()
    };
    // A trace may have recorded files on nodes that a smaller cluster lacks.
    let placement = args.of.placement().unwrap_or(usual.placement);
    let shapes = Shapes {
        nodes: args.nodes.clone(),
        cores: args.cores.clone(),
        policies,
        placement,
        seed: args.of.seed,
    };
    let points = sweep::sweep(&planned.platform, &planned.workflow, &shapes)?;
    if let Some(path) = &args.plot {
        write(path, &sweep::svg(&planned.workflow.name, &points))?;
    }
    context.output.finish(&Sweep(points))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweep_ranges_are_numbers_or_pairs_within_limits() {
        assert_eq!(nodes("3"), Ok(3..=3));
        assert_eq!(cores("1-12"), Ok(1..=12));
        for (text, part) in [
            ("0-3", "`0`"),
            ("4-2", "2-4"),
            ("", "``"),
            ("1-2-3", "`2-3`"),
            ("99999999", "from 1 to"),
        ] {
            let error = nodes(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
