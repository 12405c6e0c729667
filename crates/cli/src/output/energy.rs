//! Energy of kernels above idle, for people and programs.

use crate::format;
use serde_json::{Value, json};
use tidemill_wire::v1;

/// Method that determined the energy.
pub(crate) const ESTIMATED: &str = "estimated by processor time and configured power";

/// Returns the energy in short form, such as `1.250 J above idle; 2 runs not known`; `None` if no run has a known energy.
pub(crate) fn short(energy: Option<&v1::Estimated>) -> Option<String> {
    let energy = energy.filter(|energy| energy.runs > 0)?;
    let known = format!("{:.3} J above idle", joules(energy.microjoules));
    Some(match energy.unknown {
        0 => known,
        unknown => format!("{known}; {} not known", format::count(unknown, "run")),
    })
}

/// Returns the energy and the method that determined it, or the reason why it is not known.
pub(crate) fn text(energy: Option<&v1::Estimated>) -> Option<String> {
    let ran = energy.filter(|energy| energy.runs + energy.unknown > 0)?;
    Some(match short(Some(ran)) {
        Some(known) => format!("{known} ({ESTIMATED})"),
        None => "not known: the node has not reported its busy and idle power".into(),
    })
}

/// Returns the energy as JSON; null if no kernel ran.
pub(crate) fn value(energy: Option<&v1::Estimated>) -> Value {
    let Some(energy) = energy else {
        return Value::Null;
    };
    json!({
        "joules_above_idle": (energy.runs > 0).then(|| joules(energy.microjoules)),
        "runs": energy.runs,
        "runs_unknown": energy.unknown,
        "by": (energy.runs > 0).then_some(ESTIMATED),
    })
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
        let of = |microjoules, runs, unknown| v1::Estimated {
            microjoules,
            runs,
            unknown,
        };
        assert_eq!((text(None), value(None)), (None, Value::Null));
        let unknown = of(0, 0, 2);
        assert!(text(Some(&unknown)).unwrap().starts_with("not known"));
        assert_eq!(value(Some(&unknown))["joules_above_idle"], Value::Null);
        let some = of(1_250_900, 3, 1);
        assert_eq!(
            short(Some(&some)).unwrap(),
            "1.251 J above idle; 1 run not known"
        );
        assert_eq!(value(Some(&some))["joules_above_idle"], 1.251);
    }
}
