//! Checks whether several files are a series or the members of an ensemble, and determines their order.

use std::collections::BTreeMap;

use super::error::{Error, Result};
use super::inner;
use super::plan::{PlannedCoordinate, PlannedFile, alike};
use super::query::{IndexSelection, JoinRule, ReductionQuery};

/// Maximum difference between two times that count as the same, in seconds.
const SAME_TIME: f64 = 5e-4;

/// Checks that the files fit together, and sorts them along the dimension along which they are joined.
pub(super) fn check(
    query: &ReductionQuery,
    files: &mut [PlannedFile<'_>],
    along: Option<usize>,
    notes: &mut Vec<String>,
) -> Result<()> {
    if files.len() == 1 {
        return Ok(());
    }
    variables(query, files, notes)?;
    let others = (0..files[0].variable.dimensions.len()).filter(|one| Some(*one) != along);
    for dimension in others.clone() {
        match query.join {
            JoinRule::Exact => same_coordinate(files, dimension)?,
            JoinRule::Inner => inner::intersect(files, dimension)?,
            JoinRule::Override => {}
        }
    }
    if let Some(along) = along {
        sorted(query, files, along)?;
    }
    for dimension in others {
        let name = files[0].names().swap_remove(dimension);
        let weighs = query.weights.as_deref().map(super::plan::last) == Some(name.as_str());
        if weighs || query.join != JoinRule::Exact {
            let first = files[0].shared(dimension)?;
            for file in &mut files[1..] {
                file.adopt(dimension, first.clone());
            }
        }
    }
    Ok(())
}

fn unfit(one: &PlannedFile<'_>, other: &PlannedFile<'_>, why: String) -> Error {
    Error::Files {
        file: other.of.name.into(),
        other: one.of.name.into(),
        why,
    }
}

pub(super) fn of_coordinate(
    one: &PlannedFile<'_>,
    other: &PlannedFile<'_>,
    dimension: usize,
    why: &str,
) -> Error {
    let name = one.names().swap_remove(dimension);
    unfit(one, other, format!("coordinate {name}: {why}"))
}

/// Checks that the variable has the same unit in all files; values of several types are read as doubles, which is noted.
fn variables(
    query: &ReductionQuery,
    files: &[PlannedFile<'_>],
    notes: &mut Vec<String>,
) -> Result<()> {
    let first = &files[0];
    let units = |file: &PlannedFile<'_>| {
        file.variable
            .text("units")
            .map(|text| text.trim().to_owned())
    };
    let kind = |file: &PlannedFile<'_>| file.variable.data_type.name();
    for file in &files[1..] {
        match (units(first), units(file)) {
            (Some(one), Some(other)) if one != other => {
                let why = format!(
                    "the units of {} are {one:?} in {} and {other:?} in {}",
                    query.variable, first.of.name, file.of.name
                );
                return Err(unfit(first, file, why));
            }
            _ => {}
        }
    }
    if let Some(other) = files.iter().find(|file| units(file) != units(first)) {
        notes.push(format!(
            "{} has units in one of {} and {} and none in the other: they are treated as the same",
            query.variable, first.of.name, other.of.name
        ));
    }
    if let Some(other) = files.iter().find(|file| kind(file) != kind(first)) {
        notes.push(format!(
            "{} is {} in {} and {} in {}: floats and integers together are read as float64, integers as integers of 64 bits",
            query.variable,
            kind(first),
            first.of.name,
            kind(other),
            other.of.name
        ));
    }
    Ok(())
}

/// Checks that a coordinate is the same in all files.
fn same_coordinate(files: &mut [PlannedFile<'_>], dimension: usize) -> Result<()> {
    let first = files[0].coordinate(dimension)?.cloned();
    for place in 1..files.len() {
        let other = files[place].coordinate(dimension)?.cloned();
        let why = match (&first, &other) {
            (None, None) => None,
            (Some(first), Some(other)) => {
                units_differ(first, other).or_else(|| values_differ(first, other))
            }
            (has, _) => Some(lacking(has.is_some())),
        };
        if let Some(why) = why {
            return Err(of_coordinate(&files[0], &files[place], dimension, &why));
        }
        files[place].forget(dimension);
    }
    Ok(())
}

pub(super) fn lacking(first_has: bool) -> String {
    let (has, lacks) = if first_has {
        ("latter", "former")
    } else {
        ("former", "latter")
    };
    format!("the {has} has readable values for it, and the {lacks} has none")
}

pub(super) fn text<'a>(found: &'a PlannedCoordinate, name: &str) -> Option<&'a str> {
    super::write::text(&found.coordinate.attributes, name)
}

/// Returns the units of a coordinate, in one spelling of degrees.
pub(super) fn spelt(units: &str) -> &str {
    match units.trim() {
        "degrees_north" | "degree_north" | "degrees_N" | "degree_N" | "degreesN" | "degreeN" => {
            "degrees_north"
        }
        "degrees_east" | "degree_east" | "degrees_E" | "degree_E" | "degreesE" | "degreeE" => {
            "degrees_east"
        }
        other => other,
    }
}

/// Returns the reason why numbers of two coordinates cannot be compared.
pub(super) fn units_differ(first: &PlannedCoordinate, other: &PlannedCoordinate) -> Option<String> {
    let units = |found| text(found, "units").unwrap_or_default();
    let calendar = |found| text(found, "calendar").unwrap_or("standard");
    let differ = || {
        Some(format!(
            "its units are {:?} in the latter and {:?} in the former",
            units(first),
            units(other)
        ))
    };
    match (&first.units, &other.units) {
        (Some(one), Some(two)) => {
            let seconds = first.values.iter().map(|value| one.seconds(*value));
            let seconds = seconds.chain(other.values.iter().map(|value| two.seconds(*value)));
            let from = seconds.filter(|one| one.is_finite()).reduce(f64::min);
            let same = one.same_calendar(two, from.unwrap_or(f64::NEG_INFINITY));
            (!same).then(|| {
                format!(
                    "its calendar is {} in the latter and {} in the former",
                    calendar(first),
                    calendar(other)
                )
            })
        }
        (None, None) if first.odd.is_some() || other.odd.is_some() => {
            let same = units(first) == units(other) && calendar(first) == calendar(other);
            if same { None } else { differ() }
        }
        (None, None) => {
            let (one, two) = (spelt(units(first)), spelt(units(other)));
            let same = one == two || one.is_empty() || two.is_empty();
            if same { None } else { differ() }
        }
        _ => differ(),
    }
}

/// Returns the maximum difference between two coordinate values that count as the same.
pub(super) fn slack(first: &PlannedCoordinate, other: &PlannedCoordinate) -> f64 {
    let largest = first.values.iter().chain(&other.values);
    let largest = largest
        .map(|value| value.abs())
        .filter(|value| value.is_finite())
        .fold(0.0, f64::max);
    let part = if first.single || other.single {
        2.5e-7
    } else {
        1e-12
    };
    (part * largest).max(first.slack).max(other.slack)
}

pub(super) fn is_same(one: f64, two: f64, slack: f64) -> bool {
    one.total_cmp(&two).is_eq() || one.is_nan() && two.is_nan() || (one - two).abs() <= slack
}

fn values_differ(first: &PlannedCoordinate, other: &PlannedCoordinate) -> Option<String> {
    let own = &first.values;
    let others = alike(other, first.units.as_ref(), other.values.clone());
    let slack = slack(first, other);
    let same = |(one, two): (&f64, &f64)| is_same(*one, *two, slack);
    let place = own.iter().zip(&others).position(|pair| !same(pair))?;
    let (Some(last), Some(other_last)) = (own.last(), others.last()) else {
        return None;
    };
    let ends = (first.shown(own[0]), first.shown(*last));
    let other_ends = (first.shown(others[0]), first.shown(*other_last));
    Some(if own.iter().zip(others.iter().rev()).all(same) {
        format!(
            "its values go from {} to {} in the latter, and the other way around, from {} to {}, in the former",
            ends.0, ends.1, other_ends.0, other_ends.1
        )
    } else {
        format!(
            "its value at index {place} is {} in the latter and {} in the former (--join override uses those of the first file, \
             --join inner the common values)",
            first.shown(own[place]),
            first.shown(others[place])
        )
    })
}

/// Sorts files by their coordinate, if they have one, and checks that they form one series along the coordinate.
fn sorted(query: &ReductionQuery, files: &mut [PlannedFile<'_>], along: usize) -> Result<()> {
    let mut known = BTreeMap::new();
    for file in &mut *files {
        let found = file.coordinate(along)?.cloned();
        known.insert(file.input, found);
    }
    let has = |file: &PlannedFile<'_>| known.get(&file.input).and_then(Option::as_ref);
    let Some(first) = has(&files[0]) else {
        return match files.iter().find(|file| has(file).is_some()) {
            Some(other) => Err(of_coordinate(&files[0], other, along, &lacking(false))),
            None => Ok(()),
        };
    };
    let mut keys: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for file in &*files {
        let Some(found) = has(file) else {
            return Err(of_coordinate(&files[0], file, along, &lacking(true)));
        };
        if let Some(why) = units_differ(first, found) {
            return Err(of_coordinate(&files[0], file, along, &why));
        }
        let key = |value: &f64| found.units.map_or(*value, |units| units.seconds(*value));
        let own: Vec<f64> = found.values.iter().map(key).collect();
        if let Some(units) = first.units {
            let values = alike(found, Some(&units), found.values.clone());
            let exact = |(value, key): (&f64, &f64)| {
                !key.is_finite() || (units.seconds(*value) - key).abs() <= SAME_TIME
            };
            if !values.iter().zip(&own).all(exact) {
                let why = "its times can't be written exactly in the units of the latter";
                return Err(of_coordinate(&files[0], file, along, why));
            }
        }
        let finite = own.into_iter().filter(|key| key.is_finite()).collect();
        keys.insert(file.input, finite);
    }
    let largest = keys
        .values()
        .flatten()
        .fold(0.0, |all: f64, key| all.max(key.abs()));
    let near = match first.units {
        Some(_) => SAME_TIME,
        None if known.values().flatten().any(|found| found.single) => 2.5e-7 * largest,
        None => 1e-12 * largest,
    };
    twice(files, (&keys, near), along, first)?;
    let mut lengths = keys.values().filter(|keys| keys.len() > 1).peekable();
    let descends = lengths.peek().is_some() && lengths.all(|keys| keys[0] > keys[keys.len() - 1]);
    let sign = if descends { -1.0 } else { 1.0 };
    let start = |file: &PlannedFile<'_>| {
        let first = keys.get(&file.input).and_then(|keys| keys.first());
        first.map_or(f64::INFINITY, |key| sign * key)
    };
    files.sort_by(|one, other| start(one).total_cmp(&start(other)));
    in_order(query, files, &keys, along)
}

/// Checks that no value of the coordinate is in two files.
fn twice(
    files: &[PlannedFile<'_>],
    (keys, near): (&BTreeMap<usize, Vec<f64>>, f64),
    along: usize,
    first: &PlannedCoordinate,
) -> Result<()> {
    let each = |(input, keys): (&usize, &Vec<f64>)| {
        keys.iter().map(|key| (*key, *input)).collect::<Vec<_>>()
    };
    let mut all: Vec<(f64, usize)> = keys.iter().flat_map(each).collect();
    all.sort_by(|one, other| one.0.total_cmp(&other.0));
    let pair = all.windows(2).find(|pair| {
        let [one, two] = pair else { return false };
        one.1 != two.1 && is_same(one.0, two.0, near)
    });
    let Some([one, two]) = pair else {
        return Ok(());
    };
    let (low, high) = (one.1.min(two.1), one.1.max(two.1));
    let of = |input: usize| files.iter().find(|file| file.input == input);
    let (Some(one_file), Some(other)) = (of(low), of(high)) else {
        return Ok(());
    };
    let value = first.units.map_or(one.0, |units| units.value(one.0));
    let why = format!(
        "both have {}; leave one of them out, or give --ensemble if the files are members, not a series",
        first.shown(value)
    );
    Err(of_coordinate(one_file, other, along, &why))
}

/// Checks, if the order matters, that no file begins before the previous file ends.
fn in_order(
    query: &ReductionQuery,
    files: &[PlannedFile<'_>],
    keys: &BTreeMap<usize, Vec<f64>>,
    along: usize,
) -> Result<()> {
    let name = files[0].names().swap_remove(along);
    let is_kept = query.by.is_none()
        && query
            .over
            .as_ref()
            .is_some_and(|over| !over.iter().any(|one| super::plan::last(one) == name));
    let by_index = query.select.iter().any(|one| {
        super::plan::last(&one.dimension) == name
            && (one.step > 1
                || !matches!(one.what, IndexSelection::Values(..) | IndexSelection::All))
    });
    if !is_kept && !by_index {
        return Ok(());
    }
    let span = |file: &PlannedFile<'_>| {
        let keys = keys.get(&file.input)?;
        let low = keys.iter().copied().reduce(f64::min)?;
        Some((low, keys.iter().copied().reduce(f64::max)?))
    };
    let has_none =
        |file: &&PlannedFile<'_>| file.variable.dimensions[along].size > 0 && span(file).is_none();
    if let Some(other) = files.iter().find(has_none) {
        let known = files.iter().find(|file| file.input != other.input);
        let why =
            "the former has no value for it at all, and the result needs the order of the files";
        return Err(of_coordinate(known.unwrap_or(other), other, along, why));
    }
    for pair in files.windows(2) {
        let (Some(one), Some(two)) = (span(&pair[0]), span(&pair[1])) else {
            continue;
        };
        if one.0 < two.1 && two.0 < one.1 {
            let why =
                "the values of the two files are interleaved, and the result needs their order";
            return Err(of_coordinate(&pair[0], &pair[1], along, why));
        }
    }
    Ok(())
}
