//! Lineage graphs for tests of drawings, and the secrets that no drawing shows.

#[path = "../../../model/src/lineage/tests/samples.rs"]
mod samples;

pub(super) use samples::mosaic;

use super::*;
use samples::{record, version};
use tidemill_model::{id::*, label::Owner, lineage::*, time::Time};

/// `count` raw files are projected and added; the sum is drawn.
pub(super) fn wide(count: u64) -> Graph {
    let mut graph = Graph::default();
    let client = VersionWriter::Client(Owner {
        uid: 1000,
        gid: 100,
    });
    let (sum, picture) = (2 * count + 1, 2 * count + 2);
    for at in 1..=count {
        let made = VersionWriter::Task(TaskId(at));
        graph.add_version(version(at, &format!("/raw/{at}.fits"), client));
        graph.add_version(version(count + at, &format!("/p/{at}.fits"), made));
        let mut run = record(at, "project", &[at], &[count + at]);
        run.name = format!("project{at}");
        graph.add_record(run);
    }
    let projected: Vec<u64> = (count + 1..=2 * count).collect();
    graph.add_version(version(
        sum,
        "/mosaic.fits",
        VersionWriter::Task(TaskId(sum)),
    ));
    graph.add_version(version(
        picture,
        "/mosaic.png",
        VersionWriter::Task(TaskId(picture)),
    ));
    graph.add_record(record(sum, "add", &projected, &[sum]));
    graph.add_record(record(picture, "view", &[sum], &[picture]));
    graph
}

/// Returns the graph of `mosaic` without the parts that a viewer may not see.
fn secret() -> Graph {
    let (all, mut graph) = (mosaic(), Graph::default());
    for version in all.versions().cloned() {
        let hidden = version.object.0 < 5;
        graph.add_version(LineageVersion { hidden, ..version });
    }
    for record in all.records().cloned() {
        let hidden = record.task.0 < 13;
        graph.add_record(LineageRecord { hidden, ..record });
    }
    graph.cut = Some("more than 7 <versions>".into());
    graph
}

#[test]
fn lineage_renderings_hide_secrets_and_report_omissions() {
    let graph = secret();
    let forms = [
        text::trees(&graph, &[Vertex::Version(ObjectId(5))], true, false),
        dot::render(&graph),
        svg::render(&graph),
    ];
    for form in forms {
        for secret in ["/raw/", "/p/", "project"] {
            assert!(!form.contains(secret), "{secret}: {form}");
        }
        assert!(form.contains(HIDDEN), "{form}");
        assert!(form.contains("mosaic") && form.contains("add"), "{form}");
        assert!(
            form.contains("more than 7 <versions>")
                || form.contains("more than 7 &lt;versions&gt;"),
            "{form}"
        );
    }
}
