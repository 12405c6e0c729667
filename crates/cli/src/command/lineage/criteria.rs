//! Conditions of a search through recorded tasks and files.

use std::ffi::OsString;
use tidemill_model::calendar::{CalendarTime, CalendarUnit};
use tidemill_wire::v1;

/// Nanoseconds of a second.
const SECOND_NS: i64 = 1_000_000_000;

/// Conditions of a search.
#[derive(Debug, Default, clap::Args)]
pub(super) struct Searched {
    /// Kernel or program of tasks; directory, version and ending may be left out
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<String>,
    /// Words among the arguments of tasks, as in --arg '-m 12'
    #[arg(long = "arg", value_name = "WORDS", allow_hyphen_values = true)]
    args: Vec<String>,
    /// Day on which tasks began (UTC): a weekday or YYYY-MM-DD
    #[arg(long, value_name = "DAY", value_parser = day)]
    on: Option<Day>,
    /// Earliest begin of tasks (UTC): YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<i64>,
    /// End of the period in which tasks began (UTC), exclusive
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<i64>,
    /// Attribute `user.NAME` of files, or of inputs or outputs of tasks; with several values, any of them
    #[arg(long = "annotation", value_name = "NAME[=VALUE,...]", value_parser = annotation)]
    annotations: Vec<v1::AnnotationSearch>,
    /// Restrict the result to files that a task with this kernel made
    #[arg(long, value_name = "KERNEL")]
    pub(super) outputs_of: Option<String>,
    /// Restrict the result to files whose name or path matches this glob
    #[arg(long, value_name = "PATTERN")]
    pub(super) only: Option<OsString>,
}

/// Day on which tasks began.
#[derive(Clone, Copy, Debug)]
enum Day {
    /// 1 Monday to 7 Sunday.
    OfWeek(u32),
    /// Nanoseconds since the Unix epoch at its begin.
    Date(i64),
}

fn day(text: &str) -> Result<Day, String> {
    const NAMES: [&str; 7] = [
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
    ];
    let small = text.to_ascii_lowercase();
    let is = |name: &str| small.len() >= 2 && name.starts_with(&small);
    if let Some(number) = (1..)
        .zip(&NAMES)
        .find_map(|(number, name)| is(name).then_some(number))
    {
        return Ok(Day::OfWeek(number));
    }
    let date = CalendarTime::read(text).filter(|date| date.unit() == CalendarUnit::Day);
    let date = date.and_then(|_| time(text).ok());
    date.map(Day::Date).ok_or_else(|| {
        format!("`{text}` is neither a weekday, such as `monday`, nor a date, such as 2026-07-27")
    })
}

/// Returns a day or time of day in nanoseconds since the Unix epoch.
fn time(text: &str) -> Result<i64, String> {
    let found = CalendarTime::read(text).filter(|time| time.unit() >= CalendarUnit::Day);
    let begin = found.map(|time| time.nanos().0).filter(|begin| *begin >= 0);
    begin.ok_or_else(|| {
        format!("`{text}` is not a time in UTC, such as 2026-07-27 or 2026-07-27T18:30:00")
    })
}

fn annotation(text: &str) -> Result<v1::AnnotationSearch, String> {
    let (name, values) = text.split_once('=').unwrap_or((text, ""));
    let name = name.strip_prefix("user.").unwrap_or(name);
    if name.is_empty() {
        return Err("an annotation needs a name: give NAME, NAME=VALUE or NAME=VALUE,VALUE".into());
    }
    let values = values.split(',').filter(|value| !value.is_empty());
    Ok(v1::AnnotationSearch {
        name: name.to_owned(),
        values: values.map(str::to_owned).collect(),
    })
}

impl Searched {
    /// Returns the conditions for the server. Restrictions of the result are not among the conditions.
    pub(super) fn to_wire(&self) -> v1::LineageSearch {
        let (mut since, mut until) = (self.since.unwrap_or(0), self.until.unwrap_or(0));
        let mut weekday = 0;
        match self.on {
            Some(Day::OfWeek(day)) => weekday = day,
            Some(Day::Date(begin)) => {
                let end = begin + 24 * 3600 * SECOND_NS;
                since = since.max(begin);
                until = if until == 0 { end } else { until.min(end) };
            }
            None => {}
        }
        v1::LineageSearch {
            kernel: self.kernel.clone().unwrap_or_default(),
            args: self.args.clone(),
            since,
            until,
            weekday,
            annotations: self.annotations.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lineage_parses_times_days_and_annotations() {
        assert_eq!(time("1970-01-02"), Ok(86_400 * SECOND_NS));
        assert_eq!(time("1970-01-01T01:02:03Z"), Ok(3_723 * SECOND_NS));
        assert_eq!(time("1970-01-01T01:02"), Ok(3_720 * SECOND_NS));
        for wrong in [
            "",
            "monday",
            "1970",
            "1970-13-01",
            "1970-01-01T24:00",
            "70-1-1",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(matches!(day("Monday"), Ok(Day::OfWeek(1))));
        assert!(matches!(day("sun"), Ok(Day::OfWeek(7))));
        assert!(matches!(day("1970-01-02"), Ok(Day::Date(_))));
        assert!(day("someday").is_err() && day("m").is_err());
        let read = annotation("user.modality=speech,audio").unwrap();
        assert_eq!((read.name.as_str(), read.values.len()), ("modality", 2));
        assert!(annotation("modality").unwrap().values.is_empty());
        assert!(annotation("=x").is_err());
    }
}
