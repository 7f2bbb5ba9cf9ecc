//! `weir touch`: creates empty files, or sets the times of existing ones.

use super::{Report, with_mounts};
use crate::arguments::{JsonArgs, MountArgs, location};
use crate::dates::Date;
use crate::ended::Ended;
use crate::output::{umask, utc};
use std::time::{Duration, SystemTime};
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_vfs::{Caller, CreateMode, Error, SetAttr, SetTime};

/// Set the times of files, to now if not told otherwise, and create missing files
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir touch nfs://filer/images/.stamp
  weir touch -d '2026-11-21 14:30' nfs://filer/images/.stamp
  weir touch -r disk.img nfs://filer/images/disk.img        the times of another file
  weir touch --no-create nfs://filer/images/disk.img")]
pub(crate) struct Args {
    /// The files
    #[arg(value_name = "LOCATION", required = true, value_parser = location())]
    locations: Vec<Location>,
    /// Do not create files
    #[arg(short = 'c', long)]
    no_create: bool,
    /// The time to set: 2026-11-21 14:30, @1790000000, yesterday, 2 hours ago
    #[arg(short, long, value_name = "DATE", allow_hyphen_values = true)]
    date: Option<Date>,
    /// Set the times of another file
    #[arg(short, long, value_name = "LOCATION", value_parser = location(), conflicts_with = "date")]
    reference: Option<Location>,
    /// Set only the time of the last access
    #[arg(short = 'a', long)]
    access: bool,
    /// Set only the time of the last change
    #[arg(short = 'm', long)]
    modification: bool,
    /// Set the times of a symbolic link itself
    #[arg(long)]
    no_dereference: bool,
    #[command(flatten)]
    json: JsonArgs,
    #[command(flatten)]
    mount: MountArgs,
}

pub(crate) fn run(args: Args) -> Result<Ended> {
    with_mounts(&args.mount, async |mounts| {
        let mut report = Report::new(&args.json, false);
        let (atime, mtime) = match (&args.reference, args.date) {
            (Some(other), _) => {
                let attr = mounts.place(other, Links::Follow).await?.existing("stat")?.clone();
                (SetTime::To(attr.atime), SetTime::To(attr.mtime))
            }
            (None, Some(Date(time))) => (SetTime::To(time), SetTime::To(time)),
            (None, None) => (SetTime::Now, SetTime::Now),
        };
        let both = args.access == args.modification;
        let times = SetAttr {
            atime: (both || args.access).then_some(atime),
            mtime: (both || args.modification).then_some(mtime),
            ..SetAttr::default()
        };
        for location in &args.locations {
            let touched = touch(mounts, location, &args, &times).await;
            if let Ok(true) = touched {
                report.done(|| location.bytes(), String::new);
            }
            report.take(touched.map(drop));
        }
        report.end()
    })
}

/// Returns whether there is something to touch.
async fn touch(
    mounts: &mut Mounts,
    location: &Location,
    args: &Args,
    times: &SetAttr,
) -> Result<bool> {
    let touch = || format!("touch {location}");
    let links = if args.no_dereference { Links::Stay } else { Links::Follow };
    let place = mounts.place(location, links).await?;
    let id = match (&place.attr, &place.name) {
        (Some(attr), _) => attr.id,
        (None, _) if args.no_create => return Ok(false),
        (None, Some(name)) => {
            let set = SetAttr { mode: Some(0o666 & !umask()), ..SetAttr::default() };
            let made = place
                .fs
                .create(&Caller::Own, place.dir.entry(name).with(&set), CreateMode::MayExist)
                .await;
            let id = made.asked(touch)?.attr.id;
            if args.date.is_none() && args.reference.is_none() {
                return Ok(true);
            }
            id
        }
        (None, None) => return Err(Error::NotFound).asked(touch),
    };
    let got = place.fs.setattr(&Caller::Own, id, times).await.asked(touch)?;
    for (asked, got, coarsest) in
        [(times.atime, got.atime, COARSEST_ACCESS), (times.mtime, got.mtime, COARSEST)]
    {
        if let Some(SetTime::To(asked)) = asked
            && got.duration_since(asked).unwrap_or_else(|early| early.duration()) > coarsest
        {
            return Err(other_time(location, asked, got));
        }
    }
    Ok(true)
}

/// Coarsest time of a change that file systems keep: FAT counts two seconds.
const COARSEST: Duration = Duration::from_secs(2);
/// Coarsest time of an access: FAT keeps the day.
const COARSEST_ACCESS: Duration = Duration::from_secs(24 * 60 * 60);

/// The failure of a file that has got another time than was asked for.
fn other_time(location: &Location, asked: SystemTime, got: SystemTime) -> Failure {
    let (touch, asked, got) = (format!("touch {location}"), utc(asked), utc(got));
    match location {
        Location::Local(_) => {
            Failure::new(touch, format!("its file system keeps {got} in place of {asked}"))
        }
        Location::Nfs(_) => {
            Failure::new(touch, format!("the server keeps {got} in place of {asked}"))
                .advice("times of NFSv3 range from 1970 to 2106; NFSv4 has all others")
        }
    }
}
