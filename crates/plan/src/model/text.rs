//! Reports for people as data: sentences and tables in the order in which they are read. How a table looks on a
//! terminal is for whoever shows it.

/// A part of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Lines of text, each with its end.
    Text(String),
    /// A table.
    Table(Table),
}

/// A table of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// What the columns are called.
    pub header: Vec<&'static str>,
    /// The columns, counted from 0, that hold numbers and are aligned to the right.
    pub right: &'static [usize],
    /// The cells of each row, one a column.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(header: &[&'static str], right: &'static [usize]) -> Self {
        Self {
            header: header.to_vec(),
            right,
            rows: Vec::new(),
        }
    }

    pub(super) fn add_row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }
}

/// A number with so many decimals; never a zero with a sign.
pub fn decimals(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let zero = text
        .trim_start_matches('-')
        .chars()
        .all(|digit| matches!(digit, '0' | '.'));
    if zero {
        text.trim_start_matches('-').to_owned()
    } else {
        text
    }
}

/// All that is said, a line for each row.
#[cfg(test)]
pub(super) fn plain(parts: &[Part]) -> String {
    let lines = |part: &Part| match part {
        Part::Text(text) => text.clone(),
        Part::Table(table) => {
            let rows = table.rows.iter();
            rows.map(|cells| cells.join("  ") + "\n").collect()
        }
    };
    parts.iter().map(lines).collect()
}
