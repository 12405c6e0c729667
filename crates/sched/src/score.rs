//! Score of a node for a task that may run on any node: the weighted mean of availability, capacity, load, speed and energy (LABIOS
//! §3.3.3, "worker score", and its Table 2).
//!
//! A node reports only properties that it alone knows: its free capacity, and its configured speed and power. The dispatcher knows the load
//! better, since it has sent the waiting labels. So a node with wrong reports attracts no more labels than its queue accepts. Weights
//! belong to a job, so the dispatcher computes the score. All numbers are in thousandths: the same view gives the same score everywhere.

use std::fmt;
use std::str::FromStr;

/// Highest class of speed and of energy of a node.
pub const CLASS_MAX: u8 = 5;
/// The score 1, in thousandths.
pub const ONE: u16 = 1000;
/// Maximum weight of a property, in thousandths.
pub const WEIGHT_MAX: u32 = 1_000_000;
/// Number of equal ranges into which scores are divided; scores within the same range count as equal.
pub const BUCKETS: u16 = 50;

/// Lower bounds of the speed classes of a device, in bytes per second (LABIOS §3.3.3 names the first two and the last).
const SPEEDS: [u64; 4] = [200_000_000, 550_000_000, 1_500_000_000, 3_500_000_000];
/// Upper bounds of the energy classes, as power at full load in thousandths of a watt, from the highest class down.
const POWERS: [u64; 4] = [10_000, 50_000, 150_000, 400_000];

/// Returns the class of a device with this rate in bytes per second: 1 to [`CLASS_MAX`], the fastest; 0 if no rate is configured.
#[must_use]
pub fn speed_class(bytes_per_sec: u64) -> u8 {
    if bytes_per_sec == 0 {
        return 0;
    }
    1 + count(SPEEDS.iter().filter(|&&from| bytes_per_sec > from))
}

/// Returns the class of a node with this power at full load in thousandths of a watt: 1 to [`CLASS_MAX`], the lowest power; 0 if no power
/// is configured.
#[must_use]
pub fn energy_class(watts_milli: u64) -> u8 {
    if watts_milli == 0 {
        return 0;
    }
    CLASS_MAX - count(POWERS.iter().filter(|&&to| watts_milli > to))
}

fn count(few: impl Iterator) -> u8 {
    u8::try_from(few.count()).unwrap_or(CLASS_MAX)
}

/// Properties from which the score of a node is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScoreInputs {
    /// Whether a core of the node is idle.
    pub available: bool,
    /// Free share of the node's capacity, in thousandths; 0 if the node has no capacity.
    pub capacity: u16,
    /// Fill level of the node's queue, in thousandths of the queue's capacity.
    pub load: u16,
    /// Speed class of the node's device; 0 if no speed is configured, which counts as the lowest class.
    pub speed: u8,
    /// Energy class of the node; 0 if no power is configured, which counts as the lowest class.
    pub energy: u8,
}

/// Returns the share of `part` in `whole`, in thousandths; 0 if `whole` is 0.
#[must_use]
pub fn share(part: u64, whole: u64) -> u16 {
    if whole == 0 {
        return 0;
    }
    let share = u128::from(part) * u128::from(ONE) / u128::from(whole);
    u16::try_from(share).unwrap_or(ONE).min(ONE)
}

/// Weights of the five properties of a node, in thousandths. At least one weight is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weights {
    availability: u32,
    capacity: u32,
    load: u32,
    speed: u32,
    energy: u32,
}

/// Error in the text of weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// A name is neither one of the five properties nor a profile.
    #[error(
        "`{0}` is neither a profile (low-latency, energy, bandwidth) nor NAME=WEIGHT with one of availability, capacity, load, speed, energy"
    )]
    Name(String),
    /// A value is not a valid weight.
    #[error(
        "the weight of {name} is `{value}`; it must be a number from 0 to 1000 with at most three decimals"
    )]
    Value {
        /// Name of the property with the invalid value.
        name: String,
        /// Invalid value in the text.
        value: String,
    },
    /// The weight of a property is given twice.
    #[error("the weight of {0} is set twice")]
    Twice(String),
    /// All weights are zero.
    #[error("all weights are zero: no node would be better than another")]
    Zero,
}

impl Weights {
    /// Weights of the profile "low latency" of Table 2.
    pub const LOW_LATENCY: Self = Self {
        availability: 500,
        capacity: 0,
        load: 350,
        speed: 150,
        energy: 0,
    };
    /// Weights of the profile "energy savings" of Table 2.
    pub const ENERGY: Self = Self {
        availability: 0,
        capacity: 150,
        load: 200,
        speed: 150,
        energy: 500,
    };
    /// Weights of the profile "high bandwidth" of Table 2.
    pub const BANDWIDTH: Self = Self {
        availability: 0,
        capacity: 150,
        load: 150,
        speed: 700,
        energy: 0,
    };

    /// Returns the score of a node, in thousandths: the weighted mean of the node's five properties. A queue counts by its free share, and
    /// a class by its share of the highest class.
    #[must_use]
    pub fn score(&self, of: &ScoreInputs) -> u16 {
        let class = |class: u8| u16::from(class.min(CLASS_MAX)) * (ONE / u16::from(CLASS_MAX));
        let parts = [
            (self.availability, if of.available { ONE } else { 0 }),
            (self.capacity, of.capacity),
            (self.load, ONE - of.load.min(ONE)),
            (self.speed, class(of.speed)),
            (self.energy, class(of.energy)),
        ];
        let all: u64 = parts.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let weighed = parts
            .iter()
            .map(|&(weight, part)| u64::from(weight) * u64::from(part.min(ONE)));
        u16::try_from(weighed.sum::<u64>() / all.max(1)).unwrap_or(ONE)
    }
}

/// Returns the index of the range ([`BUCKETS`]) that contains a score.
#[must_use]
pub fn bucket(score: u16) -> u16 {
    score.min(ONE) / (ONE / BUCKETS)
}

impl FromStr for Weights {
    type Err = WeightsError;

    /// Parses a profile of Table 2, or `load=2,speed=0.5`: a property that is not named has the weight 0.
    fn from_str(text: &str) -> Result<Self, WeightsError> {
        match text {
            "low-latency" => return Ok(Self::LOW_LATENCY),
            "energy" => return Ok(Self::ENERGY),
            "bandwidth" => return Ok(Self::BANDWIDTH),
            _ => {}
        }
        let mut given = [None; 5];
        for one in text.split(',') {
            let unknown = || WeightsError::Name(one.to_owned());
            let (name, value) = one.split_once('=').ok_or_else(unknown)?;
            let names = ["availability", "capacity", "load", "speed", "energy"];
            let place = names.iter().position(|known| *known == name);
            let place = place.ok_or_else(unknown)?;
            let weight = thousandths(value).ok_or_else(|| WeightsError::Value {
                name: name.to_owned(),
                value: value.to_owned(),
            })?;
            if given[place].replace(weight).is_some() {
                return Err(WeightsError::Twice(name.to_owned()));
            }
        }
        let [availability, capacity, load, speed, energy] = given.map(Option::unwrap_or_default);
        if given.iter().flatten().all(|weight| *weight == 0) {
            return Err(WeightsError::Zero);
        }
        Ok(Self {
            availability,
            capacity,
            load,
            speed,
            energy,
        })
    }
}

/// Parses a decimal number with up to three digits after the point, as thousandths.
fn thousandths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 || whole.len() > 4 {
        return None;
    }
    let number: u32 = format!("{whole}{part:0<3}").parse().ok()?;
    Some(number).filter(|number| *number <= WEIGHT_MAX)
}

impl fmt::Display for ScoreInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = |class: u8| match class {
            0 => "unknown".to_owned(),
            class => class.to_string(),
        };
        write!(
            f,
            "{} core free, {:.0} % of its capacity free, {:.0} % of its queue taken, speed class {}, energy class {}",
            if self.available { "a" } else { "no" },
            f64::from(self.capacity) / 10.0,
            f64::from(self.load) / 10.0,
            class(self.speed),
            class(self.energy)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_classes_match_labios_and_zero_means_unknown() {
        let speeds = [0, 1, 200, 201, 550, 1_500, 3_500, 3_501, 90_000];
        let speeds = speeds.map(|mega| speed_class(mega * 1_000_000));
        assert_eq!(speeds, [0, 1, 1, 2, 2, 3, 4, 5, 5]);
        let powers = [0, 1, 10_000, 10_001, 150_000, 400_000, 400_001, u64::MAX];
        assert_eq!(powers.map(energy_class), [0, 5, 5, 4, 3, 2, 1, 1]);
    }

    #[test]
    fn score_profiles_match_labios_table_2() {
        let standing = ScoreInputs {
            available: true,
            capacity: 500,
            load: 250,
            speed: 2,
            energy: 5,
        };
        let score = |name: &str| name.parse::<Weights>().unwrap().score(&standing);
        // 0.5 + 0.35 × 0.75 + 0.15 × 0.4; 0.15 × 0.5 + 0.2 × 0.75 + 0.15 × 0.4 + 0.5; 0.15 × 0.5 + 0.15 × 0.75 + 0.7 × 0.4
        assert_eq!(score("low-latency"), 822);
        assert_eq!(score("energy"), 785);
        assert_eq!(score("bandwidth"), 467);
        assert_eq!(
            score("availability=0.5,load=0.35,speed=0.15"),
            score("low-latency")
        );
        assert_eq!(score("availability=1000,load=700,speed=300"), 822);
    }

    #[test]
    fn score_weights_refuse_zero_non_finite_and_unknown_values() {
        let refused = |text: &str| text.parse::<Weights>().unwrap_err().to_string();
        assert!(refused("load=0,speed=0.000").contains("all weights are zero"));
        for bad in [
            "nan",
            "inf",
            "-1",
            "1e3",
            "",
            ".5",
            "1.",
            "1001",
            "99999999999",
            "0.0001",
        ] {
            let error = refused(&format!("load={bad}"));
            assert!(error.contains("from 0 to 1000"), "{bad}: {error}");
        }
        assert!(refused("load=1,load=1").contains("twice"));
        for bad in ["", "speed", "fast=1", "low-latency,load=1", "load=1,"] {
            assert!(refused(bad).contains("low-latency, energy"), "{bad}");
        }
    }

    #[test]
    fn score_is_bounded_for_any_reported_properties() {
        let lie = ScoreInputs {
            available: true,
            capacity: u16::MAX,
            load: u16::MAX,
            speed: u8::MAX,
            energy: u8::MAX,
        };
        for name in ["low-latency", "energy", "bandwidth", "load=1000"] {
            let score = name.parse::<Weights>().unwrap().score(&lie);
            assert!(score <= ONE && bucket(score) <= BUCKETS, "{name}");
        }
        assert_eq!(share(u64::MAX, 1), ONE);
        assert_eq!((share(1, 0), share(0, 0), share(1, 3)), (0, 0, 333));
    }
}
