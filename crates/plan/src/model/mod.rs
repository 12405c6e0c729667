//! Models of Active Flash: answer whether analysis should run where output is staged, and how much energy and money this saves.
//!
//! The equations are those of D. Tiwari et al., "Active Flash: Towards Energy-Efficient, In-Situ Data Analytics on Extreme-Scale Machines"
//! (FAST 2013), one function each: [`staging`] (Eqs. 1 to 5, 22 to 24), [`feasible`] (6 to 11, 25 to 28), [`energy`] (12 to 21, 29 to 34)
//! and [`cost`] (Fig. 3a, Table 5). Their symbols are the fields of [`ApplicationRun`] and [`AnalysisStage`]; [`Corrections`] lists the
//! equations that can't be meant as printed. An infeasible case is an [`Infeasible`] in words, never a negative number. `docs/models.md`
//! describes the models; the example `active_flash` compares the printed numbers with the computed ones.
//!
//! ```
//! use std::path::Path;
//! use tidemill_plan::model::{Corrections, ReportPart, ReportSection, Site, report};
//!
//! # let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/site/jaguar.toml"));
//! let site = Site::read(path)?;
//! let corrections = Corrections::default();
//! let report = report(&site, &corrections);
//! let parts = report.parts(&ReportSection::ALL); // for people; `serde_json` makes JSON of the same data
//! assert!(matches!(&parts[..], [ReportPart::Text(_), ..]));
//! # Ok::<(), tidemill_plan::model::SiteError>(())
//! ```

pub mod corrections;
pub mod cost;
pub mod energy;
pub mod feasible;
pub mod report;
pub mod setting;
pub mod site;
pub mod staging;
mod text;

pub use corrections::Corrections;
pub use feasible::Infeasible;
pub use report::{Approach, ReportSection, SiteReport, report};
pub use setting::{AnalysisStage, ApplicationRun};
pub use site::{Site, SiteError, jaguar};
pub use text::{ReportPart, TextTable, decimals};

#[cfg(test)]
mod tests {
    use super::setting::{AnalysisStage, ApplicationRun};

    /// Site of the Active Flash paper: Jaguar.
    pub(super) use super::site::{JAGUAR, jaguar as site};

    /// Returns a run of S3D on Jaguar.
    pub(super) fn run() -> ApplicationRun {
        let site = site();
        let s3d = site
            .applications
            .iter()
            .find(|it| it.name() == "S3D")
            .unwrap();
        site.run_of(s3d, None)
    }

    /// Returns the solid-state device of the paper's site.
    pub(super) fn device() -> AnalysisStage {
        site().device_stage()
    }

    /// Returns the analysis node of the paper's site.
    pub(super) fn node() -> AnalysisStage {
        site().node_stage()
    }
}
