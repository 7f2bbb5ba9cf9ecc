//! Draws the state.

use super::state::{Part, Rates, State};
use crate::commands::top::figures::Figures;
use crate::commands::top::tables::{self, Table};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Sparkline, Wrap};

/// Height of a screen that has room for the curves.
const HEIGHT_WITH_CURVES: u16 = 32;
const CURVE_HEIGHT: u16 = 4;

const HELP: &str = "\
q          quit
Tab, ← →   choose a process
t          choose the table that the arrows scroll
↑ ↓        scroll; also page up and down, home and end
s          order: amount, delay, name
p          pause
h          this help

hits       share of reads that the cache answered without waiting
Memory     of the page cache, of its budget
Uncached   what uncached operations brought in, and dropped again;
           claimed: kept, as a cached operation used it;
           lost: of cached files, evicted for uncached operations
READ_PLUS  bytes of holes that were described, not sent as zeros
50% in     half of the operations took up to this; 99% in: 99 of 100
delay      slowest operations, most calls, most dirty bytes first";

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let curves = if frame.area().height >= HEIGHT_WITH_CURVES { CURVE_HEIGHT } else { 0 };
    let rows = [
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(curves),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [title, note, summary, history, parts, keys] = Layout::vertical(rows).areas(frame.area());
    match state.shown() {
        Some((figures, at, all)) => {
            let number = if all > 1 { format!("[{at} of {all}] ") } else { String::new() };
            let text = format!("{number}{}", tables::title(figures));
            frame.render_widget(Line::styled(text, bold()), title);
            draw_summary(frame, summary, figures);
            draw_curves(frame, history, &state.history);
            draw_parts(frame, parts, state, figures);
        }
        None => frame.render_widget(Line::styled("weir top", bold()), title),
    }
    frame.render_widget(note_line(state), note);
    let help =
        format!("q quit  s order: {}  p pause  t table  Tab process  h help", state.sort.name());
    frame.render_widget(Line::styled(help, dim()), keys);
    if state.is_help {
        draw_help(frame);
    }
}

/// What the figures are: of which interval, or why there are no new ones.
fn note_line(state: &State) -> Line<'_> {
    let alarm = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
    let interval = state.shown().map(|(figures, ..)| tables::interval(figures));
    match (state.failures.first(), interval) {
        (Some(failure), _) => Line::styled(format!("{failure}; trying again"), alarm),
        (None, Some(_)) if state.is_paused => Line::styled("paused: p continues", alarm),
        (None, Some(interval)) => Line::styled(interval, dim()),
        (None, None) => Line::styled("waiting for the first figures", dim()),
    }
}

fn draw_summary(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let lines = tables::summary(figures).map(|(name, text)| {
        Line::from(vec![Span::styled(format!("{name:<10} "), dim()), Span::raw(text)])
    });
    frame.render_widget(Paragraph::new(lines.to_vec()), area);
}

fn draw_curves(frame: &mut Frame<'_>, area: Rect, history: &[Rates]) {
    if area.height == 0 {
        return;
    }
    let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2);
    let [read, written] = halves.areas(area);
    type Of = fn(&Rates) -> u64;
    let curves: [(Rect, &str, Color, Of); 2] = [
        (read, "Read", Color::Green, |rates| rates.read),
        (written, "Written", Color::Yellow, |rates| rates.written),
    ];
    for (area, name, colour, of) in curves {
        let newest = history.iter().rev().take(area.width.into()).rev();
        let values: Vec<u64> = newest.map(of).collect();
        let block = Block::new().borders(Borders::TOP).title(name).border_style(dim());
        let curve = Sparkline::default().data(&values).style(Style::new().fg(colour)).block(block);
        frame.render_widget(curve, area);
    }
}

fn draw_parts(frame: &mut Frame<'_>, area: Rect, state: &State, figures: &Figures) {
    let clients = if figures.connections.is_empty() { 0 } else { 2 };
    let parts = [Constraint::Fill(4), Constraint::Fill(clients), Constraint::Fill(3)];
    let [operations, connections, files] = Layout::vertical(parts).areas(area);
    draw_table(frame, operations, state, Part::Operations, tables::operations(figures));
    draw_table(frame, connections, state, Part::Clients, tables::connections(figures));
    draw_table(frame, files, state, Part::Files, tables::files(figures));
}

fn draw_table<const COLUMNS: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    part: Part,
    table: Table<COLUMNS>,
) {
    if area.height < 2 {
        return;
    }
    let is_chosen = state.part == part;
    let scrolled = if is_chosen { state.scrolled.min(table.rows.len()) } else { 0 };
    let cells = |row: [String; COLUMNS]| {
        let last = COLUMNS - 1;
        Row::new(row.into_iter().enumerate().map(move |(at, cell)| {
            let side = if at == last { Alignment::Left } else { Alignment::Right };
            Line::from(cell).alignment(side)
        }))
    };
    let widths = table.widths.iter().enumerate().map(|(at, &width)| match at + 1 == COLUMNS {
        true => Constraint::Fill(1),
        false => Constraint::Length(width),
    });
    let style = if is_chosen { bold() } else { dim() };
    let header = cells(table.titles.map(str::to_owned)).style(style);
    let block = Block::new().borders(Borders::TOP).border_style(dim());
    let rows = table.rows.into_iter().skip(scrolled).map(cells);
    let shown =
        ratatui::widgets::Table::new(rows, widths).header(header).column_spacing(1).block(block);
    frame.render_widget(shown, area);
}

fn draw_help(frame: &mut Frame<'_>) {
    let all = frame.area();
    let (width, height) = (72.min(all.width), (HELP.lines().count() as u16 + 2).min(all.height));
    let (x, y) = ((all.width - width) / 2, (all.height - height) / 2);
    let area = Rect { x, y, width, height };
    let block = Block::new().borders(Borders::ALL).title("weir top");
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).wrap(Wrap { trim: false }).block(block), area);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}
