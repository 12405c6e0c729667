//! The models of Active Flash: should analysis run where output is staged, and what does that save?
//!
//! The equations are those of D. Tiwari et al., "Active Flash: Towards Energy-Efficient, In-Situ Data Analytics on
//! Extreme-Scale Machines" (FAST 2013), one function each: [`staging`] (Eqs. 1 to 5, 22 to 24), [`feasible`] (6 to
//! 11, 25 to 28), [`energy`] (12 to 21, 29 to 34), [`cost`] (Fig. 3a, Table 5) and [`prototype`] (35, Table 7). Their
//! symbols are the fields of [`Run`] and [`Stage`]; where they can't be meant as printed, [`Corrections`] says so.
//! What can't be done is an [`Infeasible`] in words, never a negative number. `docs/models.md` tells it all.
//!
//! ```
//! use std::path::Path;
//! use tidemill_plan::model::{Corrections, Part, Section, Site, charts, paper, report};
//!
//! # let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/site/jaguar.toml"));
//! let site = Site::read(path)?;
//! let corrections = Corrections::default();
//! let report = report(&site, &corrections);
//! let parts = report.parts(&Section::ALL); // for people; `serde_json` makes JSON of the same data
//! assert!(matches!(&parts[..], [Part::Text(_), ..]));
//! for chart in charts(&site, &corrections) {
//!     println!("{}: {} bytes", chart.file_name, chart.svg.len());
//! }
//! let paper = paper(&corrections); // Tables 4, 5 and 7, Figs. 3 and 4 beside what is printed
//! assert!(paper.rows.iter().any(|row| row.source == "Table 4"));
//! # Ok::<(), tidemill_plan::model::SiteError>(())
//! ```

mod claims;
pub mod corrections;
pub mod cost;
pub mod energy;
pub mod feasible;
pub mod figures;
pub mod paper;
pub mod prototype;
mod published;
pub mod report;
pub mod setting;
pub mod site;
pub mod staging;
mod text;

pub use corrections::Corrections;
pub use feasible::Infeasible;
pub use figures::{Chart, charts};
pub use paper::{Claim, PaperReport, Row, Verdict, jaguar, paper};
pub use report::{Approach, Section, SiteReport, report};
pub use setting::{Run, Stage};
pub use site::{Site, SiteError};
pub use text::{Part, Table};

#[cfg(test)]
mod tests {
    use super::setting::{Run, Stage};
    use super::site::Site;
    use std::path::Path;

    /// The paper's site.
    pub(super) const JAGUAR: &str = include_str!("../../../../examples/site/jaguar.toml");

    pub(super) fn site() -> Site {
        Site::parse(JAGUAR, Path::new("jaguar.toml")).unwrap()
    }

    /// S3D on Jaguar.
    pub(super) fn run() -> Run {
        let site = site();
        let s3d = site
            .applications
            .iter()
            .find(|it| it.name() == "S3D")
            .unwrap();
        site.run_of(s3d, None)
    }

    /// Its solid-state device.
    pub(super) fn device() -> Stage {
        site().device_stage()
    }

    /// Its analysis node.
    pub(super) fn node() -> Stage {
        site().node_stage()
    }
}
