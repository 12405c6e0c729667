//! The equations of Active Flash: staging, feasibility, energy and cost of analysis on storage devices.

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
