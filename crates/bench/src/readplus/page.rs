//! The table as one page for a browser, without external resources.

use super::original;
use super::report::{Cell, File, FileSystem, Reading, Report};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use weir_client::Version;
use weir_tools::text::size_text;

const STYLE: &str = include_str!("../data/readplus.css");

/// The page.
pub(crate) fn page(report: &Report) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "What READ_PLUS is worth" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    (head(report))
                    @for found in &report.file_systems {
                        (section(report, found))
                    }
                    footer {
                        "The text is Anna Schumaker's proposal of READ_PLUS for the Linux client \
                         (2020): files of 2 GiB on NetApp lab machines over 1 Gbit/s. Ratios are times \
                         as fast as version 4.1 in the same state; where files here have another size, \
                         its seconds are scaled to it."
                    }
                }
            }
        }
    };
    page.into_string()
}

/// The measurements and the targets.
fn head(report: &Report) -> Markup {
    let rounds = match report.rounds {
        1 => "read once".into(),
        rounds => format!("median of {rounds}"),
    };
    html! {
        h1 { "What READ_PLUS is worth" }
        p class="facts" {
            "Files of " (size_text(report.file_bytes)) ", read by " (report.client) " from "
            (report.server) ", link " (report.link) ", " (rounds) "."
        }
        div class="goals" {
            @for goal in &report.targets {
                @let (what, got, want, reached) = goal.parts();
                div class={ "goal " (if reached { "yes" } else { "no" }) } {
                    b { (format!("{got:.2}\u{d7}")) }
                    span { (what) }
                    span { (want) ": " (if reached { "reached" } else { "missed" }) }
                }
            }
        }
    }
}

/// One file system: the maps, and the bars of each file.
fn section(report: &Report, found: &FileSystem) -> Markup {
    let ours: Vec<Row> = found.files.iter().map(Row::ours).collect();
    let scale = report.file_bytes as f64 / original::file_bytes() as f64;
    let texts: Vec<Row> =
        found.files.iter().filter_map(|f| Row::of_text(&found.name, &f.name, scale)).collect();
    let gradient = format!(
        "background:linear-gradient(90deg,{},{},{})",
        colour(0.5),
        colour(1.0),
        colour(2.0)
    );
    let key = [("u", "uncached at the server"), ("c", "cached at the server"), ("t", "the text's")];
    html! {
        section {
            h2 { (found.name) }
            div class="maps" {
                (map("This run", &ours))
                (map("The text of 2020", &texts))
            }
            div class="legend" {
                "half as fast as v4.1" i style=(gradient) {} "twice as fast, or more"
            }
            div class="bars" {
                @for row in &ours {
                    (bars(row, texts.iter().find(|text| text.file == row.file)))
                }
            }
            div class="key" {
                @for (class, what) in key {
                    span {
                        svg viewBox="0 0 12 12" {
                            rect class=(class) width="12" height="12" rx="2" {}
                        }
                        (what)
                    }
                }
            }
        }
    }
}

/// Seconds of one file by version, uncached and cached.
struct Row {
    file: String,
    cells: Vec<(Version, [Option<f64>; 2])>,
}

impl Row {
    fn ours(file: &File) -> Self {
        let seconds = |reading: &Option<Reading>| reading.as_ref().map(|r| r.seconds);
        let cell = |c: &Cell| (c.version, [seconds(&c.uncached), seconds(&c.cached)]);
        Self { file: file.name.clone(), cells: file.cells.iter().map(cell).collect() }
    }

    fn of_text(file_system: &str, file: &str, scale: f64) -> Option<Self> {
        let figures = original::figures(file_system, file)?;
        let versions = [Version::V3, Version::V4_0, Version::V4_1, Version::V4_2];
        let cell = |(version, (uncached, cached)): (Version, (f64, f64))| {
            (version, [Some(uncached * scale), Some(cached * scale)])
        };
        Some(Self {
            file: file.into(),
            cells: versions.into_iter().zip(figures).map(cell).collect(),
        })
    }

    fn seconds(&self, version: Version, state: usize) -> Option<f64> {
        self.cells.iter().find(|(v, _)| *v == version).and_then(|(_, seconds)| seconds[state])
    }
}

/// The heat map of each version's speedup over version 4.1; nothing without rows.
fn map(title: &str, rows: &[Row]) -> Markup {
    let Some(first) = rows.first() else { return Markup::default() };
    let versions: Vec<Version> = first.cells.iter().map(|(version, _)| *version).collect();
    html! {
        div class="scroll" {
            h3 { (title) }
            table {
                tr {
                    th {}
                    th colspan=(versions.len()) { "uncached at the server" }
                    th class="gap" {}
                    th colspan=(versions.len()) { "cached at the server" }
                }
                tr {
                    th {}
                    @for state in 0..2 {
                        @if state == 1 { th class="gap" {} }
                        @for version in &versions { th { "v" (version) } }
                    }
                }
                @for row in rows {
                    tr {
                        th class="file" { (row.file) }
                        @for state in 0..2 {
                            @if state == 1 { td class="gap" {} }
                            @for version in &versions { (cell(row, *version, state)) }
                        }
                    }
                }
            }
        }
    }
}

/// One cell of the heat map.
fn cell(row: &Row, version: Version, state: usize) -> Markup {
    match (row.seconds(version, state), row.seconds(Version::V4_1, state)) {
        (Some(seconds), Some(base)) if seconds > 0.0 => html! {
            td style={ "background:" (colour(base / seconds)) } {
                (ratio_text(base / seconds)) "\u{d7}" small { (seconds_text(seconds)) }
            }
        },
        (Some(seconds), _) => html! { td class="none" { (seconds_text(seconds)) } },
        (None, _) => html! { td class="none" { "\u{2013}" } },
    }
}

/// Bars of seconds by version, with the original's behind them.
fn bars(row: &Row, text: Option<&Row>) -> Markup {
    const LEFT: f64 = 30.0;
    const WIDTH: f64 = 138.0;
    const BAR: f64 = 7.0;
    let all = |row: &Row| row.cells.iter().flat_map(|(_, s)| *s).flatten().fold(0.0, f64::max);
    let most = all(row).max(text.map_or(0.0, all)).max(1e-9);
    let tenths = |value: f64| format!("{value:.1}");
    let bar = |version, state: usize, top: f64, class, seconds: Option<f64>| {
        let y = top + state as f64 * 13.0 + 3.0;
        html! {
            @if let Some(theirs) = text.and_then(|text| text.seconds(version, state)) {
                rect class="t" x=(LEFT) y=(tenths(y + BAR)) width=(tenths(WIDTH * theirs / most))
                    height="3" rx="1" {}
            }
            @if let Some(s) = seconds {
                @let width = (WIDTH * s / most).max(0.6);
                rect class=(class) x=(LEFT) y=(tenths(y)) width=(tenths(width)) height=(BAR) rx="1" {}
                text x=(tenths(LEFT + width + 4.0)) y=(tenths(y + BAR)) { (seconds_text(s)) }
            }
        }
    };
    html! {
        div {
            h3 { (row.file) }
            svg viewBox={ "0 0 215 " (row.cells.len() * 34) } role="img" {
                @for (index, (version, seconds)) in row.cells.iter().enumerate() {
                    @let top = index as f64 * 34.0;
                    text class="n" x="0" y=(top + 17.0) { "v" (version) }
                    (bar(*version, 0, top, "u", seconds[0]))
                    (bar(*version, 1, top, "c", seconds[1]))
                }
            }
        }
    }
}

/// From red (half as fast, or slower) through near white to green (twice as fast, or faster).
fn colour(ratio: f64) -> String {
    let amount = ratio.log2().clamp(-1.0, 1.0);
    let (far, share) = match amount < 0.0 {
        true => ([222.0, 92.0, 80.0], -amount),
        false => ([62.0, 178.0, 145.0], amount),
    };
    // Makes small differences visible, too.
    let share = share.powf(0.75);
    let mix = |near: f64, far: f64| (near + (far - near) * share).round() as u8;
    format!("rgb({},{},{})", mix(238.0, far[0]), mix(240.0, far[1]), mix(241.0, far[2]))
}

fn ratio_text(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0}") } else { format!("{ratio:.2}") }
}

fn seconds_text(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 0.1 => format!("{s:.2} s"),
        s => format!("{:.1} ms", s * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn the_page_is_self_contained_and_whole() {
        let mut report = report();
        report.server = "<b>&".into();
        let page = page(&report);
        for foreign in ["http:", "https:", "<script", "<link", "@import", "url(", "src=", "<img"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        assert!(page.contains("&lt;b&gt;&amp;") && !page.contains("<b>&"));
        for (open, close) in [
            ("<table", "</table>"),
            ("<td", "</td>"),
            ("<svg", "</svg>"),
            ("<div", "</div>"),
            ("<section", "</section>"),
        ] {
            assert_eq!(page.matches(open).count(), page.matches(close).count(), "{open}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf"));
        // This run's hole and the original's.
        assert_eq!(page.matches("26\u{d7}").count() / 2, 2, "{page}");
        assert!(
            page.contains("The text of 2020")
                && page.contains(">missed<") | page.contains(": missed")
        );
    }

    #[test]
    fn colours_go_from_red_to_green() {
        assert_eq!(colour(1.0), "rgb(238,240,241)");
        assert_eq!(colour(0.1), colour(0.5));
        assert_eq!(colour(100.0), colour(2.0));
        assert_ne!(colour(0.97), colour(1.0));
    }
}
