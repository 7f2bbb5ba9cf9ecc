//! The table as one page for a browser: nothing in it is fetched from anywhere.

use super::{Cell, File, FileSystem, Reading, Report, original};
use std::fmt::Write;
use weir_client::Version;
use weir_tools::text::size_text;

/// The page.
pub(super) fn page(report: &Report) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>What READ_PLUS is worth</title>\n<style>\n",
    );
    out.push_str(STYLE);
    out.push_str("</style>\n</head>\n<body>\n<main>\n");
    head(&mut out, report);
    for found in &report.file_systems {
        section(&mut out, report, found);
    }
    out.push_str(
        "<footer>The text is Anna Schumaker's proposal of READ_PLUS for the Linux client (2020): \
         files of 2 GiB on NetApp lab machines over 1 Gbit/s. Ratios are times as fast as version \
         4.1 in the same state; where files here have another size, its seconds are scaled to \
         it.</footer>\n</main>\n</body>\n</html>\n",
    );
    out
}

const STYLE: &str = "\
:root { --ink: #1c2430; --soft: #5d6b7e; --paper: #f6f7f9; --card: #fff; --line: #dfe4ea;
  --ours: #0b6e99; --ours-soft: #7fb9d3; --text: #9aa5b1; --good: #0f7b6c; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf0; --soft: #9fabba; --paper: #11161d;
  --card: #1a212b; --line: #2d3744; --ours: #4fb0dc; --ours-soft: #2d6b88; --text: #66727f;
  --good: #4cc2ae; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }
main { max-width: 1220px; margin: 0 auto; padding: 40px 28px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 21px; margin: 0 0 16px; }
h3 { font-size: 13px; font-weight: 600; margin: 0 0 8px; color: var(--soft); }
.facts { color: var(--soft); margin: 0 0 24px; }
.goals { display: grid; grid-template-columns: repeat(auto-fit, minmax(250px, 1fr)); gap: 14px;
  margin-bottom: 28px; }
.goal, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.goal { padding: 14px 16px; }
.goal b { display: block; font-size: 26px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.goal.yes b { color: var(--good); } .goal.no b { color: var(--bad); }
.goal span { display: block; font-size: 12.5px; color: var(--soft); }
section { padding: 22px 24px; margin-bottom: 24px; }
.maps { display: grid; grid-template-columns: repeat(auto-fit, minmax(510px, 1fr)); gap: 24px; }
.scroll { overflow-x: auto; }
table { border-collapse: separate; border-spacing: 2px; width: 100%;
  font-variant-numeric: tabular-nums; }
th { font-weight: 500; font-size: 12px; color: var(--soft); padding: 2px 4px; }
th.file { text-align: left; white-space: nowrap; }
td { text-align: center; border-radius: 4px; padding: 4px 2px; font-size: 13px; color: #10151b;
  line-height: 1.2; min-width: 48px; }
td small { display: block; font-size: 10.5px; opacity: .72; }
td.none { background: transparent; color: var(--soft); }
td.gap, th.gap { min-width: 6px; width: 6px; padding: 0; }
.legend { display: flex; align-items: center; gap: 8px; font-size: 12px; color: var(--soft);
  margin: 10px 0 0; }
.legend i { width: 130px; height: 10px; border-radius: 5px; display: inline-block; }
.bars { display: grid; grid-template-columns: repeat(auto-fill, minmax(215px, 1fr)); gap: 18px 22px;
  margin-top: 26px; }
.bars svg { width: 100%; height: auto; display: block; }
.bars text { fill: var(--soft); font-size: 10.5px; paint-order: stroke; stroke: var(--card);
  stroke-width: 3px; }
.bars text.n { fill: var(--ink); }
.u { fill: var(--ours-soft); } .c { fill: var(--ours); } .t { fill: var(--text); }
.key { display: flex; gap: 18px; font-size: 12px; color: var(--soft); margin-top: 14px; }
.key svg { width: 12px; height: 12px; vertical-align: -1px; margin-right: 5px; }
footer { color: var(--soft); font-size: 12.5px; }
";

fn head(out: &mut String, report: &Report) {
    let _ = writeln!(
        out,
        "<h1>What READ_PLUS is worth</h1>\n<p class=\"facts\">Files of {}, read by {} from {}, link \
         {}, {}.</p>",
        size_text(report.file_bytes),
        escaped(&report.client),
        escaped(&report.server),
        report.link,
        if report.rounds == 1 {
            "read once".into()
        } else {
            format!("median of {}", report.rounds)
        }
    );
    out.push_str("<div class=\"goals\">\n");
    for goal in &report.targets {
        let (what, got, want, reached) = goal.parts();
        let _ = writeln!(
            out,
            "<div class=\"goal {}\"><b>{got:.2}\u{d7}</b><span>{}</span><span>{want}: {}</span></div>",
            if reached { "yes" } else { "no" },
            escaped(what),
            if reached { "reached" } else { "missed" }
        );
    }
    out.push_str("</div>\n");
}

fn section(out: &mut String, report: &Report, found: &FileSystem) {
    let _ = writeln!(out, "<section>\n<h2>{}</h2>\n<div class=\"maps\">", escaped(&found.name));
    let ours: Vec<Row> = found.files.iter().map(Row::ours).collect();
    map(out, "This run", &ours);
    let scale = report.file_bytes as f64 / original::FILE_BYTES as f64;
    let texts: Vec<Row> =
        found.files.iter().filter_map(|f| Row::of_text(&found.name, &f.name, scale)).collect();
    if !texts.is_empty() {
        map(out, "The text of 2020", &texts);
    }
    out.push_str("</div>\n");
    let _ = writeln!(
        out,
        "<div class=\"legend\">half as fast as v4.1<i style=\"background:linear-gradient(90deg,{},{},{})\">\
         </i>twice as fast, or more</div>",
        colour(0.5),
        colour(1.0),
        colour(2.0)
    );
    out.push_str("<div class=\"bars\">\n");
    for row in &ours {
        let text = texts.iter().find(|text| text.file == row.file);
        bars(out, row, text);
    }
    out.push_str("</div>\n<div class=\"key\">");
    for (class, what) in
        [("u", "uncached at the server"), ("c", "cached at the server"), ("t", "the text's")]
    {
        let _ = write!(
            out,
            "<span><svg viewBox=\"0 0 12 12\"><rect class=\"{class}\" width=\"12\" height=\"12\" \
             rx=\"2\"/></svg>{what}</span>"
        );
    }
    out.push_str("</div>\n</section>\n");
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

/// The heat map of how many times as fast as version 4.1 each version is.
fn map(out: &mut String, title: &str, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    let versions: Vec<Version> = first.cells.iter().map(|(version, _)| *version).collect();
    let _ = write!(
        out,
        "<div class=\"scroll\"><h3>{title}</h3><table><tr><th></th><th colspan=\"{n}\">uncached at \
         the server</th><th class=\"gap\"></th><th colspan=\"{n}\">cached at the server</th></tr>\n\
         <tr><th></th>",
        n = versions.len()
    );
    for state in 0..2 {
        for version in &versions {
            let _ = write!(out, "<th>v{version}</th>");
        }
        out.push_str(if state == 0 { "<th class=\"gap\"></th>" } else { "</tr>\n" });
    }
    for row in rows {
        let _ = write!(out, "<tr><th class=\"file\">{}</th>", escaped(&row.file));
        for state in 0..2 {
            for version in &versions {
                let seconds = row.seconds(*version, state);
                let base = row.seconds(Version::V4_1, state);
                match (seconds, base) {
                    (Some(s), Some(base)) if s > 0.0 => {
                        let ratio = base / s;
                        let _ = write!(
                            out,
                            "<td style=\"background:{}\">{}\u{d7}<small>{}</small></td>",
                            colour(ratio),
                            ratio_text(ratio),
                            seconds_text(s)
                        );
                    }
                    (Some(s), _) => {
                        let _ = write!(out, "<td class=\"none\">{}</td>", seconds_text(s));
                    }
                    _ => out.push_str("<td class=\"none\">\u{2013}</td>"),
                }
            }
            out.push_str(if state == 0 { "<td class=\"gap\"></td>" } else { "</tr>\n" });
        }
    }
    out.push_str("</table></div>\n");
}

/// Bars of seconds by version, the text's behind.
fn bars(out: &mut String, row: &Row, text: Option<&Row>) {
    const LEFT: f64 = 30.0;
    const WIDTH: f64 = 138.0;
    const BAR: f64 = 7.0;
    let all = |row: &Row| row.cells.iter().flat_map(|(_, s)| *s).flatten().fold(0.0, f64::max);
    let most = all(row).max(text.map_or(0.0, all)).max(1e-9);
    let height = row.cells.len() as f64 * 34.0;
    let _ = write!(
        out,
        "<div><h3>{}</h3><svg viewBox=\"0 0 215 {height:.0}\" role=\"img\">",
        escaped(&row.file)
    );
    for (index, (version, seconds)) in row.cells.iter().enumerate() {
        let top = index as f64 * 34.0;
        let _ = write!(out, "<text class=\"n\" x=\"0\" y=\"{:.0}\">v{version}</text>", top + 17.0);
        for (state, class) in ["u", "c"].into_iter().enumerate() {
            let y = top + state as f64 * 13.0 + 3.0;
            if let Some(theirs) = text.and_then(|text| text.seconds(*version, state)) {
                let width = WIDTH * theirs / most;
                let _ = write!(
                    out,
                    "<rect class=\"t\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"3\" \
                     rx=\"1\"/>",
                    y + BAR
                );
            }
            let Some(s) = seconds[state] else { continue };
            let width = (WIDTH * s / most).max(0.6);
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" \
                 height=\"{BAR}\" rx=\"1\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT + width + 4.0,
                y + BAR,
                seconds_text(s)
            );
        }
    }
    out.push_str("</svg></div>\n");
}

/// From red (half as fast, or worse) over near white to green (twice as fast, or better).
fn colour(ratio: f64) -> String {
    let amount = ratio.log2().clamp(-1.0, 1.0);
    let (far, share) = match amount < 0.0 {
        true => ([222.0, 92.0, 80.0], -amount),
        false => ([62.0, 178.0, 145.0], amount),
    };
    // Small differences are to be seen, too.
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

/// Text as HTML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
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
        // This run's hole and the text's.
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
