//! Ledger of a running storage node: models the effect of written and removed objects on the flash device, with the same translation
//! layer as [`super::ftl`]. This module does no I/O.
//!
//! A node knows its objects, not the device's pages. The ledger places the objects on a model device of the node's capacity, first fit, and
//! scales the pages so that its map stays small: a page of the model stands for a stripe over all chips and a block for a row of blocks
//! erased together. Programmed bytes are counted in sectors of 4 KiB.
//!
//! A coarse page is passed to the translation layer when it has been filled. After that, if n of its N sectors are rewritten, the page is
//! passed with probability n / N. So the layer receives as many bytes as were written, and pages live as irregularly as their objects
//! (counting up to N would make pages live too evenly, and collection would look too cheap). A page is trimmed when it contains no object
//! any more.

use std::collections::BTreeMap;

use super::ftl::{Ftl, FtlConfig};
use super::gc::Collection;
use super::geometry::{DeviceSpec, Geometry, GeometryError};
use super::snapshot::{SnapshotError, SnapshotReader, SnapshotWriter, VERSION, ensure};
use super::wear::Wear;
use tidemill_model::random::RandomSource;

/// Size of the smallest unit that a device programs, in bytes; object sizes are rounded up to whole sectors.
pub(super) const SECTOR_BYTES: u64 = 4096;

/// Maximum number of pages in the ledger's map, which then takes 4 MiB of memory.
pub(super) const PAGES_MAX: u64 = 1 << 18;

const PAGES_PER_BLOCK: u64 = 64;
const OVER_PROVISIONING_PERCENT: u64 = 7;
/// Number of spare blocks that [`Geometry::new`] requires for a device of one chip.
const SPARE_BLOCKS_MIN: u64 = 8;

/// Error of the flash ledger.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum LedgerError {
    /// The capacity is 0 or exceeds the number of coarse pages.
    #[error("flash ledger: a device of {capacity} bytes is too large")]
    Capacity {
        /// Requested capacity, in bytes.
        capacity: u64,
    },
    /// The described device is invalid.
    #[error("flash ledger: {0}")]
    Geometry(#[from] GeometryError),
    /// More bytes were written than the device can hold.
    #[error(
        "flash ledger: {needed} bytes do not fit into the {free} that are left; the capacity it was made with is too small"
    )]
    Full {
        /// Requested size in whole sectors, in bytes.
        needed: u64,
        /// Free space, in bytes.
        free: u64,
    },
}

/// Properties of the flash device that a node's status object reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LedgerReport {
    /// Bytes that the node wrote.
    pub(crate) host_bytes: u64,
    /// Bytes programmed on the device, including collection and levelling.
    pub(crate) flash_bytes: u64,
    /// Ratio of programmed to written bytes; 1 before the first write.
    pub(crate) write_amplification: f64,
    /// Space taken by objects in whole sectors, in bytes.
    pub(crate) used_bytes: u64,
    /// Size of one coarse block in bytes, the unit of free blocks.
    pub(crate) block_bytes: u64,
    /// Erase counts of the device and the used share of its endurance.
    pub(crate) wear: Wear,
    /// Number of free blocks, and whether collection is due.
    pub(crate) collection: Collection,
}

/// Sectors from `start` to `start + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SectorRange {
    start: u64,
    count: u64,
}

/// Ledger of one node's flash device.
#[derive(Clone, Debug)]
pub(crate) struct FlashLedger {
    ftl: Ftl,
    host_bytes: u64,
    sectors_written: u64,
    sectors_per_page: u64,
    /// Free sectors, start → count; adjacent ranges are merged.
    free: BTreeMap<u64, u64>,
    free_sectors: u64,
    /// Extents of each object: (object, index) → sectors.
    extents: BTreeMap<(u64, u32), SectorRange>,
    /// Number of sectors that objects take, per page.
    live: Vec<u32>,
    /// Number of written sectors that the translation layer has not received, per page.
    unflushed: Vec<u32>,
    /// Source of random numbers that decide whether a page in use is programmed again; the sequence is fixed.
    source: RandomSource,
}

impl FlashLedger {
    /// Returns the ledger of a new device of `capacity` bytes with 7 % over-provisioning (more if the device is tiny) and the endurance of
    /// the default device. Its page is the smallest power of two from 4 KiB on with at most 2¹⁸ pages: 4 KiB up to 1 GiB, 4 MiB at 1 TiB.
    ///
    /// # Errors
    /// [`LedgerError::Capacity`] for 0 bytes or more than 512 TiB.
    pub(crate) fn new(capacity: u64) -> Result<Self, LedgerError> {
        let page_bytes = capacity
            .div_ceil(PAGES_MAX)
            .checked_next_power_of_two()
            .map(|bytes| bytes.max(SECTOR_BYTES));
        let bytes = page_bytes.and_then(|bytes| u32::try_from(bytes).ok());
        let (Some(page_bytes), false) = (bytes, capacity == 0) else {
            return Err(LedgerError::Capacity { capacity });
        };
        Self::with_pages(capacity, page_bytes)
    }

    /// Returns a ledger like [`FlashLedger::new`] with pages of `page_bytes` bytes, a multiple of a sector.
    pub(super) fn with_pages(capacity: u64, page_bytes: u32) -> Result<Self, LedgerError> {
        let blocks = capacity.div_ceil(u64::from(page_bytes) * PAGES_PER_BLOCK);
        let spare = (blocks * OVER_PROVISIONING_PERCENT).div_ceil(100);
        let spare = spare.max(SPARE_BLOCKS_MIN);
        let geometry = Geometry::new(DeviceSpec {
            channels: 1,
            chips_per_channel: 1,
            blocks_per_chip: narrow(blocks + spare),
            pages_per_block: narrow(PAGES_PER_BLOCK),
            page_bytes,
            over_provisioning: f64::from(narrow(spare)) / f64::from(narrow(blocks)),
            ..DeviceSpec::default()
        })?;
        Ok(Self::over(Ftl::new(geometry, FtlConfig::default())))
    }

    /// Returns an empty ledger over a translation layer.
    fn over(ftl: Ftl) -> Self {
        let pages = ftl.geometry().logical_pages();
        let sectors_per_page = u64::from(ftl.geometry().spec().page_bytes) / SECTOR_BYTES;
        let sectors = u64::from(pages) * sectors_per_page;
        Self {
            ftl,
            host_bytes: 0,
            sectors_written: 0,
            sectors_per_page,
            free: BTreeMap::from([(0, sectors)]),
            free_sectors: sectors,
            extents: BTreeMap::new(),
            live: vec![0; pages as usize],
            unflushed: vec![0; pages as usize],
            source: RandomSource::seeded(0),
        }
    }

    /// Records that `bytes` bytes were written to an object: all bytes of a new object, or more bytes of a known object. Each call is
    /// rounded up to whole sectors, so the caller should report an object as a whole, when it is sealed.
    ///
    /// # Errors
    /// [`LedgerError::Full`] if the bytes don't fit; then nothing changes.
    pub(crate) fn wrote(&mut self, object: u64, bytes: u64) -> Result<(), LedgerError> {
        let mut needed = bytes.div_ceil(SECTOR_BYTES);
        if needed > self.free_sectors {
            return Err(LedgerError::Full {
                needed: needed.saturating_mul(SECTOR_BYTES),
                free: self.free_sectors * SECTOR_BYTES,
            });
        }
        self.host_bytes += bytes;
        self.sectors_written += needed;
        self.free_sectors -= needed;
        let known = self.extents.range((object, 0)..=(object, u32::MAX));
        let mut index = known.last().map_or(0, |(&(_, index), _)| index + 1);
        while needed > 0
            && let Some((start, count)) = self.free.pop_first()
        {
            let taken = count.min(needed);
            if taken < count {
                self.free.insert(start + taken, count - taken);
            }
            let extent = SectorRange {
                start,
                count: taken,
            };
            self.extents.insert((object, index), extent);
            self.program(extent);
            needed -= taken;
            index += 1;
        }
        Ok(())
    }

    /// Records that an object was removed: its space is free. Returns false if the object is unknown.
    pub(crate) fn removed(&mut self, object: u64) -> bool {
        let mut index = 0;
        while let Some(extent) = self.extents.remove(&(object, index)) {
            self.release(extent);
            index += 1;
        }
        index > 0
    }

    /// Returns whether an object takes space; an empty object takes none.
    pub(crate) fn contains(&self, object: u64) -> bool {
        self.extents.contains_key(&(object, 0))
    }

    /// Returns the objects that take space, in order of ids.
    pub(crate) fn objects(&self) -> impl Iterator<Item = u64> + '_ {
        let firsts = self.extents.keys().filter(|(_, index)| *index == 0);
        firsts.map(|&(object, _)| object)
    }

    /// Returns the properties of the device that the node's status object reports.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub(crate) fn report(&self) -> LedgerReport {
        let counts = self.ftl.counts();
        let copied = counts.collected_pages + counts.levelled_pages;
        let sectors = self.sectors_written + copied * self.sectors_per_page;
        let flash_bytes = sectors * SECTOR_BYTES;
        let capacity = u64::from(self.ftl.geometry().logical_pages()) * self.sectors_per_page;
        LedgerReport {
            host_bytes: self.host_bytes,
            flash_bytes,
            write_amplification: if self.host_bytes == 0 {
                1.0
            } else {
                flash_bytes as f64 / self.host_bytes as f64
            },
            used_bytes: (capacity - self.free_sectors) * SECTOR_BYTES,
            block_bytes: self.ftl.geometry().block_bytes(),
            wear: self.ftl.wear(),
            collection: self.ftl.collection(),
        }
    }

    /// Returns every page that an extent touches, with the number of touched sectors in the page.
    fn pages(&self, extent: SectorRange) -> impl Iterator<Item = (u32, u32)> + use<> {
        let per_page = self.sectors_per_page;
        let end = extent.start + extent.count;
        (extent.start / per_page..end.div_ceil(per_page)).map(move |page| {
            let low = extent.start.max(page * per_page);
            let high = end.min((page + 1) * per_page);
            (narrow(page), narrow(high - low))
        })
    }

    fn program(&mut self, extent: SectorRange) {
        let per_page = narrow(self.sectors_per_page);
        for (page, sectors) in self.pages(extent) {
            self.live[page as usize] += sectors;
            let due = if self.ftl.locate(page).is_some() {
                self.source.below(per_page) < sectors
            } else {
                let unflushed = &mut self.unflushed[page as usize];
                *unflushed += sectors;
                *unflushed >= per_page
            };
            if due {
                self.unflushed[page as usize] = 0;
                self.ftl.write_page(page, &mut |_| ());
            }
        }
    }

    fn release(&mut self, extent: SectorRange) {
        for (page, sectors) in self.pages(extent) {
            self.live[page as usize] -= sectors;
            if self.live[page as usize] == 0 {
                self.ftl.trim_page(page);
            }
        }
        self.free_sectors += extent.count;
        let SectorRange {
            mut start,
            mut count,
        } = extent;
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            (start, count) = (before, length + count);
        }
        if let Some(after) = self.free.remove(&(extent.start + extent.count)) {
            count += after;
        }
        self.free.insert(start, count);
    }

    /// Returns the state of the ledger as bytes, a few for each object and each run of pages.
    pub(crate) fn save(&self) -> Vec<u8> {
        let mut writer = SnapshotWriter::default();
        writer.put(VERSION);
        self.ftl.encode(&mut writer);
        writer.put(self.host_bytes);
        writer.put(self.sectors_written);
        writer.put(self.source.state());
        let unflushed = (0u64..).zip(&self.unflushed).filter(|&(_, &n)| n > 0);
        writer.put(unflushed.clone().count() as u64);
        for (page, &sectors) in unflushed {
            writer.put(page);
            writer.put(sectors.into());
        }
        writer.put(self.extents.len() as u64);
        let mut before = 0;
        for (&(object, _), extent) in &self.extents {
            writer.put(object - before);
            writer.put(extent.start);
            writer.put(extent.count);
            before = object;
        }
        writer.into_bytes()
    }

    /// Restores a ledger from the bytes of [`FlashLedger::save`]; the ledger continues exactly as the saved ledger would.
    ///
    /// # Errors
    /// [`SnapshotError`] if the bytes are no result of `save` of this version.
    pub(crate) fn restore(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut reader = SnapshotReader::new(bytes);
        reader.version()?;
        let ftl = Ftl::decode(&mut reader, narrow(2 * PAGES_MAX))?;
        let page_bytes = u64::from(ftl.geometry().spec().page_bytes);
        ensure(page_bytes.is_multiple_of(SECTOR_BYTES), "page_bytes")?;
        let mut ledger = Self::over(ftl);
        ledger.host_bytes = reader.take_count("host_bytes")?;
        ledger.sectors_written = reader.take_count("sectors_written")?;
        ledger.source = RandomSource::seeded(reader.take("source")?);
        for _ in 0..reader.take("unflushed")? {
            let page = reader.take_u32("unflushed")? as usize;
            let sectors = reader.take_u32("unflushed")?;
            ensure(u64::from(sectors) < ledger.sectors_per_page, "unflushed")?;
            let place = ledger.unflushed.get_mut(page);
            *place.ok_or(SnapshotError::Field { field: "unflushed" })? = sectors;
        }
        let (mut object, mut index) = (0u64, 0u32);
        for number in 0..reader.take("extents")? {
            let step = reader.take("object")?;
            index = if number > 0 && step == 0 {
                index + 1
            } else {
                0
            };
            object = object
                .checked_add(step)
                .ok_or(SnapshotError::Field { field: "object" })?;
            let extent = SectorRange {
                start: reader.take("extents")?,
                count: reader.take("extents")?,
            };
            ledger.claim(extent)?;
            ledger.extents.insert((object, index), extent);
        }
        reader.end()?;
        Ok(ledger)
    }

    /// Removes the sectors of a saved extent from the free sectors.
    fn claim(&mut self, extent: SectorRange) -> Result<(), SnapshotError> {
        let field = "extents";
        let corrupt = || SnapshotError::Field { field };
        let end = extent.start.checked_add(extent.count).ok_or_else(corrupt)?;
        let around = self.free.range(..=extent.start).next_back();
        let (&start, &count) = around.ok_or_else(corrupt)?;
        ensure(extent.count > 0 && end <= start + count, field)?;
        self.free.remove(&start);
        if start < extent.start {
            self.free.insert(start, extent.start - start);
        }
        if end < start + count {
            self.free.insert(end, start + count - end);
        }
        self.free_sectors -= extent.count;
        for (page, sectors) in self.pages(extent) {
            self.live[page as usize] += sectors;
        }
        Ok(())
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).expect("pages, blocks and sectors of a page are fewer than 2^32")
}
