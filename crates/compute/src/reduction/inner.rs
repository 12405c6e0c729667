//! Common part of a dimension of all files, like `xarray.open_mfdataset(join="inner")`: the values of the coordinate that are in every
//! file, in the order of the first file. Selections have indices of the common part; [`to_own`] converts these to the indices of a file.

use std::rc::Rc;

use tidemill_format::IndexRange;

use super::error::Result;
use super::plan::{PlannedCoordinate, PlannedFile, alike};
use super::series::{is_same, lacking, of_coordinate, slack, units_differ};
use super::state::as_usize;
use super::task::DimensionTarget;

/// Index of a value that a file does not have.
const NONE: u64 = u64::MAX;

/// Finds the common part of a dimension of all files.
///
/// # Errors
/// If the coordinates cannot be compared, or if no value is in all files.
pub(super) fn intersect(files: &mut [PlannedFile<'_>], dimension: usize) -> Result<()> {
    let Some(first) = files[0].shared(dimension)? else {
        return without(files, dimension);
    };
    let mut is_in_all = vec![true; first.values.len()];
    // For each file, the index of each value of the first file; `None` if the file has the same values.
    let mut places: Vec<Option<Vec<u64>>> = vec![None];
    for place in 1..files.len() {
        let other = files[place].shared(dimension)?;
        let wrong = |why: &str| of_coordinate(&files[0], &files[place], dimension, why);
        let Some(other) = other else {
            return Err(wrong(&lacking(true)));
        };
        if let Some(why) = units_differ(&first, &other) {
            return Err(wrong(&why));
        }
        let found = found_in(&first, &other).map_err(|why| wrong(&why))?;
        if let Some(found) = &found {
            for (known, own) in is_in_all.iter_mut().zip(found) {
                *known &= *own != NONE;
            }
        }
        if !is_in_all.contains(&true) {
            return Err(wrong(
                "no value is in all files up to the former, and --join inner uses the common values",
            ));
        }
        places.push(found);
        files[place].forget(dimension);
    }
    if places.iter().all(Option::is_none) {
        return Ok(());
    }
    let kept = |all: &mut dyn Iterator<Item = u64>| -> Rc<[u64]> {
        let kept = all.zip(&is_in_all).filter(|(_, is_kept)| **is_kept);
        kept.map(|(own, _)| own).collect()
    };
    let of_first = kept(&mut (0..first.values.len() as u64));
    let mut common = PlannedCoordinate::clone(&first);
    common.values = of_first
        .iter()
        .map(|own| first.values[as_usize(*own)])
        .collect();
    let common = Rc::new(common);
    for (file, places) in files.iter_mut().zip(places) {
        let own = places.map_or_else(|| of_first.clone(), |all| kept(&mut all.into_iter()));
        file.common.insert(dimension, own);
        file.adopt(dimension, Some(common.clone()));
    }
    Ok(())
}

/// Checks a dimension whose coordinate the first file does not have: its length must be the same in all files, and no file may have the
/// coordinate.
fn without(files: &mut [PlannedFile<'_>], dimension: usize) -> Result<()> {
    let size = |file: &PlannedFile<'_>| file.variable.dimensions[dimension].size;
    for place in 1..files.len() {
        let has = files[place].shared(dimension)?.is_some();
        files[place].forget(dimension);
        let why = match has {
            true => lacking(false),
            false if size(&files[place]) != size(&files[0]) => {
                "it has another length, and no values for --join inner to compare".to_owned()
            }
            false => continue,
        };
        return Err(of_coordinate(&files[0], &files[place], dimension, &why));
    }
    Ok(())
}

/// Returns the index in another file of each value of the first file; `None` if the two coordinates are the same. NaN is no value.
fn found_in(
    first: &PlannedCoordinate,
    other: &PlannedCoordinate,
) -> std::result::Result<Option<Vec<u64>>, String> {
    let others = alike(other, first.units.as_ref(), other.values.clone());
    let slack = slack(first, other);
    let same = |(one, two): (&f64, &f64)| !one.is_nan() && is_same(*one, *two, slack);
    if first.values.len() == others.len() && first.values.iter().zip(&others).all(same) {
        return Ok(None);
    }
    let mut sorted: Vec<(f64, u64)> = others.into_iter().zip(0..).collect();
    sorted.retain(|(value, _)| !value.is_nan());
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut taken = vec![false; sorted.len()];
    let mut found = Vec::with_capacity(first.values.len());
    for value in &first.values {
        let begin = sorted.partition_point(|(own, _)| !is_same(*own, *value, slack) && own < value);
        let here = sorted[begin..].iter();
        let count = here
            .take_while(|(own, _)| is_same(*own, *value, slack))
            .count();
        let is_twice = count > 1 || count == 1 && std::mem::replace(&mut taken[begin], true);
        if is_twice && !value.is_nan() {
            return Err(format!(
                "{} is twice in one of the files, and --join inner needs unique values",
                first.shown(*value)
            ));
        }
        found.push(match count {
            0 => NONE,
            _ => sorted[begin].1,
        });
    }
    Ok(Some(found))
}

/// Selected runs of one dimension, the target of each run, and its weights.
type SelectedRuns = (Vec<IndexRange>, Vec<DimensionTarget>, Vec<Vec<f64>>);

/// Converts the selection of a file from indices of the common part to the file's own indices; `weights` are those of one dimension.
pub(super) fn to_own(
    file: &mut PlannedFile<'_>,
    targets: &mut [Vec<DimensionTarget>],
    weights: &mut Option<(usize, Vec<Vec<f64>>)>,
) {
    for (dimension, common) in std::mem::take(&mut file.common) {
        let weighs = weights
            .as_mut()
            .filter(|(weighed, _)| *weighed == dimension);
        let before = weighs.as_ref().map(|(_, weights)| weights.as_slice());
        let (runs, leads, own) = turned(
            (&file.selection[dimension], &common),
            &targets[dimension],
            before,
        );
        file.selection[dimension] = runs;
        targets[dimension] = leads;
        if let Some((_, weights)) = weighs {
            *weights = own;
        }
    }
}

fn turned(
    (runs, common): (&[IndexRange], &[u64]),
    targets: &[DimensionTarget],
    weights: Option<&[Vec<f64>]>,
) -> SelectedRuns {
    let mut turned: SelectedRuns = Default::default();
    for (place, (run, target)) in runs.iter().zip(targets).enumerate() {
        let own = |index: u64| common.get(as_usize(run.start + index * run.step)).copied();
        let own: Vec<u64> = (0..run.count()).filter_map(own).collect();
        let mut begin = 0;
        while begin < own.len() {
            let range = ascending(&own[begin..]);
            let count = as_usize(range.count());
            turned.0.push(range);
            turned.1.push(match target {
                DimensionTarget::Reduced => DimensionTarget::Reduced,
                DimensionTarget::Kept(first) => DimensionTarget::Kept(first + begin as u64),
                DimensionTarget::Grouped(groups) => {
                    DimensionTarget::Grouped(groups[begin..begin + count].to_vec())
                }
            });
            if let Some(weights) = weights {
                turned.2.push(weights[place][begin..begin + count].to_vec());
            }
            begin += count;
        }
    }
    turned
}

/// Returns the longest run of the first indices that ascend by one step.
fn ascending(own: &[u64]) -> IndexRange {
    let step = match own {
        [one, two, ..] if two > one => two - one,
        _ => 1,
    };
    let goes_on = |pair: &&[u64]| pair[1] == pair[0].saturating_add(step);
    let more = own.windows(2).take_while(goes_on).count();
    IndexRange {
        start: own[0],
        end: own[more] + 1,
        step,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, step: u64) -> IndexRange {
        IndexRange { start, end, step }
    }

    #[test]
    fn inner_join_selection_becomes_index_runs_of_file() {
        // The selection has every second of ten common indices, from the second on.
        let common: Vec<u64> = vec![3, 4, 5, 6, 20, 21, 9, 8, 7, 30];
        let targets = [DimensionTarget::Kept(5)];
        let (runs, leads, _) = turned((&[range(1, 10, 2)], &common), &targets, None);
        // The file's indices are 4, 6, 21, 8, 30.
        assert_eq!(runs, [range(4, 7, 2), range(21, 22, 1), range(8, 31, 22)]);
        assert_eq!(
            leads,
            [
                DimensionTarget::Kept(5),
                DimensionTarget::Kept(7),
                DimensionTarget::Kept(8)
            ]
        );
        let groups = [DimensionTarget::Grouped(vec![0, 0, 1, 1])];
        let weights = [vec![0.5, 0.25, 1.0, 2.0]];
        let found = turned((&[range(3, 7, 1)], &common), &groups, Some(&weights));
        // The file's indices are 6, 20, 21, 9.
        assert_eq!(
            found.0,
            [range(6, 21, 14), range(21, 22, 1), range(9, 10, 1)]
        );
        let groups = [vec![0, 0], vec![1], vec![1]].map(DimensionTarget::Grouped);
        assert_eq!(found.1, groups);
        assert_eq!(found.2, [vec![0.5, 0.25], vec![1.0], vec![2.0]]);
    }
}
