//! The experiment of FreeBSD's cached read: reads a file sequentially in blocks of 512 bytes, first
//! from the device and then twice from the cache; with the fast path off, then on.

use crate::cache::{new_cache, open};
use crate::measure::Times;
use crate::report::table;
use crate::scratch::forget;
use serde::Serialize;
use std::fs::File as KernelFile;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weir_tools::failure::{Asked, Result};
use weir_vfs::IoFlags;

/// One pass over the file.
#[derive(Serialize)]
pub(crate) struct Pass {
    who: &'static str,
    from: &'static str,
    mb_per_s: f64,
    #[serde(flatten)]
    times: Times,
}

const FROM: [&str; 3] = ["device", "cache", "cache"];

pub(crate) fn run(path: &Path, size: u64) -> Result<Vec<Pass>> {
    let mut passes = Vec::new();
    let mut add = |who, from, times: Times| {
        passes.push(Pass { who, from, mb_per_s: size as f64 / 1e6 / times.real_s, times });
    };
    let mut buf = [0; 512];
    forget(path)?;
    let kernel = KernelFile::open(path).asked(|| format!("open {}", path.display()))?;
    for from in FROM {
        let (times, read) = Times::of(|| pass(size, |at| kernel.read_at(&mut buf, at)));
        read.asked(|| "read".into())?;
        add("kernel pread", from, times);
    }
    drop(kernel);
    for (who, on) in [("weir, fast read off", false), ("weir, fast read on", true)] {
        forget(path)?;
        let cache = new_cache(size)?;
        cache.set_fast_read(on);
        let file = open(&cache, path)?;
        for from in FROM {
            let (times, read) =
                Times::of(|| pass(size, |at| file.read_at(&mut buf, at, IoFlags::empty())));
            read.asked(|| "read".into())?;
            add(who, from, times);
        }
    }
    Ok(passes)
}

fn pass<E>(size: u64, mut read: impl FnMut(u64) -> Result<usize, E>) -> Result<(), E> {
    let mut at = 0;
    while at < size {
        at += read(at)?.max(1) as u64;
    }
    Ok(())
}

pub(crate) fn table_of(passes: &[Pass]) -> String {
    let rows: Vec<Vec<String>> = passes
        .iter()
        .map(|p| {
            let mut row = vec![p.who.into(), p.from.into(), format!("{:.0}", p.mb_per_s)];
            let times = [p.times.real_s, p.times.user_s, p.times.system_s];
            row.extend(times.map(|t| format!("{t:.2}")));
            row
        })
        .collect();
    table(&["", "from", "MB/s", "real s", "user s", "sys s"], &rows)
}
