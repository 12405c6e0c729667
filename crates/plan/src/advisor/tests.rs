//! Tests of the advisor: results computed by hand, and properties over random cases.

use super::*;
use crate::units::{BytesPerSecond, Joules, JoulesPerByte, Watts};
use proptest::prelude::*;

const MB: f64 = 1e6;

/// Returns a case of 1000 MB on a node of 100 MB/s, a client of 400 MB/s and a link of 125 MB/s; the result is a tenth of the input and
/// wanted on the client.
fn case() -> Case {
    Case {
        input: Bytes::new(1000.0 * MB),
        output_ratio: 0.1,
        splittable: true,
        result: ExecutionSide::Client,
        node: SideFacts::idle(BytesPerSecond::new(100.0 * MB)),
        client: SideFacts::idle(BytesPerSecond::new(400.0 * MB)),
        link: Link {
            bandwidth: BytesPerSecond::new(125.0 * MB),
            latency: Seconds::new(0.5),
        },
        powers: Some(powers(1e-9)),
    }
}

/// Returns powers of a core: of a device of 3 W and 0.09 W with four cores (Active Flash, Table 2), and of a node of 190 W and 63 W with
/// eight cores (§5).
fn powers(joules_per_byte: f64) -> Powers {
    let power = |busy, idle| CorePower {
        busy: Watts::new(busy),
        idle: Watts::new(idle),
    };
    Powers {
        node: power(0.75, 0.0225),
        client: power(23.75, 7.875),
        link: JoulesPerByte::new(joules_per_byte),
    }
}

fn close(value: f64, expected: f64) {
    assert!(
        (value - expected).abs() <= 1e-9 * expected.abs().max(1.0),
        "{value} is not {expected}"
    );
}

#[test]
fn advice_matches_hand_computation_on_each_side() {
    let advice = advise(&case()).unwrap();
    let (node, client) = (advice.node.unwrap(), advice.client.unwrap());
    close(node.time.get(), 10.0 + 0.5 + 0.8);
    close(node.transferred.get(), 100.0 * MB);
    close(
        node.energy.unwrap().get(),
        0.75 * 10.0 + 0.0225 * 1.3 + 7.875 * 11.3 + 0.1,
    );
    close(client.time.get(), 0.5 + 8.0 + 2.5);
    close(client.transferred.get(), 1000.0 * MB);
    close(
        client.energy.unwrap().get(),
        23.75 * 2.5 + 7.875 * 8.5 + 0.0225 * 11.0 + 1.0,
    );
}

/// The client ends at 0.5 + 8 (1 − f) + 2.5 (1 − f), the node at 10 f + 0.5 + 0.8 f: equal at f = 10.5 / 21.3. The
/// link is free before the node has run.
#[test]
fn best_split_matches_hand_computation() {
    let advice = advise(&case()).unwrap();
    let both = advice.both.unwrap();
    close(both.node_share, 10.5 / 21.3);
    close(both.time.get(), 0.5 + 10.5 * (1.0 - 10.5 / 21.3));
    assert_eq!(advice.best, RunChoice::Both);
    assert!(
        advice.reason.contains("49.3 % of the input on the node"),
        "{}",
        advice.reason
    );
    assert!(
        advice.reason.contains("less than on the client alone"),
        "{}",
        advice.reason
    );
}

/// The kernel expands its input tenfold: the result of the node takes longer to move than the input.
#[test]
fn expanding_kernel_runs_on_client_if_result_is_wanted_there() {
    let expands = Case {
        output_ratio: 10.0,
        splittable: false,
        ..case()
    };
    let advice = advise(&expands).unwrap();
    assert_eq!(advice.best, RunChoice::Client);
    assert_eq!(advice.both, Err(Infeasible::NotSplittable));
    assert_eq!(
        advice.reason,
        "it takes 11 s on the client, most of it transferring 1 GB, and 1.508 min on the node, most of it transferring 10 GB"
    );
    let stays = Case {
        result: ExecutionSide::Node,
        ..expands
    };
    assert_eq!(advise(&stays).unwrap().best, RunChoice::Node);
}

#[test]
fn result_wanted_on_node_is_moved_from_the_client() {
    let stays = Case {
        result: ExecutionSide::Node,
        ..case()
    };
    let advice = advise(&stays).unwrap();
    close(advice.node.unwrap().time.get(), 10.0);
    close(advice.node.unwrap().transferred.get(), 0.0);
    close(
        advice.client.unwrap().time.get(),
        0.5 + 8.0 + 2.5 + 0.5 + 0.8,
    );
    close(advice.client.unwrap().transferred.get(), 1100.0 * MB);
}

#[test]
fn equal_times_are_decided_by_energy_then_transferred_bytes() {
    let mut even = case();
    even.splittable = false;
    even.node.rate = Some(BytesPerSecond::new(1000.0 / 9.72 * MB));
    let advice = advise(&even).unwrap();
    let (node, client) = (advice.node.unwrap(), advice.client.unwrap());
    assert!(node.time > client.time && node.energy < client.energy);
    assert_eq!(advice.best, RunChoice::Node);
    assert!(
        advice.reason.starts_with("both take 11.02 s within 1 % or"),
        "{}",
        advice.reason
    );
    even.powers.as_mut().unwrap().node.busy = Watts::new(100.0);
    assert_eq!(advise(&even).unwrap().best, RunChoice::Client);
    // Without known powers, no energy is made up.
    even.powers = None;
    let advice = advise(&even).unwrap();
    assert_eq!(advice.node.unwrap().energy, None);
    assert_eq!(advice.best, RunChoice::Node);
    assert!(
        advice
            .reason
            .ends_with("the node transfers 100 MB against 1 GB"),
        "{}",
        advice.reason
    );
}

#[test]
fn load_delays_only_the_side_of_its_machine() {
    let mut busy = case();
    busy.splittable = false;
    let queue = SideQueue {
        cores: 2,
        running: 2,
        queued: 3,
        left: Seconds::new(8.0),
    };
    let elsewhere = MachineLoad {
        running: 2,
        left: queue.left,
        ..MachineLoad::idle(2)
    };
    busy.node.load = Load::of_node(&queue, &elsewhere);
    busy.client.load = Load::of_client(&MachineLoad {
        share: 0.5,
        ..MachineLoad::idle(2)
    });
    let advice = advise(&busy).unwrap();
    close(advice.node.unwrap().time.get(), 8.0 + 11.3);
    close(advice.client.unwrap().time.get(), 0.5 + 8.0 + 5.0);
}

/// Two kernels and a third kernel share two processors: each has two thirds of a processor while the two run.
#[test]
fn shared_processors_slow_both_sides_until_kernels_end() {
    let machine = MachineLoad {
        share: 2.0 / 3.0,
        share_beside: 0.5,
        running: 2,
        left: Seconds::new(3.0),
        ..MachineLoad::idle(2)
    };
    let mut shared = case();
    shared.client.load = Load::of_client(&machine);
    // 2.5 s of work: 2 s of it in the first 3 s.
    close(
        advise(&shared).unwrap().client.unwrap().on_client.get(),
        3.5,
    );
    let mut queue = SideQueue {
        cores: 3,
        running: 2,
        queued: 0,
        left: Seconds::new(3.0),
    };
    shared.node.load = Load::of_node(&queue, &machine);
    let node = advise(&shared).unwrap().node.unwrap();
    close(node.waiting.get(), 0.0);
    close(node.on_node.get(), 3.0 + 8.0);
    queue.cores = 2;
    shared.node.load = Load::of_node(&queue, &machine);
    let node = advise(&shared).unwrap().node.unwrap();
    close(node.waiting.get(), 3.0);
    close(node.on_node.get(), 10.0);
    // Client and node each have half a processor if they run at once.
    let both = shared.predict(0.5).unwrap();
    close(both.on_client.get(), 2.5);
    close(both.on_node.get(), 10.0);
}

/// The node is full, and other nodes load its machine. The load of the other nodes continues when the kernel starts.
#[test]
fn load_of_other_nodes_continues_after_the_wait() {
    let machine = MachineLoad {
        share: 0.4,
        share_beside: 0.3,
        running: 4,
        left: Seconds::new(10.0),
        ..MachineLoad::idle(2)
    };
    let queue = SideQueue {
        cores: 1,
        running: 1,
        queued: 0,
        left: Seconds::new(4.0),
    };
    let load = Load::of_node(&queue, &machine);
    close(load.wait.get(), 4.0);
    close(load.share, 0.5);
    close(load.crowded.get(), 6.0);
    close(load.share_later, 1.0);
}

/// With 49 % on the node, its result would be ready before the client has its input: both share the link.
#[test]
fn split_moves_client_input_before_node_result() {
    let mut fast = case();
    fast.node.rate = Some(BytesPerSecond::new(10_000.0 * MB));
    let half = fast.predict(0.5).unwrap();
    close(half.time.get(), (0.5 + 4.0) + 0.5 + 0.4_f64.max(0.75));
}

#[test]
fn infeasible_side_is_explained() {
    let mut one = case();
    one.client.rate = None;
    let advice = advise(&one).unwrap();
    assert_eq!(advice.best, RunChoice::Node);
    assert_eq!(
        advice.both,
        Err(Infeasible::NotMeasured(ExecutionSide::Client))
    );
    assert_eq!(
        advice.reason,
        "only the node can run it: the kernel was never measured on the client"
    );
    one.node.load = Load::none(0);
    let error = advise(&one).unwrap_err().to_string();
    assert_eq!(
        error,
        "nothing can run this: the node has no cores for kernels; the kernel was never measured on the client"
    );
    let mut full = case();
    full.splittable = false;
    full.client.free = Some(Bytes::new(1000.0 * MB));
    let error = advise(&full).unwrap().client.unwrap_err().to_string();
    assert_eq!(error, "the client needs 1.1 GB and has 1 GB free");
}

#[test]
fn split_is_feasible_where_neither_side_has_space() {
    let mut tight = case();
    tight.node.free = Some(Bytes::new(60.0 * MB));
    tight.client.free = Some(Bytes::new(700.0 * MB));
    let advice = advise(&tight).unwrap();
    assert!(advice.node.is_err() && advice.client.is_err());
    assert_eq!(advice.best, RunChoice::Both);
    assert!(advice.reason.contains("both together"), "{}", advice.reason);
}

#[test]
fn invalid_case_values_are_named() {
    let check = |change: fn(&mut Case), words: &str| {
        let mut wrong = case();
        change(&mut wrong);
        let error = advise(&wrong).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    check(
        |case| case.input = Bytes::ZERO,
        "the size of the input is 0",
    );
    check(|case| case.output_ratio = -1.0, "the output ratio is -1");
    check(
        |case| case.output_ratio = f64::NAN,
        "the output ratio is NaN",
    );
    check(
        |case| case.link.bandwidth = BytesPerSecond::ZERO,
        "the link's bandwidth is 0",
    );
    check(
        |case| case.client.rate = Some(BytesPerSecond::new(-1.0)),
        "the kernel's throughput is -1",
    );
    check(
        |case| case.node.start = Seconds::new(-1.0),
        "the time to start is -1",
    );
    check(
        |case| case.client.load.share = 1.5,
        "the shares of a processor on the client",
    );
    check(
        |case| case.node.load.share_beside = 0.0,
        "the shares of a processor on the node",
    );
    check(
        |case| case.node.load.wait = Seconds::new(f64::NAN),
        "the wait for a core",
    );
    check(
        |case| case.powers.as_mut().unwrap().client.idle = Watts::new(30.0),
        "a core of the client takes 30 W when it waits and 23.75 W when it works",
    );
}

fn machine() -> impl Strategy<Value = MachineLoad> {
    (
        1..8_u32,
        1e-3..=1.0_f64,
        1e-3..=1.0_f64,
        0..6_u32,
        0.0..9.0_f64,
    )
        .prop_map(|(processors, share, beside, running, left)| MachineLoad {
            processors,
            share,
            share_beside: share * beside,
            running,
            left: Seconds::new(left),
        })
}

fn side(client: bool) -> impl Strategy<Value = SideFacts> {
    let queue = (1..8_u32, 0..6_u32, 0..6_u32, 0.0..9.0_f64);
    (1e3..1e11_f64, 0.0..5.0_f64, machine(), queue).prop_map(
        move |(rate, start, machine, (cores, running, queued, left))| {
            let rate = BytesPerSecond::new(rate);
            let queue = SideQueue {
                cores,
                running,
                queued,
                left: Seconds::new(left),
            };
            let load = if client {
                Load::of_client(&machine)
            } else {
                Load::of_node(&queue, &machine)
            };
            SideFacts {
                start: Seconds::new(start),
                load,
                ..SideFacts::idle(rate)
            }
        },
    )
}

fn cases() -> impl Strategy<Value = Case> {
    let link = (1e4..1e11_f64, 0.0..2.0_f64, 0.0..1e-6_f64);
    let asked = (
        1.0..1e13_f64,
        prop_oneof![Just(0.0), 0.0..20.0_f64],
        any::<bool>(),
    );
    (asked, side(false), side(true), link).prop_map(
        |((input, output_ratio, stays), node, client, (bandwidth, latency, energy))| Case {
            input: Bytes::new(input),
            output_ratio,
            splittable: true,
            result: if stays {
                ExecutionSide::Node
            } else {
                ExecutionSide::Client
            },
            node,
            client,
            link: Link {
                bandwidth: BytesPerSecond::new(bandwidth),
                latency: Seconds::new(latency),
            },
            powers: Some(powers(energy)),
        },
    )
}

/// Returns whether the time `one` is not later than the time `other`, except for rounding.
fn not_later(one: Seconds, other: Seconds) -> bool {
    one.get() <= other.get() * (1.0 + 1e-9) + 1e-12
}

fn all(case: &Case) -> [Prediction; 3] {
    let advice = advise(case).unwrap();
    [advice.node, advice.client, advice.both].map(Result::unwrap)
}

proptest! {
    /// The best split is never later than the better side, nor than any other share.
    #[test]
    fn best_split_is_at_least_as_fast_as_any_share(case in cases()) {
        let [node, client, both] = all(&case);
        prop_assert!(both.time <= node.time && both.time <= client.time);
        for step in 0..=200 {
            let other = case.predict(f64::from(step) / 200.0).unwrap();
            prop_assert!(not_later(both.time, other.time), "{} at {}, {} at {step}/200",
                both.time, both.node_share, other.time);
        }
    }

    /// A larger bandwidth or rate never makes a prediction later. More input or output never makes a prediction sooner.
    #[test]
    fn predicted_times_are_monotone_in_rates_and_sizes(case in cases(), more in 1.0..100.0_f64) {
        let before = all(&case);
        let better: [fn(&mut Case, f64); 4] = [
            |case, more| case.link.bandwidth = case.link.bandwidth * more,
            |case, more| case.node.rate = case.node.rate.map(|rate| rate * more),
            |case, more| case.client.rate = case.client.rate.map(|rate| rate * more),
            |case, more| case.link.latency = case.link.latency / more,
        ];
        for change in better {
            let mut changed = case;
            change(&mut changed, more);
            for (after, before) in all(&changed).iter().zip(&before) {
                prop_assert!(not_later(after.time, before.time));
            }
        }
        let worse: [fn(&mut Case, f64); 3] = [
            |case, more| case.input = case.input * more,
            |case, more| case.output_ratio *= more,
            |case, more| case.node.start = case.node.start * more,
        ];
        for change in worse {
            let mut changed = case;
            change(&mut changed, more);
            for (after, before) in all(&changed).iter().zip(&before) {
                prop_assert!(not_later(before.time, after.time));
            }
        }
    }

    /// A smaller share of a processor or a longer wait never makes a prediction sooner, and changes only the side with this load.
    #[test]
    fn load_slows_only_its_side(case in cases(), part in 0.01..1.0_f64, wait in 0.0..9.0_f64) {
        let before = all(&case);
        let lower = |load: &mut Load| {
            load.share *= part;
            load.share_later *= part;
            load.share_beside *= part;
            load.wait = load.wait + Seconds::new(wait);
        };
        let (mut node, mut client) = (case, case);
        lower(&mut node.node.load);
        lower(&mut client.client.load);
        let (with_node, with_client) = (all(&node), all(&client));
        prop_assert_eq!(with_node[1], before[1]);
        prop_assert_eq!(with_client[0], before[0]);
        for after in [with_node, with_client] {
            for (after, before) in after.iter().zip(&before) {
                prop_assert!(not_later(before.time, after.time));
            }
        }
    }

    /// The advised choice is the fastest, except for a tie or a split that gains too little. No part of a prediction is
    /// negative or larger than the whole.
    #[test]
    fn advice_is_fastest_but_for_ties_and_small_gains(case in cases()) {
        let advice = advise(&case).unwrap();
        let best = advice.of(advice.best).unwrap();
        for one in all(&case) {
            let slack = if advice.best == RunChoice::Both { 1.0 } else { 1.0 + TIE };
            let slack = if one.node_share > 0.0 && one.node_share < 1.0 { slack / (1.0 - SPLIT_GAIN_MIN) } else { slack };
            let whole = one.node_share <= 0.0 || one.node_share >= 1.0;
            let scatter = if whole { TIE_SECONDS } else { SPLIT_SAVED_MIN };
            let most = (one.time.get() * slack).max(one.time.get() + scatter.get());
            prop_assert!(best.time.get() <= most * (1.0 + 1e-9));
            prop_assert!(one.on_node <= one.time && one.on_client <= one.time);
            prop_assert!(one.energy >= Some(Joules::ZERO) && one.transferred >= Bytes::ZERO);
            prop_assert!((0.0..=1.0).contains(&one.node_share));
        }
        prop_assert!(!advice.reason.is_empty() && !advice.reason.contains("NaN"));
    }

    /// Any numbers in a case give an answer or an error, never NaN.
    #[test]
    fn advice_for_any_numbers_is_an_answer_or_error(
        input in any::<f64>(), ratio in any::<f64>(), rate in any::<f64>(), bandwidth in any::<f64>(), busy in any::<f64>()
    ) {
        let mut odd = case();
        odd.input = Bytes::new(input);
        odd.output_ratio = ratio;
        odd.node.rate = Some(BytesPerSecond::new(rate));
        odd.link.bandwidth = BytesPerSecond::new(bandwidth);
        odd.client.load.share = busy;
        odd.node.load.wait = Seconds::new(busy);
        if let Ok(advice) = advise(&odd) {
            prop_assert!(!advice.of(advice.best).unwrap().time.get().is_nan());
        }
    }
}
