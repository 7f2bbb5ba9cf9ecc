//! Keeps the clock of a guest going.
//!
//! On a busy machine, the guest's kernel (User-Mode Linux) may lose a signal of its timer. It sets the timer
//! again only when that has run out, so no timer of the guest runs out from then on: a call that sleeps for five
//! seconds never ends, and a connection whose peer is gone is never found dead. One more signal makes the kernel
//! look at its clock. A signal too many does no harm.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::io;
use std::process::{Child, Output};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often a guest gets a signal: less than any time limit of the suites.
const TICK: Duration = Duration::from_secs(2);
/// The names of a guest's kernel, and of the program that ends it when its time is over.
const KERNEL: (&str, &str) = ("linux", "timeout");

/// Waits until the runner of a guest has ended, and keeps the guest's clock going until then.
///
/// # Errors
/// Its output cannot be read.
pub(crate) fn wait_with_output(runner: Child) -> io::Result<Output> {
    let root = runner.id();
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while is_done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                for kernel in kernels(&Process::all(), root) {
                    // Before the kernel handles the signal, it would end of it.
                    if handles_alarms(kernel) {
                        // It may have ended by now.
                        let _ = kill_process(kernel, Signal::ALARM);
                    }
                }
            }
        });
        let output = runner.wait_with_output();
        drop(done);
        output
    })
}

/// Whether a process handles the signal of a timer (`proc_pid_status(5)`).
fn handles_alarms(process: Pid) -> bool {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let handled = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let handled = handled.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    handled.is_some_and(|set| set & (1 << (Signal::ALARM.as_raw() - 1)) != 0)
}

/// A process.
struct Process {
    name: String,
    parent: u32,
}

impl Process {
    /// All processes, by their numbers.
    fn all() -> HashMap<u32, Self> {
        let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        numbers.filter_map(number).filter_map(|number| Some((number, Self::get(number)?))).collect()
    }

    /// `None`: it has ended.
    fn get(number: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        Self::parse(&stat)
    }

    /// From the text of `/proc/PID/stat` (`proc_pid_stat(5)`): `PID (NAME) STATE PARENT ...`.
    fn parse(stat: &str) -> Option<Self> {
        let (before, after) = stat.rsplit_once(") ")?;
        let name = before.split_once('(')?.1.to_owned();
        Some(Self { name, parent: after.split(' ').nth(1)?.parse().ok()? })
    }
}

/// The kernels of guests below a process. (The guest's own programs have the kernel's name, but not its parent.)
fn kernels(all: &HashMap<u32, Process>, root: u32) -> Vec<Pid> {
    let parent = |number: u32| all.get(&number).map(|process| process.parent);
    let is_kernel = |process: &Process| {
        let parent = all.get(&process.parent).map_or("", |parent| &parent.name);
        (process.name.as_str(), parent) == KERNEL
    };
    let kernels = all.iter().filter(|&(&number, process)| {
        is_kernel(process)
            && std::iter::successors(Some(number), |&number| parent(number)).any(|one| one == root)
    });
    kernels.filter_map(|(&number, _)| Pid::from_raw(number.cast_signed())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_kernel_is_found_below_its_runner_alone() {
        let stat = [
            "1 (init) S 0 1",
            "2 (peers) S 1 1",
            "3 (sh (x) y) S 2 1",
            "4 (timeout) S 3 1",
            "5 (linux) R 4 1",
            "6 (linux) t 5 1",
            "7 (timeout) S 1 1",
            "8 (linux) S 7 1",
        ];
        let parse =
            |stat: &&str| Some((stat.split(' ').next()?.parse().ok()?, Process::parse(stat)?));
        let all: HashMap<u32, Process> = stat.iter().filter_map(parse).collect();
        assert_eq!(all.len(), stat.len());
        assert_eq!(kernels(&all, 2), [Pid::from_raw(5).unwrap()]);
        assert!(kernels(&all, 6).is_empty());
    }
}
