//! `weir top`: a live view of running processes.
//!
//! - `reader` asks the processes. `figures`: what they did between two answers. `tables`: the figures as
//!   text, which `text` and `screen` show. `json`: for programs.

mod figures;
mod json;
mod reader;
mod screen;
mod tables;
mod text;

use crate::arguments::{JsonArgs, one_of};
use crate::ended::Ended;
use crate::output::{complain, print, print_json_line};
use figures::Figures;
use figures::sort::Sort;
use json::IntervalJson;
use reader::{Readings, Target};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::time::Duration;
use weir_tools::failure::{Failure, Result};

/// Files of each process that are asked for.
const MOST_FILES: usize = 50;

/// Show what running weir processes do, live
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir top                            the servers and mounts of this user
  weir top /srv/images                the one that serves this directory, or is mounted on it
  weir top 4711                       the one with this process ID
  weir top /run/weir/4711.sock        the one that listens at this socket
  weir top --once                     one interval as text
  weir top --once | mail -s load admin
  weir top --json --interval 10 >> load.jsonl
  weir top --once --json | jq '.processes[].read_bytes_per_s'

Keys: q quits, Tab and the arrows left and right choose a process, the other arrows scroll, t chooses \
the table that they scroll, s changes the order, p pauses, h explains the figures.

`hits` is the share of reads that the cache answered without waiting. `50% in` and `99% in` are upper \
bounds: half of the operations, and 99 of 100, took no longer. READ_PLUS shows how many bytes of holes \
were described instead of sent as zeros. Clients exist only for servers; reads that the kernel's page \
cache answers (`weir mount --cache kernel`) are not counted.

Without a terminal, it prints one interval as with --once. If a process ends, the view says so and \
looks for it again at each interval. It asks the processes over the sockets that `weir status` uses.")]
pub(crate) struct Args {
    /// A process ID, the socket of a process, an exported or mounted directory, or a part of what
    /// `weir status` shows of the process [default: all processes of this user]
    #[arg(value_name = "SOCKET | PID | NAME")]
    target: Option<OsString>,
    /// Time between two readings, 0.1 to 3600 seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Print one interval, and end
    #[arg(long)]
    once: bool,
    /// What comes first
    #[arg(short, long, value_name = "ORDER", default_value = "amount", value_parser = one_of(Sort::ALL))]
    sort: Sort,
    #[command(flatten)]
    json: JsonArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    let terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    let (json, target) = (args.json.wanted(), Target::of(args.target));
    match (json, args.once || !terminal) {
        (true, _) => lines(&target, args.interval, args.sort, args.once),
        (false, true) => once(&target, args.interval, args.sort),
        (false, false) => screen::show(target, args.interval, args.sort),
    }
}

/// Prints one interval as text.
fn once(target: &Target, interval: Duration, sort: Sort) -> Result<Ended> {
    let before = Readings::take(target, 0);
    if before.samples.is_empty() {
        return fail(&before);
    }
    std::thread::sleep(interval);
    let now = Readings::take(target, MOST_FILES);
    let all = sorted(&now, Some(&before), sort);
    let texts: Vec<String> = all.iter().map(text::text).collect();
    print(texts.join("\n").as_bytes())?;
    if now.failures.is_empty() { Ok(Ended::Done) } else { fail(&now) }
}

/// Prints each interval, or only the first, as a line of JSON.
fn lines(target: &Target, interval: Duration, sort: Sort, once: bool) -> Result<Ended> {
    let mut before = Readings::take(target, 0);
    if once && before.samples.is_empty() {
        return fail(&before);
    }
    loop {
        std::thread::sleep(interval);
        let now = Readings::take(target, MOST_FILES);
        let all = sorted(&now, Some(&before), sort);
        let is_open = print_json_line(&IntervalJson::new(&all, &now))?;
        if once && !now.failures.is_empty() {
            return fail(&now);
        }
        if once || !is_open {
            return Ok(Ended::Done);
        }
        before = now;
    }
}

/// The figures of the interval between two readings, in the order asked for.
fn sorted(now: &Readings, before: Option<&Readings>, sort: Sort) -> Vec<Figures> {
    let mut all = now.figures_since(before);
    all.iter_mut().for_each(|figures| sort.apply(figures));
    all
}

/// Reports that processes did not answer.
fn fail(readings: &Readings) -> Result<Ended> {
    for failure in &readings.failures {
        complain(&Failure::new("watch weir processes", failure.clone()));
    }
    Ok(Ended::Failed)
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number from 0.1 to 3600".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "0.05", "3601", "-1", "inf", "NaN", "1s", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
