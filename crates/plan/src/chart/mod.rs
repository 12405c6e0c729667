//! Charts as SVG text, as far as the models and the simulator need charts, without any library.
//!
//! A chart is plain data: fill [`LineChart`] and call `to_svg`. For other charts (such as a Gantt chart), draw on a [`Canvas`] with the
//! common parts of charts. The same data gives the same text, byte for byte.
//!
//! ```
//! use tidemill_plan::chart::{ChartAxis, Line, LineChart};
//! let chart = LineChart {
//!     title: "Makespan".into(),
//!     x: ChartAxis::linear("nodes"),
//!     y: ChartAxis::log("seconds"),
//!     lines: vec![Line::new("min-wait", vec![(1.0, 400.0), (2.0, 210.0), (4.0, 120.0)])],
//!     levels: vec![],
//! };
//! assert!(chart.to_svg().starts_with("<svg "));
//! ```

mod axis;
mod canvas;
mod line;

pub use axis::{AxisScale, ChartAxis, tick_label};
pub use canvas::{Canvas, TextAnchor, color, text_width};
pub use line::{Line, LineChart, axis_width, stack, vertical_axis};

/// Horizontal line with a name: a threshold or a baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceLine {
    /// Name of the line, written at its right end.
    pub label: String,
    /// Value of the chart's vertical axis at the line.
    pub value: f64,
}

/// Width of a single chart, in pixels.
pub const WIDTH: f64 = 860.0;
/// Height of a single chart, in pixels.
pub const HEIGHT: f64 = 480.0;
/// Distance between rows of the legend, in pixels.
const LEGEND_ROW: f64 = 18.0;

/// Rectangle of a canvas; y grows downwards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    /// Left edge of the area.
    pub x: f64,
    /// Upper edge of the area.
    pub y: f64,
    /// Width of the area.
    pub width: f64,
    /// Height of the area.
    pub height: f64,
}

impl Area {
    /// Returns the right edge of the area.
    pub fn right(&self) -> f64 {
        self.x + self.width
    }

    /// Returns the lower edge of the area.
    pub fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// Draws names of series with their colours in rows of at most `width` pixels. Returns the height of all rows.
pub fn legend(
    canvas: &mut Canvas,
    left: f64,
    top: f64,
    width: f64,
    names: &[String],
    lines: bool,
) -> f64 {
    let (mut x, mut y) = (left, top);
    for (index, name) in names.iter().enumerate() {
        let needed = 38.0 + text_width(name, 12.0);
        if x > left && x + needed > left + width {
            x = left;
            y += LEGEND_ROW;
        }
        if lines {
            canvas.line((x, y - 4.0), (x + 16.0, y - 4.0), color(index), 2.0);
            canvas.dot((x + 8.0, y - 4.0), 3.0, color(index));
        } else {
            let swatch = Area {
                x: x + 2.0,
                y: y - 9.0,
                width: 11.0,
                height: 11.0,
            };
            canvas.rectangle(swatch, color(index), None);
        }
        canvas.text((x + 21.0, y), name, 12.0, TextAnchor::Start);
        x += needed;
    }
    y + LEGEND_ROW - top
}

/// Draws reference lines across `plot` with their names at the right of the plot; names that would overlap are moved apart.
pub fn levels(
    canvas: &mut Canvas,
    plot: Area,
    y: &ChartAxis,
    range: (f64, f64),
    levels: &[ReferenceLine],
) {
    let mut places: Vec<(f64, &str)> = levels
        .iter()
        .filter(|level| level.value >= range.0 && level.value <= range.1)
        .map(|level| {
            (
                plot.bottom() - y.place(level.value, range) * plot.height,
                level.label.as_str(),
            )
        })
        .collect();
    places.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut free = f64::NEG_INFINITY;
    for (at, label) in places {
        canvas.dashes((plot.x, at), (plot.right(), at));
        let label_y = (at + 4.0).max(free);
        free = label_y + 13.0;
        canvas.text(
            (plot.right() + 6.0, label_y),
            label,
            11.0,
            TextAnchor::Start,
        );
    }
}

/// Returns the space that the names of reference lines need at the right of a plot, in pixels.
pub fn levels_width(levels: &[ReferenceLine]) -> f64 {
    let widths = levels
        .iter()
        .map(|level| text_width(&level.label, 11.0) + 12.0);
    widths.fold(20.0, f64::max)
}
