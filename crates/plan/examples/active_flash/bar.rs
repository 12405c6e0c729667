//! Bar charts: grouped, stacked, or both.

use tidemill_plan::chart::{
    Area, Canvas, ChartAxis, HEIGHT, ReferenceLine, TextAnchor, WIDTH, axis_width, color, legend,
    levels, levels_width, text_width, tick_label, vertical_axis,
};

/// Height of a chart within a grid of charts, in pixels.
const CELL_HEIGHT: f64 = 330.0;

/// Part of a stacked bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BarPart {
    /// Index of the part's series.
    pub(crate) series: usize,
    /// Height of the part; `None` draws a small cross for a missing value.
    pub(crate) value: Option<f64>,
}

/// Bar with stacked parts: parts above zero go upwards, parts below zero go downwards.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    /// Text below the bar, if any.
    pub(crate) label: Option<String>,
    /// Parts of the bar.
    pub(crate) parts: Vec<BarPart>,
}

/// Group of bars.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BarGroup {
    /// Text below the group.
    pub(crate) label: String,
    /// Bars of the group, from the left.
    pub(crate) bars: Vec<Bar>,
}

/// Bar chart; its axis should be linear, because a bar starts at zero.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BarChart {
    /// Text above the chart.
    pub(crate) title: String,
    /// Vertical axis.
    pub(crate) y: ChartAxis,
    /// Names of the series that parts refer to.
    pub(crate) series: Vec<String>,
    /// Groups, from the left.
    pub(crate) groups: Vec<BarGroup>,
    /// Horizontal lines with a name.
    pub(crate) levels: Vec<ReferenceLine>,
}

impl BarChart {
    /// Returns the chart as an SVG document.
    pub(crate) fn to_svg(&self) -> String {
        let mut canvas = Canvas::new(WIDTH, HEIGHT);
        canvas.title(&self.title);
        let top = 42.0 + legend(&mut canvas, 24.0, 50.0, WIDTH - 48.0, &self.series, false);
        let area = Area {
            x: 0.0,
            y: top,
            width: WIDTH,
            height: HEIGHT - top,
        };
        self.plot(&mut canvas, area);
        canvas.finish()
    }

    /// Draws title and plot of the chart into a part of a canvas, without a legend.
    fn draw(&self, canvas: &mut Canvas, area: Area) {
        let middle = area.x + area.width / 2.0 + 20.0;
        canvas.text(
            (middle, area.y + 22.0),
            &self.title,
            13.0,
            TextAnchor::Middle,
        );
        let below = Area {
            y: area.y + 22.0,
            height: area.height - 22.0,
            ..area
        };
        self.plot(canvas, below);
    }

    fn plot(&self, canvas: &mut Canvas, area: Area) {
        let range = self.y.fit(self.extremes().into_iter().chain([0.0]));
        let left = axis_width(&self.y, range);
        let labels = self
            .groups
            .iter()
            .map(|group| text_width(&group.label, 11.0));
        let widest = labels.fold(0.0, f64::max);
        let width = area.width - left - levels_width(&self.levels);
        let slot = width / self.groups.len().max(1) as f64;
        let turned = widest > slot - 6.0;
        let bars_named = self
            .groups
            .iter()
            .flat_map(|group| &group.bars)
            .any(|bar| bar.label.is_some());
        let below =
            if turned { widest * 0.6 + 18.0 } else { 26.0 } + if bars_named { 14.0 } else { 0.0 };
        let plot = Area {
            x: area.x + left,
            y: area.y + 12.0,
            width,
            height: area.height - 12.0 - below - 10.0,
        };
        vertical_axis(canvas, plot, &self.y, range);
        levels(canvas, plot, &self.y, range, &self.levels);
        for (index, group) in self.groups.iter().enumerate() {
            let x = plot.x + index as f64 * slot;
            self.group(canvas, plot, range, group, (x, slot));
            let y = plot.bottom() + if bars_named { 30.0 } else { 16.0 };
            let middle = x + slot / 2.0;
            if turned {
                canvas.turned_text(
                    (middle + 4.0, y),
                    &group.label,
                    11.0,
                    -35.0,
                    TextAnchor::End,
                );
            } else {
                canvas.text((middle, y), &group.label, 11.0, TextAnchor::Middle);
            }
        }
        let zero = plot.bottom() - self.y.place(0.0, range) * plot.height;
        canvas.base_line((plot.x, zero), (plot.right(), zero));
    }

    fn group(
        &self,
        canvas: &mut Canvas,
        plot: Area,
        range: (f64, f64),
        group: &BarGroup,
        (x, slot): (f64, f64),
    ) {
        let width = (slot * 0.76 / group.bars.len().max(1) as f64).min(46.0);
        let first = x + (slot - width * group.bars.len() as f64) / 2.0;
        let height = |value: f64| plot.bottom() - self.y.place(value, range) * plot.height;
        for (index, bar) in group.bars.iter().enumerate() {
            let left = first + index as f64 * width;
            let (mut above, mut below) = (0.0, 0.0);
            for part in &bar.parts {
                let name = self.series.get(part.series).map_or("", String::as_str);
                let Some(value) = part.value else {
                    let at = (left + width / 2.0, height(0.0) - 7.0);
                    canvas.cross(
                        at,
                        color(part.series),
                        &format!("{}, {name}: none", group.label),
                    );
                    continue;
                };
                let base = if value < 0.0 { &mut below } else { &mut above };
                let (from, to) = (*base, *base + value);
                *base = to;
                let piece = Area {
                    x: left + 0.5,
                    y: height(from.max(to)),
                    width: (width - 1.0).max(1.0),
                    height: height(from.min(to)) - height(from.max(to)),
                };
                let hint = format!("{}, {name}: {}", group.label, tick_label(value));
                canvas.rectangle(piece, color(part.series), Some(&hint));
            }
            if let Some(label) = &bar.label {
                let at = (left + width / 2.0, plot.bottom() + 14.0);
                canvas.text(at, label, 10.0, TextAnchor::Middle);
            }
        }
    }

    /// Returns the highest and lowest ends of all bars, and the values of the levels.
    fn extremes(&self) -> Vec<f64> {
        let mut extremes: Vec<f64> = self.levels.iter().map(|level| level.value).collect();
        for bar in self.groups.iter().flat_map(|group| &group.bars) {
            let values = || bar.parts.iter().filter_map(|part| part.value);
            extremes.push(values().filter(|value| *value > 0.0).sum());
            extremes.push(values().filter(|value| *value < 0.0).sum());
        }
        extremes
    }
}

/// Several bar charts side by side, each with its own scale, under one title and one legend.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChartGrid {
    /// Title above all charts.
    pub(crate) title: String,
    /// Number of charts in a row.
    pub(crate) columns: usize,
    /// Charts, row by row; the legend of the grid is that of the first chart.
    pub(crate) charts: Vec<BarChart>,
}

impl ChartGrid {
    /// Returns the charts as an SVG document.
    pub(crate) fn to_svg(&self) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stacked(values: &[Option<f64>]) -> String {
        let parts = values
            .iter()
            .enumerate()
            .map(|(series, &value)| BarPart { series, value });
        BarChart {
            title: "title".into(),
            y: ChartAxis::linear("y").from_to(-100.0, 100.0),
            series: vec!["a".into(), "b".into(), "c".into()],
            groups: vec![BarGroup {
                label: "group".into(),
                bars: vec![Bar {
                    label: None,
                    parts: parts.collect(),
                }],
            }],
            levels: vec![],
        }
        .to_svg()
    }

    /// Returns the upper edge and the height of each part of the bar.
    fn parts(svg: &str) -> Vec<(f64, f64)> {
        let number = |line: &str, name: &str| -> f64 {
            let rest = line.split(&format!(" {name}=\"")).nth(1).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        svg.lines()
            .filter(|line| line.contains("<title>group"))
            .filter(|line| line.starts_with("<rect"))
            .map(|line| (number(line, "y"), number(line, "height")))
            .collect()
    }

    #[test]
    fn stacked_bar_parts_grow_from_zero_in_both_directions() {
        let parts = parts(&stacked(&[Some(40.0), Some(20.0), Some(-30.0)]));
        let [first, second, third] = parts[..] else {
            panic!("{parts:?}")
        };
        assert!((first.1 / second.1 - 2.0).abs() < 0.02);
        assert!(
            (second.0 + second.1 - first.0).abs() < 0.2,
            "the second is on the first"
        );
        assert!(
            (first.0 + first.1 - third.0).abs() < 0.2,
            "the third hangs from zero"
        );
    }

    #[test]
    fn missing_bar_part_is_drawn_as_a_cross() {
        let svg = stacked(&[Some(1.0), None]);
        assert_eq!(parts(&svg).len(), 1);
        assert!(
            svg.contains("<title>group, b: none</title></path>"),
            "{svg}"
        );
    }

    #[test]
    fn empty_bar_chart_is_valid_svg() {
        let chart = BarChart {
            title: String::new(),
            y: ChartAxis::linear("y"),
            series: vec![],
            groups: vec![],
            levels: vec![],
        };
        let svg = chart.to_svg();
        assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"), "{svg}");
    }
}
