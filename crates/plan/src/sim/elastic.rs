//! Does waking elements pay? One workflow on one array of which more and more elements are awake: those alone, all of
//! them, and as many as a running array would wake (LABIOS §4.2.3, Fig. 13).

use super::error::SimError;
use super::platform::Platform;
use super::report::Report;
use super::simulation::{Allocation, Simulation};
use super::workflow::Workflow;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tidemill_core::event::History;
use tidemill_core::time::Span;

/// How one way went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Went {
    /// From submission to end, in nanoseconds.
    pub makespan_ns: u64,
    /// Energy of all elements until then in joules; `None` if the platform gives no power.
    pub energy_joules: Option<f64>,
    /// How often elements were woken.
    pub wakes: u64,
}

/// One number of elements that are awake.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// How many.
    pub awake: usize,
    /// They work alone; others are woken only for what nobody else has.
    pub stays: Went,
    /// All others are woken at once.
    pub all: Went,
    /// As many are woken as pay.
    pub elastic: Went,
}

/// The array as if each element had run every kernel of the workflow before: nobody guesses then how long they take.
#[must_use]
pub fn known(mut platform: Platform, workflow: &Workflow) -> Platform {
    let mut history: BTreeMap<String, History> = BTreeMap::new();
    for (index, task) in workflow.tasks.iter().enumerate() {
        let one = history.entry(task.kernel.name().to_owned()).or_default();
        one.runs += 1;
        one.total_ns = one.total_ns.saturating_add(task.compute.0);
        one.input_bytes = one.input_bytes.saturating_add(workflow.input_bytes(index));
    }
    for element in &mut platform.elements {
        element.history.clone_from(&history);
    }
    platform
}

/// Quarters of an array, as in the paper's figure.
#[must_use]
pub fn quarters(elements: usize) -> Vec<usize> {
    let mut awake: Vec<usize> = (1..=4).map(|part| (elements * part / 4).max(1)).collect();
    awake.dedup();
    awake
}

/// Runs a simulation with so many elements awake, each way; `given` chooses policy, placement and seed.
///
/// # Errors
/// [`SimError`] of the first run that can't be run.
pub fn compare<'a>(
    (platform, workflow): (&'a Platform, &'a Workflow),
    awake: &[usize],
    given: impl for<'b> Fn(Simulation<'b>) -> Simulation<'b>,
) -> Result<Vec<Point>, SimError> {
    let mut points = Vec::with_capacity(awake.len());
    for &awake in awake {
        let platform = Platform {
            asleep: platform.elements.len().saturating_sub(awake),
            ..platform.clone()
        };
        let went = |allocation| {
            let simulation = given(Simulation::new(&platform, workflow));
            let ran = simulation.allocation(allocation).run();
            ran.map(|report| Went::of(&report))
        };
        points.push(Point {
            awake,
            stays: went(Allocation::Static)?,
            all: went(Allocation::All)?,
            elastic: went(Allocation::Elastic)?,
        });
    }
    Ok(points)
}

impl Went {
    fn of(report: &Report) -> Self {
        Self {
            makespan_ns: report.makespan_ns,
            energy_joules: report.energy_joules,
            wakes: report.elements.iter().map(|one| one.wakes).sum(),
        }
    }

    fn text(&self) -> String {
        let seconds = Span(self.makespan_ns).as_secs_f64();
        let energy = self.energy_joules.map(|joules| format!("{joules:.1}"));
        let energy = energy.unwrap_or_else(|| "?".into());
        format!("{seconds:>10.2} {energy:>10} {:>6}", self.wakes)
    }
}

impl Point {
    /// What is best, of what is known: least energy where the platform gives power, else least time; the fewest woken if ways are
    /// as good.
    #[must_use]
    pub fn best(&self) -> &'static str {
        let ways = [
            ("static", &self.stays),
            ("elastic", &self.elastic),
            ("all", &self.all),
        ];
        let cost = |went: &Went| {
            let seconds = Span(went.makespan_ns).as_secs_f64();
            went.energy_joules.unwrap_or(seconds)
        };
        let least = |best: (&'static str, f64), (name, went): (&'static str, &Went)| {
            if cost(went) < best.1 {
                (name, cost(went))
            } else {
                best
            }
        };
        let best = ways.into_iter().fold(("static", f64::INFINITY), least);
        best.0
    }
}

/// The points as a table.
#[must_use]
pub fn table(points: &[Point]) -> String {
    // Writing to a string never fails.
    let mut text = String::new();
    let ways = ["static", "elastic", "all woken"];
    let heads = ways.map(|way| format!("  {way:<28}"));
    let columns = "        s          J  woken ";
    let _ = writeln!(text, "{:>5}{}", "", heads.concat().trim_end());
    let _ = writeln!(text, "awake  {}  best", [columns; 3].join("  "));
    for point in points {
        let ways = [&point.stays, &point.elastic, &point.all].map(Went::text);
        let _ = writeln!(
            text,
            "{:>5}{}  {}",
            point.awake,
            ways.map(|way| format!("  {way}")).concat(),
            point.best()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::job;
    use super::*;

    /// As in LABIOS's figure: 165 W awake, 16 W asleep.
    const ARRAY: &str = "[AFE]\ncores_per_afe = 1\nread_bandwidth = unlimited\nwrite_bandwidth = unlimited\nread_latency = 0\n\
                         write_latency = 0\npower_busy = 165\npower_idle = 165\npower_suspended = 16\nwake = 2\n[SERVER]\nnumber_afes = 8\n";

    fn workflow(tasks: usize, inputs: bool) -> Workflow {
        let tasks: Vec<String> = (0..tasks)
            .map(|n| {
                let input = if inputs {
                    format!("input = [ \"i{n}\" ]; ")
                } else {
                    String::new()
                };
                format!("{{ name = \"{n}\"; kernel = \"k\"; {input}output = [ \"o{n}\" ]; }}")
            })
            .collect();
        let script = format!(
            "name = \"n\"; workdir = \"/\"; tasks = ( {} );",
            tasks.join(", ")
        );
        let costs = "[kernels]\nk = { time = \"105 ms\", output = 0 }\n[files]\n";
        let files: Vec<String> = (0..if inputs { tasks.len() } else { 0 })
            .map(|n| format!("i{n} = 1000\n"))
            .collect();
        job::parse("j", &script, "c", &format!("{costs}{}", files.concat())).unwrap()
    }

    fn points(array: &str, workflow: &Workflow) -> Vec<Point> {
        let platform = known(Platform::parse("a", array).unwrap(), workflow);
        compare((&platform, workflow), &quarters(8), |one| one).unwrap()
    }

    #[test]
    fn waking_pays_where_few_are_awake_and_is_left_where_most_are() {
        let points = points(ARRAY, &workflow(512, false));
        let (few, most) = (&points[0], &points[2]);
        assert!(few.elastic.makespan_ns < few.stays.makespan_ns, "{few:?}");
        assert!(few.elastic.wakes > 0 && few.stays.wakes == 0, "{few:?}");
        assert_eq!(most.elastic.wakes, 0, "{most:?}");
        assert!(
            most.stays.energy_joules < most.all.energy_joules,
            "{most:?}"
        );
        assert!(most.all.makespan_ns < most.stays.makespan_ns, "{most:?}");
        let all = &points[3];
        assert_eq!((&all.stays, &all.elastic), (&all.all, &all.all));
        // Two for 27 seconds, and six asleep.
        let joules = few.stays.energy_joules.unwrap();
        let reckoned = 26.88 * (2.0 * 165.0 + 6.0 * 16.0);
        assert!(
            (joules / reckoned - 1.0).abs() < 0.01,
            "{joules} {reckoned}"
        );
        assert!(table(&points).lines().count() == 6, "{}", table(&points));
    }

    #[test]
    fn what_only_one_that_sleeps_has_wakes_it_and_who_has_nothing_to_do_sleeps() {
        let points = self::points(ARRAY, &workflow(16, true));
        assert_eq!(points[0].stays.wakes, 6, "{:?}", points[0]);
        let array = format!("{ARRAY}suspend_after = 1\n");
        let platform = Platform::parse("a", &array).unwrap();
        // One task at a time: seven are put to sleep.
        let report = Simulation::new(&platform, &workflow(1, false))
            .run()
            .unwrap();
        assert_eq!(report.makespan_ns, 105_000_000);
        let long = job::parse(
            "j",
            "name = \"n\"; workdir = \"/\"; tasks = ( { name = \"t\"; kernel = \"k\"; output = [ \"o\" ]; } );",
            "c",
            "[kernels]\nk = { time = \"100 s\", output = 0 }",
        );
        let report = Simulation::new(&platform, &long.unwrap()).run().unwrap();
        let asleep = report
            .elements
            .iter()
            .filter(|one| one.suspended_ns > 95_000_000_000);
        assert_eq!(asleep.count(), 7);
        let reckoned = 165.0 * 100.0 + 7.0 * (165.0 + 16.0 * 99.0);
        let joules = report.energy_joules.unwrap();
        assert!(
            (joules / reckoned - 1.0).abs() < 0.02,
            "{joules} {reckoned}"
        );
    }

    #[test]
    fn an_array_that_sleeps_as_a_whole_wakes_for_a_job_unless_it_must_not() {
        let workflow = workflow(4, false);
        let platform = Platform {
            asleep: 8,
            ..Platform::parse("a", ARRAY).unwrap()
        };
        let run = |allocation| {
            Simulation::new(&platform, &workflow)
                .allocation(allocation)
                .run()
        };
        let report = run(Allocation::Elastic).unwrap();
        assert!(report.makespan_ns >= 2_105_000_000, "{report:?}");
        assert_eq!(run(Allocation::All).unwrap().makespan_ns, 2_105_000_000);
        for (line, wrong) in [
            ("= 8", "= 8\nasleep = 9"),
            ("wake = 2", "wake = 40 d"),
            ("= 8", "= 8\nsuspend_after = -1"),
        ] {
            let array = ARRAY.replace(line, wrong);
            assert!(Platform::parse("a", &array).is_err(), "{wrong}");
        }
    }
}
