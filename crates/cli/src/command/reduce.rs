//! `tidemill reduce`: sums, means and extremes of variables of scientific files, found on the nodes that have their bytes.

use crate::context::CommandContext;
use crate::output::atomic_file::{self, AtomicFile};
use crate::output::exact;
use crate::output::reduce::Reduced;
use crate::progress::Progress;
use anyhow::Context as _;
use std::ffi::OsString;
use std::fs::{DirEntry, File};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_compute::reduction::{
    self, CellRange, Netcdf, QueryText, ReductionInput, ReductionQuery, ResultFormat, ResultTable,
    local,
};
use tidemill_format::time::Units;
use tidemill_format::zip::Zip;
use tidemill_format::{Format, Header, VariableSource};
use tidemill_model::display::unescaped;
use tidemill_model::glob::Pattern;
use tokio::task::block_in_place;

mod job;
mod remote;

const EXAMPLES: &str = "Examples:
  tidemill reduce mean /cmip6/tas_day_2015.nc:tas
  tidemill reduce mean '/cmip6/tas_day_*.nc:tas' --where time=1990-01..1999-12,lat=30:60 --weights lat
  tidemill reduce mean /cmip6/tas.nc:tas --by month --over time --output monthly.nc
  tidemill reduce quantile /cmip6/pr.nc:pr --over time --q 0.5,0.99 --output pr-quantiles.nc
  tidemill reduce histogram /cmip6/pr.nc:pr --bins 0:50:100 --by year --over time
  tidemill reduce mean /cmip6/tas.nc:tas,pr --over time --output means.nc
  tidemill reduce stats /obs/cube.zarr:sst --where 'lat=[0:180:2],lon=::4'
  tidemill reduce mean '/cmip6/tas_*.nc:tas' --by year --over time --to /results/yearly.nc
  tidemill reduce max --local ~/data/pr.nc:pr --over lat,lon --output daily.csv";

/// Variables of one command.
const VARIABLES_MAX: usize = 64;

/// Reduce variables of netCDF, HDF5, Zarr or FITS files on the nodes that hold their bytes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[allow(rustdoc::broken_intra_doc_links, reason = "users type the brackets")]
pub(crate) struct Args {
    /// count, min, max, sum, mean, stddev, range, stats (all of them), median, quantile or histogram
    #[arg(value_name = "OP")]
    operation: String,
    /// Files of the cluster, or directories that are a Zarr, each with a colon and its variables; names may be globs.
    /// Several files of a variable count as one file, joined along a dimension
    #[arg(required = true, value_name = "FILE:VARIABLE")]
    files: Vec<OsString>,
    /// Selection by dimension: DIM=LOW..HIGH or DIM=LOW:HIGH by the values of its coordinate, DIM=[START:END] by index, each
    /// optionally followed by ::STEP; DIM=::STEP
    #[arg(long = "where", value_name = "DIM=WHAT,...")]
    select: Vec<String>,
    /// Dimensions to reduce [default: all]
    #[arg(long, value_name = "DIM,...")]
    over: Vec<String>,
    /// Period for groups of times: year, season, month, day, hour, climatological-season, climatological-month, climatological-hour
    #[arg(long, value_name = "PERIOD")]
    by: Option<String>,
    /// Dimension of latitudes, whose cosines are the weights (sum and mean)
    #[arg(long, value_name = "DIM")]
    weights: Option<String>,
    /// Delta degrees of freedom of a standard deviation: the number subtracted from the count
    #[arg(long, value_name = "N", default_value_t = 0)]
    ddof: u32,
    /// Quantiles, from 0 to 1 [default: 0.25,0.5,0.75]
    #[arg(long = "q", value_name = "Q,...")]
    quantiles: Vec<String>,
    /// Bins of a histogram: N between the extremes, or LOW:HIGH:N [default: 10]
    #[arg(long, value_name = "BINS", allow_hyphen_values = true)]
    bins: Option<String>,
    /// Dimension along which several files are joined [default: the unlimited one]
    #[arg(long, value_name = "DIM")]
    along: Option<String>,
    /// Treat the files as members of an ensemble, which are reduced, and not as one series
    #[arg(long)]
    ensemble: bool,
    /// Treatment of other coordinates of several files: they must be equal (exact), the first file's are used (override), or only
    /// values that all files have are reduced (inner) [default: exact]
    #[arg(long, value_name = "HOW")]
    join: Option<String>,
    /// Position of a time stamp in its interval: start, middle, end, or bounds for the intervals in the file
    #[arg(long, value_name = "WHERE")]
    time_at: Option<String>,
    /// Output path on this machine, .nc, .npy, .csv or .json [default: print the result]
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    output: Option<PathBuf>,
    /// Path in the cluster, .nc, .npy, .csv or .json, to which a job writes the result, with its lineage
    #[arg(long, value_name = "PATH", conflicts_with = "local")]
    to: Option<OsString>,
    /// Read files of this machine, or of a mounted cluster
    #[arg(long)]
    local: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    if let Some(to) = job::target(&args)? {
        return job::run(&args, &to, context).await;
    }
    let mut queries = Vec::new();
    for (variable, paths) in named(&args.files)? {
        queries.push((query(&args, &variable)?, paths));
    }
    let form = args
        .output
        .as_ref()
        .map(|to| ResultFormat::of(&to.to_string_lossy()))
        .transpose()?;
    let progress = Progress::new(context, 0);
    let mut tables = Vec::new();
    for of in &queries {
        tables.push(reduced(&args, of, context, &progress, None).await?);
    }
    if let Some(to) = args.output.as_deref()
        && form == Some(ResultFormat::Netcdf)
        && tables.iter().any(ResultTable::is_outline)
    {
        large((&args, to), (&queries, tables), context, &progress).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let table = joined(tables, context)?;
    progress.end();
    match (args.output, form) {
        (Some(to), Some(form)) => write(&table, &to, form)?,
        _ if table.is_outline() => {
            return Err(reduction::Error::TooLarge(table.all().1.iter().product()).into());
        }
        _ => context.output.show(&Reduced(table))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A query with its files.
type QueryFiles = (ReductionQuery, Vec<String>);

/// Receives the values of some cells of a large result.
type CellWriter<'a> = dyn FnMut(&CellRange, &ResultTable) -> reduction::Result<()> + 'a;

/// Result of one query, or its outline if it is too large to be computed at once: then its slabs are computed one after the other, when
/// they are written.
async fn reduced(
    args: &Args,
    (query, paths): &QueryFiles,
    context: &CommandContext,
    progress: &Progress,
    put: Option<&mut CellWriter<'_>>,
) -> anyhow::Result<ResultTable> {
    match args.local {
        true => block_in_place(|| local(query, paths, progress, put)),
        false => remote::reduce(query, paths, (context, progress), put).await,
    }
}

/// Returns the results of all variables as one, and shows their notes.
fn joined(tables: Vec<ResultTable>, context: &CommandContext) -> anyhow::Result<ResultTable> {
    let mut table = ResultTable::join(tables)?;
    for note in &table.notes {
        context.note(format_args!("note: {note}"));
    }
    table.log(&logged());
    Ok(table)
}

/// Computes and writes a result slab by slab.
async fn large(
    (args, to): (&Args, &Path),
    (queries, tables): (&[QueryFiles], Vec<ResultTable>),
    context: &CommandContext,
    progress: &Progress,
) -> anyhow::Result<()> {
    let table = joined(tables.clone(), context)?;
    let mut netcdf = Netcdf::create(&table, AtomicFile::create(to)?)?;
    let mut first = 0;
    for (of, part) in queries.iter().zip(&tables) {
        let mut put = |cells: &CellRange, found: &ResultTable| netcdf.put(first, cells, found);
        if part.is_outline() {
            reduced(args, of, context, progress, Some(&mut put)).await?;
        } else {
            put(&part.all(), part)?;
        }
        first += part.fields.len();
    }
    netcdf.finish()?.keep()?;
    progress.end();
    Ok(())
}

fn query(args: &Args, variable: &str) -> anyhow::Result<ReductionQuery> {
    let words = QueryText {
        operation: &args.operation,
        variable,
        select: &args.select.join(","),
        over: &args.over.join(","),
        by: args.by.as_deref().unwrap_or_default(),
        weights: args.weights.as_deref().unwrap_or_default(),
        ddof: &args.ddof.to_string(),
        quantiles: &args.quantiles.join(","),
        bins: args.bins.as_deref().unwrap_or_default(),
        along: args.along.as_deref().unwrap_or_default(),
        ensemble: if args.ensemble { "yes" } else { "" },
        join: args.join.as_deref().unwrap_or_default(),
        time_at: args.time_at.as_deref().unwrap_or_default(),
    };
    Ok(words.query()?)
}

/// Returns the time and the command, as in the attribute `history`.
fn logged() -> String {
    let words = std::env::args_os().skip(1).map(|word| {
        let word = word.to_string_lossy().into_owned();
        match word.contains(|letter: char| letter.is_whitespace() || "*?'\"[]".contains(letter)) {
            true => format!("'{word}'"),
            false => word,
        }
    });
    let words = words.collect::<Vec<_>>().join(" ");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let units = Units::parse("seconds since 1970-01-01", "proleptic_gregorian").ok();
    let seconds = now.map_or(0.0, |now| now.as_secs_f64().floor());
    match units.and_then(|units| units.moment(seconds)) {
        Some(moment) => format!("{moment}Z tidemill {words}"),
        None => format!("tidemill {words}"),
    }
}

fn write(table: &ResultTable, to: &Path, form: ResultFormat) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    table.write(form, &mut bytes)?;
    atomic_file::write(to, &bytes)
}

/// Returns each variable with its files. At least one file needs a colon and variables; a file without them counts for all
/// variables.
fn named(files: &[OsString]) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    // From here on names are text, whatever their bytes are.
    let files: Vec<String> = files.iter().map(exact).collect();
    let mut variables: Vec<&str> = Vec::new();
    let mut named = Vec::new();
    for file in &files {
        let (path, names) = match file.rsplit_once(':') {
            Some((path, names)) if !path.is_empty() && !names.is_empty() => (path, names),
            _ => (file.as_str(), ""),
        };
        let names: Vec<&str> = names.split(',').map(str::trim).collect();
        anyhow::ensure!(
            names == [""] || !names.contains(&""),
            "{file}: no variable between two commas"
        );
        for name in names.iter().filter(|name| !name.is_empty()) {
            if !variables.contains(name) {
                variables.push(name);
            }
        }
        named.push((path, names));
    }
    anyhow::ensure!(
        !variables.is_empty(),
        "no variable: name one after a colon, as {}:tas; `tidemill inspect` lists a file's variables",
        files[0]
    );
    anyhow::ensure!(
        variables.len() <= VARIABLES_MAX,
        "these are {} variables, and at most {VARIABLES_MAX} are reduced at once",
        variables.len()
    );
    let of = |variable: &&str| {
        let has = named
            .iter()
            .filter(|(_, names)| names == &[""] || names.contains(variable));
        let paths = has.map(|(path, _)| (*path).to_owned()).collect();
        ((*variable).to_owned(), paths)
    };
    Ok(variables.iter().map(of).collect())
}

/// Returns whether a component of a path is a pattern.
fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

/// Returns a name as text in which each byte that is not UTF-8 is one character.
fn characters(text: &str) -> String {
    /// First of 256 private-use characters: no name contains them.
    const BYTES: u32 = 0x0010_ff00;
    let mut all = String::new();
    for chunk in unescaped(text).utf8_chunks() {
        all.push_str(chunk.valid());
        let bytes = chunk.invalid().iter();
        all.extend(bytes.filter_map(|&byte| char::from_u32(BYTES + u32::from(byte))));
    }
    all
}

/// Returns all paths that match a pattern, in order; `list` returns the names in a directory.
fn expand(
    path: &str,
    mut list: impl FnMut(&str) -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<Vec<String>> {
    if !is_pattern(path) {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = vec![if path.starts_with('/') {
        "/".to_owned()
    } else {
        String::new()
    }];
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let join = |directory: &String, name: &str| match directory.as_str() {
            "" => name.to_owned(),
            directory => format!("{}/{name}", directory.trim_end_matches('/')),
        };
        if !is_pattern(part) {
            found = found
                .iter()
                .map(|directory| join(directory, part))
                .collect();
            continue;
        }
        let pattern = Pattern::new(&characters(part));
        let pattern = pattern.with_context(|| format!("bad pattern {path}"))?;
        let mut next = Vec::new();
        for directory in &found {
            let mut names = list(directory)?;
            names.retain(|name| pattern.matches(&characters(name)));
            names.sort_unstable();
            next.extend(names.iter().map(|name| join(directory, name)));
        }
        found = next;
    }
    anyhow::ensure!(!found.is_empty(), "no file: no path matches {path}");
    Ok(found)
}

/// Returns all paths that names and patterns stand for, each with whether a pattern does.
fn expanded(
    paths: &[String],
    mut list: impl FnMut(&str) -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<(Vec<String>, Vec<bool>)> {
    let (mut names, mut by_pattern) = (Vec::new(), Vec::new());
    for path in paths {
        let found = expand(path, &mut list)?;
        by_pattern.resize(by_pattern.len() + found.len(), is_pattern(path));
        names.extend(found);
    }
    Ok((names, by_pattern))
}

/// Returns the indices of the files to reduce. A file that only a pattern stands for is left out if it lacks the variable and another file
/// has it; the user gets a note.
fn having(
    query: &ReductionQuery,
    (names, by_pattern): (&[String], &[bool]),
    headers: &[Header],
) -> (Vec<usize>, Vec<String>) {
    let has = |place: usize| headers[place].find(&query.variable).is_ok();
    let all = 0..headers.len();
    let (kept, skipped): (Vec<usize>, Vec<usize>) = all
        .clone()
        .partition(|place| !by_pattern[*place] || has(*place));
    if kept.is_empty() || skipped.is_empty() {
        return (all.collect(), Vec::new());
    }
    let example = &names[skipped[0]];
    let note = match skipped.len() {
        1 => format!(
            "{example} has no variable {}, and is left out",
            query.variable
        ),
        many => format!(
            "{many} files have no variable {}, and are left out, such as {example}",
            query.variable
        ),
    };
    (kept, vec![note])
}

/// An open file.
enum OpenedInput {
    File(File),
    Directory(PathBuf),
}

/// Returns the local path that a text stands for.
fn path(text: &str) -> PathBuf {
    OsString::from_vec(unescaped(text)).into()
}

fn local(
    query: &ReductionQuery,
    paths: &[String],
    progress: &Progress,
    put: Option<&mut CellWriter<'_>>,
) -> anyhow::Result<ResultTable> {
    let list = |directory: &str| {
        let directory = if directory.is_empty() { "." } else { directory };
        let at = || format!("{directory} can't be read");
        let entries = anyhow::Context::with_context(std::fs::read_dir(path(directory)), at)?;
        let name = |entry: std::io::Result<DirEntry>| Ok(exact(entry?.file_name()));
        let names: std::io::Result<_> = entries.map(name).collect();
        anyhow::Context::with_context(names, at)
    };
    let (names, by_pattern) = expanded(paths, list)?;
    let mut opened = Vec::new();
    for name in &names {
        let path = path(name);
        opened.push(if path.is_dir() {
            OpenedInput::Directory(path)
        } else {
            OpenedInput::File(anyhow::Context::with_context(File::open(&path), || {
                name.clone()
            })?)
        });
    }
    let mut headers: Vec<Header> = Vec::new();
    for (name, file) in names.iter().zip(&opened) {
        headers.push(local::header(name, store(file))?);
    }
    let mut zips = Vec::new();
    for (header, file) in headers.iter().zip(&opened) {
        zips.push(match file {
            OpenedInput::File(file) if matches!(header.format, Format::Zarr(_)) => {
                Some(Zip::open(file)?)
            }
            _ => None,
        });
    }
    let (places, mut notes) = having(query, (&names, &by_pattern), &headers);
    let inputs: Vec<ReductionInput<'_>> = places
        .into_iter()
        .map(|place| ReductionInput {
            name: &names[place],
            header: &headers[place],
            store: zips[place].as_ref().map_or_else(
                || store(&opened[place]),
                |zip| VariableSource::Directory(zip),
            ),
            bytes: match &opened[place] {
                OpenedInput::File(file) => Some(file),
                OpenedInput::Directory(_) => None,
            },
        })
        .collect();
    let done = |bytes| progress.add(bytes);
    if let Some(put) = put {
        local::slabs(query, &inputs, done, put)?;
        return Ok(ResultTable::default());
    }
    let mut table = local::reduce(query, &inputs, done)?;
    notes.append(&mut table.notes);
    Ok(ResultTable { notes, ..table })
}

fn store(opened: &OpenedInput) -> VariableSource<'_> {
    match opened {
        OpenedInput::File(file) => VariableSource::File(file),
        OpenedInput::Directory(directory) => VariableSource::Directory(directory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(files: &[&str]) -> Result<String, String> {
        let files: Vec<OsString> = files.iter().map(OsString::from).collect();
        let reported =
            |(variable, paths): &(String, Vec<String>)| format!("{variable}={}", paths.join("+"));
        let found = named(&files).map_err(|error| error.to_string())?;
        Ok(found.iter().map(reported).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn reduce_skips_pattern_files_without_the_variable() {
        let header = |variable: &str| Header {
            format: Format::Netcdf4,
            attributes: Vec::new(),
            groups: Vec::new(),
            variables: vec![tidemill_format::Variable {
                path: variable.into(),
                dimensions: Vec::new(),
                data_type: tidemill_format::DataType {
                    kind: tidemill_format::DataKind::Float,
                    size: 4,
                    order: tidemill_format::Endian::Little,
                },
                attributes: Vec::new(),
                storage: tidemill_format::Storage::Absent,
                fill: None,
            }],
        };
        let query = ReductionQuery::new(tidemill_compute::reduction::ReduceOperation::Mean, "tas");
        let names = ["a.nc", "b.nc"].map(str::to_owned);
        let headers = ["tas", "pr"].map(header);
        let (kept, notes) = having(&query, (&names, &[true, true]), &headers);
        assert_eq!(kept, [0]);
        assert!(notes[0].contains("b.nc has no variable tas"), "{notes:?}");
        // A named file without the variable fails later, and so does a pattern if none of its files has the variable.
        let (kept, notes) = having(&query, (&names, &[true, false]), &headers);
        assert_eq!((kept, notes.len()), (vec![0, 1], 0));
        let headers = ["pr", "pr"].map(header);
        assert_eq!(having(&query, (&names, &[true, true]), &headers).0, [0, 1]);
    }

    #[test]
    fn expand_matches_patterns_on_names_that_are_not_utf8() {
        let names = [&b"a.nc"[..], b"b\xff.nc", b"b\xe4.nc", br"b\xff.nc"];
        let list = |_: &str| anyhow::Ok(names.map(tidemill_model::display::escaped).to_vec());
        let found = |pattern: &[u8]| {
            let pattern = tidemill_model::display::escaped(pattern);
            let found = expand(&pattern, list).unwrap();
            found.iter().map(|name| unescaped(name)).collect::<Vec<_>>()
        };
        assert_eq!(found(b"*.nc").len(), 4);
        assert_eq!(found(b"b?.nc"), [&b"b\xe4.nc"[..], b"b\xff.nc"]);
        assert_eq!(found(b"b\xff*"), [b"b\xff.nc"]);
    }

    #[test]
    fn reduce_takes_variables_after_colons() {
        assert_eq!(all(&["/a.nc", "/b.nc:tas"]).unwrap(), "tas=/a.nc+/b.nc");
        assert_eq!(all(&["/a.nc:tas,pr"]).unwrap(), "tas=/a.nc pr=/a.nc");
        assert_eq!(
            all(&["/a.nc:pr,tas,pr", "/b.nc", "/c.nc:tas"]).unwrap(),
            "pr=/a.nc+/b.nc tas=/a.nc+/b.nc+/c.nc"
        );
        assert!(
            all(&["/a.nc", ":tas", "b:"])
                .unwrap_err()
                .contains("no variable")
        );
        assert!(
            all(&["/a.nc:tas,,pr"])
                .unwrap_err()
                .contains("between two commas")
        );
        let many: Vec<String> = (0..=VARIABLES_MAX)
            .map(|number| number.to_string())
            .collect();
        assert!(
            all(&[&format!("/a.nc:{}", many.join(","))])
                .unwrap_err()
                .contains("at most 64")
        );
    }
}
