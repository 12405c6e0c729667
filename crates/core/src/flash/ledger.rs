//! Bookkeeping for a running storage element: what the objects it wrote and removed will have done to the
//! flash below it, by the same translation layer as [`super::ftl`].
//!
//! An element knows its objects, not the device's pages. The ledger lays objects out on a device of the
//! element's capacity by itself, first fit, and scales the page so that its map stays small: a page here
//! stands for a stripe over all chips and a block for a row of blocks erased together. Bytes programmed are
//! counted in sectors of 4 KiB.
//!
//! A coarse page goes to the translation layer when it has been filled, and after that, if n of its N
//! sectors are written anew, with probability n / N: so as many bytes go there as were written, and pages
//! live as irregularly as the objects in them (counting up to N would make them live too evenly, and
//! collection look too cheap). A page is given up when nothing is left in it.

use std::collections::BTreeMap;

use super::ftl::{Config, Ftl};
use super::gc::Collection;
use super::geometry::{Geometry, GeometryError, Spec};
use super::snapshot::{Reader, SnapshotError, VERSION, Writer, ensure};
use super::wear::Wear;
use crate::random::Source;

/// Bytes of the smallest unit that a device programs; objects are rounded up to it.
pub(super) const SECTOR_BYTES: u64 = 4096;

/// The most pages the ledger keeps a map of, 4 MiB of memory in all.
pub(super) const PAGES_MAX: u64 = 1 << 18;

const PAGES_PER_BLOCK: u64 = 64;
const OVER_PROVISIONING_PERCENT: u64 = 7;
/// Spare blocks that [`Geometry::new`] asks of one chip.
const SPARE_BLOCKS_MIN: u64 = 8;

/// Why the ledger can't do something.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LedgerError {
    /// The capacity is 0 or beyond what coarse pages can number.
    #[error("flash ledger: no device of {capacity} bytes can be kept book of")]
    Capacity {
        /// Bytes asked for.
        capacity: u64,
    },
    /// The device described can't be.
    #[error("flash ledger: {0}")]
    Geometry(#[from] GeometryError),
    /// More was written than the device holds.
    #[error(
        "flash ledger: {needed} bytes do not fit into the {free} that are left; the capacity it was made with is too small"
    )]
    Full {
        /// Bytes asked for, in whole sectors.
        needed: u64,
        /// Bytes left.
        free: u64,
    },
}

/// What an element's status object tells of its flash.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LedgerReport {
    /// Bytes the element wrote.
    pub host_bytes: u64,
    /// Bytes programmed, collection and levelling included.
    pub flash_bytes: u64,
    /// The one over the other; 1 before the first write.
    pub write_amplification: f64,
    /// Bytes that objects take up, in whole sectors.
    pub used_bytes: u64,
    /// Bytes of one coarse block, to read free blocks by.
    pub block_bytes: u64,
    /// Erase counts and the share of endurance used up.
    pub wear: Wear,
    /// Free blocks and whether collection is due.
    pub collection: Collection,
}

/// Sectors `start` to `start + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: u64,
    count: u64,
}

/// The bookkeeping of one element's device.
#[derive(Clone, Debug)]
pub struct Ledger {
    ftl: Ftl,
    host_bytes: u64,
    sectors_written: u64,
    sectors_per_page: u64,
    /// Free sectors: start → count, never two that touch.
    free: BTreeMap<u64, u64>,
    free_sectors: u64,
    /// Extents of each object: (object, index) → sectors.
    extents: BTreeMap<(u64, u32), Extent>,
    /// Sectors of each page that objects take up.
    live: Vec<u32>,
    /// Sectors of each page that were written while the translation layer does not have it.
    unflushed: Vec<u32>,
    /// Draws whether a page in use is programmed anew; always the same numbers.
    source: Source,
}

impl Ledger {
    /// A new device of `capacity` bytes with 7 % over-provisioning (more if it is tiny) and the endurance
    /// of the default device. Its page is the power of two from 4 KiB on with which there are at most
    /// 2¹⁸: 4 KiB up to 1 GiB, 4 MiB at 1 TiB.
    ///
    /// # Errors
    /// [`LedgerError::Capacity`] for 0 bytes or more than 512 TiB.
    pub fn new(capacity: u64) -> Result<Self, LedgerError> {
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

    /// As [`Ledger::new`] with pages of so many bytes, a multiple of a sector.
    pub(super) fn with_pages(capacity: u64, page_bytes: u32) -> Result<Self, LedgerError> {
        let blocks = capacity.div_ceil(u64::from(page_bytes) * PAGES_PER_BLOCK);
        let spare = (blocks * OVER_PROVISIONING_PERCENT).div_ceil(100);
        let spare = spare.max(SPARE_BLOCKS_MIN);
        let geometry = Geometry::new(Spec {
            channels: 1,
            chips_per_channel: 1,
            blocks_per_chip: narrow(blocks + spare),
            pages_per_block: narrow(PAGES_PER_BLOCK),
            page_bytes,
            over_provisioning: f64::from(narrow(spare)) / f64::from(narrow(blocks)),
            ..Spec::default()
        })?;
        Ok(Self::over(Ftl::new(geometry, Config::default())))
    }

    /// An empty ledger over a device.
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
            source: Source::seeded(0),
        }
    }

    /// `bytes` were written to an object: all of a new one, or more of one known already. Each call is
    /// rounded up to whole sectors, so tell an object as a whole, when it is sealed.
    ///
    /// # Errors
    /// [`LedgerError::Full`] if they don't fit; then nothing changes.
    pub fn wrote(&mut self, object: u64, bytes: u64) -> Result<(), LedgerError> {
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
            let extent = Extent {
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

    /// An object was removed: its space is free. False if it is not known.
    pub fn removed(&mut self, object: u64) -> bool {
        let mut index = 0;
        while let Some(extent) = self.extents.remove(&(object, index)) {
            self.release(extent);
            index += 1;
        }
        index > 0
    }

    /// Whether an object takes up space; one without bytes never does.
    #[must_use]
    pub fn contains(&self, object: u64) -> bool {
        self.extents.contains_key(&(object, 0))
    }

    /// The objects that take up space, in order.
    pub fn objects(&self) -> impl Iterator<Item = u64> + '_ {
        let firsts = self.extents.keys().filter(|(_, index)| *index == 0);
        firsts.map(|&(object, _)| object)
    }

    /// What to tell of the device.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn report(&self) -> LedgerReport {
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

    /// Every page that an extent touches, and how many of its sectors.
    fn pages(&self, extent: Extent) -> impl Iterator<Item = (u32, u32)> + use<> {
        let per_page = self.sectors_per_page;
        let end = extent.start + extent.count;
        (extent.start / per_page..end.div_ceil(per_page)).map(move |page| {
            let low = extent.start.max(page * per_page);
            let high = end.min((page + 1) * per_page);
            (narrow(page), narrow(high - low))
        })
    }

    fn program(&mut self, extent: Extent) {
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

    fn release(&mut self, extent: Extent) {
        for (page, sectors) in self.pages(extent) {
            self.live[page as usize] -= sectors;
            if self.live[page as usize] == 0 {
                self.ftl.trim_page(page);
            }
        }
        self.free_sectors += extent.count;
        let Extent {
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

    /// Its state as bytes, a few for each object and each run of pages.
    #[must_use]
    pub fn save(&self) -> Vec<u8> {
        let mut writer = Writer::default();
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

    /// The ledger that [`Ledger::save`] saved; it goes on exactly as the saved one would have.
    ///
    /// # Errors
    /// [`SnapshotError`] if the bytes are not what `save` of this version gives.
    pub fn restore(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let ftl = Ftl::decode(&mut reader, narrow(2 * PAGES_MAX))?;
        let page_bytes = u64::from(ftl.geometry().spec().page_bytes);
        ensure(page_bytes.is_multiple_of(SECTOR_BYTES), "page_bytes")?;
        let mut ledger = Self::over(ftl);
        ledger.host_bytes = reader.take_count("host_bytes")?;
        ledger.sectors_written = reader.take_count("sectors_written")?;
        ledger.source = Source::seeded(reader.take("source")?);
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
            let extent = Extent {
                start: reader.take("extents")?,
                count: reader.take("extents")?,
            };
            ledger.claim(extent)?;
            ledger.extents.insert((object, index), extent);
        }
        reader.end()?;
        Ok(ledger)
    }

    /// Takes an extent that was saved out of the free ones.
    fn claim(&mut self, extent: Extent) -> Result<(), SnapshotError> {
        let field = "extents";
        let damaged = || SnapshotError::Field { field };
        let end = extent.start.checked_add(extent.count).ok_or_else(damaged)?;
        let around = self.free.range(..=extent.start).next_back();
        let (&start, &count) = around.ok_or_else(damaged)?;
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
