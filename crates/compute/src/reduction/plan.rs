//! Planning of a reduction: computes the work for each file from a query and the headers of files.

use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::rc::Rc;

use tidemill_format::time::Units;
use tidemill_format::{
    Attribute, Bytes, DataKind, Header, IndexRange, Value, Variable, VariableSource,
};

use super::bins::{Binning, WantedBins};
use super::choose::{self, ValueInterval};
use super::error::{Error, Result};
use super::filters::coding;
use super::periods;
use super::query::{
    DimensionSelection, IndexSelection, JoinRule, ReduceOperation, ReductionQuery, TimeAt,
    TimeGrouping, bounds,
};
use super::ranks::QuantileSearch;
use super::series;
use super::state::{BoxState, as_usize};
use super::table::{Coordinate, ResultAxis, Scalar};
use super::task::{DimensionTarget, ReductionTask, WantedResults};
use super::{COORDINATE_MAX, FILES_MAX, RESULT_MAX, STATE_BYTES_MAX, inner, local};

/// Input file of a reduction whose header was read.
#[derive(Clone, Copy)]
pub struct ReductionInput<'a> {
    /// Name of the file in errors.
    pub name: &'a str,
    /// Header of the file.
    pub header: &'a Header,
    /// Source of the file's coordinates.
    pub store: VariableSource<'a>,
    /// Bytes of the file; `None` if the input is a directory.
    pub bytes: Option<&'a dyn Bytes>,
}

impl std::fmt::Debug for ReductionInput<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Work of a reduction on one file.
#[derive(Debug)]
pub struct FilePlan {
    /// Number of the file among the inputs.
    pub input: usize,
    /// Variable that is reduced.
    pub variable: Variable,
    /// Selected part of the variable.
    pub selection: Vec<IndexRange>,
    /// Task that folds the values of the file.
    pub task: ReductionTask,
    /// Factor and summand that are applied to numbers before states are merged.
    pub unpack: Option<(f64, f64)>,
}

/// Work of a reduction, and description of its result.
#[derive(Debug)]
pub struct ReductionPlan {
    /// Work for each file; files without selected values are left out.
    pub files: Vec<FilePlan>,
    /// Requested result.
    pub operation: ReduceOperation,
    /// Notes for the user about the result: excluded values, and values that were treated as equal.
    pub notes: Vec<String>,
    pub(super) variable: String,
    pub(super) units: Option<String>,
    /// Attributes of the variable, and of the whole file, from the first file.
    pub(super) attributes: [Vec<Attribute>; 2],
    /// Reduced dimensions in the form of `cell_methods`: the text before the method, and the text after it.
    pub(super) methods: (String, String),
    /// Dimensions that the result does not have, if they have coordinate values.
    pub(super) scalars: Vec<Scalar>,
    /// Whether all values of the variable are 32-bit floats.
    pub(super) single: bool,
    pub(super) ddof: u32,
    pub(super) quantiles: Vec<f64>,
    bins: Option<WantedBins>,
    pub(super) axes: Vec<ResultAxis>,
    whole: bool,
}

impl ReductionPlan {
    /// Returns the shape of the reduction's result.
    pub(super) fn shape(&self) -> Vec<u64> {
        self.axes.iter().map(|axis| axis.length).collect()
    }

    /// Returns the search for quantiles, if any are requested. Values of several types, or packed values, are searched as doubles.
    pub(super) fn search(&self) -> Option<Result<QuantileSearch>> {
        if self.quantiles.is_empty() {
            return None;
        }
        let dtype = self.files[0].task.dtype;
        let plain = |file: &FilePlan| file.task.dtype == dtype && file.unpack.is_none();
        let real = !self.files.iter().all(plain);
        let cells = self.shape().iter().product();
        Some(QuantileSearch::new(
            &self.quantiles,
            (dtype, real),
            cells,
            STATE_BYTES_MAX / 2,
        ))
    }

    /// Returns the state of a histogram of `cells` cells, if a histogram is requested.
    pub(super) fn binning(&self, cells: u64) -> Option<Result<Binning>> {
        self.bins.map(|wanted| Binning::new(wanted, cells))
    }

    /// Returns the number of requested bins, if any are requested.
    pub(super) fn bin_count(&self) -> Option<u32> {
        self.bins.map(|wanted| wanted.bins)
    }

    /// Returns the same plan with other files and other axes, without the attributes of the whole result.
    pub(super) fn with(&self, files: Vec<FilePlan>, axes: Vec<ResultAxis>) -> Self {
        Self {
            files,
            axes,
            operation: self.operation,
            variable: self.variable.clone(),
            units: None,
            attributes: [Vec::new(), Vec::new()],
            methods: (String::new(), String::new()),
            scalars: Vec::new(),
            notes: Vec::new(),
            quantiles: self.quantiles.clone(),
            ..*self
        }
    }

    /// Returns a state without values that keeps the given results.
    pub(super) fn state(&self, wants: WantedResults, shape: Vec<u64>) -> BoxState {
        let task = self.files.first().map(|file| &file.task);
        BoxState::empty(
            shape,
            self.whole,
            wants,
            task.is_some_and(|task| task.weights.is_some()),
        )
    }
}

pub(super) fn wants(operation: ReduceOperation) -> WantedResults {
    let (mut sum, mut extremes, mut moments) = (false, false, false);
    match operation {
        ReduceOperation::Count
        | ReduceOperation::Median
        | ReduceOperation::Quantile
        | ReduceOperation::Histogram => {}
        ReduceOperation::Min | ReduceOperation::Max | ReduceOperation::Range => extremes = true,
        ReduceOperation::Sum | ReduceOperation::Mean => sum = true,
        ReduceOperation::Stddev => moments = true,
        ReduceOperation::Stats => (sum, extremes, moments) = (true, true, true),
    }
    WantedResults {
        sum,
        extremes,
        moments,
    }
}

/// Maximum number of boxes in the selection of one file.
const PARTS_MAX: usize = 4096;

/// Name of the dimension along which the files of an ensemble are joined.
const MEMBER: &str = "member";

/// File during the planning of a reduction.
pub(super) struct PlannedFile<'a> {
    pub(super) input: usize,
    pub(super) of: ReductionInput<'a>,
    pub(super) variable: &'a Variable,
    /// Coordinates that were read, by dimension.
    coordinates: BTreeMap<usize, Option<Rc<PlannedCoordinate>>>,
    /// Indices of the common part of all files, for dimensions whose parts differ between files.
    pub(super) common: BTreeMap<usize, Rc<[u64]>>,
    /// Runs of indices of each dimension, in the order of the result; they are indices of the common part.
    pub(super) selection: Vec<Vec<IndexRange>>,
}

/// Coordinate of a dimension during planning.
#[derive(Clone)]
pub(super) struct PlannedCoordinate {
    pub(super) values: Vec<f64>,
    pub(super) units: Option<Units>,
    /// Reason why the units of the coordinate are not supported, if its values are times.
    pub(super) odd: Option<String>,
    /// Whether the coordinate is stored as 32-bit floats.
    pub(super) single: bool,
    /// Maximum distance of a coordinate value from its exact number, which follows from the packing of values.
    pub(super) slack: f64,
    /// Whether some values are not those of the file, but longitudes of a selection.
    turned: bool,
    pub(super) coordinate: Coordinate,
}

impl PlannedCoordinate {
    /// Returns a coordinate value as text: the number, or the time that it stands for.
    pub(super) fn shown(&self, value: f64) -> String {
        let moment = self.units.and_then(|units| units.moment(value));
        moment.map_or_else(|| value.to_string(), |moment| moment.to_string())
    }

    fn is_longitude(&self, name: &str) -> bool {
        let text = |name| series::text(self, name);
        let units = text("units").unwrap_or_default();
        series::spelt(units) == "degrees_east"
            || text("standard_name") == Some("longitude")
            || matches!(name, "lon" | "longitude")
                && (units.is_empty() || units.starts_with("degree"))
    }
}

pub(super) fn last(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

impl<'a> PlannedFile<'a> {
    fn error(&self, source: tidemill_format::Error) -> Error {
        Error::of(self.of.name, source)
    }

    pub(super) fn names(&self) -> Vec<String> {
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

    /// Returns the number of indices of a dimension that can be selected.
    fn size(&self, dimension: usize) -> u64 {
        let own = self.variable.dimensions[dimension].size;
        self.common
            .get(&dimension)
            .map_or(own, |common| common.len() as u64)
    }

    pub(super) fn wrong(&self, dimension: usize, why: impl Into<String>) -> Error {
        let dimension = self.names().swap_remove(dimension);
        Error::Selection {
            file: self.of.name.into(),
            dimension,
            why: why.into(),
        }
    }

    /// Returns the variable with the name of a dimension, in the group of the variable or a parent group.
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

    pub(super) fn coordinate(&mut self, dimension: usize) -> Result<Option<&PlannedCoordinate>> {
        if !self.coordinates.contains_key(&dimension) {
            let found = match self.coordinate_variable(dimension) {
                Some(variable) if variable.elements() <= COORDINATE_MAX => self.read(variable)?,
                _ => None,
            };
            self.coordinates.insert(dimension, found.map(Rc::new));
        }
        Ok(self.coordinates.get(&dimension).and_then(Option::as_deref))
    }

    /// Returns the coordinate of a dimension in a form that other files can share.
    pub(super) fn shared(&mut self, dimension: usize) -> Result<Option<Rc<PlannedCoordinate>>> {
        self.coordinate(dimension)?;
        Ok(self.coordinates.get(&dimension).cloned().flatten())
    }

    /// Returns the coordinate of a dimension, if it has few values and they can be read.
    fn known(&mut self, dimension: usize) -> Option<Rc<PlannedCoordinate>> {
        match self.variable.dimensions[dimension].size <= SCALAR_MAX {
            true => self.shared(dimension).ok().flatten(),
            false => None,
        }
    }

    /// Uses the coordinate of another file for a dimension of this file.
    pub(super) fn adopt(&mut self, dimension: usize, coordinate: Option<Rc<PlannedCoordinate>>) {
        self.coordinates.insert(dimension, coordinate);
    }

    /// Drops the coordinate of a dimension that was read.
    pub(super) fn forget(&mut self, dimension: usize) {
        self.coordinates.remove(&dimension);
    }

    fn read(&self, variable: &Variable) -> Result<Option<PlannedCoordinate>> {
        // Text, for example, is no coordinate by value.
        if coding(self.of.name, variable, false).is_err() {
            return Ok(None);
        }
        let values = local::values(self.of, variable)?;
        let (units, odd) = match Units::of(variable) {
            Ok(units) => (units, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let meaning = variable.meaning(self.of.header.format);
        let scale = meaning.map_err(|source| self.error(source))?.scale_factor;
        let coordinate = Coordinate {
            values: Vec::new(),
            attributes: variable.attributes.clone(),
            bounds: None,
        };
        Ok(Some(PlannedCoordinate {
            values,
            units,
            odd,
            single: variable.data_type.kind == DataKind::Float && variable.data_type.size == 4,
            slack: scale.map_or(0.0, |scale| scale.abs() * 1e-6),
            turned: false,
            coordinate,
        }))
    }

    /// Returns start and end of the cell of each index, if the file contains them.
    pub(super) fn intervals(&self, dimension: usize) -> Result<Option<Vec<(f64, f64)>>> {
        let sorted = |(one, two): (f64, f64)| (one.min(two), one.max(two));
        let pairs = self.pairs(dimension)?;
        Ok(pairs.map(|all| all.into_iter().map(sorted).collect()))
    }

    /// Returns the bounds of each index as the file contains them, if any.
    fn pairs(&self, dimension: usize) -> Result<Option<Vec<(f64, f64)>>> {
        let Some(coordinate) = self.coordinate_variable(dimension) else {
            return Ok(None);
        };
        let Some(name) = coordinate.text("bounds") else {
            return Ok(None);
        };
        let beside = match coordinate.path.rsplit_once('/') {
            Some((group, _)) => format!("{group}/{name}"),
            None => name.to_owned(),
        };
        let size = self.variable.dimensions[dimension].size;
        let all = &self.of.header.variables;
        let found = all.iter().find(|one| one.path == beside);
        let found = found.filter(|one| {
            one.shape() == [size, 2]
                && size <= COORDINATE_MAX / 2
                && coding(self.of.name, one, false).is_ok()
        });
        let Some(found) = found else {
            return Ok(None);
        };
        let values = local::values(self.of, found)?;
        let pairs = values.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let pairs: Vec<(f64, f64)> = pairs.collect();
        Ok(Some(match self.common.get(&dimension) {
            Some(own) => own.iter().map(|index| pairs[as_usize(*index)]).collect(),
            None => pairs,
        }))
    }

    fn needed(&mut self, dimension: usize, what: &str) -> Result<PlannedCoordinate> {
        let found = self.coordinate(dimension)?.cloned();
        let name = self.names().swap_remove(dimension);
        found.ok_or_else(|| {
            self.wrong(
                dimension,
                format!("there is no coordinate variable {name}, which {what} needs"),
            )
        })
    }

    /// Selects the indices of one dimension by values of its coordinate. Selected longitudes are then those of the selection.
    fn by_values(
        &mut self,
        dimension: usize,
        (low, high): (&str, &str),
        at: Option<TimeAt>,
    ) -> Result<(Vec<IndexRange>, ValueInterval, usize)> {
        let found = self.needed(dimension, "a selection by value (by index: [START:END])")?;
        if let Some(odd) = &found.odd {
            return Err(self.wrong(dimension, odd));
        }
        let name = self.names().swap_remove(dimension);
        let is_longitude = found.units.is_none() && found.is_longitude(&name);
        let ends = bounds(found.units.as_ref(), (low, high), is_longitude)
            .map_err(|why| self.wrong(dimension, why))?;
        let span = ValueInterval::of(&found, ends);
        let chosen = if is_longitude {
            choose::by_longitudes(&found, span)
        } else {
            let key = |value: f64| value.is_finite().then(|| i64::from(span.has(value)));
            let stamps = periods::stamps(self, dimension, (&found, at), key)?;
            choose::by_values(&stamps, span)
        };
        let chosen =
            chosen.map_err(|why| self.wrong(dimension, format!("{low} to {high}: {why}")))?;
        if let (Some(values), Some(Some(own))) =
            (chosen.values, self.coordinates.get_mut(&dimension))
        {
            let own = Rc::make_mut(own);
            (own.values, own.turned) = (values, true);
        }
        Ok((chosen.runs, span, chosen.missing))
    }

    fn ends(&self, dimension: usize) -> String {
        match self.coordinates.get(&dimension).and_then(Option::as_deref) {
            Some(found) if !found.values.is_empty() => {
                let text =
                    |value: f64| match found.units.as_ref().and_then(|units| units.moment(value)) {
                        Some(moment) => moment.date.to_string(),
                        None => value.to_string(),
                    };
                format!(
                    "its values go from {} to {}",
                    text(found.values[0]),
                    text(found.values[found.values.len() - 1])
                )
            }
            _ => format!("it has {} indices", self.size(dimension)),
        }
    }

    /// Returns the selected values of a dimension's coordinate.
    fn selected(&mut self, dimension: usize) -> Result<Vec<f64>> {
        let runs = self.selection[dimension].clone();
        let found = self.coordinate(dimension)?;
        Ok(found.map_or_else(Vec::new, |found| chosen(&found.values, &runs)))
    }
}

/// Plans a query over files. Several files are joined along a dimension.
///
/// # Errors
/// If the requested data does not exist, or if files do not fit together.
pub fn plan(query: &ReductionQuery, inputs: &[ReductionInput<'_>]) -> Result<ReductionPlan> {
    let mut notes = Vec::new();
    let mut files = opened(query, inputs)?;
    let along = along(query, &files)?;
    series::check(query, &mut files, along, &mut notes)?;
    select(query, &mut files, along, &mut notes)?;
    let every = files.len();
    let empty = files.iter().all(|file| file.variable.elements() == 0);
    match empty {
        true => check_empty(query, &files[0])?,
        false => {
            let is_some = |runs: &Vec<IndexRange>| runs.iter().any(|range| range.count() > 0);
            retain(&mut files, along, |file| file.selection.iter().all(is_some));
        }
    }
    if files.is_empty() {
        return Err(Error::Query(format!(
            "no value of {} is selected in {every} files",
            query.variable
        )));
    }
    if query.weights.is_some()
        && !matches!(
            query.operation,
            ReduceOperation::Sum | ReduceOperation::Mean
        )
    {
        return Err(Error::Query(format!(
            "weights are for sum and mean, not for {}",
            query.operation
        )));
    }
    let grouped = match query.by {
        Some(by) => Some((by, time(&mut files[0], along)?)),
        None => None,
    };
    if let Some((_, time)) = grouped {
        leave_out_missing(&mut files, (time, along), &mut notes)?;
    }
    let over = over(query, &files[0])?;
    let time = grouped.map(|(_, time)| time);
    let scalars = scalars(query, &mut files, (along, time), &over);
    let methods = methods(query, &mut files, (along, time), &over)?;
    let (targets, axes) = led(query, &mut files, (along, grouped), &over)?;
    let mut planned = Vec::new();
    for (file, targets) in files.iter_mut().zip(targets) {
        planned.extend(of_file(query, file, targets)?);
    }
    let header = inputs[files[0].input].header;
    let mut plan = finished(query, planned, axes);
    (plan.notes, plan.methods, plan.scalars) = (notes, methods, scalars);
    plan.attributes = [
        files[0].variable.attributes.clone(),
        header.attributes.clone(),
    ];
    if empty && query.operation == ReduceOperation::Count {
        plan.files.clear();
    }
    Ok(plan)
}

/// Returns the targets of each run of each dimension of each file, and the dimensions of the result.
fn led(
    query: &ReductionQuery,
    files: &mut [PlannedFile<'_>],
    (along, grouped): (Option<usize>, Option<(TimeGrouping, usize)>),
    over: &[usize],
) -> Result<(Vec<Targets>, Vec<ResultAxis>)> {
    let mut targets = vec![Vec::new(); files.len()];
    let mut axes = Vec::new();
    for dimension in 0..files[0].variable.dimensions.len() {
        let (of, axis) = match grouped {
            Some((by, time)) if time == dimension => {
                groups(files, (dimension, along), (by, query.time_at))?
            }
            _ if over.contains(&dimension) => {
                let reduced = |file: &PlannedFile<'_>| {
                    vec![DimensionTarget::Reduced; file.selection[dimension].len()]
                };
                (files.iter().map(reduced).collect(), None)
            }
            _ => kept(files, (dimension, along))?,
        };
        axes.extend(axis);
        targets
            .iter_mut()
            .zip(of)
            .for_each(|(targets, target)| targets.push(target));
    }
    let cells = axes.iter().fold(1_u64, |all, axis: &ResultAxis| {
        all.saturating_mul(axis.length)
    });
    if cells > RESULT_MAX {
        return Err(Error::Query(format!(
            "the result has {cells} values, and at most {RESULT_MAX} are possible: reduce more dimensions, or select less"
        )));
    }
    Ok((targets, axes))
}

/// Checks a variable without values: its count is 0. Other results are allowed only if values may follow.
fn check_empty(query: &ReductionQuery, file: &PlannedFile<'_>) -> Result<()> {
    let grows = |one: &tidemill_format::Dimension| one.size == 0 && one.unlimited;
    if query.operation == ReduceOperation::Count || file.variable.dimensions.iter().any(grows) {
        return Ok(());
    }
    Err(Error::Unsupported {
        file: file.of.name.into(),
        variable: file.variable.path.clone(),
        what: "a null dataspace or a dimension of length 0, which has a count only".into(),
    })
}

/// Returns the dimensions that the query reduces.
fn over(query: &ReductionQuery, first: &PlannedFile<'_>) -> Result<Vec<usize>> {
    let Some(names) = &query.over else {
        return Ok((0..first.variable.dimensions.len()).collect());
    };
    let members = names.iter().filter(|name| *name == MEMBER).count();
    if query.ensemble && members == 0 {
        return Err(Error::Query(format!(
            "the files are members of an ensemble, which are reduced: name {MEMBER} among the dimensions, too"
        )));
    }
    let own = names
        .iter()
        .filter(|name| !query.ensemble || *name != MEMBER);
    own.map(|name| first.dimension(name)).collect()
}

/// Returns the reduced dimensions in the form of `cell_methods`, with the interval of their times if the interval is always the same.
fn methods(
    query: &ReductionQuery,
    files: &mut [PlannedFile<'_>],
    (along, grouped): (Option<usize>, Option<usize>),
    over: &[usize],
) -> Result<(String, String)> {
    let reduced: Vec<usize> = (0..files[0].variable.dimensions.len())
        .filter(|dimension| over.contains(dimension) || grouped == Some(*dimension))
        .collect();
    let mut before = String::new();
    for dimension in &reduced {
        let is_kept =
            grouped == Some(*dimension) && !query.by.is_some_and(TimeGrouping::is_of_all_years);
        let name = files[0].names().swap_remove(*dimension);
        before.push_str(&match is_kept {
            true => name,
            false => standard_name(&files[0], *dimension),
        });
        before.push_str(": ");
    }
    if query.ensemble {
        before.push_str("realization: ");
    }
    let mut notes = Vec::new();
    if let (&[only], false) = (&reduced[..], query.ensemble) {
        let mut seconds = Vec::new();
        let every = if along == Some(only) { files.len() } else { 1 };
        for file in &mut files[..every] {
            let values = file.selected(only)?;
            let found = file.coordinate(only)?;
            if let Some(units) = found.and_then(|found| found.units) {
                seconds.extend(values.into_iter().map(|value| units.seconds(value)));
            }
        }
        notes.extend(periods::interval(&seconds).map(|interval| format!("interval: {interval}")));
    }
    if let Some(weights) = &query.weights {
        // If the text is alone in the parentheses, it is a comment without the word.
        let word = if notes.is_empty() { "" } else { "comment: " };
        notes.push(format!("{word}weighted by the cosine of {weights}"));
    }
    let behind = match notes.is_empty() {
        true => String::new(),
        false => format!(" ({})", notes.join(" ")),
    };
    Ok((before, behind))
}

/// Maximum number of coordinate values of a reduced dimension that are read.
const SCALAR_MAX: u64 = 1 << 16;

/// Returns the coordinates of the dimensions that the result does not have: from the first to the last reduced value.
fn scalars(
    query: &ReductionQuery,
    files: &mut [PlannedFile<'_>],
    (along, grouped): (Option<usize>, Option<usize>),
    over: &[usize],
) -> Vec<Scalar> {
    let is_lost = |dimension: &usize| match grouped == Some(*dimension) {
        true => query.by.is_some_and(TimeGrouping::is_of_all_years),
        false => over.contains(dimension),
    };
    let lost = (0..files[0].variable.dimensions.len()).filter(is_lost);
    let scalar = |dimension: usize| {
        let name = standard_name(&files[0], dimension);
        let every = if along == Some(dimension) {
            files.len()
        } else {
            1
        };
        let names = files[0].names();
        let is_taken = |one: usize| one != dimension && names[one] == name;
        if files[0].variable.path == name || (0..names.len()).any(is_taken) {
            return None;
        }
        let first = files[0].known(dimension)?;
        let mut ends = (f64::INFINITY, f64::NEG_INFINITY);
        for (place, file) in files.iter_mut().enumerate().take(every) {
            let found = file.known(dimension)?;
            let runs = file.selection[dimension].clone();
            let mut values = chosen(&found.values, &runs);
            // The first and the last value have a start and an end, if the file has them.
            if (place == 0 || place + 1 == every) && !found.turned {
                let pairs = file.pairs(dimension).ok().flatten().unwrap_or_default();
                for which in [|pair: &(f64, f64)| pair.0, |pair: &(f64, f64)| pair.1] {
                    let of_all: Vec<f64> = pairs.iter().map(which).collect();
                    values.extend(chosen(&of_all, &runs));
                }
            }
            let values = alike(&found, first.units.as_ref(), values);
            for value in values.into_iter().filter(|value| value.is_finite()) {
                ends = (ends.0.min(value), ends.1.max(value));
            }
        }
        (ends.0 <= ends.1).then(|| Scalar {
            name,
            ends,
            attributes: first.coordinate.attributes.clone(),
        })
    };
    lost.filter_map(scalar).collect()
}

/// Returns the CF name of a dimension that the result does not have.
fn standard_name(file: &PlannedFile<'_>, dimension: usize) -> String {
    let name = file.names().swap_remove(dimension);
    let Some(variable) = file.coordinate_variable(dimension) else {
        return name;
    };
    match variable.text("standard_name").map(str::trim) {
        Some(known) if !known.is_empty() => known.to_owned(),
        _ if matches!(Units::of(variable), Ok(Some(_))) => "time".into(),
        _ => match series::spelt(variable.text("units").unwrap_or_default()) {
            "degrees_north" => "latitude".into(),
            "degrees_east" => "longitude".into(),
            _ => name,
        },
    }
}

/// Keeps only some files. The first of them then gets the coordinates of the previous first file, as they were selected.
fn retain<'a>(
    files: &mut Vec<PlannedFile<'a>>,
    along: Option<usize>,
    is_kept: impl Fn(&PlannedFile<'a>) -> bool,
) {
    let mut known = files[0].coordinates.clone();
    known.retain(|dimension, _| Some(*dimension) != along);
    files.retain(is_kept);
    if let Some(first) = files.first_mut() {
        first.coordinates.extend(known);
    }
}

/// Leaves out the indices of a time dimension that have no time.
fn leave_out_missing(
    files: &mut Vec<PlannedFile<'_>>,
    (time, along): (usize, Option<usize>),
    notes: &mut Vec<String>,
) -> Result<()> {
    let mut missing = 0;
    for place in 0..files.len() {
        if Some(time) != along && place > 0 {
            files[place].selection[time] = files[0].selection[time].clone();
            continue;
        }
        let file = &mut files[place];
        let before = file.selection[time].clone();
        let Some(found) = file.coordinate(time)? else {
            continue;
        };
        let is_missing = |index: u64| {
            found
                .values
                .get(as_usize(index))
                .is_some_and(|value| value.is_nan())
        };
        let left = choose::without(&before, is_missing);
        let left = left.map_err(|why| file.wrong(time, why))?;
        let count = |runs: &[IndexRange]| runs.iter().map(IndexRange::count).sum::<u64>();
        if count(&before) > count(&left) {
            missing += count(&before) - count(&left);
            file.selection[time] = left;
        }
    }
    if missing > 0 {
        let name = files[0].names().swap_remove(time);
        notes.push(format!(
            "{missing} indices of {name} have no time, and are left out"
        ));
        retain(files, along, |file| !file.selection[time].is_empty());
        if files.is_empty() {
            return Err(Error::Query(format!(
                "nothing is selected: no index of {name} has a time"
            )));
        }
    }
    Ok(())
}

fn opened<'a>(
    query: &ReductionQuery,
    inputs: &[ReductionInput<'a>],
) -> Result<Vec<PlannedFile<'a>>> {
    if inputs.is_empty() || inputs.len() > FILES_MAX {
        return Err(Error::Query(format!(
            "a reduction has 1 to {FILES_MAX} files, not {}",
            inputs.len()
        )));
    }
    let open = |(input, of): (usize, &ReductionInput<'a>)| {
        let found = of.header.find(&query.variable);
        let variable = found.map_err(|source| Error::of(of.name, source))?;
        Ok(PlannedFile {
            input,
            of: *of,
            variable,
            coordinates: BTreeMap::new(),
            common: BTreeMap::new(),
            selection: Vec::new(),
        })
    };
    inputs.iter().enumerate().map(open).collect()
}

/// Returns the dimension along which several files are joined.
fn along(query: &ReductionQuery, files: &[PlannedFile<'_>]) -> Result<Option<usize>> {
    let names = files[0].names();
    if query.ensemble {
        if query.along.is_some() {
            return Err(Error::Query(
                "files are members of an ensemble or joined along a dimension, not both".into(),
            ));
        }
        return members(query, files).map(|()| None);
    }
    let along = match &query.along {
        Some(name) => files[0].dimension(name)?,
        None if files.len() == 1 => return Ok(None),
        None => {
            let unlimited = |file: &PlannedFile<'_>| {
                file.variable
                    .dimensions
                    .iter()
                    .position(|one| one.unlimited)
            };
            let shape = files[0].variable.shape();
            let differs = |file: &PlannedFile<'_>| {
                file.variable
                    .shape()
                    .iter()
                    .zip(&shape)
                    .position(|(a, b)| a != b)
            };
            let differs = || match query.join {
                // The other dimensions may differ, too.
                JoinRule::Inner => None,
                JoinRule::Exact | JoinRule::Override => files.iter().find_map(differs),
            };
            unlimited(&files[0]).or_else(differs).unwrap_or(0)
        }
    };
    if names.is_empty() {
        return Err(Error::Query(format!(
            "{} has no dimensions: several files can't be joined",
            query.variable
        )));
    }
    let shape = files[0].variable.shape();
    for file in &files[1..] {
        let fit = |place: usize| {
            place == along
                || query.join == JoinRule::Inner
                || file.variable.shape()[place] == shape[place]
        };
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
    Ok(Some(along))
}

/// Checks that the members of an ensemble have the same dimensions.
fn members(query: &ReductionQuery, files: &[PlannedFile<'_>]) -> Result<()> {
    let (names, shape) = (files[0].names(), files[0].variable.shape());
    for file in &files[1..] {
        let may_differ =
            query.join == JoinRule::Inner && file.variable.shape().len() == shape.len();
        if file.names() != names || !may_differ && file.variable.shape() != shape {
            let why = format!(
                "{} is {names:?} {shape:?} in one and {:?} {:?} in the other, and members of an ensemble are alike",
                query.variable,
                file.names(),
                file.variable.shape(),
            );
            return Err(Error::Files {
                file: file.of.name.into(),
                other: files[0].of.name.into(),
                why,
            });
        }
    }
    Ok(())
}

fn select(
    query: &ReductionQuery,
    files: &mut [PlannedFile<'_>],
    along: Option<usize>,
    notes: &mut Vec<String>,
) -> Result<()> {
    for file in &mut *files {
        let all = (0..file.variable.dimensions.len()).map(|dimension| file.size(dimension));
        file.selection = all.map(|size| vec![IndexRange::all(size)]).collect();
    }
    let mut seen = Vec::new();
    for one in &query.select {
        let dimension = files[0].dimension(&one.dimension)?;
        if seen.contains(&dimension) {
            return Err(files[0].wrong(dimension, "it is selected twice"));
        }
        seen.push(dimension);
        if Some(dimension) == along {
            select_along(one, files, (dimension, query.time_at), notes)?;
            continue;
        }
        let size = files[0].size(dimension);
        let runs = match &one.what {
            IndexSelection::Values(low, high) => {
                let ends = (low.as_str(), high.as_str());
                let (runs, span, missing) = files[0].by_values(dimension, ends, query.time_at)?;
                noted(
                    &mut files[..1],
                    (dimension, one),
                    (span, missing),
                    notes,
                    std::slice::from_ref(&runs),
                )?;
                runs
            }
            what => vec![indices(&files[0], dimension, what, size)?],
        };
        let runs = choose::every(&runs, one.step, &mut 0);
        if runs.is_empty() {
            let why = format!("nothing of it is selected; {}", files[0].ends(dimension));
            return Err(files[0].wrong(dimension, why));
        }
        files
            .iter_mut()
            .for_each(|file| file.selection[dimension].clone_from(&runs));
    }
    Ok(())
}

/// Notes missing coordinate values, and a selection that extends beyond the values.
fn noted(
    files: &mut [PlannedFile<'_>],
    (dimension, one): (usize, &DimensionSelection),
    (span, missing): (ValueInterval, usize),
    notes: &mut Vec<String>,
    runs: &[Vec<IndexRange>],
) -> Result<()> {
    let name = files[0].names().swap_remove(dimension);
    if missing > 0 {
        notes.push(format!(
            "{missing} indices of {name} have no value, and are left out"
        ));
    }
    let first = files[0].needed(dimension, "a selection by value")?;
    let (mut values, mut picked) = (Vec::new(), Vec::new());
    for (file, runs) in files.iter_mut().zip(runs) {
        if let Some(found) = file.coordinate(dimension)? {
            let own = alike(found, first.units.as_ref(), found.values.clone());
            picked.extend(chosen(&own, runs));
            values.extend(own);
        }
    }
    let extremes = |all: &[f64]| {
        let finite = || all.iter().copied().filter(|value| value.is_finite());
        finite().reduce(f64::min).zip(finite().reduce(f64::max))
    };
    let (Some(all), Some(own)) = (extremes(&values), extremes(&picked)) else {
        return Ok(());
    };
    // Longitudes have no end.
    let is_longitude = first.units.is_none() && first.is_longitude(&name);
    let ends = if is_longitude { own } else { all };
    if let (IndexSelection::Values(low, high), true) =
        (&one.what, span.is_beyond(values.into_iter(), Some(ends)))
    {
        notes.push(format!(
            "{name}={low}..{high} extends beyond the data, which there are from {} to {}",
            first.shown(ends.0),
            first.shown(ends.1)
        ));
    }
    Ok(())
}

/// Selects indices of the dimension along which files are joined: steps continue from one file to the next.
fn select_along(
    one: &DimensionSelection,
    files: &mut [PlannedFile<'_>],
    (dimension, at): (usize, Option<TimeAt>),
    notes: &mut Vec<String>,
) -> Result<()> {
    let size = |file: &PlannedFile<'_>| file.variable.dimensions[dimension].size;
    let all: u64 = files.iter().map(size).sum();
    let (mut before, mut taken) = (0, 0);
    let run = match &one.what {
        IndexSelection::Values(..) => IndexRange::all(all),
        what => indices(&files[0], dimension, what, all)?,
    };
    let (mut every, mut spans, mut missing) = (Vec::new(), Vec::new(), 0);
    for file in &mut *files {
        let length = size(file);
        let runs = match &one.what {
            IndexSelection::Values(low, high) => {
                let (runs, span, none) =
                    file.by_values(dimension, (low.as_str(), high.as_str()), at)?;
                spans.push(span);
                missing += none;
                runs
            }
            _ => {
                let place = |index: u64| index.clamp(before, before + length) - before;
                vec![IndexRange {
                    start: place(run.start),
                    end: place(run.end),
                    step: 1,
                }]
            }
        };
        file.selection[dimension] = choose::every(&runs, one.step, &mut taken);
        every.push(runs);
        before += length;
    }
    if taken == 0 {
        let why = format!(
            "nothing of it is selected; in the first file {}",
            files[0].ends(dimension)
        );
        return Err(files[0].wrong(dimension, why));
    }
    if let Some(span) = spans.first() {
        noted(files, (dimension, one), (*span, missing), notes, &every)?;
    }
    Ok(())
}

fn indices(
    file: &PlannedFile<'_>,
    dimension: usize,
    what: &IndexSelection,
    size: u64,
) -> Result<IndexRange> {
    let place = |index: i64| match index {
        0.. => Some(index.unsigned_abs()),
        _ => size.checked_sub(index.unsigned_abs()),
    };
    let outside = || file.wrong(dimension, format!("the indices lie outside: it has {size}"));
    let (start, end) = match what {
        IndexSelection::Index(index) => {
            let start = place(*index).ok_or_else(outside)?;
            (start, start + 1)
        }
        IndexSelection::Indices(start, end) => (
            place(start.unwrap_or(0)).ok_or_else(outside)?,
            end.map_or(Some(size), place).ok_or_else(outside)?,
        ),
        IndexSelection::All | IndexSelection::Values(..) => (0, size),
    };
    if end > size || start > end {
        return Err(outside());
    }
    Ok(IndexRange {
        start,
        end,
        step: 1,
    })
}

/// Returns the dimension whose coordinate is a time, if there is one.
fn time(file: &mut PlannedFile<'_>, along: Option<usize>) -> Result<usize> {
    let rank = file.variable.dimensions.len();
    for dimension in along.into_iter().chain(0..rank) {
        let found = file.coordinate(dimension)?;
        if found.is_some_and(|found| found.units.is_some()) {
            return Ok(dimension);
        }
        if let Some(odd) = found.and_then(|found| found.odd.clone()) {
            return Err(file.wrong(dimension, odd));
        }
    }
    Err(Error::Query(format!(
        "no dimension of {} has times (a coordinate variable with units such as days since 1850-01-01), which grouping needs",
        file.variable.path
    )))
}

/// Returns the selected values of a coordinate, given runs of indices.
fn chosen(values: &[f64], runs: &[IndexRange]) -> Vec<f64> {
    let index = |range: &IndexRange, place: u64| as_usize(range.start + place * range.step);
    let of = |range: &IndexRange| {
        let places = 0..range.count();
        let values = places.filter_map(|place| values.get(index(range, place)).copied());
        values.collect::<Vec<f64>>()
    };
    runs.iter().flat_map(of).collect()
}

/// Targets of runs: for each file the targets of one dimension, or for each dimension the targets of one file.
type Targets = Vec<Vec<DimensionTarget>>;

/// Targets of each run of each file, and the axis of the result.
type RunTargets = (Targets, Option<ResultAxis>);

/// Converts the times of a file to the units of another file.
pub(super) fn alike(
    found: &PlannedCoordinate,
    as_first: Option<&Units>,
    values: Vec<f64>,
) -> Vec<f64> {
    match (found.units, as_first) {
        (Some(units), Some(first)) if units != *first => values
            .into_iter()
            .map(|value| first.value(units.seconds(value)))
            .collect(),
        _ => values,
    }
}

fn kept(
    files: &mut [PlannedFile<'_>],
    (dimension, along): (usize, Option<usize>),
) -> Result<RunTargets> {
    let name = files[0].names().swap_remove(dimension);
    let first = files[0].coordinate(dimension)?.cloned();
    let units = first.as_ref().and_then(|found| found.units);
    let mut coordinate = first.map(|found| Coordinate {
        bounds: Some(Vec::new()),
        ..found.coordinate
    });
    let (mut targets, mut length): (Vec<Vec<DimensionTarget>>, u64) = (Vec::new(), 0);
    for (place, file) in files.iter_mut().enumerate() {
        let runs = file.selection[dimension].clone();
        if Some(dimension) != along && place > 0 {
            targets.push(targets[0].clone());
            continue;
        }
        let mut own = Vec::new();
        for run in &runs {
            own.push(DimensionTarget::Kept(length));
            length += run.count();
        }
        targets.push(own);
        if let Some(coordinate) = &mut coordinate {
            let Some(found) = file.shared(dimension)? else {
                return Err(file.wrong(
                    dimension,
                    "the first file has a coordinate variable, this one has none",
                ));
            };
            let own = |values: &[f64]| alike(&found, units.as_ref(), chosen(values, &runs));
            coordinate.values.extend(own(&found.values));
            let pairs = match !found.turned && coordinate.bounds.is_some() {
                true => file.pairs(dimension)?,
                false => None,
            };
            // If only some files have bounds, the result has none.
            coordinate.bounds = coordinate.bounds.take().zip(pairs).map(|(mut all, pairs)| {
                let ends = |which: fn(&(f64, f64)) -> f64| {
                    own(&pairs.iter().map(which).collect::<Vec<f64>>())
                };
                all.extend(ends(|one| one.0).into_iter().zip(ends(|one| one.1)));
                all
            });
        }
    }
    Ok((
        targets,
        Some(ResultAxis {
            name,
            length,
            coordinate,
            labels: None,
        }),
    ))
}

fn groups(
    files: &mut [PlannedFile<'_>],
    (dimension, along): (usize, Option<usize>),
    (by, at): (TimeGrouping, Option<TimeAt>),
) -> Result<RunTargets> {
    let name = files[0].names().swap_remove(dimension);
    let first = files[0].needed(dimension, "grouping")?;
    let units = first.units.ok_or_else(|| {
        files[0].wrong(
            dimension,
            "its values are no times, but grouping needs times",
        )
    })?;
    let mut of_files: Vec<Vec<i64>> = Vec::new();
    // Interval of each group according to the files, if all files have it.
    let mut all: BTreeMap<i64, Option<(f64, f64)>> = BTreeMap::new();
    for (place, file) in files.iter_mut().enumerate() {
        if Some(dimension) != along && place > 0 {
            break;
        }
        let runs = file.selection[dimension].clone();
        let found = file.needed(dimension, "grouping")?;
        let own = found.units.unwrap_or(units);
        let group = |value: f64| Some(by.group(&own.moment(value)?));
        let stamps = periods::stamps(file, dimension, (&found, at), group)?;
        let groups: Option<Vec<i64>> = chosen(&stamps, &runs).into_iter().map(group).collect();
        let groups =
            groups.ok_or_else(|| file.wrong(dimension, "it has values that are no times"))?;
        let intervals = file.intervals(dimension)?;
        let ends = |which: fn(&(f64, f64)) -> f64| {
            let ends: Option<Vec<f64>> = intervals
                .as_ref()
                .map(|all| all.iter().map(which).collect());
            ends.map(|ends| alike(&found, Some(&units), chosen(&ends, &runs)))
        };
        let intervals = ends(|one| one.0).zip(ends(|one| one.1));
        for (index, group) in groups.iter().enumerate() {
            let own = intervals
                .as_ref()
                .map(|(starts, ends)| (starts[index], ends[index]))
                .filter(|(start, end)| start.is_finite() && end.is_finite());
            let hull = |known: Option<(f64, f64)>| {
                let ((low, high), (start, end)) = (known?, own?);
                Some((low.min(start), high.max(end)))
            };
            all.entry(*group)
                .and_modify(|known| *known = hull(*known))
                .or_insert(own);
        }
        of_files.push(groups);
    }
    let numbers: BTreeMap<i64, u32> = all
        .keys()
        .zip(0..)
        .map(|(group, number)| (*group, number))
        .collect();
    let mut targets = Vec::new();
    for (place, file) in files.iter().enumerate() {
        let mut groups = of_files[place.min(of_files.len() - 1)].iter();
        let of_run = |run: &IndexRange| {
            let own = groups.by_ref().take(as_usize(run.count()));
            DimensionTarget::Grouped(own.map(|group| numbers[group]).collect())
        };
        targets.push(file.selection[dimension].iter().map(of_run).collect());
    }
    let attributes = first.coordinate.attributes;
    Ok((targets, Some(axis_of(&all, by, (name, units, attributes)))))
}

/// Returns the dimension of the result that contains the groups of times.
fn axis_of(
    all: &BTreeMap<i64, Option<(f64, f64)>>,
    by: TimeGrouping,
    (name, units, attributes): (String, Units, Vec<Attribute>),
) -> ResultAxis {
    let labels = all.keys().map(|group| by.label(*group)).collect();
    let (name, coordinate) = if by.is_of_all_years() {
        let short = by.name().trim_start_matches("climatological-");
        let more = i64::from(by == TimeGrouping::MonthOfYear);
        #[expect(clippy::cast_precision_loss, reason = "at most 24")]
        let values = all.keys().map(|group| (group + more) as f64).collect();
        let long_name = match by {
            TimeGrouping::MonthOfYear => "month of the year",
            TimeGrouping::HourOfDay => "hour of the day",
            _ => "season of the year: 0 is DJF, 1 MAM, 2 JJA, 3 SON",
        };
        let attribute = |(name, text): (&str, &str)| Attribute {
            name: name.into(),
            value: Value::Text(text.into()),
        };
        let attributes = [("long_name", long_name), ("units", "1")].map(attribute);
        let coordinate = Coordinate {
            values,
            attributes: attributes.into(),
            bounds: None,
        };
        (short.to_owned(), coordinate)
    } else {
        let bounds: Vec<(f64, f64)> = all
            .iter()
            .map(|(group, known)| known.unwrap_or_else(|| by.period(*group, &units)))
            .collect();
        let middle = |(low, high): &(f64, f64)| low + (high - low) / 2.0;
        let coordinate = Coordinate {
            values: bounds.iter().map(middle).collect(),
            attributes,
            bounds: Some(bounds),
        };
        (name, coordinate)
    };
    ResultAxis {
        name,
        length: all.len() as u64,
        coordinate: Some(coordinate),
        labels: Some(labels),
    }
}

/// Returns the work for a file: one task for all runs of its dimensions.
fn of_file(
    query: &ReductionQuery,
    file: &mut PlannedFile<'_>,
    mut targets: Vec<Vec<DimensionTarget>>,
) -> Result<Vec<FilePlan>> {
    let meaning = file.variable.meaning(file.of.header.format);
    let meaning = meaning.map_err(|source| file.error(source))?;
    let coding = coding(file.of.name, file.variable, meaning.unsigned)?;
    let mut weights = match &query.weights {
        None => None,
        Some(name) => {
            let dimension = file.dimension(name)?;
            let runs = file.selection[dimension].clone();
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
            let of_run = |run: &IndexRange| {
                let values = chosen(&found.values, std::slice::from_ref(run));
                values.into_iter().map(weight).collect::<Vec<f64>>()
            };
            let weights: Vec<Vec<f64>> = runs.iter().map(of_run).collect();
            Some((dimension, weights))
        }
    };
    inner::to_own(file, &mut targets, &mut weights);
    let unpack = match (meaning.scale_factor, meaning.add_offset) {
        (None, None) => None,
        (scale, offset) => Some((scale.unwrap_or(1.0), offset.unwrap_or(0.0))),
    };
    let task = coding.task(&meaning, wants(query.operation));
    boxes(file, &targets, (task, unpack), weights)
}

/// Returns one plan for each combination of runs of the dimensions.
fn boxes(
    file: &PlannedFile<'_>,
    targets: &[Vec<DimensionTarget>],
    (task, unpack): (ReductionTask, Option<(f64, f64)>),
    weights: Option<(usize, Vec<Vec<f64>>)>,
) -> Result<Vec<FilePlan>> {
    let mut counts = file.selection.iter().map(Vec::len);
    let all = counts.try_fold(1_usize, usize::checked_mul);
    let all = all.filter(|all| *all <= PARTS_MAX).ok_or_else(|| {
        Error::Query(format!(
            "the selection of {} has more than {PARTS_MAX} boxes: select less at once",
            file.of.name
        ))
    })?;
    let mut planned = Vec::new();
    for number in 0..all {
        let (mut left, mut places) = (number, vec![0; file.selection.len()]);
        for (place, runs) in places.iter_mut().zip(&file.selection).rev() {
            (left, *place) = (left / runs.len(), left % runs.len());
        }
        let weights = weights.as_ref().map(|(dimension, weights)| {
            let number = u32::try_from(*dimension).unwrap_or(u32::MAX);
            (number, weights[places[*dimension]].clone())
        });
        let own = places.iter().zip(&file.selection);
        planned.push(FilePlan {
            input: file.input,
            variable: file.variable.clone(),
            selection: own.map(|(place, runs)| runs[*place]).collect(),
            task: ReductionTask {
                targets: targets
                    .iter()
                    .zip(&places)
                    .map(|(targets, place)| targets[*place].clone())
                    .collect(),
                weights,
                ..task.clone()
            },
            unpack,
        });
    }
    Ok(planned)
}

fn finished(
    query: &ReductionQuery,
    mut files: Vec<FilePlan>,
    axes: Vec<ResultAxis>,
) -> ReductionPlan {
    use crate::array::Dtype;
    let real = |file: &FilePlan| matches!(file.task.dtype, Dtype::Float32 | Dtype::Float64);
    let whole = files
        .iter()
        .all(|file| !real(file) && file.unpack.is_none());
    for file in files.iter_mut().filter(|file| !whole && !real(file)) {
        file.unpack.get_or_insert((1.0, 0.0));
    }
    let is_single = |file: &FilePlan| file.task.dtype == Dtype::Float32 && file.unpack.is_none();
    ReductionPlan {
        operation: query.operation,
        notes: Vec::new(),
        attributes: [Vec::new(), Vec::new()],
        methods: (String::new(), String::new()),
        scalars: Vec::new(),
        single: files.iter().all(is_single),
        variable: query.variable.trim_matches('/').to_owned(),
        units: files[0].variable.text("units").map(str::to_owned),
        ddof: query.ddof,
        quantiles: query.wanted(),
        bins: (query.operation == ReduceOperation::Histogram).then_some(query.bins),
        axes,
        whole,
        files,
    }
}
