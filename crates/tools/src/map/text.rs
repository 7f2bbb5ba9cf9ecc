//! A map for the terminal: one character per cell, whose height is the share of data; below it a
//! line for the cached part.

use super::{Cell, Map};
use crate::text::size_text;
use console::Style;
use std::fmt::Write;

/// Columns before the cells, for the offset.
const MARGIN: usize = 12;

/// The characters of a picture.
pub struct Glyphs {
    /// From a little data to only data.
    data: &'static [char],
    hole: char,
    cached: char,
    partly: char,
}

impl Glyphs {
    /// Blocks of eighths.
    pub const UNICODE: Self = Self {
        data: &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
        hole: '·',
        cached: '━',
        partly: '╌',
    };
    /// For terminals without.
    pub const ASCII: Self = Self { data: &['+', '#'], hole: '.', cached: '=', partly: '-' };

    fn data(&self, cell: &Cell) -> char {
        if cell.data() <= 0.0 {
            return self.hole;
        }
        // The last one is for cells with only data.
        let level = (cell.data() * (self.data.len() - 1) as f64) as usize;
        self.data.get(level).copied().unwrap_or(self.hole)
    }

    fn cached(&self, cell: &Cell) -> char {
        match cell.cached() {
            share if share >= 1.0 => self.cached,
            share if share > 0.0 => self.partly,
            _ => ' ',
        }
    }
}

/// Number of cells per row of a picture `columns` wide.
pub fn cells_in(columns: usize) -> usize {
    columns.saturating_sub(MARGIN).max(8)
}

/// Draws a map, `columns` wide, in colour if `colour`.
pub fn draw(map: &Map, columns: usize, glyphs: &Glyphs, colour: bool) -> String {
    let style = |style: Style| style.force_styling(colour);
    let (blue, green, dim) =
        (style(Style::new().blue()), style(Style::new().green()), style(Style::new().dim()));
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "{}: {}, {} in use; a character is {}\n",
        map.path,
        size_text(map.size_bytes),
        size_text(map.allocated_bytes),
        size_text(map.cells.cell_bytes)
    );
    for (offset, cells) in map.cells.rows(cells_in(columns)) {
        let _ = write!(out, "{:>10}  ", size_text(offset));
        for run in cells.chunk_by(|a, b| (a.data() > 0.0) == (b.data() > 0.0)) {
            let text: String = run.iter().map(|cell| glyphs.data(cell)).collect();
            let style = if run.iter().any(|c| c.data() > 0.0) { &blue } else { &dim };
            let _ = write!(out, "{}", style.apply_to(text));
        }
        out.push('\n');
        if cells.iter().any(|cell| cell.cached() > 0.0) {
            let text: String = cells.iter().map(|cell| glyphs.cached(cell)).collect();
            let _ = writeln!(out, "{:MARGIN$}{}", "", green.apply_to(text.trim_end()));
        }
    }
    let last = glyphs.data.last().copied().unwrap_or('#');
    let first = glyphs.data.first().copied().unwrap_or('+');
    let _ = write!(
        out,
        "\n{} data {} in {}   {} to {} some   {} hole {} in {}",
        blue.apply_to(last),
        size_text(map.data_bytes),
        extents(map.data_extents),
        blue.apply_to(first),
        blue.apply_to(last),
        dim.apply_to(glyphs.hole),
        size_text(map.hole_bytes),
        extents(map.hole_extents),
    );
    if let Some(whose) = map.cache {
        let _ = write!(
            out,
            "   {} in {whose} cache {}, {} partly",
            green.apply_to(glyphs.cached),
            size_text(map.cached_bytes),
            green.apply_to(glyphs.partly),
        );
    }
    out.push('\n');
    out
}

fn extents(count: u64) -> String {
    match count {
        1 => "1 extent".into(),
        _ => format!("{count} extents"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_of_a_small_file() {
        let mut map = Map::invented(65536, &[0..8192, 14336..16384], 8);
        map.cached("the kernel's", vec![0..12288]);
        let text = draw(&map, 20, &Glyphs::ASCII, false);
        assert_eq!(
            text,
            "disk.img: 64.00 KiB, 10.00 KiB in use; a character is 8.00 KiB\n\n       \
             0 B  #+......\n            =-\n\n\
             # data 10.00 KiB in 2 extents   + to # some   . hole 54.00 KiB in 2 extents   \
             = in the kernel's cache 12.00 KiB, - partly\n"
        );
    }

    #[test]
    fn colour_only_where_wanted() {
        let map = Map::invented(1 << 30, &[4096..1 << 20], 100);
        assert!(!draw(&map, 80, &Glyphs::UNICODE, false).contains('\x1b'));
        assert!(draw(&map, 80, &Glyphs::UNICODE, true).contains('\x1b'));
    }

    #[test]
    fn rows_keep_to_the_width() {
        let map = Map::invented(1 << 40, &[0..1 << 39], 4 * cells_in(60));
        let text = draw(&map, 60, &Glyphs::UNICODE, false);
        let rows = text.lines().skip(2).take_while(|line| !line.is_empty());
        assert!(rows.map(|row| row.chars().count()).all(|width| width <= 60), "{text}");
    }
}
