//! `reduce`: sums, means and extremes of a variable of scientific files, as `tidemill reduce` finds them (`docs/reduce.md`).

use std::fs::File;
use std::io::Write;

use super::BuiltinError;
use super::table::{Arg, Code, Kernel, Options};
use crate::reduction::{Form, Table, Words, here};

/// This group's part of the table.
pub(super) const KERNELS: &[Kernel] = &[Kernel {
    name: "reduce",
    revision: 2,
    help: "variables of netCDF, HDF5, Zarr (zip) or FITS files, reduced",
    args: &[ARGS],
    usage: None,
    prepare: None,
    code: Code::Whole(reduce),
}];

const ARGS: &[Arg] = &[
    Arg {
        key: "op",
        values: "count|min|max|sum|mean|stddev|range|stats|median|quantile|histogram",
        default: "mean",
        help: "what is found",
    },
    Arg {
        key: "variable",
        values: "NAMES",
        default: "",
        help: "of which variable, or variables with commas between",
    },
    Arg {
        key: "where",
        values: "SELECTION",
        default: "",
        help: "what of each dimension: time=1990-01..1999-12,lat=[10:20]",
    },
    Arg {
        key: "over",
        values: "DIMENSIONS",
        default: "",
        help: "dimensions that are reduced, with commas between them (the default is all)",
    },
    Arg {
        key: "by",
        values: "PERIOD",
        default: "",
        help: "times together: year, season, month, day, hour, or the same of all years, as climatological-month",
    },
    Arg {
        key: "weights",
        values: "DIMENSION",
        default: "",
        help: "the dimension of latitudes, as whose cosine values weigh",
    },
    Arg {
        key: "ddof",
        values: "COUNT",
        default: "0",
        help: "what is taken from the count of a standard deviation",
    },
    Arg {
        key: "q",
        values: "LIST",
        default: "0.25,0.5,0.75",
        help: "which quantiles, from 0 to 1, with commas between",
    },
    Arg {
        key: "bins",
        values: "N|LOW:HIGH:N",
        default: "10",
        help: "the bins of a histogram: so many between the extremes, or from one number to another",
    },
    Arg {
        key: "along",
        values: "DIMENSION",
        default: "",
        help: "the dimension along which several files are one (the default is the unlimited one)",
    },
    Arg {
        key: "to",
        values: "nc|npy|csv|json",
        default: "nc",
        help: "how the result is written",
    },
];

fn reduce(options: &Options, inputs: &[String], out: &mut dyn Write) -> Result<(), BuiltinError> {
    let text = |key| options.text(key).unwrap_or_default();
    let variables = options.needed("variable", options.text("variable"))?;
    let words = |variable| Words {
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
    };
    let wrong = |error| BuiltinError::Reduce(Box::new(error));
    let form = Form::of(&format!(".{}", text("to"))).map_err(wrong)?;
    let files = inputs.iter().map(|name| Ok((name.as_str(), open(name)?)));
    let files: Vec<(&str, File)> = files.collect::<Result<_, BuiltinError>>()?;
    let mut tables = Vec::new();
    for variable in variables.split(',') {
        let query = words(variable.trim()).query().map_err(wrong)?;
        tables.push(here::reduce_files(&query, &files, |_| {}).map_err(wrong)?);
    }
    let table = Table::join(tables).map_err(wrong)?;
    table.write(form, out).map_err(wrong)
}

fn open(name: &str) -> Result<File, BuiltinError> {
    File::open(name).map_err(|source| BuiltinError::Read {
        name: name.to_owned(),
        source,
    })
}
