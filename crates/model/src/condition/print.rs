//! Text form of conditions: [`parse`](super::parse) returns an equal condition for it.

use super::{Comparison, Condition, Operand, Tree};
use std::fmt::{self, Display, Formatter, Write};

impl Display for Condition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let inner = |f: &mut Formatter<'_>, tree: &Self, brackets: bool| match brackets {
            true => write!(f, "({tree})"),
            false => write!(f, "{tree}"),
        };
        match self {
            Self::All(trees) => joined(f, trees, " and ", |f, tree| {
                inner(f, tree, matches!(tree, Tree::All(_) | Tree::Any(_)))
            }),
            Self::Any(trees) => joined(f, trees, " or ", |f, tree| {
                inner(f, tree, matches!(tree, Tree::Any(_)))
            }),
            Self::Not(tree) => {
                f.write_str("not ")?;
                inner(f, tree, matches!(**tree, Tree::All(_) | Tree::Any(_)))
            }
            Self::Test(comparison) => write!(f, "{comparison}"),
        }
    }
}

fn joined(
    f: &mut Formatter<'_>,
    trees: &[Condition],
    word: &str,
    print: impl Fn(&mut Formatter<'_>, &Condition) -> fmt::Result,
) -> fmt::Result {
    for (index, tree) in trees.iter().enumerate() {
        f.write_str(if index > 0 { word } else { "" })?;
        print(f, tree)?;
    }
    Ok(())
}

impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sign = self.operator.sign();
        write!(f, "{} {sign} {}", self.left, self.right)
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(quote) = self.quote else {
            return f.write_str(&self.text);
        };
        f.write_char(quote)?;
        for c in self.text.chars() {
            if c == quote {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        f.write_char(quote)
    }
}
