//! Tests of planning with suspended nodes.
#![allow(clippy::unwrap_used, reason = "tests")]

use tidemill_plan::sim::elastic::{ElasticPoint, compare, known, quarters, table};
use tidemill_plan::sim::{Allocation, Platform, Simulation, Workflow, job};

/// Cluster with the powers of LABIOS's figure: 165 W active, 16 W suspended.
const CLUSTER: &str = "[AFE]\ncores_per_afe = 1\nread_bandwidth = unlimited\nwrite_bandwidth = unlimited\nread_latency = 0\n\
                     write_latency = 0\npower_busy = 165\npower_idle = 165\npower_suspended = 16\nresume = 2\n[SERVER]\nnumber_afes = 8\n";

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

fn points(cluster: &str, workflow: &Workflow) -> Vec<ElasticPoint> {
    let platform = known(Platform::parse("a", cluster).unwrap(), workflow);
    compare((&platform, workflow), &quarters(8), |one| one).unwrap()
}

#[test]
fn elastic_resumes_only_if_few_nodes_are_active() {
    let points = points(CLUSTER, &workflow(512, false));
    let (few, most) = (&points[0], &points[2]);
    assert!(few.elastic.makespan_ns < few.stays.makespan_ns, "{few:?}");
    assert!(few.elastic.resumes > 0 && few.stays.resumes == 0, "{few:?}");
    assert_eq!(most.elastic.resumes, 0, "{most:?}");
    assert!(
        most.stays.energy_joules < most.all.energy_joules,
        "{most:?}"
    );
    assert!(most.all.makespan_ns < most.stays.makespan_ns, "{most:?}");
    let all = &points[3];
    assert_eq!((&all.stays, &all.elastic), (&all.all, &all.all));
    // Two nodes work for 27 seconds, and six are suspended.
    let joules = few.stays.energy_joules.unwrap();
    let estimated = 26.88 * (2.0 * 165.0 + 6.0 * 16.0);
    assert!(
        (joules / estimated - 1.0).abs() < 0.01,
        "{joules} {estimated}"
    );
    assert!(table(&points).lines().count() == 6, "{}", table(&points));
}

#[test]
fn simulated_node_resumes_for_its_data_and_suspends_when_idle() {
    let points = self::points(CLUSTER, &workflow(16, true));
    assert_eq!(points[0].stays.resumes, 6, "{:?}", points[0]);
    let cluster = format!("{CLUSTER}suspend_after = 1\n");
    let platform = Platform::parse("a", &cluster).unwrap();
    // One task runs at a time: seven nodes are suspended.
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
    let suspended = report
        .nodes
        .iter()
        .filter(|one| one.suspended_ns > 95_000_000_000);
    assert_eq!(suspended.count(), 7);
    let estimated = 165.0 * 100.0 + 7.0 * (165.0 + 16.0 * 99.0);
    let joules = report.energy_joules.unwrap();
    assert!(
        (joules / estimated - 1.0).abs() < 0.02,
        "{joules} {estimated}"
    );
}

#[test]
fn suspended_platform_resumes_for_a_job_unless_forbidden() {
    let workflow = workflow(4, false);
    let platform = Platform {
        suspended: 8,
        ..Platform::parse("a", CLUSTER).unwrap()
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
        ("= 8", "= 8\nsuspended = 9"),
        ("resume = 2", "resume = 40 d"),
        ("= 8", "= 8\nsuspend_after = -1"),
    ] {
        let cluster = CLUSTER.replace(line, wrong);
        assert!(Platform::parse("a", &cluster).is_err(), "{wrong}");
    }
}
