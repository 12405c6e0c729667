//! Geometry of a flash device: the numbers of chips, blocks and pages, the speed and the endurance. A [`Geometry`] is always valid; the
//! translation layer relies on its validity.

use tidemill_model::time::Span;

/// Page number, physical or logical, that means "none"; so at most `u32::MAX - 1` pages fit.
pub(super) const NONE: u32 = u32::MAX;

/// Flash device as its user describes it. [`Geometry::new`] checks the description.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceSpec {
    /// Number of independent buses between controller and chips.
    pub(super) channels: u32,
    /// Number of chips on one channel. A chip does one operation at a time; count the dies of a chip if they work independently.
    pub(super) chips_per_channel: u32,
    /// Number of erase blocks in one chip.
    pub(super) blocks_per_chip: u32,
    /// Number of pages in one erase block.
    pub(super) pages_per_block: u32,
    /// Size of one page in bytes, the unit of reading and programming.
    pub(super) page_bytes: u32,
    /// Over-provisioning: (physical − logical) / logical capacity; 0.07 is the excess of powers of two over the powers of ten in sales.
    pub(super) over_provisioning: f64,
    /// Time in which a chip reads a page into its register.
    pub(super) read: Span,
    /// Time in which a chip programs a page from its register.
    pub(super) program: Span,
    /// Time in which a chip erases a block.
    pub(super) erase: Span,
    /// Rate of one channel, in bytes per second.
    pub(super) channel_bytes_per_s: u64,
    /// Number of erase cycles that a block endures.
    pub(super) endurance_erases: u32,
}

impl Default for DeviceSpec {
    /// Returns the staging SSD of the Active Flash paper (Table 2 and §4): 64 GiB, 8 channels of 40 MiB/s, 300 TB written over its life.
    /// Page, block and chip counts, read and erase latencies are those of MQSim's sample configuration (Tavakkol et al., FAST 2018; MLC).
    /// The sample programs pages as fast as it reads them, which no MLC part does; 750 µs is used. 5 000 cycles give the 300 TB at a write
    /// amplification of 1.2.
    fn default() -> Self {
        Self {
            channels: 8,
            chips_per_channel: 4,
            blocks_per_chip: 1096,
            pages_per_block: 256,
            page_bytes: 8 << 10,
            over_provisioning: 0.07,
            read: Span(75_000),
            program: Span(750_000),
            erase: Span(3_800_000),
            channel_bytes_per_s: 40 << 20,
            endurance_erases: 5_000,
        }
    }
}

/// Reason for which a description is no valid flash device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum GeometryError {
    /// A count, size or rate is zero.
    #[error("flash device: {field} is 0; it must be at least 1")]
    Zero {
        /// Name of the setting.
        field: &'static str,
    },
    /// Over-provisioning is zero, negative, not finite, or so large that no page is left.
    #[error(
        "flash device: over_provisioning is {value}; it must be a positive fraction such as 0.07"
    )]
    OverProvisioning {
        /// Given value of `over_provisioning`.
        value: f64,
    },
    /// There are more pages than 32-bit maps can number.
    #[error("flash device: {pages} pages; at most {max} can be mapped, so use larger pages")]
    TooManyPages {
        /// Requested number of physical pages.
        pages: u128,
        /// Maximum number of pages.
        max: u32,
    },
    /// The device has too few spare blocks for the open blocks of each chip and a collection under way.
    #[error(
        "flash device: {spare} spare blocks; {chips} chips need at least {needed}: raise over_provisioning or blocks_per_chip"
    )]
    TooFewSpareBlocks {
        /// Number of whole blocks beyond the logical capacity.
        spare: u32,
        /// Required number of spare blocks.
        needed: u32,
        /// Number of chips in the device.
        chips: u32,
    },
}

/// Checked [`DeviceSpec`] with the sizes computed from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Geometry {
    spec: DeviceSpec,
    blocks: u32,
    logical_pages: u32,
}

impl Geometry {
    /// Checks the description of a device and computes its geometry.
    ///
    /// # Errors
    /// [`GeometryError`] names the setting that is zero, out of range or inconsistent with other settings.
    pub(super) fn new(spec: DeviceSpec) -> Result<Self, GeometryError> {
        for (field, value) in [
            ("channels", u64::from(spec.channels)),
            ("chips_per_channel", u64::from(spec.chips_per_channel)),
            ("blocks_per_chip", u64::from(spec.blocks_per_chip)),
            ("pages_per_block", u64::from(spec.pages_per_block)),
            ("page_bytes", u64::from(spec.page_bytes)),
            ("read", spec.read.0),
            ("program", spec.program.0),
            ("erase", spec.erase.0),
            ("channel_bytes_per_s", spec.channel_bytes_per_s),
            ("endurance_erases", u64::from(spec.endurance_erases)),
        ] {
            if value == 0 {
                return Err(GeometryError::Zero { field });
            }
        }
        let value = spec.over_provisioning;
        if !(value.is_finite() && value > 0.0) {
            return Err(GeometryError::OverProvisioning { value });
        }
        let pages = [
            spec.channels,
            spec.chips_per_channel,
            spec.blocks_per_chip,
            spec.pages_per_block,
        ]
        .into_iter()
        .try_fold(1u128, |product, count| {
            product.checked_mul(u128::from(count))
        });
        let physical_pages = pages
            .and_then(|pages| u32::try_from(pages).ok())
            .filter(|&pages| pages < NONE)
            .ok_or(GeometryError::TooManyPages {
                pages: pages.unwrap_or(u128::MAX),
                max: NONE - 1,
            })?;
        let geometry = Self {
            blocks: physical_pages / spec.pages_per_block,
            logical_pages: shrink(physical_pages, value),
            spec,
        };
        if geometry.logical_pages == 0 {
            return Err(GeometryError::OverProvisioning { value });
        }
        geometry.check_spare()
    }

    fn check_spare(self) -> Result<Self, GeometryError> {
        let spare = self.blocks - self.logical_pages.div_ceil(self.spec.pages_per_block);
        // Needed blocks: open ones for the host and for the collector on each chip, free ones that must not be used, one being collected
        // and one that levelling swaps.
        let needed = self
            .chips()
            .saturating_mul(2)
            .saturating_add(self.reserve())
            .saturating_add(3);
        if spare < needed {
            return Err(GeometryError::TooFewSpareBlocks {
                spare,
                needed,
                chips: self.chips(),
            });
        }
        Ok(self)
    }

    /// Returns the description of the device.
    pub(super) fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// Returns the number of chips. Chip `c` is on channel `c % channels`, so visiting chips in order spreads over channels first.
    pub(super) fn chips(&self) -> u32 {
        self.spec.channels * self.spec.chips_per_channel
    }

    /// Returns the number of erase blocks of the device. Block `b` is in chip `b % chips`.
    pub(super) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the number of physical pages of the device.
    pub(super) fn physical_pages(&self) -> u32 {
        self.blocks * self.spec.pages_per_block
    }

    /// Returns the number of logical pages for the host: physical pages / (1 + over-provisioning).
    pub(super) fn logical_pages(&self) -> u32 {
        self.logical_pages
    }

    /// Returns the size of an erase block, in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        u64::from(self.spec.pages_per_block) * u64::from(self.spec.page_bytes)
    }

    /// Returns the number of free blocks below which a write must wait for collection: the collector may open one block on each chip before
    /// it frees a block.
    pub(super) fn reserve(&self) -> u32 {
        self.chips().saturating_add(2)
    }

    /// Returns the block of a physical page.
    pub(super) fn block_of(&self, page: u32) -> u32 {
        page / self.spec.pages_per_block
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a positive share of a u32 is a u32"
)]
fn shrink(physical_pages: u32, over_provisioning: f64) -> u32 {
    (f64::from(physical_pages) / (1.0 + over_provisioning)).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_geometry_is_the_papers_64_gib_device() {
        let geometry = Geometry::new(DeviceSpec::default()).unwrap();
        let gib = geometry.logical_bytes() / (1 << 30);
        assert_eq!(gib, 64);
        assert_eq!(geometry.chips(), 32);
        let prototype = Geometry::new(DeviceSpec::prototype()).unwrap();
        assert_eq!(prototype.logical_bytes() / (1 << 30), 64);
    }

    #[test]
    fn geometry_refuses_zero_by_field_name() {
        type Zero = fn(&mut DeviceSpec);
        let cases: [(&str, Zero); 10] = [
            ("channels", |s| s.channels = 0),
            ("chips_per_channel", |s| s.chips_per_channel = 0),
            ("blocks_per_chip", |s| s.blocks_per_chip = 0),
            ("pages_per_block", |s| s.pages_per_block = 0),
            ("page_bytes", |s| s.page_bytes = 0),
            ("read", |s| s.read = Span(0)),
            ("program", |s| s.program = Span(0)),
            ("erase", |s| s.erase = Span(0)),
            ("channel_bytes_per_s", |s| s.channel_bytes_per_s = 0),
            ("endurance_erases", |s| s.endurance_erases = 0),
        ];
        for (field, zero) in cases {
            let mut spec = DeviceSpec::default();
            zero(&mut spec);
            assert_eq!(Geometry::new(spec), Err(GeometryError::Zero { field }));
        }
    }

    #[test]
    fn geometry_refuses_values_out_of_range() {
        for value in [0.0, -0.1, 1e12, f64::INFINITY, f64::NAN] {
            let spec = DeviceSpec {
                over_provisioning: value,
                ..DeviceSpec::default()
            };
            assert!(matches!(
                Geometry::new(spec),
                Err(GeometryError::OverProvisioning { .. })
            ));
        }
        let spec = DeviceSpec {
            blocks_per_chip: u32::MAX,
            ..DeviceSpec::default()
        };
        assert!(matches!(
            Geometry::new(spec),
            Err(GeometryError::TooManyPages { .. })
        ));
        let all = DeviceSpec {
            channels: u32::MAX,
            chips_per_channel: u32::MAX,
            blocks_per_chip: u32::MAX,
            pages_per_block: u32::MAX,
            ..DeviceSpec::default()
        };
        assert!(matches!(
            Geometry::new(all),
            Err(GeometryError::TooManyPages { .. })
        ));
        let spec = DeviceSpec {
            channels: u32::MAX - 1,
            chips_per_channel: 1,
            blocks_per_chip: 1,
            pages_per_block: 1,
            ..DeviceSpec::default()
        };
        assert!(matches!(
            Geometry::new(spec),
            Err(GeometryError::TooFewSpareBlocks { .. })
        ));
        let spec = DeviceSpec {
            blocks_per_chip: 10,
            ..DeviceSpec::default()
        };
        assert_eq!(
            Geometry::new(spec),
            Err(GeometryError::TooFewSpareBlocks {
                spare: 20,
                needed: 101,
                chips: 32
            })
        );
    }
}
