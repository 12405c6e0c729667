//! Compares times with the times of cftime: `times.py` writes the output of cftime.

use tidemill_format::time::{Units, between};

#[test]
fn dates_match_cftime() {
    let all = include_str!("times.tsv");
    for line in all.lines() {
        let [units, calendar, value, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let units = Units::parse(units, calendar).unwrap_or_else(|error| panic!("{line}: {error}"));
        let value: f64 = value.parse().unwrap();
        assert_eq!(units.date(value).unwrap().to_string(), expected, "{line}");
        // The day in the text begins at most a day before the value, and ends after it.
        let (from, to) = units.span(expected, expected).unwrap();
        assert!(from <= value && value < to, "{line}: {from} to {to}");
    }
    assert!(all.lines().count() > 500);
}

#[test]
fn time_span_ends_with_its_last_month() {
    let units = Units::parse("days since 1850-01-01 00:00:00", "noleap").unwrap();
    let middles: Vec<f64> = (0..165 * 12)
        .map(|month| f64::from(month) * 365.0 / 12.0 + 15.0)
        .collect();
    let (from, to) = units.span("1990-01", "1999-12").unwrap();
    let range = between(&middles, from, to, false).unwrap();
    assert_eq!((range.start, range.end), (140 * 12, 150 * 12));
    // Latitudes may descend, and both ends count.
    let lat: Vec<f64> = (0..=18).map(|n| 90.0 - 10.0 * f64::from(n)).collect();
    let range = between(&lat, 30.0, 60.0, true).unwrap();
    assert_eq!((range.start, range.end), (3, 7));
    assert_eq!(between(&lat, 31.0, 32.0, true).unwrap().count(), 0);
    assert_eq!(between(&[1.0, 9.0, 2.0], 0.0, 3.0, true), None);
}

#[test]
fn invalid_times_are_refused() {
    for (units, calendar) in [
        ("days", "standard"),
        ("fortnights since 1850-01-01", "standard"),
        ("days since 1850-13-01", "standard"),
        ("days since 1850-02-29", "noleap"),
        ("days since 1582-10-10", "standard"),
        ("days since 1850-01-01 25:00", "standard"),
        ("days since 99999999999999999999-01-01", "standard"),
        ("days since 9223372036854775807-01-01", "standard"),
        ("days since ", "standard"),
        ("days since 1850-01-01", "lunar"),
    ] {
        assert!(Units::parse(units, calendar).is_err(), "{units} {calendar}");
    }
    let units = Units::parse("days since 1850-01-01", "standard").unwrap();
    assert_eq!(units.date(f64::INFINITY), None);
    assert_eq!(units.date(f64::NAN), None);
    assert_eq!(units.date(1e300), None);
}

#[test]
fn months_and_years_follow_the_calendar() {
    for (units, calendar, value, expected) in [
        ("months since 2000-01-01", "standard", 2.0, "2000-03-01"),
        ("months since 2000-01-01", "360_day", 2.5, "2000-03-16"),
        ("Months Since 2000-01-31", "noleap", 1.0, "2000-02-28"),
        ("months since 2000-01-31", "all_leap", 13.0, "2001-02-29"),
        ("months since 1582-09-01", "standard", 2.0, "1582-11-01"),
        ("months since 2000-01-01", "julian", -1.0, "1999-12-01"),
        (
            "years since 1850-07-01",
            "proleptic_gregorian",
            150.0,
            "2000-07-01",
        ),
        ("years since 2001-01-01", "366_day", 0.5, "2001-07-01"),
    ] {
        let of = Units::parse(units, calendar).unwrap();
        assert_eq!(of.date(value).unwrap().to_string(), expected, "{units}");
        let back = of.value(of.seconds(value));
        assert!((back - value).abs() < 1e-9, "{units}: {back}");
        let (from, to) = of.span(expected, expected).unwrap();
        assert!(from <= value && value < to, "{units}: {from} to {to}");
    }
    for (units, value) in [
        ("microseconds since 2000-01-01", 86_400e6),
        ("\u{3bc}s since 2000-01-01", 86_400e6),
        ("nanoseconds since 2000-01-01", 86_400e9),
        ("Days Since 2000-1-1 0:0:0.0 UTC", 1.0),
    ] {
        let of = Units::parse(units, "gregorian").unwrap();
        assert_eq!(of.date(value).unwrap().to_string(), "2000-01-02", "{units}");
    }
    let of = Units::parse("months since 2000-01-01", "standard").unwrap();
    for value in [f64::NAN, f64::INFINITY, 1e300, -1e7] {
        assert_eq!(of.date(value), None, "{value}");
    }
}
