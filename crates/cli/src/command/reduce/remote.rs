//! Opens the files of the cluster that `tidemill reduce` names. Next: `node/src/cluster_reduction`, which asks the nodes.

use super::{CellWriter, expanded, having};
use crate::context::CommandContext;
use crate::files;
use crate::progress::Progress;
use anyhow::Context as _;
use tidemill_client::Server;
use tidemill_client::transfer::Transfer;
use tidemill_compute::reduction::{ReductionInput, ReductionQuery, ResultTable, local, plan};
use tidemill_format::zip::Zip;
use tidemill_format::{Format, Header, VariableSource};
use tidemill_model::display::escaped;
use tidemill_node::cluster_reduction::{self, ClusterInput};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

pub(super) async fn reduce(
    query: &ReductionQuery,
    paths: &[String],
    (context, progress): (&CommandContext, &Progress),
    put: Option<&mut CellWriter<'_>>,
) -> anyhow::Result<ResultTable> {
    let server = context.connect().await?;
    let transfer = context.transfer().await?;
    let (names, by_pattern, opened) = opened(paths, &server, &transfer).await?;
    let (headers, zips) = block_in_place(|| headers(&names, &opened))?;
    let input = |place: usize| ReductionInput {
        name: &names[place],
        header: &headers[place],
        store: zips[place].as_ref().map_or_else(
            || opened[place].source(),
            |zip| VariableSource::Directory(zip),
        ),
        bytes: match &opened[place] {
            ClusterInput::File(file) => Some(file),
            ClusterInput::Directory(_) => None,
        },
    };
    let (places, mut notes) = having(query, (&names, &by_pattern), &headers);
    // For each input, the location of its file.
    let opened: Vec<&ClusterInput<'_>> = places.iter().map(|place| &opened[*place]).collect();
    let inputs: Vec<ReductionInput<'_>> = places.into_iter().map(input).collect();
    let plan = block_in_place(|| plan(query, &inputs))?;
    let files = (inputs.as_slice(), opened.as_slice());
    let add = |bytes| progress.add(bytes);
    if let Some(put) = put {
        for (cells, slab) in plan.slabs() {
            put(
                &cells,
                &cluster_reduction::reduce(&slab, files, &add).await?,
            )?;
        }
        return Ok(ResultTable::default());
    }
    let mut table = match plan.is_large() {
        true => plan.outline()?,
        false => cluster_reduction::reduce(&plan, files, &add).await?,
    };
    notes.append(&mut table.notes);
    Ok(ResultTable { notes, ..table })
}

/// Returns the reduced files, as inputs of a job: the files of [`having`], directories with a trailing slash.
pub(super) async fn inputs(
    query: &ReductionQuery,
    paths: &[String],
    context: &CommandContext,
) -> anyhow::Result<Vec<String>> {
    let server = context.connect().await?;
    let transfer = context.transfer().await?;
    let (names, by_pattern, opened) = opened(paths, &server, &transfer).await?;
    let (headers, _zips) = block_in_place(|| headers(&names, &opened))?;
    let (places, notes) = having(query, (&names, &by_pattern), &headers);
    for note in notes {
        context.note(format_args!("note: {note}"));
    }
    let input = |place: usize| {
        let path = path(&names[place])?;
        let name = path.text("a job")?;
        Ok(match &opened[place] {
            ClusterInput::File(_) => name.to_owned(),
            ClusterInput::Directory(_) => format!("{name}/"),
        })
    };
    places.into_iter().map(input).collect()
}

/// Returns all files that names and patterns stand for, each with whether a pattern does.
type AllOpened<'a> = (Vec<String>, Vec<bool>, Vec<ClusterInput<'a>>);

async fn opened<'a>(
    paths: &[String],
    server: &Server,
    transfer: &'a Transfer,
) -> anyhow::Result<AllOpened<'a>> {
    let list = |directory: &str| {
        let names = block_in_place(|| {
            Handle::current().block_on(async {
                let ino = files::inode(server, path(directory)?).await?;
                anyhow::Ok(files::list(server, ino).await?)
            })
        })?;
        Ok(names.iter().map(|entry| escaped(&entry.name)).collect())
    };
    let paths = paths.iter().map(|text| Ok(escaped(path(text)?.as_ref())));
    let paths: Vec<String> = paths.collect::<anyhow::Result<_>>()?;
    let (names, by_pattern) = expanded(&paths, list)?;
    let mut opened = Vec::new();
    for name in &names {
        let path = path(name)?.into_bytes();
        let attr = transfer.resolve(&path).await?;
        let file = ClusterInput::open(transfer, path, &attr).await;
        opened.push(file.with_context(|| name.clone())?);
    }
    Ok((names, by_pattern, opened))
}

/// Returns the path of the cluster that a text stands for.
fn path(text: &str) -> anyhow::Result<files::ClusterPath> {
    files::path(super::path(text))
}

type Headers<'a> = (Vec<Header>, Vec<Option<Zip<'a>>>);

fn headers<'a>(names: &[String], opened: &'a [ClusterInput<'a>]) -> anyhow::Result<Headers<'a>> {
    let (mut headers, mut zips) = (Vec::new(), Vec::new());
    for (name, file) in names.iter().zip(opened) {
        let header = local::header(name, file.source())?;
        zips.push(match file {
            ClusterInput::File(file) if matches!(header.format, Format::Zarr(_)) => {
                Some(Zip::open(file)?)
            }
            _ => None,
        });
        headers.push(header);
    }
    Ok((headers, zips))
}
