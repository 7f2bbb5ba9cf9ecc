//! Power cuts: what a server has acknowledged is there whenever the power fails (`conformance::power_cut`).
//!
//! `WEIR_POWER_CUTS` is the number of cuts of each file system (20), `WEIR_SEED` what the load and the places are made
//! from (1).

use conformance::{Guest, program, scratch, skip, weir};
use std::fs::File;

const DISK_BYTES: u64 = 400 << 20;
const LOG_BYTES: u64 = 2 << 30;
/// Operations of each of the four clients.
const OPERATIONS: u64 = 30;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Cuts the power of a server's disk; what the suite says, and whether all was there. `None`: it cannot run.
fn cut(fs: &str, cuts: u64, options: &[&str]) -> Option<(bool, String)> {
    let guest = Guest::find()?;
    let mkfs = format!("mkfs.{fs}");
    for needed in ["dmsetup", "losetup", "blockdev", &mkfs] {
        if program(needed).is_none() {
            skip(format!("power cuts of {fs} need {needed}"));
            return None;
        }
    }
    let limit = (700 + 10 * cuts).to_string();
    let (cuts, seed) = (cuts.to_string(), number("WEIR_SEED", 1).to_string());
    let operations = OPERATIONS.to_string();
    let mut args = vec![weir().to_str().unwrap(), env!("CARGO_BIN_EXE_power-cut"), fs];
    args.extend([&*cuts, &*operations, &*seed]);
    args.extend(options);
    let run = || {
        let dir = scratch();
        let image = |name: &str, bytes| {
            let path = dir.path().join(name);
            File::create(&path).unwrap().set_len(bytes).unwrap();
            path.to_str().unwrap().to_string()
        };
        let disks = [image("disk", DISK_BYTES), image("log", LOG_BYTES), image("cut", DISK_BYTES)];
        let mut with = vec!["--mem", "1500", "--timeout", &limit];
        disks.iter().for_each(|disk| with.extend(["--disk", disk]));
        guest.try_alone(&with, "power-cut.sh", &args)
    };
    let (ok, text) = run();
    // A kernel that stands still says nothing of the server. (If only the script does, its watch has said so; and a
    // kernel that breaks says so itself.)
    let ended = text.contains("the guest ended before the script did");
    let said = ["STILL RUNNING", "Kernel panic", "BUG:", "Oops", "Out of memory"];
    let stands = ended && !said.iter().any(|said| text.contains(said));
    if stands {
        eprintln!("the guest stood still and is started once more: {text}");
        return Some(run());
    }
    Some((ok, text))
}

fn loses_nothing(fs: &str) {
    let Some((ok, text)) = cut(fs, number("WEIR_POWER_CUTS", 20), &[]) else { return };
    assert!(ok && text.contains(&format!("power cuts {fs}: ")), "{text}");
}

#[test]
fn a_power_cut_loses_nothing_acknowledged_on_ext4() {
    loses_nothing("ext4");
}

#[test]
fn a_power_cut_loses_nothing_acknowledged_on_xfs() {
    loses_nothing("xfs");
}

#[test]
fn a_power_cut_loses_nothing_acknowledged_on_btrfs() {
    loses_nothing("btrfs");
}

/// The suite finds names lost by a server that may lose them.
#[test]
fn a_power_cut_shows_what_a_relaxed_export_loses() {
    // One cut in four shows a loss, and the first that does is the last.
    let Some((ok, text)) = cut("xfs", 200, &["--durability", "relaxed"]) else { return };
    assert!(!ok && text.contains("LOST at"), "{text}");
}
