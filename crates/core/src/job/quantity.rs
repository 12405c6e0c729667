//! Lengths of time and numbers of bytes as people write them.

use crate::time::Span;

/// Reads `90`, `90s`, `5m`, `2h` or `1d`; a number alone means seconds. `None` if it is something else
/// or too large.
#[must_use]
pub fn duration(text: &str) -> Option<Span> {
    let (number, unit) = split(text)?;
    let secs: u64 = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    number
        .checked_mul(secs)?
        .checked_mul(1_000_000_000)
        .map(Span)
}

/// Reads `4096`, `4K`, `512M`, `4G` or `1T` (powers of 1024, also as `KiB` and so on) as bytes. `None` if
/// it is something else or too large.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let shift = match unit {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        let secs = |text| duration(text).map(|span| span.0 / 1_000_000_000);
        assert_eq!(secs("90"), Some(90));
        assert_eq!(secs("90s"), Some(90));
        assert_eq!(secs("5 m"), Some(300));
        assert_eq!(secs("2h"), Some(7200));
        assert_eq!(secs("1d"), Some(86_400));
        for wrong in ["", "s", "-1s", "1w", "1.5h", "1m30", "99999999999999d"] {
            assert_eq!(secs(wrong), None, "{wrong}");
        }
        assert_eq!(size("4096"), Some(4096));
        assert_eq!(size("512M"), Some(512 << 20));
        assert_eq!(size("4G"), Some(4 << 30));
        assert_eq!(size("1 TiB"), Some(1 << 40));
        for wrong in ["", "M", "-1", "4g", "1.5G", "99999999999T"] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }
}
