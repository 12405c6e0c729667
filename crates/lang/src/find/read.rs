//! Reader of search conditions: names and values.

use super::{Expr, Test, WantedName};
use tidemill_model::calendar::CalendarTime;
use tidemill_model::condition::{
    self, CompareOperator, ComparedValue, Comparison, ConditionError, Operand, number, only,
};
use tidemill_model::glob::Pattern;
use tidemill_model::similar_names::nearest;

/// Names of texts in headers.
const TEXT_FIELDS: [&str; 6] = [
    "var",
    "units",
    "standard_name",
    "long_name",
    "type",
    "format",
];
/// All names that are no coordinates. A name that ends in a dot stands for all names that begin with it.
const NAMES: [&str; 15] = [
    "var",
    "units",
    "standard_name",
    "long_name",
    "type",
    "format",
    "dim.",
    "attr.",
    "user.",
    "name",
    "size",
    "owner",
    "mtime",
    "made-by",
    "from",
];

/// Reads a search condition.
///
/// # Errors
/// The fault in the condition, and its position.
pub fn read(text: &str) -> Result<Expr, ConditionError> {
    condition::parse(text)?.try_map(&mut test)
}

fn test(comparison: &Comparison) -> Result<Test, ConditionError> {
    use CompareOperator::{Equal, Matches, Unequal};
    let Comparison {
        left,
        operator: compare,
        right,
    } = comparison;
    let (compare, text) = (*compare, right.text.clone());
    let equal = compare == Equal;
    match left.text.as_str() {
        "name" => {
            only(comparison, &[Equal, Unequal, Matches])?;
            let wanted = wanted_name(compare, right)?;
            let equal = compare != Unequal;
            Ok(Test::Name { equal, wanted })
        }
        "size" => {
            only(comparison, &CompareOperator::ORDER)?;
            let bytes = condition::size(right)?;
            Ok(Test::Size { compare, bytes })
        }
        "mtime" => {
            only(comparison, &CompareOperator::ORDER)?;
            let moment = condition::time(right)?;
            Ok(Test::Modified { compare, moment })
        }
        "owner" => {
            only(comparison, &[Equal, Unequal])?;
            Ok(Test::Owner { equal, user: text })
        }
        "made-by" => {
            only(comparison, &[Equal])?;
            Ok(Test::MadeBy { name: text })
        }
        "from" => {
            only(comparison, &[Equal])?;
            Ok(Test::From { path: text })
        }
        name if TEXT_FIELDS.contains(&name) || below(name, &["dim.", "attr."]) => {
            let value = ComparedValue::read(compare, right)?;
            let key = name.to_owned();
            Ok(Test::Text {
                key,
                compare,
                value,
            })
        }
        name if below(name, &["user."]) => {
            let value = ComparedValue::read(compare, right)?;
            let name = name.to_owned();
            Ok(Test::Attribute {
                name,
                compare,
                value,
            })
        }
        _ => coordinate(comparison),
    }
}

fn below(name: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|begin| name.starts_with(begin))
}

/// Reads a value for names of files.
fn wanted_name(compare: CompareOperator, value: &Operand) -> Result<WantedName, ConditionError> {
    let (text, at) = (&value.text, value.span.start);
    if compare == CompareOperator::Matches {
        return condition::regex(value).map(WantedName::Regex);
    }
    if text.contains('/') {
        let what = format!(
            "{text:?} has a slash, and names of files have none: search below a directory with --under"
        );
        return Err(ConditionError::new(at, what));
    }
    if !text.contains(['*', '?', '[', '\\']) {
        return Ok(WantedName::Exact(text.clone()));
    }
    let pattern = Pattern::new(text);
    let pattern = pattern.map_err(|error| {
        let what = format!("not a pattern: {}", error.what);
        ConditionError::new(at, what)
    })?;
    Ok(WantedName::Glob(pattern))
}

fn coordinate(comparison: &Comparison) -> Result<Test, ConditionError> {
    let Comparison {
        left,
        operator,
        right,
    } = comparison;
    let (name, text) = (&left.text, &right.text);
    let (number, moment) = (number(text), CalendarTime::read(text));
    if number.is_some() || moment.is_some() {
        only(comparison, &CompareOperator::ORDER)?;
        return Ok(Test::Coordinate {
            name: name.clone(),
            compare: *operator,
            number,
            moment,
        });
    }
    // Any name may be a coordinate, but its value is a number or a time.
    if let Some(error) = condition::swapped_name(comparison, &NAMES) {
        return Err(error);
    }
    let advice = format!("{text} is neither a number nor a time, which a coordinate needs");
    if nearest(name, &NAMES).is_some() {
        let error = condition::unknown_name(left, &NAMES);
        let what = format!("{}; {advice}", error.what);
        return Err(ConditionError { what, ..error });
    }
    let what = format!(
        "{name} is taken for a coordinate, and {advice}. {}",
        condition::known_names(&NAMES)
    );
    Err(ConditionError::new(right.span.start, what))
}
