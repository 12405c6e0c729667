//! The advisor: by hand, and properties over random cases.

use super::*;
use crate::units::{BytesPerSecond, JoulesPerByte};
use proptest::prelude::*;

const MB: f64 = 1e6;

/// 1000 MB on an element of 100 MB/s, a host of 400 MB/s and a link of 125 MB/s; a result of a tenth, wanted on the host.
fn case() -> Case {
    Case {
        input: Bytes::new(1000.0 * MB),
        output_ratio: 0.1,
        splittable: true,
        result: Place::Host,
        element: Side::element(BytesPerSecond::new(100.0 * MB)),
        host: Side::host(BytesPerSecond::new(400.0 * MB)),
        link: Link {
            bandwidth: BytesPerSecond::new(125.0 * MB),
            latency: Seconds::new(0.5),
            energy: JoulesPerByte::new(1e-9),
        },
    }
}

fn close(value: f64, expected: f64) {
    assert!(
        (value - expected).abs() <= 1e-9 * expected.abs().max(1.0),
        "{value} is not {expected}"
    );
}

#[test]
fn each_side_by_hand() {
    let advice = advise(&case()).unwrap();
    let (element, host) = (advice.element.unwrap(), advice.host.unwrap());
    close(element.time.get(), 10.0 + 0.5 + 0.8);
    close(element.moved.get(), 100.0 * MB);
    close(
        element.energy.get(),
        0.75 * 10.0 + 0.0225 * 1.3 + 7.875 * 11.3 + 0.1,
    );
    close(host.time.get(), 0.5 + 8.0 + 2.5);
    close(host.moved.get(), 1000.0 * MB);
    close(
        host.energy.get(),
        23.75 * 2.5 + 7.875 * 8.5 + 0.0225 * 11.0 + 1.0,
    );
}

/// The host ends at 0.5 + 8 (1 − f) + 2.5 (1 − f), the element at 10 f + 0.5 + 0.8 f: equal at f = 10.5 / 21.3. The
/// link is free before the element has run.
#[test]
fn the_best_share_by_hand() {
    let advice = advise(&case()).unwrap();
    let split = advice.split.unwrap();
    close(split.element_share, 10.5 / 21.3);
    close(split.time.get(), 0.5 + 10.5 * (1.0 - 10.5 / 21.3));
    assert_eq!(advice.best, Choice::Split);
    assert!(
        advice.reason.contains("49.3 % of the input on the element"),
        "{}",
        advice.reason
    );
    assert!(
        advice.reason.contains("less than on the host alone"),
        "{}",
        advice.reason
    );
}

/// A kernel that expands tenfold: the element's result takes longer to move than the input.
#[test]
fn a_kernel_that_expands_goes_to_the_host_if_its_result_is_wanted_there() {
    let expands = Case {
        output_ratio: 10.0,
        splittable: false,
        ..case()
    };
    let advice = advise(&expands).unwrap();
    assert_eq!(advice.best, Choice::Host);
    assert_eq!(advice.split, Err(Infeasible::NotSplittable));
    assert_eq!(
        advice.reason,
        "it takes 11 s on the host, most of it moving 1 GB, and 1.508 min on the element, most of it moving 10 GB"
    );
    let stays = Case {
        result: Place::Element,
        ..expands
    };
    assert_eq!(advise(&stays).unwrap().best, Choice::Element);
}

#[test]
fn a_result_that_is_wanted_on_the_element_moves_back_from_the_host() {
    let stays = Case {
        result: Place::Element,
        ..case()
    };
    let advice = advise(&stays).unwrap();
    close(advice.element.unwrap().time.get(), 10.0);
    close(advice.element.unwrap().moved.get(), 0.0);
    close(advice.host.unwrap().time.get(), 0.5 + 8.0 + 2.5 + 0.5 + 0.8);
    close(advice.host.unwrap().moved.get(), 1100.0 * MB);
}

#[test]
fn equal_times_are_decided_by_energy() {
    let mut even = case();
    even.splittable = false;
    even.element.rate = Some(BytesPerSecond::new(1000.0 / 9.72 * MB));
    let advice = advise(&even).unwrap();
    let (element, host) = (advice.element.unwrap(), advice.host.unwrap());
    assert!(element.time > host.time && element.energy < host.energy);
    assert_eq!(advice.best, Choice::Element);
    assert!(
        advice.reason.starts_with("both take 11.02 s within 1 %"),
        "{}",
        advice.reason
    );
    even.element.busy = Watts::new(100.0);
    assert_eq!(advise(&even).unwrap().best, Choice::Host);
}

#[test]
fn a_queue_makes_the_element_wait_and_programs_slow_the_host() {
    let mut busy = case();
    busy.splittable = false;
    busy.element.load = Load::Queue {
        cores: 2,
        running: 2,
        queued: 3,
        mean: Seconds::new(4.0),
    };
    busy.host.load = Load::Shared {
        cores: 2,
        busy: 3.0,
    };
    let advice = advise(&busy).unwrap();
    close(advice.element.unwrap().time.get(), 8.0 + 11.3);
    close(advice.host.unwrap().time.get(), 0.5 + 8.0 + 5.0);
    let free_core = Load::Queue {
        cores: 3,
        running: 2,
        queued: 0,
        mean: Seconds::new(4.0),
    };
    close(free_core.wait().get(), 0.0);
}

/// At 49 % on the element its result would be ready before the host has its input: they share the link.
#[test]
fn the_elements_result_waits_for_the_hosts_input() {
    let mut fast = case();
    fast.element.rate = Some(BytesPerSecond::new(10_000.0 * MB));
    let half = fast.predict(0.5).unwrap();
    close(half.time.get(), (0.5 + 4.0) + 0.5 + 0.4_f64.max(0.75));
}

#[test]
fn what_can_not_be_had_is_said_in_words() {
    let mut one = case();
    one.host.rate = None;
    let advice = advise(&one).unwrap();
    assert_eq!(advice.best, Choice::Element);
    assert_eq!(advice.split, Err(Infeasible::NotMeasured(Place::Host)));
    assert_eq!(
        advice.reason,
        "only the element can run it: the kernel was never measured on the host"
    );
    one.element.load = Load::none(0);
    let error = advise(&one).unwrap_err().to_string();
    assert_eq!(
        error,
        "nothing can run this: the element has no cores for kernels; the kernel was never measured on the host"
    );
    let mut full = case();
    full.splittable = false;
    full.host.free = Some(Bytes::new(1000.0 * MB));
    let error = advise(&full).unwrap().host.unwrap_err().to_string();
    assert_eq!(error, "the host needs 1.1 GB and has 1 GB free");
}

#[test]
fn a_split_may_fit_where_neither_side_has_space() {
    let mut tight = case();
    tight.element.free = Some(Bytes::new(60.0 * MB));
    tight.host.free = Some(Bytes::new(700.0 * MB));
    let advice = advise(&tight).unwrap();
    assert!(advice.element.is_err() && advice.host.is_err());
    assert_eq!(advice.best, Choice::Split);
    assert!(advice.reason.contains("both together"), "{}", advice.reason);
}

#[test]
fn numbers_that_make_no_sense_are_named() {
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
        |case| case.host.rate = Some(BytesPerSecond::new(-1.0)),
        "the kernel's throughput is -1",
    );
    check(
        |case| case.element.start = Seconds::new(-1.0),
        "the time to start is -1",
    );
    check(
        |case| case.host.idle = Watts::new(30.0),
        "a core of the host takes 30 W when it waits and 23.75 W when it works",
    );
}

fn side(host: bool) -> impl Strategy<Value = Side> {
    (
        1e3..1e11_f64,
        0.0..5.0_f64,
        0..6_u32,
        0..6_u32,
        1..8_u32,
        0.0..9.0_f64,
    )
        .prop_map(move |(rate, start, running, queued, cores, amount)| {
            let rate = BytesPerSecond::new(rate);
            let load = if host {
                Load::Shared {
                    cores,
                    busy: amount,
                }
            } else {
                Load::Queue {
                    cores,
                    running,
                    queued,
                    mean: Seconds::new(amount),
                }
            };
            let side = if host {
                Side::host(rate)
            } else {
                Side::element(rate)
            };
            Side {
                start: Seconds::new(start),
                load,
                ..side
            }
        })
}

fn cases() -> impl Strategy<Value = Case> {
    let link = (1e4..1e11_f64, 0.0..2.0_f64, 0.0..1e-6_f64);
    let asked = (
        1.0..1e13_f64,
        prop_oneof![Just(0.0), 0.0..20.0_f64],
        any::<bool>(),
    );
    (asked, side(false), side(true), link).prop_map(
        |((input, output_ratio, stays), element, host, (bandwidth, latency, energy))| Case {
            input: Bytes::new(input),
            output_ratio,
            splittable: true,
            result: if stays { Place::Element } else { Place::Host },
            element,
            host,
            link: Link {
                bandwidth: BytesPerSecond::new(bandwidth),
                latency: Seconds::new(latency),
                energy: JoulesPerByte::new(energy),
            },
        },
    )
}

/// Not later but for rounding.
fn not_later(one: Seconds, other: Seconds) -> bool {
    one.get() <= other.get() * (1.0 + 1e-9) + 1e-12
}

fn all(case: &Case) -> [Prediction; 3] {
    let advice = advise(case).unwrap();
    [advice.element, advice.host, advice.split].map(Result::unwrap)
}

proptest! {
    /// A split is never later than the better side, nor than any other share.
    #[test]
    fn the_best_split_is_the_best(case in cases()) {
        let [element, host, split] = all(&case);
        prop_assert!(split.time <= element.time && split.time <= host.time);
        for step in 0..=200 {
            let other = case.predict(f64::from(step) / 200.0).unwrap();
            prop_assert!(not_later(split.time, other.time), "{} at {}, {} at {step}/200",
                split.time, split.element_share, other.time);
        }
    }

    /// More of anything that helps makes nothing later; more input or output makes nothing sooner.
    #[test]
    fn times_follow_what_they_are_made_of(case in cases(), more in 1.0..100.0_f64) {
        let before = all(&case);
        let better: [fn(&mut Case, f64); 4] = [
            |case, more| case.link.bandwidth = case.link.bandwidth * more,
            |case, more| case.element.rate = case.element.rate.map(|rate| rate * more),
            |case, more| case.host.rate = case.host.rate.map(|rate| rate * more),
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
            |case, more| case.element.start = case.element.start * more,
        ];
        for change in worse {
            let mut changed = case;
            change(&mut changed, more);
            for (after, before) in all(&changed).iter().zip(&before) {
                prop_assert!(not_later(before.time, after.time));
            }
        }
    }

    /// What is advised is the fastest but for a tie or a split that gains too little, and no part of a prediction is
    /// negative or more than the whole.
    #[test]
    fn the_advice_is_sound(case in cases()) {
        let advice = advise(&case).unwrap();
        let best = advice.of(advice.best).unwrap();
        for one in all(&case) {
            let slack = if advice.best == Choice::Split { 1.0 } else { 1.0 + TIE };
            let slack = if one.element_share > 0.0 && one.element_share < 1.0 { slack / (1.0 - SPLIT_GAIN_MIN) } else { slack };
            prop_assert!(best.time.get() <= one.time.get() * slack * (1.0 + 1e-9));
            prop_assert!(one.on_element <= one.time && one.on_host <= one.time);
            prop_assert!(one.energy >= Joules::ZERO && one.moved >= Bytes::ZERO);
            prop_assert!((0.0..=1.0).contains(&one.element_share));
        }
        prop_assert!(!advice.reason.is_empty() && !advice.reason.contains("NaN"));
    }

    /// Any numbers at all give an answer or an error, never a number that is none.
    #[test]
    fn any_numbers_are_answered_or_refused(
        input in any::<f64>(), ratio in any::<f64>(), rate in any::<f64>(), bandwidth in any::<f64>(), busy in any::<f64>()
    ) {
        let mut odd = case();
        odd.input = Bytes::new(input);
        odd.output_ratio = ratio;
        odd.element.rate = Some(BytesPerSecond::new(rate));
        odd.link.bandwidth = BytesPerSecond::new(bandwidth);
        odd.host.load = Load::Shared { cores: 1, busy };
        if let Ok(advice) = advise(&odd) {
            prop_assert!(!advice.of(advice.best).unwrap().time.get().is_nan());
        }
    }
}
