//! Energy of kernels above idle.

use super::records;
use crate::format;
use tidemill_wire::v1;

/// Method that determined the energy.
pub(crate) const ESTIMATED: &str = "estimated by processor time and configured power";

records! {
    /// Energy of kernels.
    Energy from of: v1::Estimated {
        /// Energy above the idle power of the nodes, in joules; null if it is known for no run.
        joules_above_idle: Option<f64> = (of.runs > 0).then(|| joules(of.microjoules)),
        /// Number of runs whose energy is known.
        runs: u32,
        /// Number of runs whose energy is not known.
        runs_unknown: u32 = of.unknown,
        /// Method that determined the energy.
        by: Option<&'static str> = (of.runs > 0).then_some(ESTIMATED),
    }
}

impl Energy {
    /// Returns the energy in short form, such as `1.250 J above idle; 2 runs not known`; `None` if no run has a known energy.
    pub(crate) fn short(&self) -> Option<String> {
        let known = format!("{:.3} J above idle", self.joules_above_idle?);
        Some(match self.runs_unknown {
            0 => known,
            unknown => format!("{known}; {} not known", format::count(unknown, "run")),
        })
    }

    /// Returns the energy and the method that determined it, or the reason why it is not known; `None` if no kernel ran.
    pub(crate) fn text(&self) -> Option<String> {
        (self.runs + self.runs_unknown > 0).then(|| match self.short() {
            Some(known) => format!("{known} ({ESTIMATED})"),
            None => "not known: the node has not reported its busy and idle power".into(),
        })
    }
}

/// Returns the energy in short form for a table.
pub(crate) fn cell(energy: &Option<Energy>) -> String {
    super::dash(&energy.as_ref().and_then(Energy::short))
}

/// Converts microjoules to joules, rounded to thousandths.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn joules(micro: u64) -> f64 {
    (micro as f64 / 1e6 * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_energy_is_not_shown_as_zero() {
        let of = |microjoules, runs, unknown| {
            Energy::from(&v1::Estimated {
                microjoules,
                runs,
                unknown,
            })
        };
        let unknown = of(0, 0, 2);
        assert!(unknown.text().unwrap().starts_with("not known"));
        assert_eq!(unknown.joules_above_idle, None);
        let some = of(1_250_900, 3, 1);
        assert_eq!(some.short().unwrap(), "1.251 J above idle; 1 run not known");
        assert_eq!(some.joules_above_idle, Some(1.251));
    }
}
