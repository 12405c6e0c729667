//! From a query and the headers of files to what is folded of each.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use tidemill_format::time::Units;
use tidemill_format::{Bytes, Header, Range, Store, Variable};

use super::bins::{Binning, Wanted};
use super::error::{Error, Result};
use super::filters::{coding, keep};
use super::query::{By, Operation, Query, Select, What, bounds};
use super::ranks::Search;
use super::state::{State, as_usize};
use super::table::{Axis, Coordinate};
use super::task::{Target, Task, Wants};
use super::{CELLS_MAX, COORDINATE_MAX, FILES_MAX, STATE_BYTES_MAX, here};

/// A file whose header was read.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// What it is called in errors.
    pub name: &'a str,
    /// Its header.
    pub header: &'a Header,
    /// Where its coordinates are read.
    pub store: Store<'a>,
    /// The one file that has all of its bytes, if it is no folder.
    pub bytes: Option<&'a dyn Bytes>,
}

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What is folded of one file.
#[derive(Debug)]
pub struct FilePlan {
    /// Which of the inputs it is.
    pub input: usize,
    /// The variable.
    pub variable: Variable,
    /// What of it.
    pub selection: Vec<Range>,
    /// How.
    pub task: Task,
    /// What its numbers are scaled by, and what is added to them, before states merge.
    pub unpack: Option<(f64, f64)>,
}

/// What is done, and what the result looks like.
#[derive(Debug)]
pub struct Plan {
    /// File by file, those of which nothing is selected left out.
    pub files: Vec<FilePlan>,
    /// What is found.
    pub operation: Operation,
    pub(super) variable: String,
    pub(super) units: Option<String>,
    pub(super) ddof: u32,
    pub(super) quantiles: Vec<f64>,
    bins: Option<Wanted>,
    pub(super) axes: Vec<Axis>,
    whole: bool,
}

impl Plan {
    /// Lengths of the result.
    pub(super) fn shape(&self) -> Vec<u64> {
        self.axes.iter().map(|axis| axis.length).collect()
    }

    /// The search for quantiles, if any are wanted. Values of several types, or packed ones, are looked for as doubles.
    pub(super) fn search(&self) -> Option<Result<Search>> {
        if self.quantiles.is_empty() {
            return None;
        }
        let dtype = self.files[0].task.dtype;
        let plain = |file: &FilePlan| file.task.dtype == dtype && file.unpack.is_none();
        let real = !self.files.iter().all(plain);
        let cells = self.shape().iter().product();
        Some(Search::new(
            &self.quantiles,
            (dtype, real),
            cells,
            STATE_BYTES_MAX / 2,
        ))
    }

    /// The way to a histogram, if one is wanted.
    pub(super) fn binning(&self) -> Option<Result<Binning>> {
        let cells = self.shape().iter().product();
        self.bins.map(|wanted| Binning::new(wanted, cells))
    }

    /// A state of all of the result, with no values yet, of which that is kept.
    pub(super) fn state(&self, wants: Wants) -> State {
        let shape = self.shape();
        let task = self.files.first().map(|file| &file.task);
        State::empty(
            shape,
            self.whole,
            wants,
            task.is_some_and(|task| task.weights.is_some()),
        )
    }
}

pub(super) fn wants(operation: Operation) -> Wants {
    let (mut sum, mut extremes, mut moments) = (false, false, false);
    match operation {
        Operation::Count | Operation::Median | Operation::Quantile | Operation::Histogram => {}
        Operation::Min | Operation::Max | Operation::Range => extremes = true,
        Operation::Sum | Operation::Mean => sum = true,
        Operation::Stddev => moments = true,
        Operation::Stats => (sum, extremes, moments) = (true, true, true),
    }
    Wants {
        sum,
        extremes,
        moments,
    }
}

/// One file while it is planned.
struct File<'a> {
    input: usize,
    of: Input<'a>,
    variable: &'a Variable,
    /// Coordinates that were looked at, by dimension.
    coordinates: BTreeMap<usize, Option<Found>>,
    selection: Vec<Range>,
}

#[derive(Clone)]
struct Found {
    values: Vec<f64>,
    units: Option<Units>,
    coordinate: Coordinate,
}

fn last(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

impl<'a> File<'a> {
    fn error(&self, source: tidemill_format::Error) -> Error {
        Error::of(self.of.name, source)
    }

    fn names(&self) -> Vec<String> {
        self.variable
            .dimensions
            .iter()
            .map(|one| last(&one.name).to_owned())
            .collect()
    }

    fn dimension(&self, name: &str) -> Result<usize> {
        self.names()
            .iter()
            .position(|known| known == last(name))
            .ok_or_else(|| Error::NoDimension {
                file: self.of.name.into(),
                variable: self.variable.path.clone(),
                name: name.into(),
                there: self.names(),
            })
    }

    fn wrong(&self, dimension: usize, why: impl Into<String>) -> Error {
        let dimension = self.names().swap_remove(dimension);
        Error::Selection {
            file: self.of.name.into(),
            dimension,
            why: why.into(),
        }
    }

    /// The variable that has a dimension's name, in the group of the variable or one above.
    fn coordinate_variable(&self, dimension: usize) -> Option<&'a Variable> {
        let name = last(&self.variable.dimensions[dimension].name);
        let size = self.variable.dimensions[dimension].size;
        let mut group = self.variable.path.as_str();
        loop {
            group = group.rsplit_once('/').map_or("", |(above, _)| above);
            let path = if group.is_empty() {
                name.to_owned()
            } else {
                format!("{group}/{name}")
            };
            let found = self.of.header.variables.iter().find(|one| one.path == path);
            let found =
                found.filter(|one| one.dimensions.len() == 1 && one.dimensions[0].size == size);
            if found.is_some() || group.is_empty() {
                return found;
            }
        }
    }

    fn coordinate(&mut self, dimension: usize) -> Result<Option<&Found>> {
        if !self.coordinates.contains_key(&dimension) {
            let found = match self.coordinate_variable(dimension) {
                Some(variable) if variable.elements() <= COORDINATE_MAX => self.read(variable)?,
                _ => None,
            };
            self.coordinates.insert(dimension, found);
        }
        Ok(self.coordinates.get(&dimension).and_then(Option::as_ref))
    }

    fn read(&self, variable: &Variable) -> Result<Option<Found>> {
        // Text, for one, is no coordinate by value.
        if coding(self.of.name, variable, false).is_err() {
            return Ok(None);
        }
        let values = here::values(self.of, variable)?;
        let units = Units::of(variable).map_err(|source| self.error(source))?;
        let coordinate = Coordinate {
            values: Vec::new(),
            attributes: variable.attributes.clone(),
        };
        Ok(Some(Found {
            values,
            units,
            coordinate,
        }))
    }

    fn needed(&mut self, dimension: usize, what: &str) -> Result<Found> {
        let found = self.coordinate(dimension)?.cloned();
        let name = self.names().swap_remove(dimension);
        found.ok_or_else(|| {
            self.wrong(
                dimension,
                format!("there is no coordinate variable {name}, which {what} needs"),
            )
        })
    }

    /// A run of indices of one dimension, as values of its coordinate say.
    fn by_values(&mut self, dimension: usize, low: &str, high: &str) -> Result<Range> {
        let found = self.needed(dimension, "a selection by value (by index: [START:END])")?;
        let (least, most, through) =
            bounds(found.units.as_ref(), (low, high)).map_err(|why| self.wrong(dimension, why))?;
        let range = tidemill_format::time::between(&found.values, least, most, through);
        range.ok_or_else(|| {
            let why = format!("{low} to {high} is not one run of its values, which go around or back; select by index: [START:END]");
            self.wrong(dimension, why)
        })
    }

    fn ends(&self, dimension: usize) -> String {
        match self.coordinates.get(&dimension).and_then(Option::as_ref) {
            Some(Found { values, units, .. }) if !values.is_empty() => {
                let text = |value: f64| match units.as_ref().and_then(|units| units.moment(value)) {
                    Some(moment) => moment.date.to_string(),
                    None => value.to_string(),
                };
                format!(
                    "its values go from {} to {}",
                    text(values[0]),
                    text(values[values.len() - 1])
                )
            }
            _ => format!(
                "it has {} indices",
                self.variable.dimensions[dimension].size
            ),
        }
    }
}

/// Plans a query over files, which are one along a dimension if they are several.
///
/// # Errors
/// If what is asked for is not there, or files don't fit together.
pub fn plan(query: &Query, inputs: &[Input<'_>]) -> Result<Plan> {
    let mut files = opened(query, inputs)?;
    let along = along(query, &mut files)?;
    select(query, &mut files, along)?;
    let every = files.len();
    let empty = files.iter().all(|file| file.variable.elements() == 0);
    match empty {
        true => check_empty(query, &files[0])?,
        false => {
            files.retain(|file| file.selection.iter().all(|range| range.count() > 0));
        }
    }
    if files.is_empty() {
        return Err(Error::Query(format!(
            "nothing of {} is selected in {every} files",
            query.variable
        )));
    }
    let first = &files[0];
    let rank = first.variable.dimensions.len();
    if query.weights.is_some() && !matches!(query.operation, Operation::Sum | Operation::Mean) {
        return Err(Error::Query(format!(
            "weights are for sum and mean, not for {}",
            query.operation
        )));
    }
    let grouped = match query.by {
        Some(by) => Some((by, time(&mut files[0], along)?)),
        None => None,
    };
    let over = match &query.over {
        None => (0..rank).collect(),
        Some(names) => names
            .iter()
            .map(|name| files[0].dimension(name))
            .collect::<Result<Vec<_>>>()?,
    };
    let mut targets = vec![Vec::new(); files.len()];
    let mut axes = Vec::new();
    for dimension in 0..rank {
        let (of, axis) = match grouped {
            Some((by, time)) if time == dimension => groups(&mut files, (dimension, along), by)?,
            _ if over.contains(&dimension) => (vec![Target::Reduced; files.len()], None),
            _ => kept(&mut files, (dimension, along))?,
        };
        axes.extend(axis);
        targets
            .iter_mut()
            .zip(of)
            .for_each(|(targets, target)| targets.push(target));
    }
    let cells = axes
        .iter()
        .fold(1_u64, |all, axis: &Axis| all.saturating_mul(axis.length));
    if cells > CELLS_MAX {
        return Err(Error::TooLarge(cells));
    }
    let mut planned = Vec::new();
    for (file, targets) in files.iter_mut().zip(targets) {
        planned.push(of_file(query, file, targets)?);
    }
    let mut plan = finished(query, planned, axes);
    if empty && query.operation == Operation::Count {
        plan.files.clear();
    }
    Ok(plan)
}

/// A variable of no values has a count of 0. What else there is of no values can be said only where values may follow.
fn check_empty(query: &Query, file: &File<'_>) -> Result<()> {
    let grows = |one: &tidemill_format::Dimension| one.size == 0 && one.unlimited;
    if query.operation == Operation::Count || file.variable.dimensions.iter().any(grows) {
        return Ok(());
    }
    Err(Error::Unsupported {
        file: file.of.name.into(),
        variable: file.variable.path.clone(),
        what: "a null dataspace or a dimension of length 0, which has a count only".into(),
    })
}

fn opened<'a>(query: &Query, inputs: &[Input<'a>]) -> Result<Vec<File<'a>>> {
    if inputs.is_empty() || inputs.len() > FILES_MAX {
        return Err(Error::Query(format!(
            "a reduction is of 1 to {FILES_MAX} files, not of {}",
            inputs.len()
        )));
    }
    let open = |(input, of): (usize, &Input<'a>)| {
        let found = of.header.find(&query.variable);
        let variable = found.map_err(|source| Error::of(of.name, source))?;
        Ok(File {
            input,
            of: *of,
            variable,
            coordinates: BTreeMap::new(),
            selection: Vec::new(),
        })
    };
    inputs.iter().enumerate().map(open).collect()
}

/// The dimension along which several files are one; puts them in its order.
fn along(query: &Query, files: &mut [File<'_>]) -> Result<Option<usize>> {
    let names = files[0].names();
    let along = match &query.along {
        Some(name) => files[0].dimension(name)?,
        None if files.len() == 1 => return Ok(None),
        None => {
            let unlimited = |file: &File<'_>| {
                file.variable
                    .dimensions
                    .iter()
                    .position(|one| one.unlimited)
            };
            let shape = files[0].variable.shape();
            let differs = |file: &File<'_>| {
                file.variable
                    .shape()
                    .iter()
                    .zip(&shape)
                    .position(|(a, b)| a != b)
            };
            unlimited(&files[0])
                .or_else(|| files.iter().find_map(differs))
                .unwrap_or(0)
        }
    };
    if names.is_empty() {
        return Err(Error::Query(format!(
            "{} has no dimensions: several files can't be one",
            query.variable
        )));
    }
    let shape = files[0].variable.shape();
    for file in &files[1..] {
        let fit = |place: usize| place == along || file.variable.shape()[place] == shape[place];
        if file.names() != names || !(0..names.len()).all(fit) {
            let why = format!(
                "{} is {names:?} {shape:?} in one and {:?} {:?} in the other, and only {} may differ",
                query.variable,
                file.names(),
                file.variable.shape(),
                names[along]
            );
            return Err(Error::Files {
                file: file.of.name.into(),
                other: files[0].of.name.into(),
                why,
            });
        }
    }
    // By coordinate where all have one; else as they were named.
    let mut starts = Vec::new();
    for file in &mut *files {
        let start = file.coordinate(along)?.and_then(|found| {
            let value = *found.values.first()?;
            Some(found.units.map_or(value, |units| units.seconds(value)))
        });
        starts.push((file.input, start));
    }
    if starts
        .iter()
        .all(|(_, start)| start.is_some_and(f64::is_finite))
    {
        let starts: BTreeMap<usize, f64> = starts
            .into_iter()
            .filter_map(|(input, start)| Some((input, start?)))
            .collect();
        files.sort_by(|a, b| starts[&a.input].total_cmp(&starts[&b.input]));
    }
    Ok(Some(along))
}

fn select(query: &Query, files: &mut [File<'_>], along: Option<usize>) -> Result<()> {
    for file in &mut *files {
        file.selection = file.variable.shape().into_iter().map(Range::all).collect();
    }
    let mut seen = Vec::new();
    for one in &query.select {
        let dimension = files[0].dimension(&one.dimension)?;
        if seen.contains(&dimension) {
            return Err(files[0].wrong(dimension, "it is selected twice"));
        }
        seen.push(dimension);
        if Some(dimension) == along {
            select_along(one, files, dimension)?;
            continue;
        }
        let size = files[0].variable.dimensions[dimension].size;
        let mut range = match &one.what {
            What::Values(low, high) => files[0].by_values(dimension, low, high)?,
            what => indices(&files[0], dimension, what, size)?,
        };
        if range.count() == 0 {
            let why = format!("nothing of it is selected; {}", files[0].ends(dimension));
            return Err(files[0].wrong(dimension, why));
        }
        range.step = one.step;
        files
            .iter_mut()
            .for_each(|file| file.selection[dimension] = range);
    }
    Ok(())
}

/// Selects along the dimension along which files are one: steps go on from one to the next.
fn select_along(one: &Select, files: &mut [File<'_>], dimension: usize) -> Result<()> {
    let size = |file: &File<'_>| file.variable.dimensions[dimension].size;
    let all: u64 = files.iter().map(size).sum();
    let (mut before, mut taken) = (0, 0);
    let run = match &one.what {
        What::Values(..) => Range::all(all),
        what => indices(&files[0], dimension, what, all)?,
    };
    for file in &mut *files {
        let length = size(file);
        let mut range = match &one.what {
            What::Values(low, high) => file.by_values(dimension, low, high)?,
            _ => {
                let place = |index: u64| index.clamp(before, before + length) - before;
                Range {
                    start: place(run.start),
                    end: place(run.end),
                    step: 1,
                }
            }
        };
        let skipped = (one.step - taken % one.step) % one.step;
        taken += range.count();
        range.start = (range.start + skipped).min(range.end);
        range.step = one.step;
        file.selection[dimension] = range;
        before += length;
    }
    if taken == 0 {
        let why = format!(
            "nothing of it is selected; in the first file {}",
            files[0].ends(dimension)
        );
        return Err(files[0].wrong(dimension, why));
    }
    Ok(())
}

fn indices(file: &File<'_>, dimension: usize, what: &What, size: u64) -> Result<Range> {
    let place = |index: i64| match index {
        0.. => Some(index.unsigned_abs()),
        _ => size.checked_sub(index.unsigned_abs()),
    };
    let outside = || file.wrong(dimension, format!("the indices lie outside: it has {size}"));
    let (start, end) = match what {
        What::Index(index) => {
            let start = place(*index).ok_or_else(outside)?;
            (start, start + 1)
        }
        What::Indices(start, end) => (
            place(start.unwrap_or(0)).ok_or_else(outside)?,
            end.map_or(Some(size), place).ok_or_else(outside)?,
        ),
        What::All | What::Values(..) => (0, size),
    };
    if end > size || start > end {
        return Err(outside());
    }
    Ok(Range {
        start,
        end,
        step: 1,
    })
}

/// The dimension whose coordinate is a time.
fn time(file: &mut File<'_>, along: Option<usize>) -> Result<usize> {
    let rank = file.variable.dimensions.len();
    for dimension in along.into_iter().chain(0..rank) {
        if file
            .coordinate(dimension)?
            .is_some_and(|found| found.units.is_some())
        {
            return Ok(dimension);
        }
    }
    Err(Error::Query(format!(
        "no dimension of {} has times (a coordinate variable with units such as days since 1850-01-01), which grouping needs",
        file.variable.path
    )))
}

/// What of a coordinate is selected.
fn chosen(values: &[f64], range: Range) -> Vec<f64> {
    let index = |place: u64| as_usize(range.start + place * range.step);
    (0..range.count())
        .filter_map(|place| values.get(index(place)).copied())
        .collect()
}

type Led = (Vec<Target>, Option<Axis>);

/// Times in the units of another file.
fn alike(found: &Found, as_first: Option<&Units>, values: Vec<f64>) -> Vec<f64> {
    match (found.units, as_first) {
        (Some(units), Some(first)) if units != *first => values
            .into_iter()
            .map(|value| first.value(units.seconds(value)))
            .collect(),
        _ => values,
    }
}

fn kept(files: &mut [File<'_>], (dimension, along): (usize, Option<usize>)) -> Result<Led> {
    let name = files[0].names().swap_remove(dimension);
    let first = files[0].coordinate(dimension)?.cloned();
    let units = first.as_ref().and_then(|found| found.units);
    let mut coordinate = first.map(|found| found.coordinate);
    let (mut targets, mut length) = (Vec::new(), 0);
    for (place, file) in files.iter_mut().enumerate() {
        let range = file.selection[dimension];
        if Some(dimension) != along && place > 0 {
            targets.push(Target::Kept(0));
            continue;
        }
        targets.push(Target::Kept(length));
        length += range.count();
        if let Some(coordinate) = &mut coordinate {
            match file.coordinate(dimension)? {
                Some(found) => coordinate.values.extend(alike(
                    found,
                    units.as_ref(),
                    chosen(&found.values, range),
                )),
                None => {
                    return Err(file.wrong(
                        dimension,
                        "the first file has a coordinate variable, this one has none",
                    ));
                }
            }
        }
    }
    Ok((
        targets,
        Some(Axis {
            name,
            length,
            coordinate,
            labels: None,
        }),
    ))
}

fn groups(
    files: &mut [File<'_>],
    (dimension, along): (usize, Option<usize>),
    by: By,
) -> Result<Led> {
    let name = files[0].names().swap_remove(dimension);
    let first = files[0].needed(dimension, "grouping")?;
    let mut of_files = Vec::new();
    let mut all: BTreeMap<i64, f64> = BTreeMap::new();
    for (place, file) in files.iter_mut().enumerate() {
        if Some(dimension) != along && place > 0 {
            break;
        }
        let range = file.selection[dimension];
        let found = file.needed(dimension, "grouping")?;
        let values = chosen(&found.values, range);
        let group = |value: &f64| Some(by.group(&found.units?.moment(*value)?));
        let groups: Option<Vec<i64>> = values.iter().map(group).collect();
        let groups =
            groups.ok_or_else(|| file.wrong(dimension, "it has values that are no times"))?;
        for (group, value) in groups
            .iter()
            .zip(alike(&found, first.units.as_ref(), values))
        {
            let least = all.entry(*group).or_insert(value);
            *least = least.min(value);
        }
        of_files.push(groups);
    }
    let numbers: BTreeMap<i64, u32> = all
        .keys()
        .zip(0..)
        .map(|(group, number)| (*group, number))
        .collect();
    let table =
        |groups: &Vec<i64>| Target::Grouped(groups.iter().map(|group| numbers[group]).collect());
    let targets = (0..files.len())
        .map(|place| table(&of_files[place.min(of_files.len() - 1)]))
        .collect();
    let labels = all.keys().map(|group| by.label(*group)).collect();
    let of_year = matches!(by, By::SeasonOfYear | By::MonthOfYear | By::HourOfDay);
    let (name, coordinate) = if of_year {
        let short = by.name().trim_start_matches("climatological-");
        let more = i64::from(by == By::MonthOfYear);
        #[expect(clippy::cast_precision_loss, reason = "at most 24")]
        let values = all.keys().map(|group| (group + more) as f64).collect();
        (
            short.to_owned(),
            Coordinate {
                values,
                attributes: Vec::new(),
            },
        )
    } else {
        (
            name,
            Coordinate {
                values: all.values().copied().collect(),
                attributes: first.coordinate.attributes,
            },
        )
    };
    let axis = Axis {
        name,
        length: all.len() as u64,
        coordinate: Some(coordinate),
        labels: Some(labels),
    };
    Ok((targets, Some(axis)))
}

fn of_file(query: &Query, file: &mut File<'_>, targets: Vec<Target>) -> Result<FilePlan> {
    let meaning = file.variable.meaning(file.of.header.format);
    let meaning = meaning.map_err(|source| file.error(source))?;
    let coding = coding(file.of.name, file.variable, meaning.unsigned)?;
    let weights = match &query.weights {
        None => None,
        Some(name) => {
            let dimension = file.dimension(name)?;
            let range = file.selection[dimension];
            let found = file.needed(dimension, "a weight")?;
            if found
                .values
                .iter()
                .any(|value| !(-90.1..=90.1).contains(value))
            {
                return Err(file.wrong(
                    dimension,
                    "its values are no latitudes in degrees, of which weights are the cosine",
                ));
            }
            let weight = |value: f64| (value * PI / 180.0).cos();
            let weights = chosen(&found.values, range)
                .into_iter()
                .map(weight)
                .collect();
            Some((u32::try_from(dimension).unwrap_or(u32::MAX), weights))
        }
    };
    let keep = keep(&meaning);
    let unpack = match (meaning.scale_factor, meaning.add_offset) {
        (None, None) => None,
        (scale, offset) => Some((scale.unwrap_or(1.0), offset.unwrap_or(0.0))),
    };
    Ok(FilePlan {
        input: file.input,
        variable: file.variable.clone(),
        selection: file.selection.clone(),
        task: Task {
            dtype: coding.dtype,
            big_endian: coding.big_endian,
            filters: coding.filters,
            order: coding.order,
            fill: coding.fill,
            keep,
            wants: wants(query.operation),
            targets,
            weights,
            counted: None,
        },
        unpack,
    })
}

fn finished(query: &Query, mut files: Vec<FilePlan>, axes: Vec<Axis>) -> Plan {
    use crate::array::Dtype;
    let real = |file: &FilePlan| matches!(file.task.dtype, Dtype::Float32 | Dtype::Float64);
    let whole = files
        .iter()
        .all(|file| !real(file) && file.unpack.is_none());
    for file in files.iter_mut().filter(|file| !whole && !real(file)) {
        file.unpack.get_or_insert((1.0, 0.0));
    }
    Plan {
        operation: query.operation,
        variable: query.variable.trim_matches('/').to_owned(),
        units: files[0].variable.text("units").map(str::to_owned),
        ddof: query.ddof,
        quantiles: query.wanted(),
        bins: (query.operation == Operation::Histogram).then_some(query.bins),
        axes,
        whole,
        files,
    }
}
