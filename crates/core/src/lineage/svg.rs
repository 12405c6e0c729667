//! Lineage as an SVG picture, drawn here: columns from left to right in the way of the data, versions as
//! boxes, runs as rounded ones, both with the full story as a tooltip.

use super::{Graph, Vertex, text};
use crate::shown::bytes;
use crate::xml::escaped;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const BOX_WIDTH: usize = 190;
const BOX_HEIGHT: usize = 38;
const COLUMN_GAP: usize = 70;
const ROW_GAP: usize = 14;
const MARGIN: usize = 16;
/// Characters that fit in a box at the font's size.
const LABEL_CHARS_MAX: usize = 28;
/// Sweeps that order the rows of columns; more change little.
const SWEEPS: usize = 5;

/// The whole graph as an SVG document.
#[must_use]
pub fn render(graph: &Graph) -> String {
    let edges = edges(graph);
    let columns = columns(graph, &edges);
    let mut places = BTreeMap::new();
    let tallest = columns.iter().map(Vec::len).max().unwrap_or(0);
    let row = BOX_HEIGHT + ROW_GAP;
    for (x, column) in columns.iter().enumerate() {
        let top = (tallest - column.len()) * row / 2;
        for (y, &node) in column.iter().enumerate() {
            let left = MARGIN + x * (BOX_WIDTH + COLUMN_GAP);
            places.insert(node, (left, MARGIN + top + y * row));
        }
    }
    let width = 2 * MARGIN + columns.len() * (BOX_WIDTH + COLUMN_GAP).max(1)
        - COLUMN_GAP.min(columns.len() * COLUMN_GAP);
    let height = 2 * MARGIN + (tallest * row).saturating_sub(ROW_GAP.min(tallest * row));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <g fill=\"none\" stroke=\"#8a94a6\" stroke-width=\"1.2\">\n"
    );
    for (from, to) in &edges {
        if let (Some(from), Some(to)) = (places.get(from), places.get(to)) {
            let (x1, y1) = (from.0 + BOX_WIDTH, from.1 + BOX_HEIGHT / 2);
            let (x2, y2) = (to.0, to.1 + BOX_HEIGHT / 2);
            let bend = COLUMN_GAP / 2;
            let (c1, c2) = (x1 + bend, x2.saturating_sub(bend));
            let _ = writeln!(
                out,
                "<path d=\"M{x1} {y1} C{c1} {y1} {c2} {y2} {x2} {y2}\"/>"
            );
        }
    }
    out.push_str("</g>\n");
    for (node, (x, y)) in places {
        draw(&mut out, graph, node, x, y);
    }
    out.push_str("</svg>\n");
    out
}

/// What is joined, once each.
fn edges(graph: &Graph) -> BTreeSet<(Vertex, Vertex)> {
    graph.edges().map(|edge| (edge.from, edge.to)).collect()
}

/// Nodes in columns: each right of all that it depends on, ordered by the middle of its neighbours.
fn columns(graph: &Graph, edges: &BTreeSet<(Vertex, Vertex)>) -> Vec<Vec<Vertex>> {
    let mut before: BTreeMap<Vertex, Vec<Vertex>> = BTreeMap::new();
    let mut after: BTreeMap<Vertex, Vec<Vertex>> = BTreeMap::new();
    for version in graph.versions() {
        before.entry(Vertex::Version(version.object)).or_default();
    }
    for &(from, to) in edges {
        before.entry(from).or_default();
        before.entry(to).or_default().push(from);
        after.entry(from).or_default().push(to);
    }
    let mut waits: BTreeMap<Vertex, usize> = before
        .iter()
        .map(|(node, from)| (*node, from.len()))
        .collect();
    let mut front: Vec<Vertex> = waits
        .iter()
        .filter(|(_, count)| **count == 0)
        .map(|(node, _)| *node)
        .collect();
    let mut columns = Vec::new();
    while !front.is_empty() {
        let mut next = Vec::new();
        for node in &front {
            for to in after.get(node).into_iter().flatten() {
                let left = waits.entry(*to).or_default();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    next.push(*to);
                }
            }
        }
        next.sort_unstable();
        columns.push(std::mem::replace(&mut front, next));
    }
    for sweep in 0..SWEEPS {
        let neighbours = if sweep % 2 == 0 { &before } else { &after };
        order(&mut columns, neighbours);
    }
    columns
}

/// Orders every column by the mean row of its nodes' neighbours, in thousandths.
fn order(columns: &mut [Vec<Vertex>], neighbours: &BTreeMap<Vertex, Vec<Vertex>>) {
    let mut rows = BTreeMap::new();
    for column in columns.iter() {
        rows.extend(column.iter().enumerate().map(|(row, node)| (*node, row)));
    }
    for column in columns {
        column.sort_by_key(|node| {
            let near: Vec<usize> = neighbours
                .get(node)
                .into_iter()
                .flatten()
                .filter_map(|one| rows.get(one))
                .copied()
                .collect();
            let own = rows.get(node).copied().unwrap_or(0) * 1000;
            let middle = (near.iter().sum::<usize>() * 1000)
                .checked_div(near.len())
                .unwrap_or(own);
            (middle, *node)
        });
        rows.extend(column.iter().enumerate().map(|(row, node)| (*node, row)));
    }
}

fn draw(out: &mut String, graph: &Graph, node: Vertex, x: usize, y: usize) {
    let (first, second, title, fill, radius) = match node {
        Vertex::Version(object) => match graph.version(object) {
            Some(version) => (
                shortened(version.shown_path()),
                format!("object {object}, {}", bytes(version.size)),
                text::version_line(version),
                "#e8f0fe",
                2,
            ),
            None => (
                format!("object {object}"),
                String::new(),
                String::new(),
                "#f2f2f2",
                2,
            ),
        },
        Vertex::Run(task) => {
            let Some(record) = graph.record(task) else {
                return;
            };
            let seconds = record.end.since(record.start).as_secs_f64();
            let second = format!("element {}, {seconds:.2} s", record.element);
            (
                shortened(&record.name),
                second,
                text::run_line(record),
                "#fef3d8",
                BOX_HEIGHT / 2,
            )
        }
    };
    let (middle, upper, lower) = (x + BOX_WIDTH / 2, y + 16, y + 30);
    let _ = writeln!(
        out,
        "<g><title>{}</title><rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" \
         rx=\"{radius}\" fill=\"{fill}\" stroke=\"#4a5568\"/>\
         <text x=\"{middle}\" y=\"{upper}\" text-anchor=\"middle\">{}</text>\
         <text x=\"{middle}\" y=\"{lower}\" text-anchor=\"middle\" fill=\"#5a6475\" font-size=\"9\">{}</text></g>",
        escaped(&title),
        escaped(&first),
        escaped(&second)
    );
}

/// The end of a long path is what tells it from others.
fn shortened(label: &str) -> String {
    let count = label.chars().count();
    if count <= LABEL_CHARS_MAX {
        return label.to_owned();
    }
    let tail: String = label.chars().skip(count - LABEL_CHARS_MAX + 1).collect();
    format!("…{tail}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::mosaic;
    use super::*;
    use crate::id::{ObjectId, TaskId};

    #[test]
    fn data_flows_from_left_to_right() {
        let graph = mosaic();
        let columns = columns(&graph, &edges(&graph));
        let column = |node| columns.iter().position(|column| column.contains(&node));
        assert_eq!(columns.len(), 7);
        for (from, to) in edges(&graph) {
            assert!(column(from) < column(to), "{from:?} {to:?}");
        }
    }

    #[test]
    fn every_node_and_edge_is_drawn_once_and_text_is_escaped() {
        let picture = render(&mosaic());
        assert_eq!(picture.matches("<title>").count(), 10);
        assert_eq!(picture.matches("<path ").count(), 9);
        assert!(
            picture.contains("/mosaic &lt;1&gt;.png") && !picture.contains("<1>"),
            "{picture}"
        );
        assert!(picture.ends_with("</svg>\n"));
    }

    #[test]
    fn rows_follow_their_neighbours_so_that_parallel_branches_do_not_cross() {
        let graph = mosaic();
        let columns = columns(&graph, &edges(&graph));
        assert_eq!(
            columns[0],
            [Vertex::Version(ObjectId(1)), Vertex::Version(ObjectId(2))]
        );
        assert_eq!(
            columns[1],
            [Vertex::Run(TaskId(11)), Vertex::Run(TaskId(12))]
        );
        assert_eq!(
            columns[2],
            [Vertex::Version(ObjectId(3)), Vertex::Version(ObjectId(4))]
        );
    }

    #[test]
    fn long_names_keep_their_end_and_an_empty_graph_is_a_picture() {
        assert_eq!(shortened(&"x".repeat(28)).chars().count(), 28);
        assert!(shortened("/a/very/long/path/to/some/file/result.fits").ends_with("result.fits"));
        assert!(render(&Graph::default()).contains("<svg "));
    }
}
