//! `tidemill reduce`: sums, means and extremes of variables of scientific files, found on the elements that have their bytes.

use crate::context::Context;
use crate::output::reduce::TableView;
use crate::progress::Progress;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_core::lineage::search::matches_pattern;
use tidemill_format::zip::Zip;
use tidemill_format::{Format, Header, Store};
use tidemill_kernel::reduction::{Form, Input, Query, Table, Words, here};
use tokio::task::block_in_place;

mod remote;

const EXAMPLES: &str = "Examples:
  tidemill reduce mean /cmip6/tas_day_2015.nc:tas
  tidemill reduce mean '/cmip6/tas_day_*.nc:tas' --where time=1990-01..1999-12,lat=30:60 --weights lat
  tidemill reduce mean /cmip6/tas.nc:tas --by month --over time --to monthly.nc
  tidemill reduce quantile /cmip6/pr.nc:pr --over time --q 0.5,0.99 --to pr-quantiles.nc
  tidemill reduce stats /obs/cube.zarr:sst --where 'lat=[0:180:2],lon=::4'
  tidemill reduce max --local ~/data/pr.nc:pr --over lat,lon --to daily.csv";

/// Reduce a variable of netCDF, HDF5, Zarr or FITS files where its bytes lie
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[allow(rustdoc::broken_intra_doc_links, reason = "brackets are what is typed")]
pub(crate) struct Args {
    /// count, min, max, sum, mean, stddev, range, stats (all of them), median or quantile
    #[arg(value_name = "OP")]
    operation: String,
    /// Files of the array, or folders that are a Zarr, and the variable behind a colon; `*` and `?` stand for any names. Several
    /// are one along a dimension
    #[arg(required = true, value_name = "FILE:VARIABLE")]
    files: Vec<String>,
    /// What of each dimension: DIM=LOW..HIGH or DIM=LOW:HIGH by the values of its coordinate, DIM=[START:END] by index, each
    /// with ::STEP behind it; DIM=::STEP
    #[arg(long = "where", value_name = "DIM=WHAT,...")]
    select: Vec<String>,
    /// Dimensions that are reduced [default: all]
    #[arg(long, value_name = "DIM,...")]
    over: Vec<String>,
    /// Times together: year, season, month, day, hour, climatological-season, climatological-month, climatological-hour
    #[arg(long, value_name = "PERIOD")]
    by: Option<String>,
    /// The dimension of latitudes, as whose cosine values weigh (sum and mean)
    #[arg(long, value_name = "DIM")]
    weights: Option<String>,
    /// What is taken from the count of a standard deviation
    #[arg(long, value_name = "N", default_value_t = 0)]
    ddof: u32,
    /// Which quantiles, from 0 to 1 [default: 0.25,0.5,0.75]
    #[arg(long = "q", value_name = "Q,...")]
    quantiles: Vec<String>,
    /// The dimension along which several files are one [default: the unlimited one]
    #[arg(long, value_name = "DIM")]
    along: Option<String>,
    /// Write the result to a local file: .nc, .npy, .csv or .json
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// The files are of this machine, a mounted array's too
    #[arg(long)]
    local: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let (paths, variable) = named(&args.files)?;
    let query = Words {
        operation: &args.operation,
        variable: &variable,
        select: &args.select.join(","),
        over: &args.over.join(","),
        by: args.by.as_deref().unwrap_or_default(),
        weights: args.weights.as_deref().unwrap_or_default(),
        ddof: &args.ddof.to_string(),
        quantiles: &args.quantiles.join(","),
        along: args.along.as_deref().unwrap_or_default(),
    };
    let query = query.query()?;
    let form = args
        .to
        .as_ref()
        .map(|to| Form::of(&to.to_string_lossy()))
        .transpose()?;
    let progress = Progress::new(context, 0);
    let table = if args.local {
        block_in_place(|| local(&query, &paths, &progress))?
    } else {
        remote::reduce(&query, &paths, context, &progress).await?
    };
    progress.end();
    match (args.to, form) {
        (Some(to), Some(form)) => write(&table, &to, form)?,
        _ => context.output.show(&TableView(table))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write(table: &Table, to: &Path, form: Form) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    table.write(form, &mut bytes)?;
    anyhow::Context::with_context(std::fs::write(to, bytes), || {
        format!("{} can't be written", to.display())
    })
}

/// The files and the variable, which stands behind a colon at one of them at least.
fn named(files: &[String]) -> anyhow::Result<(Vec<String>, String)> {
    let (mut paths, mut variable) = (Vec::new(), None);
    for file in files {
        let (path, name) = match file.rsplit_once(':') {
            Some((path, name)) if !path.is_empty() && !name.is_empty() => (path, Some(name)),
            _ => (file.as_str(), None),
        };
        if let (Some(one), Some(other)) = (variable, name)
            && one != other
        {
            anyhow::bail!("one variable at a time: {one} and {other} were named");
        }
        variable = variable.or(name);
        paths.push(path.to_owned());
    }
    let variable = variable.ok_or_else(|| {
        anyhow::anyhow!("no variable: name it behind a colon, as {}:tas; `tidemill variables` shows which there are", files[0])
    })?;
    Ok((paths, variable.to_owned()))
}

/// Whether part of a path stands for several names.
fn is_pattern(part: &str) -> bool {
    part.contains(['*', '?'])
}

/// All paths that a pattern stands for, in order; `list` gives the names in a folder.
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
        let join = |folder: &String, name: &str| match folder.as_str() {
            "" => name.to_owned(),
            folder => format!("{}/{name}", folder.trim_end_matches('/')),
        };
        if !is_pattern(part) {
            found = found.iter().map(|folder| join(folder, part)).collect();
            continue;
        }
        let mut next = Vec::new();
        for folder in &found {
            let mut names = list(folder)?;
            names.retain(|name| !name.starts_with('.') && matches_pattern(name, part));
            names.sort_unstable();
            next.extend(names.iter().map(|name| join(folder, name)));
        }
        found = next;
    }
    anyhow::ensure!(!found.is_empty(), "no file: nothing is like {path}");
    Ok(found)
}

/// A file that was opened.
enum Opened {
    File(File),
    Folder(PathBuf),
}

fn local(query: &Query, paths: &[String], progress: &Progress) -> anyhow::Result<Table> {
    let list = |folder: &str| {
        let folder = if folder.is_empty() { "." } else { folder };
        let entries = anyhow::Context::with_context(std::fs::read_dir(folder), || {
            format!("{folder} can't be read")
        })?;
        Ok(entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect())
    };
    let mut names = Vec::new();
    for path in paths {
        names.extend(expand(path, list)?);
    }
    let mut opened = Vec::new();
    for name in &names {
        let path = PathBuf::from(name);
        opened.push(if path.is_dir() {
            Opened::Folder(path)
        } else {
            Opened::File(anyhow::Context::with_context(File::open(&path), || {
                name.clone()
            })?)
        });
    }
    let mut headers: Vec<Header> = Vec::new();
    for (name, file) in names.iter().zip(&opened) {
        headers.push(here::header(name, store(file))?);
    }
    let mut zips = Vec::new();
    for (header, file) in headers.iter().zip(&opened) {
        zips.push(match file {
            Opened::File(file) if matches!(header.format, Format::Zarr(_)) => {
                Some(Zip::open(file)?)
            }
            _ => None,
        });
    }
    let inputs: Vec<Input<'_>> = (0..names.len())
        .map(|place| Input {
            name: &names[place],
            header: &headers[place],
            store: zips[place]
                .as_ref()
                .map_or_else(|| store(&opened[place]), |zip| Store::Folder(zip)),
            bytes: match &opened[place] {
                Opened::File(file) => Some(file),
                Opened::Folder(_) => None,
            },
        })
        .collect();
    Ok(here::reduce(query, &inputs, |bytes| progress.add(bytes))?)
}

fn store(opened: &Opened) -> Store<'_> {
    match opened {
        Opened::File(file) => Store::File(file),
        Opened::Folder(folder) => Store::Folder(folder),
    }
}
