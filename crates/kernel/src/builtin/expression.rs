//! Conditions on a value, such as `1 < x <= 5 || x == 9`: a condition is parsed once, and converted to the set of values that fulfil it,
//! which consists of a few ranges.
//!
//! `x` is the value. It is compared (`<`, `<=`, `>`, `>=`, `==`, `!=`, in chains too) with decimal numbers. Comparisons are joined by
//! parentheses, `!`, `&&` and `||`, in the order from strong to weak binding. Numbers are rounded to the type of the values if that is a
//! float. NaN fulfils no comparison except `!=`.

use crate::loops::number::Number;
use crate::loops::pick::ValueRange;

/// Maximum depth of nested parentheses and negations.
const DEPTH_MAX: usize = 100;

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

/// Comparison of a value with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueComparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    Unequal,
}

impl ValueComparison {
    /// Returns the comparison with its sides swapped.
    fn swapped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }

    /// Returns the values for which the comparison with a decimal number is true; `None` if the text is no number.
    pub(crate) fn set<T: Number>(self, number: &str) -> Option<Set<T>> {
        let wide: f64 = number.parse().ok()?;
        if wide.is_nan() {
            let none = Set::none();
            return Some(if self == Self::Unequal {
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
        Some(match self {
            Self::GreaterOrEqual => Set::range(up, Some(all.to)),
            Self::LessOrEqual => Set::range(Some(all.from), down),
            Self::Less => Self::GreaterOrEqual
                .set::<T>(number)?
                .not()
                .and(&Set::range(Some(all.from), Some(all.to))),
            Self::Greater => Self::LessOrEqual
                .set::<T>(number)?
                .not()
                .and(&Set::range(Some(all.from), Some(all.to))),
            Self::Equal => Set::range(exact, exact),
            Self::Unequal => Set::range(exact, exact).not(),
        })
    }
}

/// Parses a condition; the error describes its fault.
pub(crate) fn parse<T: Number>(text: &str) -> Result<Set<T>, String> {
    let mut reader = ExpressionParser {
        rest: text,
        depth: 0,
    };
    let set = reader.or()?;
    reader.space();
    if reader.rest.is_empty() {
        Ok(set)
    } else {
        Err(format!("{:?} was not expected", reader.rest))
    }
}

struct ExpressionParser<'a> {
    rest: &'a str,
    depth: usize,
}

/// Side of a comparison.
enum ComparisonSide<'a> {
    Value,
    Number(&'a str),
}

impl<'a> ExpressionParser<'a> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, word: &str) -> bool {
        self.space();
        let rest = self.rest.strip_prefix(word);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn or<T: Number>(&mut self) -> Result<Set<T>, String> {
        let mut set = self.and()?;
        while self.eat("||") {
            set = set.or(&self.and()?);
        }
        Ok(set)
    }

    fn and<T: Number>(&mut self) -> Result<Set<T>, String> {
        let mut set = self.not()?;
        while self.eat("&&") {
            set = set.and(&self.not()?);
        }
        Ok(set)
    }

    fn not<T: Number>(&mut self) -> Result<Set<T>, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} nested parentheses"));
        }
        let set = if self.eat("!") {
            self.not()?.not()
        } else if self.eat("(") {
            let set = self.or()?;
            if !self.eat(")") {
                return Err("a parenthesis is not closed".to_owned());
            }
            set
        } else {
            self.chain()?
        };
        self.depth -= 1;
        Ok(set)
    }

    /// Parses comparisons, each joined with the next.
    fn chain<T: Number>(&mut self) -> Result<Set<T>, String> {
        let mut left = self.side()?;
        let mut set: Option<Set<T>> = None;
        while let Some(comparison) = self.comparison() {
            let right = self.side()?;
            let (comparison, number) = match (&left, &right) {
                (ComparisonSide::Value, ComparisonSide::Number(number)) => (comparison, number),
                (ComparisonSide::Number(number), ComparisonSide::Value) => {
                    (comparison.swapped(), number)
                }
                _ => {
                    return Err(
                        "a comparison needs x on one side and a number on the other".to_owned()
                    );
                }
            };
            let found = comparison.set::<T>(number);
            let found = found.ok_or_else(|| format!("{number:?} is no number"))?;
            set = Some(set.map_or_else(|| found.clone(), |set| set.and(&found)));
            left = right;
        }
        set.ok_or_else(|| format!("a comparison was expected before {:?}", self.rest))
    }

    fn comparison(&mut self) -> Option<ValueComparison> {
        let known = [
            ("<=", ValueComparison::LessOrEqual),
            (">=", ValueComparison::GreaterOrEqual),
            ("==", ValueComparison::Equal),
            ("!=", ValueComparison::Unequal),
            ("<", ValueComparison::Less),
            (">", ValueComparison::Greater),
        ];
        known
            .into_iter()
            .find(|(word, _)| self.eat(word))
            .map(|(_, comparison)| comparison)
    }

    fn side(&mut self) -> Result<ComparisonSide<'a>, String> {
        self.space();
        let is_end = |at: char| at.is_whitespace() || "<>=!&|()".contains(at);
        let end = self.rest.find(is_end).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            return Err(format!("x or a number was expected before {:?}", self.rest));
        }
        self.rest = rest;
        Ok(if word == "x" {
            ComparisonSide::Value
        } else {
            ComparisonSide::Number(word)
        })
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
                "1 < x <= 5 || x == 9",
                vec![1.5, 5.0, 9.0],
                vec![1.0, 6.0, f64::NAN],
            ),
            ("!(x > 3)", vec![3.0, f64::NAN], vec![4.0]),
            (
                "x != x0 || x < 1".trim_start_matches("x != x0 || "),
                vec![0.0],
                vec![1.0, f64::NAN],
            ),
            ("x != 2", vec![1.0, f64::NAN, -0.0], vec![2.0]),
            ("x >= 0", vec![0.0, -0.0], vec![-1e-300]),
            ("x < 0", vec![-5e-324], vec![0.0, -0.0]),
            (
                "x==inf||!(x<1||x>=2)&&x!=1.5",
                vec![f64::INFINITY, 1.0, f64::NAN],
                vec![1.5, 2.0, 0.0],
            ),
            ("x == nan", vec![], vec![f64::NAN, 0.0]),
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
            ("x == 2.5", vec![], vec![2, 3]),
            ("x != 2.5 && x <= 2e0", vec![2, 0], vec![3]),
            ("!(x != 7)", vec![7], vec![6, 8]),
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
            ("x", "expected"),
            ("x >", "expected"),
            ("x > y", "no number"),
            ("1 < 2", "x on one side"),
            ("(x > 1", "not closed"),
            ("x > 1 )", "was not expected"),
            ("x = 1", "expected"),
        ] {
            let error = parse::<f64>(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(parse::<f64>(&"(".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_condition_text_is_parsed_or_refused(text in "[x0-9.<>=!&|() eninf-]{0,40}") {
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
