//! Lineage in the DOT language of Graphviz: versions are boxes, runs ellipses, edges go the way of the
//! data.

use super::Graph;
use std::fmt::Write;

/// The whole graph as a `digraph`.
#[must_use]
pub fn render(graph: &Graph) -> String {
    let mut out =
        String::from("digraph lineage {\n  rankdir=LR;\n  node [fontname=\"sans-serif\"];\n");
    if let Some(cut) = &graph.cut {
        let _ = writeln!(out, "  label={};", quoted(cut));
    }
    for version in graph.versions() {
        let label = format!("{}\nobject {}", version.shown_path(), version.object);
        let _ = writeln!(
            out,
            "  o{} [shape=box, label={}];",
            version.object,
            quoted(&label)
        );
    }
    for record in graph.records() {
        let label = format!(
            "{}\n{} on element {}",
            record.name, record.kernel, record.element
        );
        let label = if record.hidden {
            format!("{}\ntask {}", record.shown_name(), record.task)
        } else {
            label
        };
        let _ = writeln!(
            out,
            "  t{} [shape=ellipse, label={}];",
            record.task,
            quoted(&label)
        );
    }
    for record in graph.records() {
        for (name, object) in &record.inputs {
            let _ = writeln!(
                out,
                "  o{object} -> t{} [tooltip={}];",
                record.task,
                quoted(name)
            );
        }
        for (name, object) in &record.outputs {
            let _ = writeln!(
                out,
                "  t{} -> o{object} [tooltip={}];",
                record.task,
                quoted(name)
            );
        }
    }
    out.push_str("}\n");
    out
}

/// A DOT string: quotes and backslashes escaped, lines kept apart.
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
    fn every_version_run_and_edge_is_drawn() {
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
    fn quotes_and_backslashes_do_not_end_a_string() {
        assert_eq!(quoted("a\"b\\c\nd\u{7}"), "\"a\\\"b\\\\c\\nd \"");
    }
}
