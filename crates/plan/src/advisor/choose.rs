//! Choice of the advisor: predicts the costs of each way to run a kernel and chooses the best.

use super::{Case, CaseError, CorePower, ExecutionSide, Infeasible, Prediction, SideFacts};
use crate::units::{Bytes, Seconds, significant};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;

/// Relative difference below which two times count as equal; then the energy decides, or the transferred bytes if the energy is unknown.
pub const TIE: f64 = 0.01;

/// Maximum absolute difference at which two times also count as equal, which is the variation of starting commands.
pub const TIE_SECONDS: Seconds = Seconds::new(0.005);

/// Minimum time that a split must save: cutting a file and joining results does not pay for less.
pub const SPLIT_SAVED_MIN: Seconds = Seconds::new(0.25);

/// Minimum gain of a split over the better side alone, as a share. The equations do not contain the time for cutting the input, for joining
/// results, and for sending the client its part from the node's cores while the kernel runs.
pub const SPLIT_GAIN_MIN: f64 = 0.2;

/// Way to run a kernel: on the node, on the client, or on both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RunChoice {
    /// Run on the node; the result is transferred if it is wanted on the client.
    Node,
    /// Run on the client; the input is transferred.
    Client,
    /// Run on both sides: a part of the input stays on the node and the rest is transferred to the client, at the same time.
    Both,
}

impl fmt::Display for RunChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Node => "node",
            Self::Client => "client",
            Self::Both => "both",
        })
    }
}

/// Answer of the advisor.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Prediction for running on the node that holds the input.
    pub node: Result<Prediction, Infeasible>,
    /// Prediction for running on the client.
    pub client: Result<Prediction, Infeasible>,
    /// Prediction for the best split; equal to the prediction for one side if the best share is all or nothing.
    pub both: Result<Prediction, Infeasible>,
    /// Best way to run the kernel.
    pub best: RunChoice,
    /// Reason for the choice, in one sentence.
    pub reason: String,
}

impl Advice {
    /// Returns the prediction for a way to run the kernel.
    ///
    /// # Errors
    /// The reason for which this way to run is infeasible.
    pub fn of(&self, choice: RunChoice) -> Result<Prediction, Infeasible> {
        match choice {
            RunChoice::Node => self.node,
            RunChoice::Client => self.client,
            RunChoice::Both => self.both,
        }
    }
}

/// Predicts all ways to run and chooses one. The fastest way is preferred. Among the ways within [`TIE`] of it, the way with the least
/// energy is chosen, or the way that moves less data if the energy is unknown. A split is only chosen if it gains at least
/// [`SPLIT_GAIN_MIN`] and [`SPLIT_SAVED_MIN`].
///
/// # Errors
/// An invalid number in the case, or neither client nor node can run the kernel.
pub fn advise(case: &Case) -> Result<Advice, CaseError> {
    case.check()?;
    let (node, client) = (case.predict(1.0), case.predict(0.0));
    let both = case.best_split();
    let whole = match (node, client) {
        (Err(node), Err(client)) => match both {
            Ok(_) => RunChoice::Both,
            Err(_) => return Err(CaseError::Nowhere { node, client }),
        },
        (Ok(_), Err(_)) => RunChoice::Node,
        (Err(_), Ok(_)) => RunChoice::Client,
        (Ok(node), Ok(client)) => better(&node, &client),
    };
    let mut advice = Advice {
        node,
        client,
        both,
        best: whole,
        reason: String::new(),
    };
    let fastest = node.into_iter().chain(client).map(|one| one.time.get());
    let fastest = fastest.fold(f64::INFINITY, f64::min);
    if let Ok(both) = both
        && both.time.get() < fastest * (1.0 - SPLIT_GAIN_MIN)
        && both.time.get() < fastest - SPLIT_SAVED_MIN.get()
    {
        advice.best = RunChoice::Both;
    }
    advice.reason = reason(&advice, case);
    Ok(advice)
}

fn tied(one: &Prediction, other: &Prediction) -> bool {
    let (one, other) = (one.time.get(), other.time.get());
    let (less, more) = (one.min(other), one.max(other));
    more <= less * (1.0 + TIE) || more - less <= TIE_SECONDS.get()
}

fn better(node: &Prediction, client: &Prediction) -> RunChoice {
    let client_wins = match (tied(node, client), node.energy, client.energy) {
        (true, Some(there), Some(here)) => here < there,
        (true, _, _) => client.transferred < node.transferred,
        (false, _, _) => client.time < node.time,
    };
    if client_wins {
        RunChoice::Client
    } else {
        RunChoice::Node
    }
}

impl Case {
    /// Returns the prediction with `share` of the input on the node and the rest on the client (A3 to A9).
    ///
    /// # Errors
    /// The reason for which this share is infeasible.
    pub fn predict(&self, share: f64) -> Result<Prediction, Infeasible> {
        let here = self.input * share;
        let there = self.input * (1.0 - share);
        self.has_space(here, there)?;
        let mut prediction = Prediction {
            time: Seconds::ZERO,
            node_share: share,
            waiting: Seconds::ZERO,
            on_node: Seconds::ZERO,
            on_client: Seconds::ZERO,
            transferring: Seconds::ZERO,
            transferred: there,
            energy: None,
        };
        let both = here > Bytes::ZERO && there > Bytes::ZERO;
        let run = |side: &SideFacts, place, input| {
            if both {
                side.run_beside(place, input)
            } else {
                side.run(place, input)
            }
        };
        let mut link_free = Seconds::ZERO;
        if there > Bytes::ZERO {
            prediction.on_client = run(&self.client, ExecutionSide::Client, there)?;
            let wait = self.client.load.wait;
            prediction.waiting = prediction.waiting + wait;
            link_free = wait + self.link.time(there);
            let back = self.returned(ExecutionSide::Client, there);
            prediction.transferred = prediction.transferred + back;
            prediction.transferring = self.link.time(there) + self.link.time(back);
            prediction.time = link_free + prediction.on_client + self.link.time(back);
        }
        if here > Bytes::ZERO {
            prediction.on_node = run(&self.node, ExecutionSide::Node, here)?;
            let wait = self.node.load.wait;
            prediction.waiting = prediction.waiting + wait;
            let back = self.returned(ExecutionSide::Node, here);
            prediction.transferred = prediction.transferred + back;
            prediction.transferring = prediction.transferring + self.link.time(back);
            let mut end = wait + prediction.on_node;
            if back > Bytes::ZERO {
                // The client's input and the node's result use the same link, one after the other.
                end = later(end, link_free) + self.link.time(back);
            }
            prediction.time = later(prediction.time, end);
        }
        prediction.energy = self.powers.map(|powers| {
            let core = |core: CorePower, run: Seconds| {
                core.busy * run + core.idle * (prediction.time - run)
            };
            core(powers.node, prediction.on_node)
                + core(powers.client, prediction.on_client)
                + powers.link * prediction.transferred
        });
        Ok(prediction)
    }

    /// Returns the data that must be transferred after a side has worked on `input` (A5).
    fn returned(&self, place: ExecutionSide, input: Bytes) -> Bytes {
        if place == self.result {
            Bytes::ZERO
        } else {
            input * self.output_ratio
        }
    }

    /// Checks that results fit where they are computed and where they are wanted, and that input fits where it is transferred to.
    fn has_space(&self, here: Bytes, there: Bytes) -> Result<(), Infeasible> {
        let node = here * self.output_ratio + self.returned(ExecutionSide::Client, there);
        let client = there * (1.0 + self.output_ratio) + self.returned(ExecutionSide::Node, here);
        self.node.holds(ExecutionSide::Node, node)?;
        self.client.holds(ExecutionSide::Client, client)
    }

    /// Returns the prediction for the share with the least time (A6). Time as a function of the share is the maximum of straight lines, so
    /// its minimum is at an end or where two lines cross. At the ends the time is smaller than that of the lines, since a side that runs
    /// alone does not share its processor.
    fn best_split(&self) -> Result<Prediction, Infeasible> {
        if !self.splittable {
            return Err(Infeasible::NotSplittable);
        }
        // If one side can't run the kernel at all, there is nothing to split.
        self.node.run(ExecutionSide::Node, self.input)?;
        self.client.run(ExecutionSide::Client, self.input)?;
        let mut shares = vec![1.0, 0.0];
        let lines = self.branches();
        for (index, one) in lines.iter().enumerate() {
            shares.extend(
                lines[index + 1..]
                    .iter()
                    .filter_map(|other| one.cross(other)),
            );
        }
        let mut best: Result<Prediction, _> = Err(Infeasible::NotSplittable);
        for prediction in shares.into_iter().map(|share| self.predict(share)) {
            best = match (best, prediction) {
                (Ok(best), Ok(one)) if one.time < best.time => Ok(one),
                (Ok(best), _) => Ok(best),
                (Err(_), other) => other,
            };
        }
        best
    }

    /// Returns three times as functions of the node's share, between 0 and 1: the end on the client, the end on the node if the link is
    /// free by then, and the end on the node if the link is not free.
    fn branches(&self) -> Vec<LinearFit> {
        let on_client = |share: f64| {
            let input = self.input * (1.0 - share);
            self.client.run_beside(ExecutionSide::Client, input)
        };
        let on_node = |share: f64| {
            let input = self.input * share;
            self.node.run_beside(ExecutionSide::Node, input)
        };
        let transferred = |data: Bytes| data / self.link.bandwidth;
        let latency = |place: ExecutionSide| {
            if self.returned(place, self.input) > Bytes::ZERO {
                self.link.latency
            } else {
                Seconds::ZERO
            }
        };
        let back = |place: ExecutionSide, part: f64| {
            latency(place) + transferred(self.returned(place, self.input * part))
        };
        let link_free = |share: f64| {
            self.client.load.wait + self.link.latency + transferred(self.input * (1.0 - share))
        };
        let client = |share: f64| {
            Ok(link_free(share) + on_client(share)? + back(ExecutionSide::Client, 1.0 - share))
        };
        let node = |share: f64| {
            Ok(self.node.load.wait + on_node(share)? + back(ExecutionSide::Node, share))
        };
        let delayed = |share: f64| Ok(link_free(share) + back(ExecutionSide::Node, share));
        [
            LinearFit::through(client),
            LinearFit::through(node),
            LinearFit::through(delayed),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Time as a straight line over the node's share of the input.
struct LinearFit {
    start: f64,
    slope: f64,
}

impl LinearFit {
    /// Returns the line through the values at shares 0 and 1; `None` if either share is infeasible.
    fn through(at: impl Fn(f64) -> Result<Seconds, Infeasible>) -> Option<Self> {
        let (start, end) = (at(0.0).ok()?.get(), at(1.0).ok()?.get());
        Some(Self {
            start,
            slope: end - start,
        })
    }

    /// Returns the share at which two lines cross, if it is between 0 and 1.
    fn cross(&self, other: &Self) -> Option<f64> {
        let share = (other.start - self.start) / (self.slope - other.slope);
        (share > 0.0 && share < 1.0).then_some(share)
    }
}

fn later(one: Seconds, other: Seconds) -> Seconds {
    if one > other { one } else { other }
}

/// Returns the reason for the advised choice, in one sentence.
fn reason(advice: &Advice, case: &Case) -> String {
    if advice.best == RunChoice::Both {
        return split_reason(advice);
    }
    let best = advice.best;
    match (advice.node, advice.client) {
        (Err(why), _) | (_, Err(why)) => format!("only the {best} can run it: {why}"),
        (Ok(node), Ok(client)) if best == RunChoice::Node => {
            whole_reason(case, best, &node, RunChoice::Client, &client)
        }
        (Ok(node), Ok(client)) => whole_reason(case, best, &client, RunChoice::Node, &node),
    }
}

fn whole_reason(
    case: &Case,
    best: RunChoice,
    this: &Prediction,
    other: RunChoice,
    that: &Prediction,
) -> String {
    if tied(this, that) {
        let less = match (this.energy, that.energy) {
            (Some(this), Some(that)) => format!("takes {this} against {that}"),
            _ => format!(
                "transfers {} against {}",
                this.transferred, that.transferred
            ),
        };
        return format!(
            "both take {} within {} % or {TIE_SECONDS}, and the {best} {less}",
            this.time,
            TIE * 100.0
        );
    }
    format!(
        "it takes {} on the {best}, most of it {}, and {} on the {other}, most of it {}",
        this.time,
        most(this, case),
        that.time,
        most(that, case)
    )
}

fn split_reason(advice: &Advice) -> String {
    let both = match advice.both {
        Ok(both) => both,
        Err(why) => return why.to_string(),
    };
    let alone = [RunChoice::Node, RunChoice::Client]
        .into_iter()
        .filter_map(|choice| Some((choice, advice.of(choice).ok()?.time)))
        .min_by(|(_, one), (_, other)| one.get().total_cmp(&other.get()));
    let Some((name, time)) = alone else {
        return "neither side has space for all of it, but both together have".to_owned();
    };
    format!(
        "with {} % of the input on the node and the rest on the client it takes {}, {} % less than on the {name} alone",
        significant((both.node_share * 1000.0).round() / 10.0),
        both.time,
        significant((100.0 * (1.0 - both.time / time)).round()),
    )
}

/// Returns a description of the largest part of a run on one side.
fn most(prediction: &Prediction, case: &Case) -> String {
    let running = later(prediction.on_node, prediction.on_client);
    if prediction.waiting > running && prediction.waiting > prediction.transferring {
        return "waiting for a core".to_owned();
    }
    if prediction.transferring > running {
        return format!("transferring {}", prediction.transferred);
    }
    let side = if prediction.node_share > 0.0 {
        &case.node
    } else {
        &case.client
    };
    if side.start * 2.0 > running {
        "starting".to_owned()
    } else {
        "running".to_owned()
    }
}
