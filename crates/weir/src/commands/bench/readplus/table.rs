//! The table as text, in the layout of the text that it reproduces.

use super::{FileSystem, Reading};
use weir_client::Version;

/// Seconds, uncached and cached.
pub(super) fn seconds(found: &FileSystem) -> String {
    table(found, |reading| format!("{:.3}", reading.seconds))
}

/// Mebibytes received.
pub(super) fn received(found: &FileSystem) -> String {
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
    use super::super::tests::example;
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
