//! Encoding and decoding of a translation layer's state. `docs/flash.md` describes the layout field by field.
//!
//! Derived data is not stored: lists, counts of valid pages, owners. Decoded data is checked, so that corrupt bytes give an error instead
//! of a device that fails later.

use tidemill_model::time::Span;

use super::blocks::{BlockState, Blocks};
use super::ftl::{FlashCounters, Frontier, Ftl, FtlConfig, OpenBlock};
use super::gc::Collector;
use super::geometry::{DeviceSpec, Geometry, GeometryError, NONE};

/// Version of the snapshot layout. Snapshots of other versions are refused.
pub(super) const VERSION: u64 = 1;

/// Reason for which a snapshot can't be restored.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The snapshot ends too early.
    #[error("flash snapshot: it ends early, after {0} bytes")]
    Truncated(usize),
    /// The snapshot has additional bytes after its end.
    #[error("flash snapshot: {0} bytes follow its end")]
    Trailing(usize),
    /// The snapshot has another version, or the bytes are no snapshot.
    #[error("flash snapshot: version {found}, but only {VERSION} is known; start a new one")]
    Version {
        /// Version found in the snapshot.
        found: u64,
    },
    /// A field of the snapshot has an invalid value.
    #[error("flash snapshot: {field} is out of range or contradicts the rest; start a new one")]
    Field {
        /// Name of the invalid field.
        field: &'static str,
    },
    /// The snapshot describes an invalid device.
    #[error("flash snapshot: {0}")]
    Geometry(#[from] GeometryError),
}

/// Writer of numbers with seven bits per byte, the lowest bits first; all bytes but the last have the top bit set (LEB128).
#[derive(Debug, Default)]
pub(super) struct SnapshotWriter {
    bytes: Vec<u8>,
}

impl SnapshotWriter {
    pub(super) fn put(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.bytes.push(number.to_le_bytes()[0]);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reader of the bytes that [`SnapshotWriter`] wrote.
#[derive(Debug)]
pub(super) struct SnapshotReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> SnapshotReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn take(&mut self, field: &'static str) -> Result<u64, SnapshotError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self
                .bytes
                .get(self.at)
                .ok_or(SnapshotError::Truncated(self.at))?;
            self.at += 1;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(SnapshotError::Field { field })
    }

    pub(super) fn take_u32(&mut self, field: &'static str) -> Result<u32, SnapshotError> {
        u32::try_from(self.take(field)?).map_err(|_| SnapshotError::Field { field })
    }

    /// Reads a running total, which must be small enough to continue counting without overflow.
    pub(super) fn take_count(&mut self, field: &'static str) -> Result<u64, SnapshotError> {
        let count = self.take(field)?;
        ensure(count < 1 << 60, field)?;
        Ok(count)
    }

    pub(super) fn version(&mut self) -> Result<(), SnapshotError> {
        match self.take("version")? {
            VERSION => Ok(()),
            found => Err(SnapshotError::Version { found }),
        }
    }

    pub(super) fn end(self) -> Result<(), SnapshotError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            rest => Err(SnapshotError::Trailing(rest)),
        }
    }
}

pub(super) fn ensure(holds: bool, field: &'static str) -> Result<(), SnapshotError> {
    if holds {
        Ok(())
    } else {
        Err(SnapshotError::Field { field })
    }
}

impl Ftl {
    pub(super) fn encode(&self, writer: &mut SnapshotWriter) {
        encode_spec(self.geometry.spec(), writer);
        writer.put(match self.config.collector {
            Collector::Greedy => 0,
            Collector::CostBenefit => 1,
            Collector::OldestFirst => 2,
        });
        writer.put(self.config.collect_below.into());
        writer.put(self.config.level_above.into());
        let counts = self.counts;
        for count in [
            counts.host_bytes,
            counts.host_pages,
            counts.collected_pages,
            counts.levelled_pages,
            counts.partial_reads,
            counts.trimmed_pages,
            counts.erases,
        ] {
            writer.put(count);
        }
        for frontier in [&self.host, &self.collector] {
            writer.put(frontier.chip.into());
            for slot in &frontier.slots {
                encode_slot(*slot, writer);
            }
        }
        encode_slot(self.victim, writer);
        self.encode_blocks(writer);
        self.encode_map(writer);
    }

    fn encode_blocks(&self, writer: &mut SnapshotWriter) {
        let tick = self.blocks.tick();
        writer.put(tick);
        for (number, block) in self.blocks.iter() {
            let closed = block.state == BlockState::Closed;
            writer.put(u64::from(block.erases) << 1 | u64::from(closed));
            if closed {
                writer.put(tick - block.modified);
                writer.put(tick - self.blocks.closed_at(number));
            }
        }
    }

    /// Writes the page map as runs of (logical pages, 0 for unmapped or 1 + the first physical page).
    fn encode_map(&self, writer: &mut SnapshotWriter) {
        let follows = |a: &u32, b: &u32| match (*a, *b) {
            (NONE, b) => b == NONE,
            (a, b) => a + 1 == b,
        };
        for run in self.map.chunk_by(follows) {
            writer.put(run.len() as u64);
            writer.put(match run[0] {
                NONE => 0,
                page => 1 + u64::from(page),
            });
        }
    }

    /// Reads a device of at most `pages_max` physical pages, which limits the memory that decoding allocates.
    pub(super) fn decode(
        reader: &mut SnapshotReader<'_>,
        pages_max: u32,
    ) -> Result<Self, SnapshotError> {
        let geometry = Geometry::new(decode_spec(reader)?)?;
        ensure(geometry.physical_pages() <= pages_max, "blocks_per_chip")?;
        let config = FtlConfig {
            collector: match reader.take("collector")? {
                0 => Collector::Greedy,
                1 => Collector::CostBenefit,
                2 => Collector::OldestFirst,
                _ => return Err(SnapshotError::Field { field: "collector" }),
            },
            collect_below: reader.take_u32("collect_below")?,
            level_above: reader.take_u32("level_above")?,
        };
        let counts = FlashCounters {
            host_bytes: reader.take_count("host_bytes")?,
            host_pages: reader.take_count("host_pages")?,
            collected_pages: reader.take_count("collected_pages")?,
            levelled_pages: reader.take_count("levelled_pages")?,
            partial_reads: reader.take_count("partial_reads")?,
            trimmed_pages: reader.take_count("trimmed_pages")?,
            erases: reader.take_count("erases")?,
        };
        let host = decode_frontier(reader, &geometry)?;
        let collector = decode_frontier(reader, &geometry)?;
        let victim = decode_slot(reader, &geometry)?;
        let mut states = vec![BlockState::Free; geometry.blocks() as usize];
        for slot in host.slots.iter().chain(&collector.slots).flatten() {
            let state = &mut states[slot.block as usize];
            ensure(*state == BlockState::Free, "open blocks")?;
            *state = BlockState::Open;
        }
        if let Some(slot) = victim {
            let state = &mut states[slot.block as usize];
            ensure(*state == BlockState::Free, "victim")?;
            *state = BlockState::Victim;
        }
        let blocks = decode_blocks(reader, &geometry, &states, counts.erases)?;
        let mut ftl = Self::new(geometry, config);
        (ftl.blocks, ftl.host, ftl.collector) = (blocks, host, collector);
        (ftl.victim, ftl.counts) = (victim, counts);
        ftl.decode_map(reader)?;
        ftl.check_slots()?;
        ftl.blocks.relink();
        Ok(ftl)
    }

    /// Checks that no logical page is mapped to an unprogrammed page of an open block, or to an emptied page of the victim.
    fn check_slots(&self) -> Result<(), SnapshotError> {
        let pages_per_block = self.geometry.spec().pages_per_block;
        let is_empty = |slot: &OpenBlock, pages: std::ops::Range<u32>| {
            let first = slot.block * pages_per_block;
            pages
                .map(|page| self.owner[(first + page) as usize])
                .all(|owner| owner == NONE)
        };
        let open = self.host.slots.iter().chain(&self.collector.slots);
        let open_is_right = open
            .flatten()
            .all(|slot| is_empty(slot, slot.programmed..pages_per_block));
        let victim = self.victim.as_ref();
        let victim_is_right = victim.is_none_or(|slot| is_empty(slot, 0..slot.programmed));
        ensure(open_is_right && victim_is_right, "programmed")
    }

    fn decode_map(&mut self, reader: &mut SnapshotReader<'_>) -> Result<(), SnapshotError> {
        let (mut logical, all) = (0u32, self.geometry.logical_pages());
        while logical < all {
            let run = reader.take_u32("map")?;
            ensure(run > 0 && run <= all - logical, "map")?;
            let first = reader.take("map")?;
            ensure(
                first == 0
                    || first - 1 + u64::from(run) <= u64::from(self.geometry.physical_pages()),
                "map",
            )?;
            if let Some(first) = first.checked_sub(1) {
                let first =
                    u32::try_from(first).map_err(|_| SnapshotError::Field { field: "map" })?;
                for step in 0..run {
                    self.restore_page(logical + step, first + step)?;
                }
            }
            logical += run;
        }
        Ok(())
    }

    fn restore_page(&mut self, logical: u32, page: u32) -> Result<(), SnapshotError> {
        let block = self.geometry.block_of(page);
        ensure(self.owner[page as usize] == NONE, "map")?;
        ensure(self.blocks.get(block).state != BlockState::Free, "map")?;
        self.map[logical as usize] = page;
        self.owner[page as usize] = logical;
        self.blocks.validate(block);
        Ok(())
    }
}

fn encode_spec(spec: &DeviceSpec, writer: &mut SnapshotWriter) {
    for number in [
        spec.channels.into(),
        spec.chips_per_channel.into(),
        spec.blocks_per_chip.into(),
        spec.pages_per_block.into(),
        spec.page_bytes.into(),
        spec.over_provisioning.to_bits(),
        spec.read.0,
        spec.program.0,
        spec.erase.0,
        spec.channel_bytes_per_s,
        spec.endurance_erases.into(),
    ] {
        writer.put(number);
    }
}

fn decode_spec(reader: &mut SnapshotReader<'_>) -> Result<DeviceSpec, SnapshotError> {
    Ok(DeviceSpec {
        channels: reader.take_u32("channels")?,
        chips_per_channel: reader.take_u32("chips_per_channel")?,
        blocks_per_chip: reader.take_u32("blocks_per_chip")?,
        pages_per_block: reader.take_u32("pages_per_block")?,
        page_bytes: reader.take_u32("page_bytes")?,
        over_provisioning: f64::from_bits(reader.take("over_provisioning")?),
        read: Span(reader.take("read")?),
        program: Span(reader.take("program")?),
        erase: Span(reader.take("erase")?),
        channel_bytes_per_s: reader.take("channel_bytes_per_s")?,
        endurance_erases: reader.take_u32("endurance_erases")?,
    })
}

fn encode_slot(slot: Option<OpenBlock>, writer: &mut SnapshotWriter) {
    match slot {
        None => writer.put(0),
        Some(slot) => {
            writer.put(1 + u64::from(slot.block));
            writer.put(slot.programmed.into());
        }
    }
}

fn decode_slot(
    reader: &mut SnapshotReader<'_>,
    geometry: &Geometry,
) -> Result<Option<OpenBlock>, SnapshotError> {
    let Some(block) = reader.take_u32("block")?.checked_sub(1) else {
        return Ok(None);
    };
    let programmed = reader.take_u32("programmed")?;
    ensure(block < geometry.blocks(), "block")?;
    ensure(programmed <= geometry.spec().pages_per_block, "programmed")?;
    Ok(Some(OpenBlock { block, programmed }))
}

fn decode_frontier(
    reader: &mut SnapshotReader<'_>,
    geometry: &Geometry,
) -> Result<Frontier, SnapshotError> {
    let chip = reader.take_u32("chip")?;
    ensure(chip < geometry.chips(), "chip")?;
    let mut slots = Vec::new();
    for chip in 0..geometry.chips() {
        let slot = decode_slot(reader, geometry)?;
        if let Some(slot) = slot {
            ensure(slot.block % geometry.chips() == chip, "block")?;
            ensure(
                slot.programmed < geometry.spec().pages_per_block,
                "programmed",
            )?;
        }
        slots.push(slot);
    }
    Ok(Frontier { slots, chip })
}

fn decode_blocks(
    reader: &mut SnapshotReader<'_>,
    geometry: &Geometry,
    states: &[BlockState],
    erases: u64,
) -> Result<Blocks, SnapshotError> {
    let tick = reader.take_count("tick")?;
    let mut saved = Vec::with_capacity(states.len());
    let mut sum = 0u64;
    for &state in states {
        let number = reader.take("blocks")?;
        let wear =
            u32::try_from(number >> 1).map_err(|_| SnapshotError::Field { field: "blocks" })?;
        sum += u64::from(wear);
        if number & 1 == 0 {
            saved.push((state, wear, 0, 0));
            continue;
        }
        ensure(state == BlockState::Free, "blocks")?;
        let (modified, closed) = (reader.take("modified")?, reader.take("closed")?);
        ensure(modified <= tick && closed <= tick, "blocks")?;
        saved.push((BlockState::Closed, wear, tick - modified, tick - closed));
    }
    ensure(sum == erases, "erases")?;
    Ok(Blocks::restore(geometry, &saved, tick))
}
