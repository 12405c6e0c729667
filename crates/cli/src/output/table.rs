//! Text for people: lines, and tables whose columns are declared once.

use super::Report;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::fmt::{Arguments, Write as _};
use tidemill_model::display::line;

/// Column of a table.
pub(crate) struct Column<T> {
    /// Header, in capitals; `--columns` has the words before a parenthesis, in lower case.
    pub(crate) title: &'static str,
    /// Whether cells are aligned to the right.
    pub(crate) right: bool,
    /// Text of a cell.
    pub(crate) cell: fn(&T) -> String,
}

/// Type whose values are rows of a table.
pub(crate) trait Row: Sized + 'static {
    /// Columns in their usual order.
    const COLUMNS: &'static [Column<Self>];

    /// Returns the titles of the columns.
    fn titles() -> Vec<&'static str> {
        Self::COLUMNS.iter().map(|column| column.title).collect()
    }
}

/// Declares the columns of a table: side, title and content.
macro_rules! columns {
    ($row:ident: $type:ty { $($side:ident $title:literal => $cell:expr),* $(,)? }) => {
        impl $crate::output::Row for $type {
            const COLUMNS: &'static [$crate::output::table::Column<Self>] = &[$($crate::output::table::Column {
                title: $title,
                right: $crate::output::table::columns!(@ $side),
                cell: |$row: &$type| ToString::to_string(&$cell),
            }),*];
        }
    };
    (@ left) => { false };
    (@ right) => { true };
}
pub(crate) use columns;

/// Declares a list whose text is the table of its rows.
macro_rules! listing {
    ($(#[$meta:meta])* $name:ident of $row:ty) => {
        $(#[$meta])*
        #[derive(Debug, serde::Serialize, schemars::JsonSchema)]
        pub(crate) struct $name(pub(crate) Vec<$row>);

        impl $crate::output::Report for $name {
            fn text(&self, out: &mut $crate::output::Text) {
                out.table(&self.0);
            }
        }
    };
}
pub(crate) use listing;

/// Row of a table whose columns depend on the data.
pub(crate) struct AnyRow;

impl Row for AnyRow {
    const COLUMNS: &'static [Column<Self>] = &[Column {
        title: ANY,
        right: false,
        cell: |_| String::new(),
    }];
}

/// Title that stands for columns that depend on the data.
const ANY: &str = "*";

/// A table lacks a column of `--columns`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnknownColumn {
    /// The output has no table.
    #[error("--columns: the output has no table")]
    NoTable,
    /// No table has the column.
    #[error("--columns: no such column: {name}; the columns are {}", known.join(","))]
    Unknown {
        /// Name on the command line.
        name: String,
        /// Names of all columns.
        known: Vec<String>,
    },
}

/// Checks names of `--columns` against the titles of all tables of a command.
///
/// # Errors
/// If no table has one of the columns.
pub(crate) fn check<T: AsRef<str>>(columns: &[String], titles: &[T]) -> Result<(), UnknownColumn> {
    if titles.iter().any(|title| title.as_ref() == ANY) {
        return Ok(());
    }
    if titles.is_empty() && !columns.is_empty() {
        return Err(UnknownColumn::NoTable);
    }
    let mut known: Vec<String> = Vec::new();
    for name in titles.iter().map(|title| name(title.as_ref())) {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    match columns.iter().find(|name| !known.contains(name)) {
        Some(name) => Err(UnknownColumn::Unknown {
            name: name.clone(),
            known,
        }),
        None => Ok(()),
    }
}

/// Returns the name of a column on the command line, such as `submitted` for the title `SUBMITTED (UTC)`.
pub(crate) fn name(title: &str) -> String {
    let title = title
        .split_once(" (")
        .map_or(title, |(title, _)| title)
        .trim();
    title.to_lowercase().replace(' ', "-")
}

/// Text of a report.
#[derive(Debug, Default)]
pub(crate) struct Text {
    text: String,
    columns: Vec<String>,
    /// Titles of all printed tables.
    titles: Vec<String>,
}

impl Text {
    /// Returns the text of a report with some of its columns; no names stand for all columns.
    ///
    /// # Errors
    /// If the tables lack a column.
    pub(crate) fn of(report: &impl Report, columns: &[String]) -> Result<String, UnknownColumn> {
        let columns = columns.to_vec();
        let mut out = Self {
            columns,
            ..Self::default()
        };
        report.text(&mut out);
        match out.titles.is_empty() {
            // An empty list has no table.
            true => Ok(out.text),
            false => check(&out.columns, &out.titles).map(|()| out.text),
        }
    }

    /// Takes formatted text: `write!` and `writeln!` call this function.
    pub(crate) fn write_fmt(&mut self, text: Arguments<'_>) {
        // A string takes all text.
        let _ = self.text.write_fmt(text);
    }

    /// Writes text as it is.
    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Writes a table.
    pub(crate) fn table<'a, R: Row>(&mut self, rows: impl IntoIterator<Item = &'a R>) {
        let titles: Vec<_> = R::COLUMNS
            .iter()
            .map(|column| (column.title, column.right))
            .collect();
        let cells = |row: &R| R::COLUMNS.iter().map(|column| (column.cell)(row)).collect();
        self.grid(&titles, rows.into_iter().map(cells));
    }

    /// Writes a table of any columns: titles, and whether the column is aligned to the right.
    pub(crate) fn grid<T: AsRef<str>>(
        &mut self,
        titles: &[(T, bool)],
        rows: impl Iterator<Item = Vec<String>>,
    ) {
        self.titles
            .extend(titles.iter().map(|(title, _)| title.as_ref().to_owned()));
        let names: Vec<String> = titles
            .iter()
            .map(|(title, _)| name(title.as_ref()))
            .collect();
        let place = |wanted: &String| names.iter().position(|name| name == wanted);
        let places: Vec<usize> = match self.columns.is_empty() {
            true => (0..titles.len()).collect(),
            false => self.columns.iter().filter_map(place).collect(),
        };
        if places.is_empty() {
            return;
        }
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(places.iter().map(|&place| titles[place].0.as_ref()));
        for (column, &place) in table.column_iter_mut().zip(&places) {
            column.set_padding((0, 2));
            if titles[place].1 {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in rows {
            table.add_row(
                places
                    .iter()
                    .map(|&place| line(row.get(place).map_or("", String::as_str))),
            );
        }
        for line in table.lines() {
            writeln!(self, "{}", line.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_checked_by_their_names() {
        let titles = ["JOB", "SUBMITTED (UTC)", "NOT DONE"];
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(check(&names(&["submitted", "not-done"]), &titles), Ok(()));
        let error = check(&names(&["job", "age"]), &titles).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--columns: no such column: age; the columns are job,submitted,not-done"
        );
        assert_eq!(check(&names(&["a"]), &[""; 0]), Err(UnknownColumn::NoTable));
        assert_eq!(check(&names(&["a"]), &AnyRow::titles()), Ok(()));
    }

    #[test]
    fn table_has_requested_columns_in_order() {
        let columns = ["size", "name"].map(ToOwned::to_owned).to_vec();
        let mut out = Text {
            columns,
            ..Text::default()
        };
        let titles = [("NAME", false), ("NODE", true), ("SIZE", true)];
        let row = ["a\x1b", "3", "17"].map(ToOwned::to_owned).to_vec();
        out.grid(&titles, [row].into_iter());
        assert_eq!(out.text, "SIZE  NAME\n  17  a\u{fffd}\n");
        out.grid(&[("AGE", false)], std::iter::empty());
        assert_eq!(out.text.lines().count(), 2);
    }
}
