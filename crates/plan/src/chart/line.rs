//! Line charts over two axes, linear or logarithmic.

use super::axis::{labels_width, tick_label};
use super::{
    Area, Canvas, ChartAxis, HEIGHT, ReferenceLine, TextAnchor, WIDTH, color, legend, levels,
    levels_width,
};

/// Line of a chart with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Name of the line in the legend.
    pub label: String,
    /// Points that the line connects, in order.
    pub points: Vec<(f64, f64)>,
    /// Points at which the line gets a dot; they need not be among `points`.
    pub dots: Vec<(f64, f64)>,
}

impl Line {
    /// Returns a line with a dot at each of its points.
    pub fn new(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            label: label.into(),
            dots: points.clone(),
            points,
        }
    }
}

/// Chart of lines.
#[derive(Debug, Clone, PartialEq)]
pub struct LineChart {
    /// Title above the chart.
    pub title: String,
    /// Horizontal axis.
    pub x: ChartAxis,
    /// Vertical axis.
    pub y: ChartAxis,
    /// Lines of the chart, in the legend's order.
    pub lines: Vec<Line>,
    /// Horizontal lines with a name, such as thresholds.
    pub levels: Vec<ReferenceLine>,
}

/// Returns charts below one another in one SVG document.
#[must_use]
pub fn stack(charts: &[LineChart]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n"
    );
    for (index, chart) in charts.iter().enumerate() {
        let top = HEIGHT * index as f64;
        let place = format!("<svg y=\"{top}\" ");
        svg.push_str(&chart.to_svg().replacen("<svg ", &place, 1));
    }
    svg.push_str("</svg>\n");
    svg
}

impl LineChart {
    /// Returns the chart as an SVG document.
    pub fn to_svg(&self) -> String {
        let mut canvas = Canvas::new(WIDTH, HEIGHT);
        canvas.title(&self.title);
        let names: Vec<String> = self.lines.iter().map(|line| line.label.clone()).collect();
        let top = 52.0 + legend(&mut canvas, 24.0, 50.0, WIDTH - 48.0, &names, true);
        let points = || {
            self.lines
                .iter()
                .flat_map(|line| line.points.iter().chain(&line.dots))
        };
        let x_range = self.x.fit(points().map(|point| point.0));
        let level_values = self.levels.iter().map(|level| level.value);
        let y_range = self
            .y
            .fit(points().map(|point| point.1).chain(level_values));
        let left = axis_width(&self.y, y_range);
        let plot = Area {
            x: left,
            y: top,
            width: WIDTH - left - levels_width(&self.levels),
            height: HEIGHT - top - 58.0,
        };
        self.axes(&mut canvas, plot, x_range, y_range);
        levels(&mut canvas, plot, &self.y, y_range, &self.levels);
        let mut drawn: Vec<Vec<(f64, f64)>> = Vec::new();
        for (index, line) in self.lines.iter().enumerate() {
            let place = |&(x, y): &(f64, f64)| {
                (
                    plot.x + self.x.place(x, x_range) * plot.width,
                    plot.bottom() - self.y.place(y, y_range) * plot.height,
                )
            };
            let shown = |&&(x, y): &&(f64, f64)| self.x.shows(x) && self.y.shows(y);
            let path: Vec<_> = line.points.iter().filter(shown).map(place).collect();
            for (below, part) in parts(&drawn, &path) {
                canvas.polyline(plot, part, color(index), below);
            }
            for dot in line.dots.iter().filter(shown).map(place) {
                let inside =
                    |value: f64, low: f64, high: f64| value >= low - 0.5 && value <= high + 0.5;
                if inside(dot.0, plot.x, plot.right()) && inside(dot.1, plot.y, plot.bottom()) {
                    let on = |other: &&Vec<_>| other.iter().any(|at| near(*at, dot));
                    let below = drawn.iter().filter(on).count();
                    canvas.dot(dot, dot_radius(below), color(index));
                }
            }
            drawn.push(path);
        }
        canvas.finish()
    }

    fn axes(&self, canvas: &mut Canvas, plot: Area, x_range: (f64, f64), y_range: (f64, f64)) {
        vertical_axis(canvas, plot, &self.y, y_range);
        for tick in self.x.ticks(x_range) {
            let at = plot.x + self.x.place(tick, x_range) * plot.width;
            canvas.grid_line((at, plot.y), (at, plot.bottom()));
            canvas.text(
                (at, plot.bottom() + 17.0),
                &tick_label(tick),
                11.0,
                TextAnchor::Middle,
            );
        }
        canvas.base_line((plot.x, plot.bottom()), (plot.right(), plot.bottom()));
        let middle = plot.x + plot.width / 2.0;
        canvas.text(
            (middle, plot.bottom() + 40.0),
            &self.x.label,
            12.0,
            TextAnchor::Middle,
        );
    }
}

/// Returns whether two points can't be distinguished visually.
fn near((x, y): (f64, f64), (u, v): (f64, f64)) -> bool {
    (x - u).abs() < 1.0 && (y - v).abs() < 2.0
}

/// Splits a line into parts that each cover the same number of drawn lines, and returns the parts with this number.
fn parts<'a>(drawn: &[Vec<(f64, f64)>], path: &'a [(f64, f64)]) -> Vec<(usize, &'a [(f64, f64)])> {
    let below = |piece: &[(f64, f64)]| {
        let on = |with: &[(f64, f64)]| near(piece[0], with[0]) && near(piece[1], with[1]);
        let others = drawn.iter().filter(|other| other.windows(2).any(on));
        others.count()
    };
    let counts: Vec<usize> = path.windows(2).map(below).collect();
    let mut parts = Vec::new();
    let mut from = 0;
    for alike in counts.chunk_by(|one, next| one == next) {
        let to = from + alike.len();
        parts.push((alike[0], &path[from..=to]));
        from = to;
    }
    parts
}

/// Returns the radius of a dot: a dot that covers `below` other dots is smaller, so that the other dots are visible around it.
fn dot_radius(below: usize) -> f64 {
    [5.0, 3.8, 2.8, 2.0].get(below).copied().unwrap_or(1.4)
}

/// Returns the space that a vertical axis needs at the left of a plot, in pixels.
pub fn axis_width(axis: &ChartAxis, range: (f64, f64)) -> f64 {
    labels_width(&axis.ticks(range)) + 46.0
}

/// Draws the ticks, grid lines and label of a vertical axis at the left of `plot`.
pub fn vertical_axis(canvas: &mut Canvas, plot: Area, axis: &ChartAxis, range: (f64, f64)) {
    for tick in axis.ticks(range) {
        let at = plot.bottom() - axis.place(tick, range) * plot.height;
        canvas.grid_line((plot.x, at), (plot.right(), at));
        canvas.text(
            (plot.x - 8.0, at + 4.0),
            &tick_label(tick),
            11.0,
            TextAnchor::End,
        );
    }
    let middle = plot.y + plot.height / 2.0;
    canvas.turned_text(
        (plot.x - axis_width(axis, range) + 22.0, middle),
        &axis.label,
        12.0,
        -90.0,
        TextAnchor::Middle,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> LineChart {
        LineChart {
            title: "title".into(),
            x: ChartAxis::log("x"),
            y: ChartAxis::log("y"),
            lines: vec![Line::new("line", points)],
            levels: vec![ReferenceLine {
                label: "level".into(),
                value: 5.0,
            }],
        }
    }

    #[test]
    fn line_chart_places_points_by_logarithm() {
        let svg = chart(vec![(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)]).to_svg();
        let dots: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("r=\"5\""))
            .map(|line| {
                line.split("cx=\"")
                    .nth(1)
                    .unwrap()
                    .split('"')
                    .next()
                    .unwrap()
                    .parse()
                    .unwrap()
            })
            .collect();
        assert_eq!(dots.len(), 3, "{svg}");
        assert!(
            ((dots[0] + dots[2]) / 2.0 - dots[1]).abs() < 0.2,
            "{dots:?}"
        );
        assert!(svg.contains(">level</text>"));
    }

    #[test]
    fn log_chart_omits_values_without_logarithm() {
        let svg = chart(vec![(0.0, 1.0), (1.0, -1.0), (2.0, f64::NAN)]).to_svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(!svg.contains("r=\"5\""), "{svg}");
    }

    #[test]
    fn overlapping_lines_are_dashed_to_stay_visible() {
        let mut chart = chart(vec![(1.0, 1.0), (10.0, 10.0), (100.0, 10.0)]);
        let same = Line::new("same", chart.lines[0].points.clone());
        let apart = Line::new("apart", vec![(1.0, 2.0), (10.0, 20.0), (100.0, 30.0)]);
        let partly = Line::new("partly", vec![(1.0, 5.0), (10.0, 10.0), (100.0, 10.0)]);
        chart.lines.extend([same, apart, partly]);
        let svg = chart.to_svg();
        let lines = svg.lines().filter(|line| line.contains("<polyline"));
        let dashes: Vec<Option<&str>> = lines
            .map(|line| line.split("dasharray=\"").nth(1)?.split('"').next())
            .collect();
        assert_eq!(
            dashes,
            [None, Some("9 9"), None, None, Some("9 18")],
            "{svg}"
        );
    }
}
