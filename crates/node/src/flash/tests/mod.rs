//! Tests of the flash model against references: a model flash that refuses invalid operations like a real device, published write
//! amplification, and the documented limits of request delays.

mod amplification;
mod device;
mod ftl;
mod ledger;
mod model;
mod speed;
mod wear;

use super::ftl::{Ftl, FtlConfig};
use super::geometry::{DeviceSpec, Geometry};

/// Returns a device of few, small blocks.
fn small(over_provisioning: f64, config: FtlConfig) -> Ftl {
    let spec = DeviceSpec {
        channels: 2,
        chips_per_channel: 2,
        blocks_per_chip: 32,
        pages_per_block: 8,
        page_bytes: 512,
        over_provisioning,
        ..DeviceSpec::default()
    };
    Ftl::new(Geometry::new(spec).unwrap(), config)
}
