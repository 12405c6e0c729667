//! Lineage as an SVG picture: versions as boxes, runs as rounded boxes, similar nodes as one node with their number, and arrows in the
//! direction of the data. Tooltips contain the details. The picture is drawn from left to right or from top to bottom, whichever appears
//! larger on a slide.

use super::fold::{PictureNode, common, fold};
use super::layout::{BOX_HEIGHT, GraphDirection, PictureLayout, layout};
use std::fmt::Write;
use tidemill_model::display::bytes;
use tidemill_model::lineage::{Graph, HIDDEN, Vertex, text};
use tidemill_plan::xml::escaped;

/// Font size of names, in pixels; the next constant is the approximate width of a character.
const FONT: usize = 15;
const CHAR_WIDTH: usize = 8;
/// Maximum number of characters of a name in the picture.
const LABEL_CHARS_MAX: usize = 26;
/// Maximum number of lines of a tooltip.
const STORY_LINES_MAX: usize = 12;
/// Height of the note about omitted data, in pixels.
const NOTE_HEIGHT: usize = 24;

/// Returns the whole graph as an SVG document.
pub(crate) fn render(graph: &Graph) -> String {
    let folded = fold(graph);
    let faces: Vec<Face> = folded
        .nodes
        .iter()
        .map(|node| Face::new(graph, node))
        .collect();
    let longest = faces.iter().map(Face::chars).max().unwrap_or(0);
    let box_width = longest.max(8) * CHAR_WIDTH + 24;
    let layout = layout(folded.nodes.len(), &folded.edges, box_width);
    let (width, mut height) = (layout.width, layout.height);
    if graph.cut.is_some() {
        height += NOTE_HEIGHT;
    }
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"{FONT}\">\n\
         <defs><marker id=\"arrow\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" \
         orient=\"auto\"><path d=\"M0 0L10 5L0 10z\" fill=\"#5a6475\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <g fill=\"none\" stroke=\"#8a94a6\" stroke-width=\"1.4\">\n"
    );
    for route in &layout.routes {
        let _ = writeln!(
            out,
            "<path class=\"edge\" d=\"{}\" marker-end=\"url(#arrow)\"/>",
            path(&layout, route)
        );
    }
    out.push_str("</g>\n");
    for (face, &(x, y)) in faces.iter().zip(&layout.boxes) {
        face.draw(&mut out, (x, y), box_width);
    }
    if let Some(cut) = &graph.cut {
        let _ = writeln!(
            out,
            "<text x=\"16\" y=\"{}\" fill=\"#b00020\">{}</text>",
            height - 10,
            escaped(cut)
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Returns the SVG path of an edge: straight in lanes, bent between lanes.
fn path(layout: &PictureLayout, route: &[(usize, usize)]) -> String {
    let mut path = String::new();
    for bend in route.chunks(2) {
        let &[(x1, y1), (x2, y2)] = bend else {
            continue;
        };
        let ((c1, d1), (c2, d2)) = match layout.way {
            GraphDirection::Right => (((x1 + x2) / 2, y1), ((x1 + x2) / 2, y2)),
            GraphDirection::Down => ((x1, (y1 + y2) / 2), (x2, (y1 + y2) / 2)),
        };
        let to = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{to}{x1} {y1}C{c1} {d1} {c2} {d2} {x2} {y2}");
    }
    path
}

/// Appearance of a node in the picture.
struct Face {
    name: String,
    second: String,
    story: String,
    fill: &'static str,
    radius: usize,
    members: usize,
}

impl Face {
    fn new(graph: &Graph, node: &PictureNode) -> Self {
        let names: Vec<String> = node.members.iter().map(|one| name(graph, *one)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let members = node.members.len();
        let first = node.members.first().copied();
        let (fill, radius) = match first {
            Some(Vertex::Run(_)) => ("#fef3d8", BOX_HEIGHT / 2),
            Some(Vertex::Version(object)) if graph.version(object).is_some() => ("#e8f0fe", 3),
            _ => ("#f2f2f2", 3),
        };
        let mut stories = node.members.iter().map(|one| story(graph, *one));
        let mut lines: Vec<String> = stories.by_ref().take(STORY_LINES_MAX).collect();
        let more = stories.count();
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        Self {
            name: shortened(&common(&names)),
            second: second(graph, &node.members),
            story: lines.join("\n"),
            fill,
            radius,
            members,
        }
    }

    /// Returns the number of members as text, if the node has several members.
    fn count(&self) -> String {
        if self.members > 1 {
            // A plain space at its beginning would not be shown.
            format!("\u{a0}\u{d7}{}", self.members)
        } else {
            String::new()
        }
    }

    /// Returns the number of characters for which the box needs space; characters of the second line are smaller.
    fn chars(&self) -> usize {
        let first = self.name.chars().count() + self.count().chars().count();
        first.max(self.second.chars().count() * 4 / 5)
    }

    fn draw(&self, out: &mut String, (x, y): (usize, usize), width: usize) {
        let Self { fill, radius, .. } = self;
        let rect = |x: usize, y: usize| {
            format!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BOX_HEIGHT}\" rx=\"{radius}\" fill=\"{fill}\" \
                 stroke=\"#4a5568\"/>"
            )
        };
        // A node with several members is drawn as a stack.
        let behind = if self.members > 1 {
            rect(x + 4, y + 4)
        } else {
            String::new()
        };
        let (middle, upper, lower) = (x + width / 2, y + 20, y + 37);
        let _ = writeln!(
            out,
            "<g><title>{}</title>{behind}{}<text x=\"{middle}\" y=\"{upper}\" text-anchor=\"middle\">{}<tspan \
             font-weight=\"700\">{}</tspan></text>\
             <text x=\"{middle}\" y=\"{lower}\" text-anchor=\"middle\" fill=\"#4a5568\" font-size=\"12\">{}</text></g>",
            escaped(&self.story),
            rect(x, y),
            escaped(&self.name),
            self.count(),
            escaped(&self.second)
        );
    }
}

fn name(graph: &Graph, vertex: Vertex) -> String {
    match vertex {
        Vertex::Version(object) => match graph.version(object) {
            Some(version) if version.superseded => {
                format!("{} v{}", version.shown_path(), version.number)
            }
            Some(version) => version.shown_path().to_owned(),
            None => format!("object {object}"),
        },
        Vertex::Run(task) => {
            let run = graph.record(task);
            run.map_or(HIDDEN, |run| run.shown_name()).to_owned()
        }
    }
}

fn story(graph: &Graph, vertex: Vertex) -> String {
    match vertex {
        Vertex::Version(object) => graph.version(object).map(text::version_line),
        Vertex::Run(task) => graph.record(task).map(text::run_line),
    }
    .unwrap_or_default()
}

/// Returns the second line of a node: bytes of versions, or kernel and seconds of runs, over all members.
fn second(graph: &Graph, members: &[Vertex]) -> String {
    let (mut size, mut seconds, mut kernel) = (0, 0.0, String::new());
    let (mut versions, mut runs) = (0, 0);
    for member in members {
        match *member {
            Vertex::Version(object) => {
                if let Some(version) = graph.version(object).filter(|version| !version.hidden) {
                    versions += 1;
                    size += version.size;
                }
            }
            Vertex::Run(task) => {
                if let Some(run) = graph.record(task).filter(|run| !run.hidden) {
                    runs += 1;
                    seconds += run.end.since(run.start).as_secs_f64();
                    kernel = run.kernel.rsplit('/').next().unwrap_or_default().to_owned();
                }
            }
        }
    }
    match (versions, runs) {
        (0, 0) => String::new(),
        (_, 0) => bytes(size),
        _ => format!("{}, {seconds:.2} s", shortened(&kernel)),
    }
}

/// Returns a long name without its middle: its beginning shows the directory, and its end distinguishes it from other names.
fn shortened(label: &str) -> String {
    let count = label.chars().count();
    if count <= LABEL_CHARS_MAX {
        return label.to_owned();
    }
    let head = LABEL_CHARS_MAX / 3;
    let tail = LABEL_CHARS_MAX - head - 1;
    let start = label.chars().take(head);
    let end = label.chars().skip(count - tail);
    start.chain(['\u{2026}']).chain(end).collect()
}

#[cfg(test)]
mod tests {
    use super::super::layout::fill;
    use super::super::tests::{mosaic, wide};
    use super::*;

    #[test]
    fn svg_draws_each_node_and_edge_once_and_escapes_text() {
        let picture = render(&mosaic());
        assert_eq!(picture.matches("<title>").count(), 10);
        assert_eq!(picture.matches("class=\"edge\"").count(), 9);
        assert_eq!(
            picture.matches("d=\"M").count(),
            10,
            "edges and the arrow's head"
        );
        assert!(
            picture.contains("/mosaic &lt;1&gt;.png") && !picture.contains("<1>"),
            "{picture}"
        );
        assert!(picture.ends_with("</svg>\n"));
    }

    #[test]
    fn svg_folds_equal_nodes_into_one_box_with_count() {
        let picture = render(&wide(10));
        assert_eq!(picture.matches("<title>").count(), 7, "{picture}");
        assert_eq!(picture.matches("\u{a0}\u{d7}10<").count(), 3);
        assert!(picture.contains("/raw/\u{2026}.fits<"), "{picture}");
        assert!(
            picture.contains("/raw/3.fits"),
            "each is lines in the tooltip"
        );
    }

    #[test]
    fn svg_of_thousand_tasks_is_readable_on_a_slide() {
        for graph in [mosaic(), wide(10), wide(1000)] {
            let folded = fold(&graph);
            let layout = layout(
                folded.nodes.len(),
                &folded.edges,
                LABEL_CHARS_MAX * CHAR_WIDTH + 24,
            );
            let pixels = FONT * fill(&layout) / 1000;
            assert!(
                pixels >= 12,
                "{pixels} of {} x {}",
                layout.width,
                layout.height
            );
        }
    }

    #[test]
    fn svg_shortens_long_names_and_renders_empty_graph() {
        assert_eq!(shortened(&"x".repeat(40)).chars().count(), LABEL_CHARS_MAX);
        let short = shortened("/archive/very/long/path/to/some/file/result.fits");
        assert!(
            short.starts_with("/archive\u{2026}") && short.ends_with("result.fits"),
            "{short}"
        );
        assert!(render(&Graph::default()).contains("<svg "));
    }
}
