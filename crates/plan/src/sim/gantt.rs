//! Gantt chart of a simulation in SVG: a lane for every core, and a bar for every task on each of its cores, coloured by kernel. The pale
//! head of a bar is the fetching of inputs, its pale tail the writing of outputs, as the legend shows. Bars show their task's name where
//! the name is legible, and tooltips contain the details.

use super::report::{SimulationReport, TaskReport, time};
use crate::xml::escaped;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tidemill_model::display::bytes;

/// Maximum number of lanes in the chart; the chart shows the number of omitted lanes.
pub const LANES_MAX: usize = 96;
/// Maximum number of kernels with separate colours: those with the most time. Other kernels share a grey.
pub const KERNELS_MAX: usize = 9;

/// Colours that colour-blind readers can distinguish, from strong to weak.
const COLOURS: [&str; KERNELS_MAX] = [
    "#3b6fb6", "#e08a2e", "#3f9c6d", "#c4504e", "#7d64b5", "#2fa3b8", "#b5a12f", "#cf6fa4",
    "#7a5c46",
];
const OTHER_COLOUR: &str = "#8b929b";
/// Name of a bar's first part in the legend, and the part's opacity.
const FETCHING: (&str, f64) = ("fetching inputs", 0.35);
const RUNNING: (&str, f64) = ("running", 1.0);
const WRITING: (&str, f64) = ("writing outputs", 0.6);
const HASHING: (&str, f64) = ("hashing inputs", 0.2);
/// Minimum number of letters of a shortened task name; fewer letters are useless.
const LETTERS_MIN: usize = 5;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 104.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 104.0;
const NODE_GAP: f64 = 8.0;
const AXIS_HEIGHT: f64 = 36.0;
const LEGEND_LINE: f64 = 20.0;

/// Cores in the order in which they are drawn.
struct GanttLanes {
    /// Top of the lane of each (node, core), in pixels.
    tops: BTreeMap<(u32, u32), f64>,
    /// Node, top and bottom of each block of lanes, in pixels.
    blocks: Vec<(u32, f64, f64)>,
    height: f64,
    bottom: f64,
    left_out: usize,
}

/// Returns the Gantt chart of a report as an SVG document.
#[must_use]
pub fn svg(report: &SimulationReport) -> String {
    let lanes = lanes(report);
    let colours = colours(report);
    let legend = legend(&colours);
    let height = lanes.bottom + AXIS_HEIGHT + legend.1;
    let mut svg = String::new();
    // Writing to a string never fails.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\" font-family=\"Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"12\" \
         fill=\"#222b36\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
    );
    heading(&mut svg, report);
    axis(&mut svg, report, &lanes);
    for &(node, top, bottom) in &lanes.blocks {
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#4a5562\">node {node}</text>",
            LEFT - 12.0,
            f64::midpoint(top, bottom) + 4.0
        );
    }
    for task in &report.tasks {
        let tops = task.cores.iter().map(|core| (task.node, *core));
        for &top in tops.filter_map(|lane| lanes.tops.get(&lane)) {
            let colour = colours.iter().find(|(kernel, _)| *kernel == task.kernel);
            let colour = colour.map_or(OTHER_COLOUR, |(_, colour)| *colour);
            bar(&mut svg, report, task, (top, lanes.height), colour);
        }
    }
    let _ = writeln!(
        svg,
        "<g transform=\"translate(0 {:.1})\">{}</g>\n</svg>",
        lanes.bottom + AXIS_HEIGHT + 14.0,
        legend.0
    );
    svg
}

fn lanes(report: &SimulationReport) -> GanttLanes {
    let count: usize = report.nodes.iter().map(|one| one.cores as usize).sum();
    let height = match count.min(LANES_MAX) {
        ..=16 => 20.0,
        17..=40 => 13.0,
        _ => 9.0,
    };
    let mut lanes = GanttLanes {
        tops: BTreeMap::new(),
        blocks: Vec::new(),
        height,
        bottom: TOP,
        left_out: 0,
    };
    for node in &report.nodes {
        let top = lanes.bottom;
        for core in 0..node.cores {
            if lanes.tops.len() == LANES_MAX {
                lanes.left_out += (node.cores - core) as usize;
                break;
            }
            lanes.tops.insert((node.node, core), lanes.bottom);
            lanes.bottom += height + 2.0;
        }
        if lanes.bottom > top {
            lanes.blocks.push((node.node, top, lanes.bottom - 2.0));
            lanes.bottom += NODE_GAP;
        }
    }
    lanes
}

/// Returns the kernels with the most time, and the colours of their bars.
fn colours(report: &SimulationReport) -> Vec<(&str, &'static str)> {
    let mut times: BTreeMap<&str, u64> = BTreeMap::new();
    for task in &report.tasks {
        *times.entry(&task.kernel).or_default() += task.end_ns - task.start_ns;
    }
    let mut kernels: Vec<(&str, u64)> = times.into_iter().collect();
    kernels.sort_by_key(|&(kernel, time)| (std::cmp::Reverse(time), kernel));
    let kernels = kernels.into_iter().map(|(kernel, _)| kernel);
    let mut colours: Vec<_> = kernels.clone().zip(COLOURS).collect();
    if kernels.count() > KERNELS_MAX {
        colours.push(("other kernels", OTHER_COLOUR));
    }
    colours
}

fn heading(svg: &mut String, report: &SimulationReport) {
    let _ = writeln!(
        svg,
        "<text x=\"24\" y=\"36\" font-size=\"20\" font-weight=\"600\">{}</text>\n\
         <text x=\"24\" y=\"60\" font-size=\"13\" fill=\"#4a5562\">{} tasks in {} · policy {} · {} transferred · write \
         amplification {:.2}</text>",
        escaped(&report.workflow),
        report.tasks.len(),
        time(report.makespan_ns),
        escaped(&report.policy),
        bytes(report.transferred_bytes),
        report.write_amplification
    );
}

/// Draws the time lines and the background of the lanes.
fn axis(svg: &mut String, report: &SimulationReport, lanes: &GanttLanes) {
    for &top in lanes.tops.values() {
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"#f3f5f8\"/>",
            WIDTH - LEFT - RIGHT,
            lanes.height
        );
    }
    let step = step_ns(report.makespan_ns);
    let bottom = lanes.bottom;
    for tick in 0..=report.makespan_ns / step {
        let x = place(report, tick * step);
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}V{bottom:.1}\" stroke=\"#d5dae1\"/><text x=\"{x:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\" fill=\"#4a5562\">{}</text>",
            TOP - 8.0,
            TOP - 14.0,
            tick_label(tick * step, step)
        );
    }
    if lanes.left_out > 0 {
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#4a5562\">{} more cores are not drawn</text>",
            bottom + 14.0,
            lanes.left_out
        );
    }
}

fn bar(
    svg: &mut String,
    report: &SimulationReport,
    task: &TaskReport,
    lane: (f64, f64),
    colour: &str,
) {
    let (top, height) = lane;
    let written = task.end_ns.saturating_sub(task.hash_ns);
    let write_start = written.saturating_sub(task.write_ns);
    let parts = [
        (task.start_ns, task.kernel_start_ns, FETCHING.1),
        (task.kernel_start_ns, write_start, RUNNING.1),
        (write_start, written, WRITING.1),
        (written, task.end_ns, HASHING.1),
    ];
    let _ = write!(svg, "<g fill=\"{colour}\">");
    for (start, end, opacity) in parts {
        let (from, to) = (place(report, start), place(report, end));
        // The narrowest visible line; a part that takes no time is not drawn.
        if end > start {
            let _ = write!(
                svg,
                "<rect x=\"{from:.2}\" y=\"{top:.1}\" width=\"{:.2}\" height=\"{height}\" \
                 fill-opacity=\"{opacity}\"/>",
                (to - from).max(0.4)
            );
        }
    }
    let wide = place(report, task.end_ns) - place(report, task.start_ns);
    if wide > 2.0 {
        // A seam separates neighbouring bars.
        let _ = write!(
            svg,
            "<path d=\"M{:.2} {top:.1}v{height}\" stroke=\"#fff\" stroke-width=\"0.8\"/>",
            place(report, task.end_ns)
        );
    }
    name(svg, report, task, lane);
    let _ = writeln!(
        svg,
        "<title>{} ({}) on node {}, {}\n{} to {}: fetched {} in {}, read {}, computed {}, wrote {}, hashed {}</title></g>",
        escaped(&task.name),
        escaped(&task.kernel),
        task.node,
        match task.cores.as_slice() {
            [core] => format!("core {core}"),
            cores => format!("{} cores", cores.len()),
        },
        time(task.start_ns),
        time(task.end_ns),
        bytes(task.transferred_bytes),
        time(task.kernel_start_ns - task.start_ns),
        time(task.read_ns),
        time(task.compute_ns),
        time(task.write_ns),
        time(task.hash_ns)
    );
}

/// Draws the name of a task on its bar, complete or without its middle, where there is space. The text is dark with a pale outline, which
/// is legible on every colour and on the pale parts of bars.
fn name(svg: &mut String, report: &SimulationReport, task: &TaskReport, (top, height): (f64, f64)) {
    if height < 13.0 {
        return;
    }
    let size = if height >= 20.0 { 13.0 } else { 11.0 };
    let wide = place(report, task.end_ns) - place(report, task.start_ns);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "how many letters fit on paper"
    )]
    let space = ((wide - 8.0) / (size * 0.58)).max(0.0) as usize;
    let letters = task.name.chars().count();
    let shown: String = if letters <= space {
        task.name.clone()
    } else if space >= LETTERS_MIN {
        let (head, tail) = ((space - 1) / 2, space - 1 - (space - 1) / 2);
        let start = task.name.chars().take(head);
        let end = task.name.chars().skip(letters - tail);
        start.chain(['\u{2026}']).chain(end).collect()
    } else {
        return;
    };
    let _ = write!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#101820\" stroke=\"#fff\" stroke-width=\"2.5\" stroke-opacity=\"0.75\" \
         paint-order=\"stroke\" font-size=\"{size}\">{}</text>",
        place(report, task.start_ns) + 4.0,
        top + height / 2.0 + size * 0.36,
        escaped(&shown)
    );
}

/// Returns the legend and its height in pixels: the kernels, then the parts of a bar.
fn legend(colours: &[(&str, &str)]) -> (String, f64) {
    let kernels = colours
        .iter()
        .map(|&(kernel, colour)| (kernel, colour, 1.0));
    let parts =
        [FETCHING, RUNNING, WRITING, HASHING].map(|(part, opacity)| (part, OTHER_COLOUR, opacity));
    let mut legend = String::new();
    let mut y = 0.0;
    for row in [kernels.collect::<Vec<_>>(), parts.to_vec()] {
        let mut x = LEFT;
        for (what, colour, opacity) in row {
            #[expect(clippy::cast_precision_loss, reason = "the width of some letters")]
            let wide = what.chars().count() as f64 * 7.6 + 36.0;
            if x + wide > WIDTH - RIGHT && x > LEFT {
                x = LEFT;
                y += LEGEND_LINE;
            }
            let _ = write!(
                legend,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{colour}\" \
                 fill-opacity=\"{opacity}\"/><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\">{}</text>",
                y - 10.0,
                x + 18.0,
                y,
                escaped(what)
            );
            x += wide;
        }
        y += LEGEND_LINE;
    }
    (legend, y + LEGEND_LINE)
}

#[expect(clippy::cast_precision_loss, reason = "a place on paper")]
fn place(report: &SimulationReport, at_ns: u64) -> f64 {
    let whole = report.makespan_ns.max(1) as f64;
    LEFT + (WIDTH - LEFT - RIGHT) * (at_ns as f64 / whole)
}

/// Returns the time between two time lines: 1, 2 or 5 of some power of ten (or of minutes and hours) so that the chart has 5 to 14 lines.
fn step_ns(makespan_ns: u64) -> u64 {
    const MINUTE: u64 = 60_000_000_000;
    let decades = (0..10).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power + 1)));
    let clock = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1440].map(|minutes| minutes * MINUTE);
    let seconds = decades.filter(|&step| step < MINUTE).chain(clock);
    let fits = |&step: &u64| makespan_ns / step <= 12;
    seconds
        .into_iter()
        .find(fits)
        .unwrap_or(makespan_ns.div_ceil(12).max(1))
}

fn tick_label(at_ns: u64, step_ns: u64) -> String {
    let (unit, name) = match step_ns {
        ..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        1_000_000_000..60_000_000_000 => (1_000_000_000, "s"),
        60_000_000_000..3_600_000_000_000 => (60_000_000_000, "min"),
        _ => (3_600_000_000_000, "h"),
    };
    format!("{} {name}", at_ns / unit)
}

#[cfg(test)]
mod tests {
    use super::super::{Platform, PlatformNode, Simulation, job};
    use super::*;

    fn report(cores: u32) -> SimulationReport {
        let script = r#"name = "a<b"; workdir = "/"; tasks = (
            { name = "one & only"; kernel = "k"; output = [ "x" ]; },
            { name = "two"; kernel = "k2"; input = [ "x" ]; output = [ "y" ]; } );"#;
        let costs = "[kernels]\nk = { time = 1, output = 9 }\nk2 = { time = 1, output = 0 }";
        let workflow = job::parse("j", script, "c", costs).unwrap();
        let node = PlatformNode {
            cores,
            ..PlatformNode::default()
        };
        Simulation::new(&Platform::uniform(2, &node), &workflow)
            .run()
            .unwrap()
    }

    #[test]
    fn gantt_draws_every_task_and_kernel_and_escapes_names() {
        let svg = svg(&report(1));
        assert_eq!(svg.matches("<title>").count(), 2);
        assert!(svg.contains("a&lt;b") && svg.contains("one &amp; only") && !svg.contains("a<b"));
        assert!(svg.contains(COLOURS[0]) && svg.contains(COLOURS[1]));
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn gantt_legend_explains_pale_parts() {
        let svg = svg(&report(1));
        for (part, opacity) in [FETCHING, RUNNING, WRITING] {
            assert!(svg.contains(&format!(">{part}</text>")), "{part}: {svg}");
            let swatch = format!("fill=\"{OTHER_COLOUR}\" fill-opacity=\"{opacity}\"");
            assert!(svg.contains(&swatch), "{part}: {svg}");
        }
    }

    #[test]
    fn gantt_name_is_shown_cut_or_omitted_by_width() {
        let whole = report(1);
        let text = |letters: usize, share: u64| {
            let mut task = whole.tasks[0].clone();
            task.name = "n".repeat(letters);
            (task.start_ns, task.end_ns) = (0, whole.makespan_ns / share);
            let mut svg = String::new();
            name(&mut svg, &whole, &task, (0.0, 20.0));
            let text = svg.split('>').nth(1).unwrap_or_default();
            text.split('<').next().unwrap_or_default().to_owned()
        };
        assert_eq!(text(30, 1), "n".repeat(30));
        let cut = text(300, 2);
        assert!(
            cut.contains("n\u{2026}n") && cut.chars().count() < 80,
            "{cut}"
        );
        assert_eq!(text(300, 100), "");
    }

    #[test]
    fn gantt_omits_and_counts_lanes_beyond_limit() {
        let svg = svg(&report(60));
        assert!(svg.contains("24 more cores are not drawn"), "{svg}");
    }

    #[test]
    fn gantt_time_lines_are_few_and_round() {
        for (makespan_ns, label) in [
            (1_000, "100"),
            (7_000_000, "1 ms"),
            (23_154_490_381, "2 s"),
            (3_000_000_000_000, "5 min"),
            (40_000_000_000_000, "1 h"),
        ] {
            let step = step_ns(makespan_ns);
            assert!(
                (3..=12).contains(&(makespan_ns / step)),
                "{makespan_ns} by {step}"
            );
            let shown = if step < 1000 {
                step.to_string()
            } else {
                tick_label(step, step)
            };
            assert_eq!(shown, label, "{makespan_ns}");
        }
    }
}
