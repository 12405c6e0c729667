//! Reports for people as data: texts and tables in the order in which they are read. The caller formats tables for a terminal.

/// Part of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportPart {
    /// Lines of text, each with a line end.
    Text(String),
    /// Table of results.
    Table(TextTable),
}

/// Table of texts with a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextTable {
    /// Names of the columns.
    pub header: Vec<&'static str>,
    /// Indices of the columns that hold numbers and are aligned to the right.
    pub right: &'static [usize],
    /// Texts of each row's cells, one for each column.
    pub rows: Vec<Vec<String>>,
}

impl TextTable {
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

/// Returns a number with this number of decimals; zero has no sign.
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

/// Returns all parts of a report as plain text, with one line for each row.
#[cfg(test)]
pub(super) fn plain(parts: &[ReportPart]) -> String {
    let lines = |part: &ReportPart| match part {
        ReportPart::Text(text) => text.clone(),
        ReportPart::Table(table) => {
            let rows = table.rows.iter();
            rows.map(|cells| cells.join("  ") + "\n").collect()
        }
    };
    parts.iter().map(lines).collect()
}
