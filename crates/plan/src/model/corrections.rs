//! Corrections of equations that can't be meant as printed in the paper: each correction is a switch with a name.

use schemars::JsonSchema;
use serde::Serialize;

/// Corrections with which the equations are computed.
///
/// All corrections are on by default. A correction only changes the term in its description; readings that change no number (the choice of
/// a unit, a power or a node) are in `docs/papers/active-flash-models.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Corrections {
    /// Eqs. 17 and 32: each staging device stages out at *its share* of the file system's bandwidth, `R / N · BW_PFS`, as in Eqs. 6, 7 and
    /// 25. As printed, each device stages out at the full bandwidth, and doubling the machine does not double its energy.
    pub stage_out_at_share: bool,
    /// Eqs. 17 and 32: staging out also takes the busy link's time, `1 / BW_busylink`, as printed. The bills of Table 5 fit best without
    /// this term, so the paper seems to have left it out in Table 5.
    pub stage_out_over_link: bool,
    /// Eq. 33: idle time is divided by R once, as in Eq. 18. As printed, idle time is divided by R twice.
    pub idle_divided_once: bool,
    /// Eqs. 18 and 33: a case with more work than time is *infeasible*. As printed, the idle energy of this case becomes negative.
    pub overload_infeasible: bool,
    /// Eqs. 13 and 29: the energy of a hop is per bit and data is in bytes, so the product has a factor of 8.
    pub hop_energy_per_bit: bool,
    /// Eqs. 20, 21, 28 and 31: a node has several processors, and Table 3 measured one processor. As printed, a node is as fast as one
    /// processor but draws the power of all.
    pub all_processors: bool,
}

impl Corrections {
    /// The default: all corrections are on.
    pub const CORRECTED: Self = Self {
        stage_out_at_share: true,
        stage_out_over_link: true,
        idle_divided_once: true,
        overload_infeasible: true,
        hop_energy_per_bit: true,
        all_processors: true,
    };

    /// Names of corrections that [`Corrections::switch`] knows.
    pub const NAMES: [&'static str; 6] = [
        "stage-out-at-share",
        "stage-out-over-link",
        "idle-divided-once",
        "overload-infeasible",
        "hop-energy-per-bit",
        "all-processors",
    ];

    /// Returns the switch of the correction with this name, or `None` if the name is unknown.
    pub fn switch(&mut self, name: &str) -> Option<&mut bool> {
        Some(match name {
            "stage-out-at-share" => &mut self.stage_out_at_share,
            "stage-out-over-link" => &mut self.stage_out_over_link,
            "idle-divided-once" => &mut self.idle_divided_once,
            "overload-infeasible" => &mut self.overload_infeasible,
            "hop-energy-per-bit" => &mut self.hop_energy_per_bit,
            "all-processors" => &mut self.all_processors,
            _ => return None,
        })
    }

    /// Returns a description of the differences from the default, in words.
    pub fn describe(mut self) -> String {
        let mut default = Self::CORRECTED;
        let mut changed = Vec::new();
        for name in Self::NAMES {
            if self.switch(name).copied() != default.switch(name).copied() {
                changed.push(format!("without {name}"));
            }
        }
        if changed.is_empty() {
            "all corrections".to_owned()
        } else {
            changed.join(", ")
        }
    }
}

impl Default for Corrections {
    fn default() -> Self {
        Self::CORRECTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_correction_name_is_a_switch() {
        let mut corrections = Corrections::default();
        for name in Corrections::NAMES {
            *corrections.switch(name).unwrap() = false;
        }
        assert_eq!(corrections.switch("nothing"), None);
        let json = serde_json::to_value(corrections).unwrap();
        let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys.len(), Corrections::NAMES.len());
        assert!(
            keys.iter()
                .all(|key| Corrections::NAMES.contains(&key.as_str()))
        );
        assert!(json.as_object().unwrap().values().all(|on| on == false));
    }

    #[test]
    fn corrections_description_names_differences() {
        assert_eq!(Corrections::default().describe(), "all corrections");
        assert_eq!(
            Corrections {
                stage_out_over_link: false,
                overload_infeasible: false,
                ..Corrections::CORRECTED
            }
            .describe(),
            "without stage-out-over-link, without overload-infeasible"
        );
    }
}
