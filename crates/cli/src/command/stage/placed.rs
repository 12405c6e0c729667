//! Locations of files: how much of them is in the burst tier, from the layouts of all files at or below a path.

use crate::context::credentials;
use crate::files::{self, ClusterPath};
use crate::output::files::kind;
use crate::output::stage::Placed;
use crate::output::stat::Layout;
use rustix::io::Errno;
use tidemill_client::{Error, Server};
use tidemill_wire::v1::{self, name_op::Op, name_result::Result as Answer};

/// Maximum number of layouts in one request.
const BATCH: usize = 1000;

/// State of a replica in the burst tier, as the layout of a file reports it.
const IN_TIER: &str = "burst";
/// States of replicas that have no valid bytes.
const INVALID: [&str; 3] = ["coming", "lost", "corrupt"];

/// Sums up the locations of a file, or of all files below a directory that the caller may list.
///
/// # Errors
/// If the path does not exist, or the server can't be reached.
pub(super) async fn look(server: &Server, path: &ClusterPath) -> anyhow::Result<Placed> {
    let mut placed = Placed {
        path: path.clone(),
        ..Placed::default()
    };
    let entry = files::resolve(server, path, true).await?;
    let mut directories = Vec::new();
    add(server, vec![entry], (&mut placed, &mut directories)).await?;
    while let Some(ino) = directories.pop() {
        let entries = match files::list(server, ino).await {
            // A directory that was deleted during the walk.
            Err(error) if error.is(Errno::NOENT) || error.is(Errno::STALE) => continue,
            entries => entries?,
        };
        add(server, entries, (&mut placed, &mut directories)).await?;
    }
    Ok(placed)
}

/// Adds files to the sums, and directories to those that are still to be listed.
async fn add(
    server: &Server,
    entries: Vec<v1::Entry>,
    (placed, directories): (&mut Placed, &mut Vec<u64>),
) -> anyhow::Result<()> {
    let mut sealed = Vec::new();
    for entry in &entries {
        let Some(attr) = &entry.attr else { continue };
        match kind(entry) {
            v1::Kind::Directory => directories.push(attr.ino),
            v1::Kind::File => {
                placed.files += 1;
                match attr.object {
                    0 => placed.unsealed += 1,
                    _ => sealed.push(attr.ino),
                }
            }
            _ => {}
        }
    }
    let layouts = sealed.into_iter().map(|ino| {
        let name = b"user.tidemill.layout".to_vec();
        Op::GetXattr(v1::GetXattr { ino, name })
    });
    for answer in server.read_all(&credentials(), layouts, BATCH).await? {
        match answer {
            Answer::Bytes(bytes) => count(&serde_json::from_slice(&bytes.value)?, placed),
            Answer::Error(error) => skip(error.into())?,
            _ => return Err(Error::Answer("GetXattr").into()),
        }
    }
    Ok(())
}

/// Accepts the error of a file that was deleted or truncated during the walk.
fn skip(error: Error) -> anyhow::Result<()> {
    let gone = [Errno::NOENT, Errno::NODATA, Errno::STALE];
    match gone.into_iter().any(|errno| error.is(errno)) {
        true => Ok(()),
        false => Err(error.into()),
    }
}

/// Adds the objects of one file's layout.
fn count(layout: &Layout, placed: &mut Placed) {
    for part in &layout.parts {
        let bytes = part.size;
        placed.all.add(bytes);
        let states = part.replicas.iter().map(|replica| replica.state.as_str());
        let (mut in_tier, mut elsewhere) = (false, false);
        for state in states.filter(|state| !INVALID.contains(state)) {
            match state {
                IN_TIER => in_tier = true,
                _ => elsewhere = true,
            }
        }
        if in_tier {
            placed.in_tier.add(bytes);
        }
        if in_tier && !elsewhere {
            placed.only_in_tier.add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn layout_counts_objects_by_tier() {
        let part = |size: u64, states: &[&str]| {
            let replica = |state: &&str| json!({ "node": 1, "state": state });
            let replicas: Vec<_> = states.iter().map(replica).collect();
            json!({ "size": size, "replicas": replicas })
        };
        let parts = [
            part(1, &["burst"]),
            part(2, &["burst", "current"]),
            part(4, &["burst", "coming"]),
            part(8, &["offline"]),
        ];
        let mut placed = Placed::default();
        let layout =
            json!({ "layout": "extents", "version": 1, "size": 15, "replicas": 1, "parts": parts });
        count(&serde_json::from_value(layout).unwrap(), &mut placed);
        let sums = [placed.all, placed.in_tier, placed.only_in_tier];
        let sums = sums.map(|sum| (sum.objects, sum.bytes.0));
        assert_eq!(sums, [(4, 15), (3, 7), (2, 5)]);
    }
}
