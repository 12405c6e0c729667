//! B-trees of HDF5: version 1 (old groups, old indices of chunks) and version 2 (many links, attributes, chunks).

use super::file::Hdf5File;
use super::heap::bytes_for;
use crate::bytes::Cursor;
use crate::{Error, Result};

/// Maximum number of levels of a B-tree.
const LEVELS_MAX: u8 = 32;

/// Calls `leaf` for each child of the leaves of a B-tree of version 1, with the key before the child.
pub(super) fn each1(
    file: &mut Hdf5File<'_>,
    address: u64,
    key_len: usize,
    leaf: &mut dyn FnMut(&mut Hdf5File<'_>, Cursor, u64) -> Result<()>,
) -> Result<()> {
    each1_below(file, address, key_len, None, leaf)
}

fn each1_below(
    file: &mut Hdf5File<'_>,
    address: u64,
    key_len: usize,
    level: Option<u8>,
    leaf: &mut dyn FnMut(&mut Hdf5File<'_>, Cursor, u64) -> Result<()>,
) -> Result<()> {
    let what = "HDF5 B-tree";
    let head_len = 8 + 2 * file.offsets;
    let mut head = file.cursor(address, head_len as u64, what)?;
    head.expect(b"TREE")?;
    head.skip(1)?;
    let found = head.u8()?;
    let entries = usize::from(head.u16()?);
    if level.is_some_and(|level| level != found) || found > LEVELS_MAX {
        return Err(head.corrupt(format!("a node of level {found} at an impossible place")));
    }
    let len = (entries * (key_len + file.offsets)) as u64;
    let mut node = file.cursor(address.saturating_add(head_len as u64), len, what)?;
    for _ in 0..entries {
        let key = node.part(key_len, "key of an HDF5 B-tree")?;
        let child = file
            .address(&mut node)?
            .ok_or_else(|| node.corrupt("a child without an address"))?;
        match found {
            0 => leaf(file, key, child)?,
            _ => each1_below(file, child, key_len, Some(found - 1), leaf)?,
        }
    }
    Ok(())
}

struct Tree2 {
    record: usize,
    /// Size in bytes, for each level, of the field for the number of all records below a node.
    totals: Vec<usize>,
    count_len: usize,
}

/// Calls `each` for all records of a B-tree of version 2, with the length of a record.
pub(super) fn each2(
    file: &mut Hdf5File<'_>,
    address: u64,
    mut each: impl FnMut(&mut Cursor, usize) -> Result<()>,
) -> Result<()> {
    let mut head = file.some(address, 64, "HDF5 B-tree")?;
    head.expect(b"BTHD")?;
    head.skip(2)?;
    let node_size = u64::from(head.u32()?);
    let record = usize::from(head.u16()?);
    let depth = head.u16()?;
    head.skip(2)?;
    let root = file.address(&mut head)?;
    let count = u64::from(head.u16()?);
    let depth = u8::try_from(depth)
        .ok()
        .filter(|depth| *depth <= LEVELS_MAX);
    let (Some(depth), true) = (depth, record > 0 && node_size > 10 + record as u64) else {
        return Err(head.corrupt("impossible nodes"));
    };
    let leaf_max = (node_size - 10) / record as u64;
    let count_len = bytes_for(leaf_max);
    let (mut most, mut totals) = (leaf_max, vec![0]);
    for level in 1..=depth {
        let pointer = (file.offsets + count_len + totals[usize::from(level) - 1]) as u64;
        let fit = node_size.saturating_sub(10 + pointer) / (record as u64 + pointer);
        most = (fit + 1).saturating_mul(most).saturating_add(fit);
        totals.push(bytes_for(most));
    }
    let tree = Tree2 {
        record,
        totals,
        count_len,
    };
    match root {
        Some(root) => tree.node(file, root, count, depth, &mut each),
        None => Ok(()),
    }
}

impl Tree2 {
    fn node(
        &self,
        file: &mut Hdf5File<'_>,
        address: u64,
        count: u64,
        level: u8,
        each: &mut dyn FnMut(&mut Cursor, usize) -> Result<()>,
    ) -> Result<()> {
        let what = "HDF5 B-tree";
        // Children at the lowest level have no totals.
        let total_len = if level > 1 {
            self.totals[usize::from(level) - 1]
        } else {
            0
        };
        let pointer = if level == 0 {
            0
        } else {
            file.offsets + self.count_len + total_len
        };
        let records = count.saturating_mul(self.record as u64);
        let len = 6_u64
            .saturating_add(records)
            .saturating_add((count + 1).saturating_mul(pointer as u64));
        let mut node = file.cursor(address, len, what)?;
        node.expect(if level == 0 { b"BTLF" } else { b"BTIN" })?;
        node.skip(2)?;
        for _ in 0..count {
            each(
                &mut node.part(self.record, "record of an HDF5 B-tree")?,
                self.record,
            )?;
        }
        if level == 0 {
            return Ok(());
        }
        for _ in 0..=count {
            let child = file.address(&mut node)?;
            let below = node.uint(self.count_len)?;
            node.skip(total_len)?;
            let Some(child) = child else {
                return Err(Error::Corrupt {
                    what,
                    offset: node.offset(),
                    why: "a child without an address".into(),
                });
            };
            self.node(file, child, below, level - 1, each)?;
        }
        Ok(())
    }
}
