//! `reduce`: sums, means and extremes of a variable of scientific files, like `tidemill reduce` (`docs/reduce.md`).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Seek as _, Write};

use super::BuiltinError;
use super::table::{BuiltinKernel, KernelArgument, KernelConstructor, KernelOptions};
use crate::reduction::local::{self, LocalInput};
use crate::reduction::{CellRange, Netcdf, QueryText, ReductionQuery, ResultFormat, ResultTable};
use rustix::fs::{Mode, OFlags};
use tidemill_format::zarr::METADATA;

/// Kernel `reduce`, for the table of built-in kernels.
pub(super) const KERNELS: &[BuiltinKernel] = &[BuiltinKernel {
    name: "reduce",
    revision: 4,
    help: "variables of netCDF, HDF5, Zarr or FITS files, reduced",
    args: &[ARGS],
    usage: None,
    prepare: None,
    code: KernelConstructor::Whole(reduce),
}];

const ARGS: &[KernelArgument] = &[
    KernelArgument {
        key: "op",
        values: "count|min|max|sum|mean|stddev|range|stats|median|quantile|histogram",
        default: "mean",
        help: "operation",
    },
    KernelArgument {
        key: "variable",
        values: "NAMES",
        default: "",
        help: "the variable, or several separated by commas",
    },
    KernelArgument {
        key: "where",
        values: "SELECTION",
        default: "",
        help: "selection of dimensions: time=1990-01..1999-12,lat=[10:20]",
    },
    KernelArgument {
        key: "over",
        values: "DIMENSIONS",
        default: "",
        help: "dimensions to reduce, separated by commas (the default is all)",
    },
    KernelArgument {
        key: "by",
        values: "PERIOD",
        default: "",
        help: "groups of times: year, season, month, day, hour, or the same of all years, as climatological-month",
    },
    KernelArgument {
        key: "weights",
        values: "DIMENSION",
        default: "",
        help: "the dimension of latitudes, whose cosines are the weights",
    },
    KernelArgument {
        key: "ddof",
        values: "COUNT",
        default: "0",
        help: "number that is subtracted from the count in a standard deviation",
    },
    KernelArgument {
        key: "q",
        values: "LIST",
        default: "0.25,0.5,0.75",
        help: "quantiles from 0 to 1, separated by commas",
    },
    KernelArgument {
        key: "bins",
        values: "BINS",
        default: "10",
        help: "bins of a histogram: N between the extremes, or LOW:HIGH:N",
    },
    KernelArgument {
        key: "along",
        values: "DIMENSION",
        default: "",
        help: "the dimension along which several files are joined (the default is the unlimited one)",
    },
    KernelArgument {
        key: "ensemble",
        values: "yes|no",
        default: "no",
        help: "whether the files are members of an ensemble, which are reduced, and not one series",
    },
    KernelArgument {
        key: "join",
        values: "exact|override|inner",
        default: "exact",
        help: "other coordinates of the files: they must be equal, those of the first are used, or only their common part is reduced",
    },
    KernelArgument {
        key: "time-at",
        values: "start|middle|end|bounds",
        default: "",
        help: "position of a time stamp in the interval that a value represents",
    },
    KernelArgument {
        key: "to",
        values: "nc|npy|csv|json",
        default: "nc",
        help: "file format of the result",
    },
];

fn reduce(
    options: &KernelOptions,
    inputs: &[String],
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let text = |key| options.text(key).unwrap_or_default();
    let variables = options.needed("variable", options.text("variable"))?;
    let words = |variable| QueryText {
        operation: text("op"),
        variable,
        select: text("where"),
        over: text("over"),
        by: text("by"),
        weights: text("weights"),
        ddof: text("ddof"),
        quantiles: text("q"),
        bins: text("bins"),
        along: text("along"),
        ensemble: text("ensemble"),
        join: text("join"),
        time_at: text("time-at"),
    };
    let wrong = |error| BuiltinError::Reduce(Box::new(error));
    let form = ResultFormat::of(&format!(".{}", text("to"))).map_err(wrong)?;
    let files = sources(inputs).into_iter().map(|source| match source {
        ReduceSource::Zarr(directory) => Ok((
            directory.to_owned(),
            LocalInput::Directory(directory.into()),
        )),
        ReduceSource::File(name) => Ok((name.to_owned(), LocalInput::File(open(name)?))),
    });
    let files: Vec<(String, LocalInput)> = files.collect::<Result<_, BuiltinError>>()?;
    let queries = variables.split(',');
    let queries = queries.map(|variable| words(variable.trim()).query());
    let queries: Vec<ReductionQuery> = queries.collect::<Result<_, _>>().map_err(wrong)?;
    let mut tables = Vec::new();
    for query in &queries {
        let found = local::with_files(&files, |inputs| local::reduce(query, inputs, |_| {}));
        tables.push(found.map_err(wrong)?);
    }
    let is_large = tables.iter().any(ResultTable::is_outline) && form == ResultFormat::Netcdf;
    let parts = if is_large { tables.clone() } else { Vec::new() };
    let mut table = ResultTable::join(tables).map_err(wrong)?;
    let listed = ARGS.iter().filter_map(|arg| {
        let value = options.text(arg.key).filter(|value| !value.is_empty())?;
        Some(format!(" {}={value}", arg.key))
    });
    table.log(&format!(
        "tidemill kernel reduce{}",
        listed.collect::<String>()
    ));
    for note in &table.notes {
        eprintln!("note: {note}");
    }
    if is_large {
        return large((&queries, &files), &parts, &table, out);
    }
    table.write(form, out).map_err(wrong)
}

/// Writes a result with parts that are too large to be computed at once, through a file without a name.
fn large(
    (queries, files): (&[ReductionQuery], &[(String, LocalInput)]),
    parts: &[ResultTable],
    table: &ResultTable,
    out: &mut dyn Write,
) -> Result<(), BuiltinError> {
    let wrong = |error| BuiltinError::Reduce(Box::new(error));
    let unwritten = |source: std::io::Error| BuiltinError::Write(source);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let scratch = rustix::fs::open(".", flags, Mode::RUSR | Mode::WUSR);
    let scratch = File::from(scratch.map_err(|error| unwritten(error.into()))?);
    let mut netcdf = Netcdf::create(table, BufWriter::new(&scratch)).map_err(wrong)?;
    let mut first = 0;
    for (query, part) in queries.iter().zip(parts) {
        let mut put = |cells: &CellRange, found: &ResultTable| netcdf.put(first, cells, found);
        let found = match part.is_outline() {
            false => put(&part.all(), part),
            true => local::with_files(files, |inputs| {
                local::slabs(query, inputs, |_| {}, &mut put)
            }),
        };
        found.map_err(wrong)?;
        first += part.fields.len();
    }
    drop(netcdf.finish().map_err(wrong)?);
    (&scratch).rewind().map_err(unwritten)?;
    std::io::copy(&mut &scratch, out).map_err(unwritten)?;
    Ok(())
}

/// Source of a reduction: a file, or all files of a Zarr array.
#[derive(Debug, PartialEq)]
enum ReduceSource<'a> {
    File(&'a str),
    Zarr(&'a str),
}

/// Returns the sources of a reduction. The topmost directory that contains metadata of a Zarr array is one source with all its contents.
fn sources(inputs: &[String]) -> Vec<ReduceSource<'_>> {
    let metadata = inputs.iter().filter_map(|input| input.rsplit_once('/'));
    let metadata = metadata.filter(|(_, name)| METADATA.contains(name));
    let directories: BTreeSet<&str> = metadata.map(|(directory, _)| directory).collect();
    let ends = |path: &str| {
        path.match_indices('/')
            .map(|(end, _)| end)
            .collect::<Vec<_>>()
    };
    let mut all: Vec<ReduceSource<'_>> = Vec::new();
    let mut known = BTreeSet::new();
    for input in inputs {
        let above = ends(input).into_iter().map(|end| &input[..end]);
        match above
            .into_iter()
            .find(|directory| directories.contains(directory))
        {
            Some(directory) if known.insert(directory) => all.push(ReduceSource::Zarr(directory)),
            Some(_) => {}
            None => all.push(ReduceSource::File(input)),
        }
    }
    all
}

fn open(name: &str) -> Result<File, BuiltinError> {
    File::open(name).map_err(|source| BuiltinError::Read {
        name: name.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn reduce_kernel_treats_zarr_files_as_one_source() {
        let inputs = [
            "a.nc",
            "z/zarr.json",
            "z/x/zarr.json",
            "z/x/c/0",
            "y/.zarray",
            "y/0",
            "y.nc",
            "zarr.json",
        ];
        let inputs = inputs.map(str::to_owned);
        assert_eq!(
            sources(&inputs),
            [
                ReduceSource::File("a.nc"),
                ReduceSource::Zarr("z"),
                ReduceSource::Zarr("y"),
                ReduceSource::File("y.nc"),
                ReduceSource::File("zarr.json")
            ]
        );
    }

    fn files_below(directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => files_below(&path, found),
                false => found.push(path.to_str().unwrap().to_owned()),
            }
        }
    }

    /// The kernel gives the largest value of each row, as zarr-python reads the rows. Some chunks of the Zarr array were never written.
    #[test]
    fn zarr_directory_is_reduced() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/fixtures");
        let described = std::fs::read(fixtures.join("three.zarr.json")).unwrap();
        let described: serde_json::Value = serde_json::from_slice(&described).unwrap();
        let mut all = described["variables"].as_array().unwrap().iter();
        let tas = all.find(|one| one["path"] == "tas").unwrap();
        let hex = tas["selections"][0]["hex"].as_str().unwrap();
        let value = |at: usize| {
            f32::from_bits(
                u32::from_str_radix(&hex[at..at + 8], 16)
                    .unwrap()
                    .swap_bytes(),
            )
        };
        // Stored values are half of the unpacked values.
        let factor = &tas["attributes"]["scale_factor"]["numbers"];
        assert_eq!(*factor, serde_json::json!(["2.0"]));
        let values: Vec<f32> = (0..hex.len())
            .step_by(8)
            .map(|at| 2.0 * value(at))
            .collect();
        let rows = values
            .chunks(10)
            .map(|row| row.iter().copied().fold(f32::NAN, f32::max));

        let mut files = Vec::new();
        files_below(&fixtures.join("three.zarr"), &mut files);
        let args = ["op=max", "variable=tas", "over=x", "to=csv"].map(str::to_owned);
        let mut out = Vec::new();
        crate::run_builtin("reduce", &args, &files, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let found = out
            .lines()
            .skip(1)
            .map(|line| line.rsplit(',').next().unwrap().parse::<f32>());
        let found: Vec<Option<f32>> = found.map(Result::ok).collect();
        let expected: Vec<Option<f32>> = rows
            .map(|max| Some(max).filter(|max| !max.is_nan()))
            .collect();
        assert_eq!(found, expected, "{out}");
        assert!(expected.iter().flatten().count() > 3 && expected.contains(&None));
    }
}
