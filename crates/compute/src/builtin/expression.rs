//! Conditions on a value, such as `1 < x and x <= 5 or x = 9`: a condition is parsed once, and converted to the set of values that fulfil
//! it, which consists of a few ranges.
//!
//! The grammar is that of [`tidemill_model::condition`]. The only name is `x`, the value. It is compared with decimal numbers, on either
//! side. Numbers are rounded to the type of the values if that is a float. NaN fulfils no comparison except `!=`.

use crate::loops::number::Number;
use crate::loops::pick::ValueRange;
use tidemill_model::condition::{
    self, CompareOperator, Comparison, Condition, ConditionError, Operand, Tree,
};

/// Name of the value.
const VALUE: &str = "x";

/// Set of values: ranges that do not overlap, in order, and whether NaN is in the set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Set<T> {
    pub(crate) ranges: Vec<ValueRange<T>>,
    pub(crate) nan: bool,
}

impl<T: Number> Set<T> {
    fn none() -> Self {
        Self {
            ranges: Vec::new(),
            nan: false,
        }
    }

    fn range(from: Option<T>, to: Option<T>) -> Self {
        match (from, to) {
            (Some(from), Some(to)) if from <= to => Self {
                ranges: vec![ValueRange { from, to }],
                nan: false,
            },
            _ => Self::none(),
        }
    }

    /// Returns the set of only this value, or of only NaN.
    pub(crate) fn only(value: T) -> Self {
        Self {
            nan: value.partial_cmp(&value).is_none(),
            ..Self::range(Some(value), Some(value))
        }
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        let mut ranges = Vec::new();
        for a in &self.ranges {
            for b in &other.ranges {
                let from = a.from.larger(b.from);
                let to = a.to.smaller(b.to);
                if from <= to {
                    ranges.push(ValueRange { from, to });
                }
            }
        }
        Self {
            ranges,
            nan: self.nan && other.nan,
        }
    }

    pub(crate) fn not(&self) -> Self {
        let mut ranges = Vec::new();
        let mut from = Some(T::LOWEST);
        for range in &self.ranges {
            if let Some(from) = from.filter(|from| *from < range.from) {
                let to = range.from.below();
                ranges.push(ValueRange { from, to });
            }
            from = (range.to < T::HIGHEST).then(|| range.to.above());
        }
        if let Some(from) = from {
            let to = T::HIGHEST;
            ranges.push(ValueRange { from, to });
        }
        Self {
            ranges,
            nan: !self.nan,
        }
    }

    fn or(&self, other: &Self) -> Self {
        self.not().and(&other.not()).not()
    }

    #[inline(always)]
    pub(crate) fn has(&self, value: T) -> bool {
        if let [range] = self.ranges.as_slice() {
            return range.has(value) | (self.nan & value.partial_cmp(&value).is_none());
        }
        self.ranges.iter().any(|range| range.has(value))
            || (self.nan && value.partial_cmp(&value).is_none())
    }
}

/// Returns the values for which the comparison with a decimal number is true; `None` if the text is no number.
pub(crate) fn compared<T: Number>(comparison: CompareOperator, number: &str) -> Option<Set<T>> {
    use CompareOperator::{AtLeast, AtMost, Equal, Greater, Less, Matches, Unequal};
    let wide: f64 = number.parse().ok()?;
    if wide.is_nan() {
        let none = Set::none();
        return Some(if comparison == Unequal {
            none.not()
        } else {
            none
        });
    }
    // Nearest values on either side; both are the number itself if the type can represent it.
    let (up, down) = match T::parse(number) {
        Some(value) => (Some(value), Some(value)),
        None => (T::bound(wide, true), T::bound(wide, false)),
    };
    let exact = up.filter(|value| Some(*value) == down);
    let all = ValueRange::<T>::all();
    let numbers = Set::range(Some(all.from), Some(all.to));
    Some(match comparison {
        AtLeast => Set::range(up, Some(all.to)),
        AtMost => Set::range(Some(all.from), down),
        Less => compared::<T>(AtLeast, number)?.not().and(&numbers),
        Greater => compared::<T>(AtMost, number)?.not().and(&numbers),
        Equal => Set::range(exact, exact),
        Unequal => Set::range(exact, exact).not(),
        Matches => return None,
    })
}

/// Parses a condition.
pub(crate) fn parse<T: Number>(text: &str) -> Result<Set<T>, ConditionError> {
    set(&condition::parse(text)?)
}

fn set<T: Number>(condition: &Condition) -> Result<Set<T>, ConditionError> {
    let sets = |trees: &[Condition]| -> Result<Vec<Set<T>>, ConditionError> {
        trees.iter().map(set).collect()
    };
    Ok(match condition {
        Tree::All(trees) => sets(trees)?
            .into_iter()
            .reduce(|all, next| all.and(&next))
            .unwrap_or_else(|| Set::none().not()),
        Tree::Any(trees) => sets(trees)?
            .into_iter()
            .reduce(|all, next| all.or(&next))
            .unwrap_or_else(Set::none),
        Tree::Not(tree) => set(tree)?.not(),
        Tree::Test(comparison) => of_comparison(comparison)?,
    })
}

fn of_comparison<T: Number>(comparison: &Comparison) -> Result<Set<T>, ConditionError> {
    let Comparison {
        left,
        operator,
        right,
    } = comparison;
    let is_value = |side: &Operand| side.quote.is_none() && side.text == VALUE;
    let wrong = |side: &Operand, what: String| Err(ConditionError::new(side.span.start, what));
    let (operator, number) = match (is_value(left), is_value(right)) {
        (true, false) => (*operator, right),
        (false, true) => (operator.swapped(), left),
        _ => {
            let what = format!("a comparison needs {VALUE} on one side and a number on the other");
            return wrong(left, what);
        }
    };
    if operator == CompareOperator::Matches {
        let what = format!("{VALUE} is a number: it is compared by one of = != < <= > >=");
        return wrong(left, what);
    }
    match compared(operator, &number.text) {
        Some(set) => Ok(set),
        None => wrong(
            number,
            format!("{number} is not a number, and the only name is {VALUE}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn condition_contains_exactly_its_values() {
        let has = |text: &str, value: f64| parse::<f64>(text).unwrap().has(value);
        for (text, within, without) in [
            (
                "x > 3",
                vec![3.5, f64::INFINITY, 3.0_f64.next_up()],
                vec![3.0, -1.0, f64::NAN],
            ),
            (
                "1 < x and x <= 5 or x = 9",
                vec![1.5, 5.0, 9.0],
                vec![1.0, 6.0, f64::NAN],
            ),
            ("not (x > 3)", vec![3.0, f64::NAN], vec![4.0]),
            ("x < 1", vec![0.0], vec![1.0, f64::NAN]),
            ("x != 2", vec![1.0, f64::NAN, -0.0], vec![2.0]),
            ("x >= 0", vec![0.0, -0.0], vec![-1e-300]),
            ("x < 0", vec![-5e-324], vec![0.0, -0.0]),
            (
                "x=inf or not (x<1 or x>=2) and x!=1.5",
                vec![f64::INFINITY, 1.0, f64::NAN],
                vec![1.5, 2.0, 0.0],
            ),
            ("x = nan", vec![], vec![f64::NAN, 0.0]),
            ("x <= inf", vec![f64::NEG_INFINITY, 1.0], vec![f64::NAN]),
        ] {
            within
                .iter()
                .for_each(|value| assert!(has(text, *value), "{text} {value}"));
            without
                .iter()
                .for_each(|value| assert!(!has(text, *value), "{text} {value}"));
        }
        for (text, within, without) in [
            ("x > 2.5", vec![3, 255], vec![2, 0]),
            ("x < -1", vec![], vec![0, 255]),
            ("x >= -1", vec![0, 255], vec![]),
            ("x < 1e9", vec![0, 255], vec![]),
            ("x > 255", vec![], vec![0, 255]),
            ("x = 2.5", vec![], vec![2, 3]),
            ("x != 2.5 and x <= 2e0", vec![2, 0], vec![3]),
            ("not (x != 7)", vec![7], vec![6, 8]),
        ] {
            let set = parse::<u8>(text).unwrap();
            within
                .iter()
                .for_each(|value| assert!(set.has(*value), "{text} {value}"));
            without
                .iter()
                .for_each(|value| assert!(!set.has(*value), "{text} {value}"));
        }
        assert!(
            parse::<i64>("x > 9223372036854775806")
                .unwrap()
                .has(i64::MAX)
        );
        assert!(
            !parse::<i64>("x < 9223372036854775807")
                .unwrap()
                .has(i64::MAX)
        );
    }

    #[test]
    fn invalid_condition_reports_reason() {
        for (text, words) in [
            ("", "expected"),
            ("x", "is missing"),
            ("x >", "needs a value"),
            ("x > y", "at character 5: y is not a number"),
            ("y > 1", "x on one side"),
            ("x ~ 1", "one of = != <"),
            ("1 < 2", "x on one side"),
            ("(x > 1", "never closed"),
            ("x > 1 )", "has no '('"),
            ("x == 1", "write = instead"),
            (
                "x > 1 && x < 3",
                "at character 7: '&&' is not an operator of conditions: write and instead",
            ),
            ("0 < x < 3", "write 0 < x and x < …"),
        ] {
            let error = parse::<f64>(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(parse::<f64>(&"(".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_condition_text_is_parsed_or_refused(text in "([x0-9.<>=!&|() eninf-]|and|or|not){0,40}") {
            let _ = parse::<f64>(&text);
            let _ = parse::<i8>(&text);
        }

        #[test]
        fn integer_comparisons_are_exact(number in -300.0..300.0_f64, value in any::<i8>()) {
            let wide = f64::from(value);
            for (sign, wanted) in [("<", wide < number), ("<=", wide <= number), (">", wide > number), (">=", wide >= number)] {
                prop_assert_eq!(parse::<i8>(&format!("x {sign} {number}")).unwrap().has(value), wanted);
            }
        }
    }
}
