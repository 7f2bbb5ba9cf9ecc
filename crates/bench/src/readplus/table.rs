//! The table as text, in the layout of the original.

use super::report::{FileSystem, Reading, Report};
use crate::report::targets;
use weir_client::Version;
use weir_tools::text::size_text;

/// The report as text.
pub(crate) fn text(report: &Report) -> String {
    let mut text = format!(
        "Files of {}, read by {} from {}, link {}; seconds, uncached : cached at the server.\n\n",
        size_text(report.file_bytes),
        report.client,
        report.server,
        report.link
    );
    for found in &report.file_systems {
        text.push_str(&seconds(found));
        text.push('\n');
    }
    text.push_str("MiB received:\n\n");
    for found in &report.file_systems {
        text.push_str(&received(found));
        text.push('\n');
    }
    if !report.targets.is_empty() {
        text.push_str(&format!("Times as fast:\n{}", targets(&report.targets)));
    }
    text
}

/// Seconds, uncached and cached.
fn seconds(found: &FileSystem) -> String {
    table(found, |reading| format!("{:.3}", reading.seconds))
}

/// Mebibytes received.
fn received(found: &FileSystem) -> String {
    table(found, |reading| format!("{:.2}", reading.received_bytes as f64 / f64::from(1 << 20)))
}

fn table(found: &FileSystem, cell: impl Fn(&Reading) -> String) -> String {
    let Some(first) = found.files.first() else { return String::new() };
    let versions: Vec<Version> = first.cells.iter().map(|cell| cell.version).collect();
    let mut text = format!("{:^10}|", found.name);
    for version in &versions {
        text.push_str(&format!("{:^17}|", format!("v{version}")));
    }
    text.push_str(&format!("\n{:-<10}|", ""));
    text.push_str(&format!("{:-<17}|", "").repeat(versions.len()));
    text.push('\n');
    for file in &found.files {
        text.push_str(&format!("{:<10}|", file.name));
        for found in &file.cells {
            let state = |reading: &Option<Reading>| reading.as_ref().map_or("-".into(), &cell);
            let both = format!("{:>7} : {:<7}", state(&found.uncached), state(&found.cached));
            text.push_str(&format!("{both:^17}|"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;

    #[test]
    fn the_layout_is_the_texts() {
        let text = seconds(&example());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "   ext4   |       v3        |      v4.1       |      v4.2       |");
        assert_eq!(lines[1], "----------|-----------------|-----------------|-----------------|");
        assert_eq!(lines[2], "hole      | 18.256 : 18.253 | 18.256 : 18.253 |  0.708 : 0.709  |");
        assert_eq!(lines[3], "mixed-4d  | 28.261 : 18.253 | 28.341 : 18.252 |      - : 9.150  |");
        assert!(received(&example()).contains("2048.00 : 2048.00"));
    }
}
