//! Parser of lengths of time and numbers of bytes in the notation of users.

use crate::time::Span;

/// Parses `90`, `90s`, `5m`, `2h` or `1d`; a number alone means seconds. Returns `None` if the text is invalid or the number too large.
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

/// Parses `4096`, `4kB`, `512MB`, `4G` (powers of 1000) or `4KiB`, `512Mi` (powers of 1024) as bytes. Returns `None` if the text is invalid
/// or the number too large.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let (unit, base) = match unit.strip_suffix('B').unwrap_or(unit) {
        "" => ("", 1),
        unit => match unit.strip_suffix('i') {
            Some(unit) => (unit, 1024),
            None => (unit, 1000),
        },
    };
    let power = match unit {
        "" if base == 1 => 0,
        "k" if base == 1000 => 1,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    number.checked_mul(u64::pow(base, power))
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
    fn quantity_parses_durations_and_sizes() {
        let secs = |text| duration(text).map(|span| span.0 / 1_000_000_000);
        assert_eq!(secs("90"), Some(90));
        assert_eq!(secs("90s"), Some(90));
        assert_eq!(secs("5 m"), Some(300));
        assert_eq!(secs("2h"), Some(7200));
        assert_eq!(secs("1d"), Some(86_400));
        for wrong in ["", "s", "-1s", "1w", "1.5h", "1m30", "99999999999999d"] {
            assert_eq!(secs(wrong), None, "{wrong}");
        }
        for (text, bytes) in [
            ("17", 17),
            ("17 B", 17),
            ("5kB", 5_000),
            ("5K", 5_000),
            ("3 M", 3_000_000),
            ("4GB", 4_000_000_000),
            ("2GiB", 2 << 30),
            ("512Mi", 512 << 20),
            ("1 TiB", 1 << 40),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for wrong in [
            "",
            "M",
            "-1",
            "4g",
            "1.5G",
            "1X",
            "1i",
            "1iB",
            "2ki",
            "99999999999T",
        ] {
            assert_eq!(size(wrong), None, "{wrong}");
        }
    }
}
