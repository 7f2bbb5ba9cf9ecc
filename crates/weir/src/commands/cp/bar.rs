//! The progress of a copy on a terminal, and its summary in a line.

use crate::output::{Lines, complain, confirm, say};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weir_tools::copy::{Progress, Summary};
use weir_tools::failure::Failure;
use weir_tools::text::size_text;

/// The progress bar on a terminal; failures are printed above it.
pub(crate) struct Bar {
    pub(crate) bar: ProgressBar,
    /// A line for each file, if that is wanted.
    pub(crate) lines: Option<Lines>,
}

impl Progress for Bar {
    fn found(&self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    fn copied(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn made(&self, from: &str, to: &str) {
        if let Some(lines) = &self.lines {
            self.bar.suspend(|| lines.print(format_args!("{from} -> {to}")));
        }
    }

    fn removed(&self, shown: &str) {
        if let Some(lines) = &self.lines {
            self.bar.suspend(|| lines.print(format_args!("removed {shown}")));
        }
    }

    fn may_replace(&self, to: &str) -> bool {
        self.bar.suspend(|| tokio::task::block_in_place(|| confirm(&format!("replace {to}?"))))
    }

    fn failed(&self, failure: &Failure) {
        self.bar.suspend(|| complain(failure));
    }

    fn interrupted(&self) {
        self.bar.suspend(|| say("weir: interrupted"));
    }
}

pub(crate) fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template =
        "{bytes:>11} of {total_bytes:11} [{wide_bar}] {binary_bytes_per_sec:>13} {eta:>4}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_) => bar,
    }
}

pub(crate) fn in_a_line(summary: &Summary) -> String {
    format!(
        "{} copied in {:.2} s, {:.0} MB/s; read {}, wrote {}, skipped {} holes{}{}",
        size_text(summary.size_bytes),
        summary.seconds,
        summary.mb_per_s,
        size_text(summary.read_bytes),
        size_text(summary.written_bytes),
        summary.holes_skipped,
        by_others(summary),
        match summary.wire_bytes {
            0 => String::new(),
            bytes => format!("; {} over the network", size_text(bytes)),
        }
    )
}

/// What stores copied themselves.
fn by_others(summary: &Summary) -> String {
    let mut text = String::new();
    if summary.cloned_bytes > 0 {
        text += &format!("; {} shared with the source", size_text(summary.cloned_bytes));
    }
    if summary.server_copied_bytes > 0 {
        text += &format!("; {} copied on the server", size_text(summary.server_copied_bytes));
    }
    text
}
