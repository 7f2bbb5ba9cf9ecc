//! Steps of the power cut suite, in the guest: `load`, `cuts`, `replay`, `check` (see `power_cut`).

#![forbid(unsafe_code)]

use conformance::power_cut::journal::Line;
use conformance::power_cut::load::Load;
use conformance::power_cut::log::Log;
use conformance::power_cut::{check, load};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::path::Path;

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(error) => {
            println!("power-cut {args:?}: {error}");
            std::process::ExitCode::from(2)
        }
    }
}

fn run(args: &[&str]) -> Result<bool> {
    match *args {
        ["load", device, journal, server, operations, seed, ref mounts @ ..] => load::run(&Load {
            mounts: mounts.iter().map(Into::into).collect(),
            server,
            device,
            journal: Path::new(journal),
            operations: number(operations)? as u32,
            seed: number(seed)?,
        })
        .map(|()| true),
        ["cuts", log, count, seed] => {
            let cuts = open(log)?.cuts("0", number(count)? as usize, number(seed)?);
            cuts.iter().for_each(|cut| println!("{cut}"));
            Ok(!cuts.is_empty())
        }
        ["replay", log, disk, from, to] => {
            let disk = OpenOptions::new().write(true).open(disk)?;
            open(log)?.replay(number(from)? as usize..number(to)? as usize, &disk)?;
            Ok(true)
        }
        ["check", log, journal, cut, export, server] => {
            let (log, cut) = (open(log)?, number(cut)? as usize);
            let lines = std::fs::read_to_string(journal)?;
            let lines: Option<Vec<Line>> = lines.lines().map(Line::parse).collect();
            let lines = lines.ok_or_else(|| Error::other("the journal cannot be read"))?;
            let (before, behind) = log.marks_around(cut);
            let (before, behind) = (before.unwrap_or(0), behind.unwrap_or(lines.len()));
            let mut wrong = check::disk(&lines, before, behind, Path::new(export))?;
            let (handles, tried) = check::handles(&lines, before, behind, server)?;
            wrong.extend(handles);
            println!("cut at {cut}: {before} operations, {tried} handles, {} wrong", wrong.len());
            wrong.iter().for_each(|wrong| println!("LOST at {cut}: {wrong}"));
            Ok(wrong.is_empty())
        }
        _ => Err(Error::other("no such step")),
    }
}

fn open(log: &str) -> Result<Log> {
    Log::open(File::open(log)?)
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::other(format!("{text} is no number")))
}
