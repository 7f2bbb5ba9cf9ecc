//! `weir lock`: holds a byte-range lock on a file while a command runs, as flock(1) does.

use super::child_end::ended;
use super::stop_signals::StopSignals;
use super::with_mounts;
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::{complain, print, umask};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_vfs::{
    Access, Caller, CreateMode, Error, Lock, LockOwner, LockRange, OpenFile, SetAttr, TO_END,
};

/// Hold a lock on a file while a command runs
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir lock nfs://filer/jobs/nightly.lock ./nightly.sh
  weir lock --nonblock nfs://filer/jobs/nightly.lock ./nightly.sh || echo 'already running'
  weir lock --shared --range 4096-8191 nfs://filer/images/disk.img ./back-up.sh
  weir lock --test nfs://filer/images/disk.img

The lock is an advisory byte-range lock, as of fcntl(2): it conflicts with other locks of the \
same bytes, over any version of NFS or on the server itself. weir lock creates the file if it \
does not exist. It ends as the command does, or with 1 if it cannot get the lock or loses \
it: a server revokes a lock when it has heard nothing from the client for a lease. weir lock then \
sends SIGTERM to the command. --test prints `free`, or the conflicting lock as `shared` or \
`exclusive` and its bytes.")]
pub(crate) struct Args {
    /// The file
    #[arg(value_name = "LOCATION", value_parser = location())]
    location: Location,
    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "test"
    )]
    command: Vec<OsString>,
    /// Take a shared lock
    #[arg(short, long)]
    shared: bool,
    /// Fail at once if the lock is not free
    #[arg(short, long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait at most this many seconds for the lock; 0 is --nonblock [default: no limit]
    #[arg(short, long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// The bytes to lock: 0-99 (inclusive), or 100- for all from 100 on [default: all]
    #[arg(long, value_name = "FIRST-LAST")]
    range: Option<Bytes>,
    /// Take no lock; print the lock that would conflict
    #[arg(short, long, conflicts_with_all = ["command", "nonblock", "wait"])]
    test: bool,
    #[command(flatten)]
    mount: MountArgs,
}

/// A byte range on the command line: `FIRST-LAST` or `FIRST-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bytes(LockRange);

impl FromStr for Bytes {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "not a range of bytes; write it like 0-99, or 100-";
        let (first, last) = text.split_once('-').ok_or(wrong)?;
        let start = first.parse().map_err(|_| wrong)?;
        let end = match last {
            "" => TO_END,
            last => last.parse::<u64>().ok().and_then(|n| n.checked_add(1)).ok_or(wrong)?,
        };
        if start < end { Ok(Self(LockRange { start, end })) } else { Err(wrong) }
    }
}

/// This process uses one lock owner.
const OWNER: LockOwner = LockOwner(1);

pub(crate) fn run(args: Args) -> Result<Ended> {
    let range = args.range.map_or(LockRange::ALL, |bytes| bytes.0);
    let lock = Lock { range, exclusive: !args.shared };
    with_mounts(&args.mount, async |mounts| {
        let file = open(mounts, &args).await?;
        if args.test {
            return test(&*file, lock, &args.location).await;
        }
        let mut signals = StopSignals::with_quit()?;
        if !take(&*file, lock, &args, &mut signals).await? {
            return Ok(Ended::Interrupted);
        }
        let ended = hold(&file, lock, &args, &mut signals).await;
        // Unlocked before the unmount, so that other clients do not wait for that.
        let asked = || format!("unlock {}", args.location);
        tokio::select! {
            given_up = file.unlock(OWNER, range) => given_up.asked(asked)?,
            _ = signals.after_end() => {
                let failure = Failure::new(asked(), "the server does not answer");
                let advice = "the server releases it when the lease expires (NFSv4)";
                complain(&failure.advice(advice));
                return Ok(Ended::Interrupted);
            }
        }
        ended
    })
}

async fn open(mounts: &mut Mounts, args: &Args) -> Result<Arc<dyn OpenFile>> {
    let asked = || format!("open {}", args.location);
    let place = mounts.place(&args.location, Links::Follow).await?;
    let store = place.fs.store();
    let access = if args.shared || args.test { Access::READ } else { Access::READ | Access::WRITE };
    let id = match (&place.attr, &place.name) {
        (Some(attr), _) => attr.id,
        (None, Some(name)) if !args.test => {
            let set = SetAttr { mode: Some(0o666 & !umask()), ..SetAttr::default() };
            let made = store
                .create(&Caller::Own, place.dir.entry(name).with(&set), CreateMode::MayExist)
                .await;
            made.asked(asked)?.attr.id
        }
        _ => return Err(Error::NotFound).asked(asked),
    };
    store.open(&Caller::Own, id, access).await.asked(asked)
}

async fn test(file: &dyn OpenFile, lock: Lock, location: &Location) -> Result<Ended> {
    let found = file.test_lock(OWNER, lock).await.asked(|| format!("test a lock on {location}"))?;
    let text = match found {
        None => "free\n".to_owned(),
        Some(Lock { range, exclusive }) => {
            let kind = if exclusive { "exclusive" } else { "shared" };
            let last = match range.end {
                TO_END => String::new(),
                end => (end - 1).to_string(),
            };
            format!("{kind} {}-{last}\n", range.start)
        }
    };
    print(text.as_bytes())?;
    Ok(Ended::Done)
}

/// Takes the lock. Returns false if a signal interrupted the wait.
async fn take(
    file: &dyn OpenFile,
    lock: Lock,
    args: &Args,
    signals: &mut StopSignals,
) -> Result<bool> {
    let asked = || format!("lock {}", args.location);
    // A request takes its time: 0 s means one that does not wait, as with flock(1).
    let waits = !args.nonblock && args.wait != Some(0);
    let patience = args.wait.filter(|_| waits).map_or(Duration::MAX, Duration::from_secs);
    let taking = timeout(patience, file.lock(OWNER, lock, waits));
    let taken = tokio::select! {
        taken = taking => taken,
        _ = signals.any() => return Ok(false),
    };
    match taken {
        Err(_) => {
            let failure = Failure::new(asked(), "it was not granted in that time");
            let or = match args.location {
                Location::Local(_) => "",
                Location::Nfs(_) => ", or the server does not answer",
            };
            let holds = "another owner holds a conflicting lock (`weir lock --test` shows it)";
            Err(failure.advice(format!("{holds}{or}")))
        }
        Ok(Err(Error::WouldBlock)) => {
            let failure = Failure::new(asked(), "another owner holds a conflicting lock");
            Err(failure.advice("`weir lock --test` shows it"))
        }
        Ok(taken) => taken.asked(asked).map(|()| true),
    }
}

/// Runs the command under the lock, and passes signals on to it. If the lock is lost, sends SIGTERM to the command.
async fn hold(
    file: &Arc<dyn OpenFile>,
    lock: Lock,
    args: &Args,
    signals: &mut StopSignals,
) -> Result<Ended> {
    let Some((program, rest)) = args.command.split_first() else { return Ok(Ended::Done) };
    let running = || format!("run {}", program.to_string_lossy());
    let mut child = Command::new(program).args(rest).spawn().asked(running)?;
    let id = Pid::from_child(&child);
    let tell = |signal| {
        // The command may have ended already.
        let _ = kill_process(id, signal);
    };
    let (end, loss) = (ended(id), lost(file, lock, &args.location));
    tokio::pin!(end, loss);
    let mut is_lost = false;
    loop {
        tokio::select! {
            () = &mut end => break,
            signal = signals.any() => match signal {
                // The terminal sends these to both; the command decides what to do.
                Signal::INT | Signal::QUIT => {}
                signal => tell(signal),
            },
            error = &mut loss, if !is_lost => {
                is_lost = true;
                let asked = format!("keep the lock on {}", args.location);
                let failure = Failure::new(asked, format!("the server no longer has it ({error})"));
                complain(&failure.advice("another owner may have had it; sending SIGTERM to the command"));
                tell(Signal::TERM);
            }
        }
    }
    let status = child.wait().asked(running)?;
    Ok(if is_lost { Ended::Failed } else { Ended::of(status) })
}

/// Resolves when the server no longer has the lock: it revoked the lock when the lease expired, say,
/// or restarted and refused the reclaim. The poll requests the same lock again: the server grants it
/// to its holder, and refuses a client whose locks were revoked.
async fn lost(file: &Arc<dyn OpenFile>, lock: Lock, location: &Location) -> Error {
    if let Location::Local(_) = location {
        // The kernel revokes no locks.
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        match file.lock(OWNER, lock, false).await {
            Ok(()) | Err(Error::TimedOut) => {}
            Err(error) => return error,
        }
    }
}

/// Interval of the polls.
const LOOK_EVERY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_first_and_last_byte() {
        let range = |start, end| Ok(Bytes(LockRange { start, end }));
        assert_eq!("0-99".parse(), range(0, 100));
        assert_eq!("7-7".parse(), range(7, 8));
        assert_eq!("100-".parse(), range(100, TO_END));
        for wrong in ["", "-", "5", "-5", "9-8", "a-b", "0-18446744073709551615"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }
}
