//! Formatting of numbers and text for people.

/// Replacement of a control character in displayed text.
const UNSHOWN: &str = "\u{fffd}";

/// Returns a name or message as one line without control characters and line ends, for a terminal.
#[must_use]
pub fn line(text: &str) -> String {
    text.replace(char::is_control, UNSHOWN)
}

/// Returns lines of text from untrusted sources without control characters, except for line ends and tabs, for a terminal.
#[must_use]
pub fn lines(text: &str) -> String {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    text.replace(obeyed, UNSHOWN)
}

/// Escapes a name for JSON, so that different names stay different. A byte that is not UTF-8 becomes `\xHH` (two lower-case hexadecimal
/// digits), and so does the backslash of a name that contains such an escape itself. All other names stay as they are.
#[must_use]
pub fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(at) = rest.find('\\') {
            let (before, from) = rest.split_at(at);
            text.push_str(before);
            text.push_str(if is_escape(from) { "\\x5c" } else { "\\" });
            rest = &from[1..];
        }
        text.push_str(rest);
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Returns the name for which [`escaped`] returned this text.
#[must_use]
pub fn unescaped(text: &str) -> Vec<u8> {
    let (mut name, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        let (before, from) = rest.split_at(at);
        name.extend(before.bytes());
        match from.get(2..4).map(|digits| u8::from_str_radix(digits, 16)) {
            Some(Ok(byte)) if is_escape(from) => {
                name.push(byte);
                rest = &from[4..];
            }
            _ => {
                name.push(b'\\');
                rest = &from[1..];
            }
        }
    }
    name.extend(rest.bytes());
    name
}

/// Returns whether a text begins with an escape that [`escaped`] writes.
fn is_escape(text: &str) -> bool {
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    matches!(text.as_bytes(), [b'\\', b'x', high, low, ..] if digit(high) && digit(low))
}

/// Formats a number of bytes with three digits and decimal units, such as `17 B`, `1.97 MB`, `3.2 GB`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "display only")]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Returns year, month and day (Gregorian) of a day counted from 1970-01-01. Internally years begin in March, so that the leap day is the
/// last day of a year.
#[must_use]
pub fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Returns the day, counted from 1970-01-01, of a Gregorian date: the inverse of [`civil`]. Months and days count from 1.
#[must_use]
pub fn day_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_text_has_no_control_characters() {
        let hostile = "a\x1b]0;title\x07b\u{9b}2J\r\x7f\tc\nd";
        assert_eq!(
            lines(hostile),
            "a\u{fffd}]0;title\u{fffd}b\u{fffd}2J\u{fffd}\u{fffd}\tc\nd"
        );
        assert!(!line(hostile).contains(char::is_control));
        assert_eq!(line("Größe 5 µs"), "Größe 5 µs");
    }

    #[test]
    fn escaped_names_are_unique_and_reversible() {
        for (name, text) in [
            (&b"plain \xc3\xa4\n"[..], "plain ä\n"),
            (b"n\xff", r"n\xff"),
            (b"n\xfe", r"n\xfe"),
            (br"n\xff", r"n\x5cxff"),
            (br"n\x5cxff", r"n\x5cx5cxff"),
            (br"n\xFF", r"n\xFF"),
            (b"\\x5\xff", r"\x5\xff"),
            (b"\\\xe2\x82", r"\\xe2\x82"),
            (br"C:\new", r"C:\new"),
        ] {
            assert_eq!(escaped(name), text);
            assert_eq!(unescaped(text), name, "{text}");
        }
    }

    #[test]
    fn civil_and_day_of_are_inverse() {
        for day in (-800_000..800_000).step_by(97) {
            let (year, month, of_month) = civil(day);
            assert_eq!(day_of(year, month, of_month), day);
        }
        assert_eq!(day_of(2000, 2, 29), 11_016);
    }

    #[test]
    fn bytes_print_with_three_digits() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (1_972_800, "1.97 MB"),
            (99_960, "100 kB"),
            (999_600, "1.00 MB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn civil_days_match_calendar() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(-1), (1969, 12, 31));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(47_541), (2100, 3, 1));
    }
}
