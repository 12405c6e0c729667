//! `tidemill inspect`: the variables of a scientific file, and the locations of their bytes.

use crate::context::CommandContext;
use crate::files;
use crate::format::Bytes as Count;
use crate::output::exact;
use crate::output::inspect::{
    Inspection, ShownVariable, VariableLocation, attributes, format_name,
};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidemill_client::ranged::RangedFile;
use tidemill_format::{
    Bytes, FileSpan, Format, Header, IndexRange, Pieces, Variable, VariableSource, pieces, zarr,
    zip::Zip,
};
use tidemill_node::cluster_reduction::{ClusterDirectory, ClusterFile, ClusterInput};
use tokio::task::block_in_place;

const EXAMPLES: &str = "Examples:
  tidemill inspect /cmip6/tas_day_2015.nc            all variables
  tidemill inspect /cmip6/tas_day_2015.nc tas        attributes and filters, too
  tidemill inspect --local ~/data/cube.zarr
  tidemill --json inspect /raw/a.h5 | jq '.variables[].where'";

/// Maximum number of chunks whose places are counted. The output mentions further chunks.
const CHUNKS_MAX: u64 = 1 << 20;
/// Files of a Zarr in the cluster whose nodes are looked up.
const FILES_MAX: usize = 4096;

/// Show the variables of a netCDF, HDF5, Zarr or FITS file, and the nodes with their bytes
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A file of the cluster, or a directory that is a Zarr
    #[arg(value_name = "FILE")]
    file: OsString,
    /// Names of variables to show, with their attributes [default: all variables, without attributes]
    #[arg(value_name = "VARIABLE")]
    variables: Vec<String>,
    /// Read a file of this machine
    #[arg(long)]
    local: bool,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let view = if args.local {
        block_in_place(|| local(&args))?
    } else {
        in_cluster(&args, context).await?
    };
    context.output.finish(&view)
}

fn local(args: &Args) -> anyhow::Result<Inspection> {
    let path = PathBuf::from(&args.file);
    if path.is_dir() {
        let header = zarr::read(&path)?;
        return look(
            args,
            header,
            VariableSource::Directory(&path),
            &mut LocalPlaces,
        );
    }
    of_file(
        args,
        &std::fs::File::open(Path::new(&args.file))?,
        &mut LocalPlaces,
    )
}

async fn in_cluster(args: &Args, context: &CommandContext) -> anyhow::Result<Inspection> {
    let transfer = context.transfer().await?;
    let path = files::path(&args.file)?;
    let attr = transfer.resolve(&path).await?;
    let opened = ClusterInput::open(&transfer, path.clone().into_bytes(), &attr).await;
    block_in_place(|| match &opened.with_context(|| path.to_string())? {
        ClusterInput::Directory(directory) => {
            let header = zarr::read(directory)?;
            let store = VariableSource::Directory(directory);
            let places = &mut DirectoryPlaces(directory, BTreeMap::new());
            look(args, header, store, places)
        }
        ClusterInput::File(file) => of_file(args, file, &mut &*file),
    })
}

fn of_file(
    args: &Args,
    bytes: &dyn Bytes,
    places: &mut dyn PartPlaces,
) -> anyhow::Result<Inspection> {
    let header = tidemill_format::read(bytes)?;
    if matches!(header.format, Format::Zarr(_)) {
        return look(
            args,
            header,
            VariableSource::Directory(&Zip::open(bytes)?),
            places,
        );
    }
    look(args, header, VariableSource::File(bytes), places)
}

fn look(
    args: &Args,
    header: Header,
    store: VariableSource<'_>,
    places: &mut dyn PartPlaces,
) -> anyhow::Result<Inspection> {
    for name in &args.variables {
        header.find(name)?;
    }
    let named = |variable: &Variable| {
        let names = args.variables.iter().map(|name| name.trim_matches('/'));
        args.variables.is_empty() || names.into_iter().any(|name| name == variable.path)
    };
    let (format, of_file) = (format_name(header.format), attributes(&header.attributes));
    let mut shown = Vec::new();
    for variable in header.variables.into_iter().filter(named) {
        let all: Vec<IndexRange> = variable.shape().into_iter().map(IndexRange::all).collect();
        let counted =
            pieces(&variable, &all, store, u64::MAX).and_then(|found| count(found, places));
        let (found, why) = match counted {
            Ok(found) => (found, None),
            Err(error) => (CountedBytes::default(), Some(error.to_string())),
        };
        shown.push(ShownVariable::new(&variable, found.places, found.more, why));
    }
    let detailed = !args.variables.is_empty();
    Ok(Inspection {
        path: exact(&args.file),
        format,
        attributes: of_file,
        variables: shown,
        detailed,
    })
}

#[derive(Default)]
struct CountedBytes {
    places: Vec<VariableLocation>,
    more: bool,
}

/// Bytes and chunks of a variable, by the parts that contain them.
fn count(found: Pieces<'_>, places: &mut dyn PartPlaces) -> tidemill_format::Result<CountedBytes> {
    let mut all: BTreeMap<(Option<usize>, Option<u32>), VariableLocation> = BTreeMap::new();
    let mut looked_at = 0;
    let mut more = false;
    'all: for piece in found {
        for span in piece?.spans() {
            looked_at += 1;
            if looked_at > CHUNKS_MAX {
                more = true;
                break 'all;
            }
            for (part, node, bytes) in places.of(&span) {
                let place = all.entry((part, node)).or_insert(VariableLocation {
                    part,
                    node,
                    bytes: Count(0),
                    chunks: 0,
                });
                place.bytes.0 += bytes;
                place.chunks += 1;
            }
        }
    }
    Ok(CountedBytes {
        places: all.into_values().collect(),
        more,
    })
}

/// A part, the node that it is read from, and its number of bytes.
type PartSource = (Option<usize>, Option<u32>, u64);

/// Returns the parts and nodes that have the bytes of a span, and the number of bytes of each.
trait PartPlaces {
    fn of(&mut self, span: &FileSpan) -> Vec<PartSource>;
}

/// Files of this machine.
struct LocalPlaces;

impl PartPlaces for LocalPlaces {
    fn of(&mut self, span: &FileSpan) -> Vec<PartSource> {
        vec![(None, None, span.size)]
    }
}

fn parts_of(file: &RangedFile<'_>, offset: u64, size: u64) -> Vec<PartSource> {
    let spans = file.layout().spans(offset..offset.saturating_add(size));
    let whole = spans.len() == 1;
    let of = |(part, range): (usize, std::ops::Range<u64>)| {
        let bytes = if whole { size } else { range.end - range.start };
        (Some(part), file.node(part).map(|node| node.0), bytes)
    };
    spans.into_iter().map(of).collect()
}

impl PartPlaces for &ClusterFile<'_> {
    fn of(&mut self, span: &FileSpan) -> Vec<PartSource> {
        parts_of(&self.ranged(), span.offset, span.size)
    }
}

/// Directory of the cluster, with the files whose nodes were looked up.
struct DirectoryPlaces<'a>(&'a ClusterDirectory<'a>, BTreeMap<String, Vec<PartSource>>);

impl PartPlaces for DirectoryPlaces<'_> {
    fn of(&mut self, span: &FileSpan) -> Vec<PartSource> {
        let Some(path) = &span.file else {
            return Vec::new();
        };
        let Self(directory, known) = self;
        let unknown = vec![(None, None, span.size)];
        if known.len() >= FILES_MAX && !known.contains_key(path) {
            return unknown;
        }
        let found = known.entry(path.clone()).or_insert_with(|| {
            directory.open(path).map_or_else(
                |_| Vec::new(),
                |file| parts_of(&file, span.offset, span.size),
            )
        });
        // Each file has parts of its own, so numbers of parts would mean nothing for the whole variable.
        let place = |(_, node, bytes): &PartSource| (None, *node, *bytes);
        if found.is_empty() {
            unknown
        } else {
            found.iter().map(place).collect()
        }
    }
}
