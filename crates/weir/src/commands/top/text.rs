//! A snapshot as plain text.

use super::figures::Figures;
use super::tables::{self, Table};
use std::fmt::Write;

/// Rows of each table.
const MOST_ROWS: usize = 10;

/// The figures of one process.
pub(super) fn text(figures: &Figures) -> String {
    let mut out = format!("{}\n{}\n\n", tables::title(figures), tables::interval(figures));
    for (name, text) in tables::summary(figures) {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{name:<10} {text}");
    }
    add(&mut out, &tables::operations(figures));
    add(&mut out, &tables::connections(figures));
    add(&mut out, &tables::files(figures));
    out
}

/// Adds a table, unless it is empty.
fn add<const COLUMNS: usize>(out: &mut String, table: &Table<COLUMNS>) {
    if table.rows.is_empty() {
        return;
    }
    out.push('\n');
    let titles = table.titles.map(str::to_owned);
    for row in [&titles].into_iter().chain(table.rows.iter().take(MOST_ROWS)) {
        let (last, numbers) = row.split_last().map_or(("", &row[..]), |(last, all)| (last, all));
        for (cell, width) in numbers.iter().zip(table.widths) {
            let _ = write!(out, "{cell:>width$}  ", width = usize::from(width));
        }
        let _ = writeln!(out, "{last}");
    }
    if let Some(more) = table.rows.len().checked_sub(MOST_ROWS).filter(|&more| more > 0) {
        let _ = writeln!(out, "  and {more} more");
    }
}
