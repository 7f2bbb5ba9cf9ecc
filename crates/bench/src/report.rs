//! Targets and results.

use serde::Serialize;

/// A figure and its target.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    what: String,
    want: String,
    got: f64,
    reached: bool,
}

impl Target {
    /// A figure with a lower bound.
    pub(crate) fn at_least(what: impl Into<String>, got: f64, want: f64) -> Self {
        Self { what: what.into(), want: format!("at least {want}"), got, reached: got >= want }
    }

    /// A figure with an upper bound.
    pub(crate) fn at_most(what: impl Into<String>, got: f64, want: f64) -> Self {
        Self { what: what.into(), want: format!("at most {want}"), got, reached: got <= want }
    }

    /// The figure's name, value, target, and whether it was reached.
    pub fn parts(&self) -> (&str, f64, &str, bool) {
        (&self.what, self.got, &self.want, self.reached)
    }
}

/// The targets as lines of text.
pub(crate) fn targets(targets: &[Target]) -> String {
    let width = targets.iter().map(|t| t.what.len()).max().unwrap_or(0);
    let lines = targets.iter().map(|t| {
        let mark = if t.reached { "reached" } else { "MISSED" };
        format!("  {:width$}  {:>10.2}  {:<16} {mark}\n", t.what, t.got, t.want)
    });
    lines.collect()
}

/// Columns of text: the first left-aligned, the others right-aligned.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: Vec<&str>| {
        for (i, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            match i {
                0 => text.push_str(&format!("{cell}{pad}")),
                _ => text.push_str(&format!("  {pad}{cell}")),
            }
        }
        text.push('\n');
    };
    line(head.to_vec());
    for row in rows {
        line(row.iter().map(String::as_str).collect());
    }
    text
}

/// A short form of a block size.
pub(crate) fn block_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

/// Nanoseconds in a suitable unit.
pub(crate) fn nanos(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2} ms", v / 1e6),
        v if v >= 1e4 => format!("{:.1} us", v / 1e3),
        v => format!("{v:.1} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text = table(&["what", "n"], &[vec!["a".into(), "100".into()]]);
        assert_eq!(text, "what    n\na     100\n");
    }

    #[test]
    fn a_missed_target_says_so() {
        let text = targets(&[Target::at_least("x", 1.0, 2.0), Target::at_most("y", 1.0, 2.0)]);
        assert_eq!(text.matches("MISSED").count(), 1);
    }
}
