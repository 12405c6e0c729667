//! Charts as SVG text: lines and bars, enough for the models and the simulator, without any library.
//!
//! A chart is plain data: fill [`LineChart`] or [`BarChart`] and call `to_svg`, or put several into a [`Grid`]. What
//! neither can draw (a Gantt chart, say) is drawn on a [`Canvas`]. The same data gives the same text, byte for byte.
//!
//! ```
//! use tidemill_plan::chart::{Axis, Line, LineChart};
//! let chart = LineChart {
//!     title: "Makespan".into(),
//!     x: Axis::linear("elements"),
//!     y: Axis::log("seconds"),
//!     lines: vec![Line::new("min-wait", vec![(1.0, 400.0), (2.0, 210.0), (4.0, 120.0)])],
//!     levels: vec![],
//! };
//! assert!(chart.to_svg().starts_with("<svg "));
//! ```

mod axis;
mod bar;
mod canvas;
mod line;

pub use axis::{Axis, Scale};
pub use bar::{Bar, BarChart, Group, Part};
pub use canvas::{Anchor, Canvas, color};
pub use line::{Line, LineChart, stack};

/// A horizontal line with a name: a threshold or a baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Its name, written at its right end.
    pub label: String,
    /// Where it is.
    pub value: f64,
}

/// Width of a chart that stands alone.
const WIDTH: f64 = 860.0;
/// Height of a chart that stands alone.
const HEIGHT: f64 = 480.0;
/// Height of a chart within a grid.
const CELL_HEIGHT: f64 = 330.0;
/// Distance of the legend's rows.
const LEGEND_ROW: f64 = 18.0;

/// A rectangle of a canvas; y grows downwards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

impl Area {
    /// Right edge.
    pub fn right(&self) -> f64 {
        self.x + self.width
    }

    /// Lower edge.
    pub fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// Several bar charts side by side, each with its own scale, under one title and one legend.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Above all.
    pub title: String,
    /// Charts in a row.
    pub columns: usize,
    /// The charts, row by row; the legend is that of the first.
    pub charts: Vec<BarChart>,
}

impl Grid {
    /// As an SVG document.
    pub fn to_svg(&self) -> String {
        let columns = self.columns.max(1);
        let rows = self.charts.len().div_ceil(columns);
        let mut canvas = Canvas::new(WIDTH * 1.25, 64.0 + rows as f64 * CELL_HEIGHT);
        canvas.title(&self.title);
        if let Some(first) = self.charts.first() {
            legend(&mut canvas, 24.0, 50.0, WIDTH * 1.2, &first.series, false);
        }
        let cell = canvas.width() / columns as f64;
        for (index, chart) in self.charts.iter().enumerate() {
            let area = Area {
                x: (index % columns) as f64 * cell,
                y: 64.0 + (index / columns) as f64 * CELL_HEIGHT,
                width: cell,
                height: CELL_HEIGHT,
            };
            chart.draw(&mut canvas, area);
        }
        canvas.finish()
    }
}

/// Draws names with their colours in rows of at most `width`; returns the height of all rows.
fn legend(
    canvas: &mut Canvas,
    left: f64,
    top: f64,
    width: f64,
    names: &[String],
    lines: bool,
) -> f64 {
    let (mut x, mut y) = (left, top);
    for (index, name) in names.iter().enumerate() {
        let needed = 38.0 + canvas::text_width(name, 12.0);
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
        canvas.text((x + 21.0, y), name, 12.0, Anchor::Start);
        x += needed;
    }
    y + LEGEND_ROW - top
}

/// Draws levels across `plot` with their names at its right; names that would overlap are moved apart.
fn levels(canvas: &mut Canvas, plot: Area, y: &Axis, range: (f64, f64), levels: &[Level]) {
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
        let beside = (at + 4.0).max(free);
        free = beside + 13.0;
        canvas.text((plot.right() + 6.0, beside), label, 11.0, Anchor::Start);
    }
}

/// Room that the names of levels need at the right of a plot.
fn levels_width(levels: &[Level]) -> f64 {
    let widths = levels
        .iter()
        .map(|level| canvas::text_width(&level.label, 11.0) + 12.0);
    widths.fold(20.0, f64::max)
}
