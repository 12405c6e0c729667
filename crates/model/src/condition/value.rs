//! Names and values of comparisons.

use super::{COMPILED_BYTES_MAX, CompareOperator, Comparison, ConditionError, Operand};
use crate::calendar::{CalendarTime, EXAMPLES};
use crate::similar_names::nearest;
use regex::{Regex, RegexBuilder};

/// Text or number to compare with.
#[derive(Clone, Debug)]
pub struct ComparedValue {
    /// Text of the value.
    pub text: String,
    /// The value as a number, if it is one.
    pub number: Option<f64>,
    /// The value as a regular expression, for the operator that matches.
    pub regex: Option<Regex>,
}

impl ComparedValue {
    /// Reads the value of a comparison.
    ///
    /// # Errors
    /// The value is not a regular expression or number, and the operator needs one.
    pub fn read(operator: CompareOperator, value: &Operand) -> Result<Self, ConditionError> {
        let (text, number) = (value.text.clone(), number(&value.text));
        let regex = match operator {
            CompareOperator::Equal | CompareOperator::Unequal => None,
            CompareOperator::Matches => Some(regex(value)?),
            _ if number.is_some() => None,
            _ => return Err(no_number(operator, value)),
        };
        Ok(Self {
            text,
            number,
            regex,
        })
    }

    /// Returns whether the comparison holds for a text.
    #[must_use]
    pub fn fits(&self, compare: CompareOperator, text: &str) -> bool {
        let number = || text.trim().parse::<f64>().ok().zip(self.number);
        let same = || {
            text == self.text || number().is_some_and(|(own, other)| own.total_cmp(&other).is_eq())
        };
        match compare {
            CompareOperator::Equal => same(),
            CompareOperator::Unequal => !same(),
            CompareOperator::Matches => self
                .regex
                .as_ref()
                .is_some_and(|regex| regex.is_match(text)),
            order => number().is_some_and(|(own, other)| order.holds(&own, &other)),
        }
    }
}

/// Returns a finite number.
pub fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Returns the error of a value that must be a number.
fn no_number(operator: CompareOperator, value: &Operand) -> ConditionError {
    let sign = operator.sign();
    let what = format!(
        "{:?} is not a number, and {sign} needs a number",
        value.text
    );
    ConditionError::new(value.span.start, what)
}

/// Compiles a regular expression.
pub fn regex(value: &Operand) -> Result<Regex, ConditionError> {
    let mut builder = RegexBuilder::new(&value.text);
    let built = builder
        .size_limit(COMPILED_BYTES_MAX)
        .nest_limit(50)
        .build();
    built.map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default();
        let fault = last.trim_start_matches("error: ");
        let what = format!("not a regular expression: {fault}; for wildcards such as * write =");
        ConditionError::new(value.span.start, what)
    })
}

/// Checks the operator of a comparison.
pub fn only(comparison: &Comparison, allowed: &[CompareOperator]) -> Result<(), ConditionError> {
    let Comparison { left, operator, .. } = comparison;
    if allowed.contains(operator) {
        return Ok(());
    }
    let signs: Vec<&str> = allowed.iter().map(|sign| sign.sign()).collect();
    let what = format!(
        "{} has no operator {}; it is compared by one of {}",
        left.text,
        operator.sign(),
        signs.join(" ")
    );
    Err(ConditionError::new(left.span.start, what))
}

/// Returns whether a text is a known name. A known name that ends in a dot stands for all names that begin with it.
fn is_known(name: &str, known: &[&str]) -> bool {
    known.iter().any(|known| match known.ends_with('.') {
        true => name.len() > known.len() && name.starts_with(known),
        false => name == *known,
    })
}

/// Checks that the left side of a comparison is a known name.
pub fn known_name(comparison: &Comparison, known: &[&str]) -> Result<(), ConditionError> {
    if is_known(&comparison.left.text, known) {
        return Ok(());
    }
    let swapped = swapped_name(comparison, known);
    Err(swapped.unwrap_or_else(|| unknown_name(&comparison.left, known)))
}

/// Returns the error of a comparison with its name on the right side.
pub fn swapped_name(comparison: &Comparison, known: &[&str]) -> Option<ConditionError> {
    let Comparison {
        left,
        operator,
        right,
    } = comparison;
    let is_name = right.quote.is_none() && is_known(&right.text, known);
    if !is_name || *operator == CompareOperator::Matches {
        return None;
    }
    let swapped = Comparison {
        left: right.clone(),
        operator: operator.swapped(),
        right: left.clone(),
    };
    let what = format!("the name stands on the left: write {swapped}");
    Some(ConditionError::new(left.span.start, what))
}

/// Returns the error of an unknown name.
pub fn unknown_name(name: &Operand, known: &[&str]) -> ConditionError {
    let near = nearest(&name.text, known).map(|near| match near.ends_with('.') {
        true => format!("; did you mean \"{near}NAME\"?"),
        false => format!("; did you mean \"{near}\"?"),
    });
    let what = format!(
        "the name {:?} is unknown{} {}",
        name.text,
        near.unwrap_or_else(|| ".".to_owned()),
        known_names(known)
    );
    ConditionError::new(name.span.start, what)
}

/// Returns the sentence of an error that lists the known names.
pub fn known_names(known: &[&str]) -> String {
    let all = known.iter().map(|name| match name.ends_with('.') {
        true => format!("{name}NAME"),
        false => (*name).to_owned(),
    });
    let all: Vec<String> = all.collect();
    format!("Known names are {}", all.join(", "))
}

/// Reads a size.
pub fn size(value: &Operand) -> Result<u64, ConditionError> {
    let bytes = crate::quantity::size(&value.text);
    bytes.map_err(|error| {
        let what = format!("{} is not a size: {error}", value.text);
        ConditionError::new(value.span.start, what)
    })
}

/// Reads a date or time.
pub fn time(value: &Operand) -> Result<CalendarTime, ConditionError> {
    CalendarTime::read(&value.text).ok_or_else(|| {
        let what = format!("{} is not a time: write {EXAMPLES}", value.text);
        ConditionError::new(value.span.start, what)
    })
}
