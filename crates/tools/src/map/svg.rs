//! A map as a picture for documents (SVG): a row of cells, with a stripe for the cached part below.

use super::{Cell, Map};
use crate::text::size_text;
use std::fmt::Write;

/// Cells in a row.
pub const WIDTH: usize = 200;
const CELL: usize = 4;
const LEFT: usize = 84;
const TOP: usize = 40;
const ROW: usize = 30;
const BAR: usize = 16;

/// Draws a map.
pub fn draw(map: &Map) -> String {
    let rows: Vec<_> = map.cells.rows(WIDTH).collect();
    let (width, height) = (LEFT + WIDTH * CELL + 16, TOP + rows.len() * ROW + 40);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <style>.hole{{fill:#e8eaee}}.data{{fill:#2f6fbf}}.cached{{fill:#2f9e55}}\
         text{{fill:#444}}@media(prefers-color-scheme:dark){{.hole{{fill:#333840}}\
         text{{fill:#bbb}}}}</style>\n\
         <text x=\"{LEFT}\" y=\"22\">{}: {}, {} in use</text>",
        escaped(&map.path),
        size_text(map.size_bytes),
        size_text(map.allocated_bytes)
    );
    for (row, (offset, cells)) in rows.iter().enumerate() {
        let y = TOP + row * ROW;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 8,
            y + 13,
            size_text(*offset)
        );
        rect(&mut out, "hole", LEFT, y, cells.len() * CELL, BAR, 1.0);
        bars(&mut out, cells, "data", y, BAR, Cell::data);
        bars(&mut out, cells, "cached", y + BAR + 2, 4, Cell::cached);
    }
    legend(&mut out, map, TOP + rows.len() * ROW + 18);
    out.push_str("</svg>\n");
    out
}

/// One rectangle for each run of cells with the same share.
fn bars(
    out: &mut String,
    cells: &[Cell],
    class: &str,
    y: usize,
    height: usize,
    share: impl Fn(&Cell) -> f64,
) {
    // Steps of a tenth are fine enough for the eye, and produce runs.
    let step = |cell: &Cell| (share(cell) * 10.0).ceil() / 10.0;
    let mut x = LEFT;
    for run in cells.chunk_by(|a, b| step(a) == step(b)) {
        let width = run.len() * CELL;
        let opacity = run.first().map_or(0.0, step);
        if opacity > 0.0 {
            rect(out, class, x, y, width, height, opacity);
        }
        x += width;
    }
}

fn rect(
    out: &mut String,
    class: &str,
    x: usize,
    y: usize,
    width: usize,
    height: usize,
    opacity: f64,
) {
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
         opacity=\"{opacity:.1}\"/>"
    );
}

fn legend(out: &mut String, map: &Map, y: usize) {
    let mut entries = vec![
        ("data", format!("data {} in {} extents", size_text(map.data_bytes), map.data_extents)),
        ("hole", format!("holes {} in {} extents", size_text(map.hole_bytes), map.hole_extents)),
    ];
    if let Some(whose) = map.cache {
        entries.push(("cached", format!("in {whose} cache {}", size_text(map.cached_bytes))));
    }
    for (at, (class, text)) in entries.into_iter().enumerate() {
        let x = LEFT + at * 260;
        rect(out, class, x, y - 10, 12, 12, 1.0);
        let _ = writeln!(out, "<text x=\"{}\" y=\"{y}\">{}</text>", x + 18, escaped(&text));
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_one_rectangle_and_names_cannot_break_out() {
        let mut map = Map::invented(400 * 4096, &[0..100 * 4096, 200 * 4096..300 * 4096], 400);
        map.path = "<a&b>".into();
        let picture = draw(&map);
        assert!(picture.contains("&lt;a&amp;b&gt;: 1.56 MiB"), "{picture}");
        // Two rows, each with one run of data; and the legend.
        assert_eq!(picture.matches("class=\"data\"").count(), 3);
        assert!(picture.ends_with("</svg>\n"));
    }
}
