//! Lineage in the DOT language of Graphviz: versions are boxes, runs are ellipses, and edges have the direction of the data.

use std::fmt::Write;
use tidemill_model::lineage::{Graph, LineageRecord, Vertex};

/// Returns the whole graph as a `digraph`.
pub(crate) fn render(graph: &Graph) -> String {
    let mut out =
        String::from("digraph lineage {\n  rankdir=LR;\n  node [fontname=\"sans-serif\"];\n");
    if let Some(cut) = &graph.cut {
        let _ = writeln!(out, "  label={};", quoted(cut));
    }
    let mut draw = |vertex, shape, label: &str| {
        let _ = writeln!(
            out,
            "  {} [shape={shape}, label={}];",
            name(vertex),
            quoted(label)
        );
    };
    for version in graph.versions() {
        let label = format!("{}\nobject {}", version.shown_path(), version.object);
        draw(Vertex::Version(version.object), "box", &label);
    }
    for record in graph.records() {
        let label = if record.hidden {
            format!("{}\ntask {}", record.shown_name(), record.task)
        } else {
            let LineageRecord { kernel, node, .. } = record;
            let name = record.shown_name();
            format!("{name}\n{kernel} on node {node}")
        };
        draw(Vertex::Run(record.task), "ellipse", &label);
    }
    for edge in graph.edges() {
        let (from, to) = (name(edge.from), name(edge.to));
        let _ = writeln!(out, "  {from} -> {to} [tooltip={}];", quoted(edge.name));
    }
    out.push_str("}\n");
    out
}

fn name(vertex: Vertex) -> String {
    match vertex {
        Vertex::Version(object) => format!("o{object}"),
        Vertex::Run(task) => format!("t{task}"),
    }
}

/// Returns a quoted DOT string: quotes and backslashes are escaped, and lines are separated by `\n`.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::super::tests::mosaic;
    use super::*;

    #[test]
    fn dot_draws_every_version_run_and_edge() {
        let text = render(&mosaic());
        assert_eq!(text.matches("shape=box").count(), 6);
        assert_eq!(text.matches("shape=ellipse").count(), 4);
        assert_eq!(text.matches(" -> ").count(), 9);
        assert!(text.contains("o3 -> t13"), "{text}");
        assert!(
            text.contains("label=\"/mosaic <1>.png\\nobject 6\""),
            "{text}"
        );
    }

    #[test]
    fn dot_escapes_quotes_and_backslashes() {
        assert_eq!(quoted("a\"b\\c\nd\u{7}"), "\"a\\\"b\\\\c\\nd \"");
    }
}
