//! The job that is to be simulated: a job file with its costs, the trace of a real run, or a WfCommons file.

use crate::output::atomic_file;
use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::{Path, PathBuf};
use tidemill_lang::job::Job;
use tidemill_plan::sim::trace::Trace;
use tidemill_plan::sim::{
    Placement, Platform, Simulation, SourceKind, Workflow, job, source, wfformat,
};

/// Flags for the job, its cluster and the simulation.
#[derive(Debug, clap::Args)]
pub(crate) struct SimulationArgs {
    /// Job file, trace (`tidemill job export-trace`), or WfCommons workflow (WfFormat, JSON)
    job: PathBuf,
    /// Description of the cluster, in the INI format of the AnalyzeThis paper [default: the cluster of the trace]
    #[arg(long, value_name = "FILE")]
    platform: Option<PathBuf>,
    /// TOML file with sizes and run times, which a job file does not have
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Placement of files before the job [default: as in the trace, else round-robin]
    #[arg(long, value_parser = placements())]
    placement: Option<Placement>,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

fn placements() -> impl TypedValueParser<Value = Placement> {
    PossibleValuesParser::new(Placement::NAMES.map(|(name, _)| name)).map(|given| {
        let known = Placement::NAMES.iter().find(|(name, _)| *name == given);
        known.map_or(Placement::RoundRobin, |(_, placement)| *placement)
    })
}

/// Contents of the files that [`SimulationArgs`] names.
#[derive(Debug)]
pub(crate) struct SimulationInputs {
    pub(crate) workflow: Workflow,
    pub(crate) platform: Platform,
    pub(crate) placement: Placement,
}

impl SimulationInputs {
    pub(crate) fn simulation(&self, of: &SimulationArgs) -> Simulation<'_> {
        Simulation::new(&self.platform, &self.workflow)
            .placement(self.placement)
            .seed(of.seed)
    }
}

impl SimulationArgs {
    /// Requested placement.
    pub(crate) fn placement(&self) -> Option<Placement> {
        self.placement
    }

    /// Reads job and platform.
    ///
    /// # Errors
    /// Faults in the files, with file and line.
    pub(crate) fn read(&self) -> anyhow::Result<SimulationInputs> {
        let text = text(&self.job)?;
        let file = self.job.display().to_string();
        let mut trace = None;
        let workflow = match source(&file, &text)? {
            SourceKind::Trace => trace.insert(Trace::parse(&file, &text)?).workflow()?,
            SourceKind::WfFormat => wfformat::parse(&file, &text)?,
            SourceKind::Script => self.script(&file, &text)?,
        };
        let given = self.platform.as_deref().map(platform).transpose()?;
        let platform = given
            .or_else(|| trace.as_ref().map(Trace::platform))
            .with_context(|| {
                format!("no cluster to simulate {file} on: describe it with --platform FILE; start from examples/planning/cluster.ini")
            })?;
        let usual = if trace.is_some() && self.platform.is_none() {
            Placement::Recorded
        } else {
            Placement::RoundRobin
        };
        Ok(SimulationInputs {
            workflow,
            platform,
            placement: self.placement.unwrap_or(usual),
        })
    }

    fn script(&self, file: &str, script: &str) -> anyhow::Result<Workflow> {
        // A file that is no job file at all lacks more than costs.
        Job::parse(file, script.as_bytes()).map_err(|errors| anyhow::anyhow!("{errors}"))?;
        let costs = self.costs.as_deref().with_context(|| {
            format!(
                "{file} is a job file, which does not say how large files are and how long kernels run: \
                 give --costs FILE; start from examples/planning/getmax.toml"
            )
        })?;
        let name = costs.display().to_string();
        Ok(job::parse(file, script, &name, &text(costs)?)?)
    }
}

/// Reads a platform file.
///
/// # Errors
/// Faults in the file, with file and line.
pub(crate) fn platform(path: &Path) -> anyhow::Result<Platform> {
    Ok(Platform::parse(&path.display().to_string(), &text(path)?)?)
}

/// Reads a trace.
///
/// # Errors
/// Faults in the file, with file and line.
pub(crate) fn trace(path: &Path) -> anyhow::Result<Trace> {
    Ok(Trace::parse(&path.display().to_string(), &text(path)?)?)
}

/// Writes a drawing or a record.
///
/// # Errors
/// If it can't be written.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    atomic_file::write(path, text.as_bytes())
}

fn text(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("can't read {}", path.display()))?;
    // Some editors write a byte-order mark first.
    Ok(text
        .strip_prefix('\u{feff}')
        .map_or(text.clone(), str::to_owned))
}
