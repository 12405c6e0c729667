//! Canvas: writes SVG elements, one after the other, into a document of a fixed size.

use super::Area;
use crate::xml::escaped;
use std::fmt::Write;

const FONT: &str = "'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif";
const INK: &str = "#24292f";
const GRID: &str = "#e4e7eb";
const FRAME: &str = "#8c959f";
const LEVEL: &str = "#6e7781";

/// Length of the dashes of lines that cover other lines, in pixels.
const DASH: usize = 9;

/// Colours of series, which colour-blind readers can distinguish, too.
const COLORS: [&str; 9] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7a5195", "#a6761d",
    "#666666",
];

/// Returns the colour of the series with this index; colours repeat after nine.
pub fn color(index: usize) -> &'static str {
    COLORS[index % COLORS.len()]
}

/// Position of a text relative to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextAnchor {
    /// The text starts at the point.
    Start,
    /// The text is centred at the point.
    Middle,
    /// The text ends at the point.
    End,
}

impl TextAnchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// SVG document under construction. Coordinates are pixels from the upper left.
#[derive(Debug, Clone)]
pub struct Canvas {
    body: String,
    width: f64,
    height: f64,
}

impl Canvas {
    /// Returns an empty white canvas.
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            body: String::new(),
            width,
            height,
        }
    }

    /// Returns the width of the canvas, in pixels.
    pub fn width(&self) -> f64 {
        self.width
    }

    /// Returns the height of the canvas, in pixels.
    pub fn height(&self) -> f64 {
        self.height
    }

    fn node(&mut self, node: std::fmt::Arguments<'_>) {
        writeln!(self.body, "{node}").expect("a string takes everything");
    }

    /// Draws the heading of the document.
    pub fn title(&mut self, text: &str) {
        self.node(format_args!(
            r#"<text x="24" y="28" font-size="16" font-weight="600">{}</text>"#,
            escaped(text)
        ));
    }

    /// Draws a text of this size in pixels.
    pub fn text(&mut self, (x, y): (f64, f64), text: &str, size: f64, anchor: TextAnchor) {
        self.node(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{}">{}</text>"#,
            anchor.name(),
            escaped(text)
        ));
    }

    /// Draws a text turned by `degrees` clockwise about the text's point.
    pub fn turned_text(
        &mut self,
        (x, y): (f64, f64),
        text: &str,
        size: f64,
        degrees: f64,
        anchor: TextAnchor,
    ) {
        self.node(format_args!(
            r#"<text transform="translate({x:.1} {y:.1}) rotate({degrees})" font-size="{size}" text-anchor="{}">{}</text>"#,
            anchor.name(),
            escaped(text)
        ));
    }

    /// Draws a straight line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), color: &str, width: f64) {
        self.node(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}" stroke-width="{width}"/>"#
        ));
    }

    /// Draws a thin line of a chart's grid.
    pub(super) fn grid_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, GRID, 1.0);
    }

    /// Draws the base line of a chart, from which values start.
    pub fn base_line(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.line(from, to, FRAME, 1.0);
    }

    /// Draws a dashed line.
    pub fn dashes(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.node(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{LEVEL}" stroke-width="1" stroke-dasharray="5 4"/>"#
        ));
    }

    /// Draws a line through points, clipped to `area`. If the line covers `below` other lines, it is dashed so that the covered lines are
    /// visible between the dashes.
    pub fn polyline(&mut self, area: Area, points: &[(f64, f64)], color: &str, below: usize) {
        let mut list = String::new();
        for (x, y) in points {
            let (x, y) = (x - area.x, y - area.y);
            write!(list, "{x:.1},{y:.1} ").expect("a string takes everything");
        }
        let dashes = match below {
            0 => String::new(),
            _ => format!(
                r#" stroke-dasharray="{DASH} {}" stroke-dashoffset="-{}""#,
                DASH * below,
                DASH * below
            ),
        };
        // A nested document clips its content, without ids that could clash.
        self.node(format_args!(
            r#"<svg x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" overflow="hidden"><polyline points="{}" fill="none" stroke="{color}" stroke-width="2.4" stroke-linejoin="round"{dashes}/></svg>"#,
            area.x,
            area.y,
            area.width,
            area.height,
            list.trim_end()
        ));
    }

    /// Draws a filled circle.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, color: &str) {
        self.node(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{color}"/>"#
        ));
    }

    /// Draws a small cross, for a missing value.
    pub fn cross(&mut self, (x, y): (f64, f64), color: &str, hint: &str) {
        self.node(format_args!(
            r#"<path d="M{:.1} {:.1}l6 6m0 -6l-6 6" stroke="{color}" stroke-width="1.6" fill="none"><title>{}</title></path>"#,
            x - 3.0,
            y - 3.0,
            escaped(hint)
        ));
    }

    /// Draws a filled rectangle; a browser shows `hint` over it.
    pub fn rectangle(&mut self, area: Area, color: &str, hint: Option<&str>) {
        let Area {
            x,
            y,
            width,
            height,
        } = area;
        let title = hint.map_or(String::new(), |hint| {
            format!("<title>{}</title>", escaped(hint))
        });
        self.node(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{color}">{title}</rect>"#
        ));
    }

    /// Returns the finished SVG document.
    pub fn finish(self) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" font-family=\"{FONT}\" fill=\"{INK}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            self.body,
            w = self.width,
            h = self.height,
        )
    }
}

/// Returns the approximate width of a text in pixels; without the font's real measures the result tends to be too large.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canvas_text_is_escaped() {
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.text((0.0, 0.0), "<script>&\"", 12.0, TextAnchor::Start);
        let svg = canvas.finish();
        assert!(svg.contains("&lt;script&gt;&amp;&quot;"), "{svg}");
        assert!(!svg.contains("<script"), "{svg}");
    }

    #[test]
    fn colors_repeat_after_the_last() {
        assert_eq!(color(0), color(COLORS.len()));
        assert_ne!(color(0), color(1));
    }
}
