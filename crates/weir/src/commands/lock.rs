//! `weir lock`: holds a byte-range lock of a file while a command runs, as flock(1) does.

use super::with_mounts;
use crate::arguments::{MountArgs, location};
use crate::ended::Ended;
use crate::output::{complain, print, umask};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use weir_tools::failure::{Asked, Failure, Result};
use weir_tools::location::Location;
use weir_tools::mounts::{Links, Mounts};
use weir_vfs::{Access, Caller, Error, Lock, LockOwner, LockRange, OpenFile, SetAttr, TO_END};

/// Hold a lock of a file while a command runs
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  weir lock nfs://filer/jobs/nightly.lock ./nightly.sh
  weir lock --nonblock nfs://filer/jobs/nightly.lock ./nightly.sh || echo 'somebody else is at it'
  weir lock --shared --range 4096-8191 nfs://filer/images/disk.img ./back-up.sh
  weir lock --test nfs://filer/images/disk.img

The lock is a byte-range lock, as of fcntl(2): it keeps out whoever locks the same bytes, over any
version of NFS or on the server itself, and nobody else. A file that is not there is made. The exit
code is the command's, or 1 if the lock could not be had, or was lost: a server takes it away when it
heard nothing for a lease, and does not give it back. The command gets SIGTERM then. --test says
`free`, or which lock is in the way, as `shared` or `exclusive` and its bytes.")]
pub(crate) struct Args {
    /// The file
    #[arg(value_name = "LOCATION", value_parser = location())]
    location: Location,
    /// The command, and its arguments
    #[arg(
        value_name = "COMMAND",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "test"
    )]
    command: Vec<OsString>,
    /// Share the bytes with others who share them
    #[arg(short, long)]
    shared: bool,
    /// Fail if the lock is not free
    #[arg(short, long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait so many seconds for it at most [default: for ever]
    #[arg(short, long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// The bytes, the last one included: 0-99, or 100- for all from 100 on [default: all]
    #[arg(long, value_name = "FIRST-LAST")]
    range: Option<Bytes>,
    /// Take no lock, but say which one would be in the way
    #[arg(short, long, conflicts_with_all = ["command", "nonblock", "wait"])]
    test: bool,
    #[command(flatten)]
    mount: MountArgs,
}

/// Bytes as people write them: `FIRST-LAST` or `FIRST-`.
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

/// Whoever runs a command has one owner of locks.
const OWNER: LockOwner = LockOwner(1);

pub(crate) fn run(args: Args) -> Result<Ended> {
    let range = args.range.map_or(LockRange::ALL, |bytes| bytes.0);
    let lock = Lock { range, exclusive: !args.shared };
    with_mounts(&args.mount, async |mounts| {
        let file = open(mounts, &args).await?;
        if args.test {
            return test(&*file, lock, &args.location).await;
        }
        let mut signals = Signals::new()?;
        if !take(&*file, lock, &args, &mut signals).await? {
            return Ok(Ended::Interrupted);
        }
        let ended = hold(&file, lock, &args, &mut signals).await;
        // Given up before the mount goes, so that nobody waits for it longer than the command runs.
        let asked = || format!("unlock {}", args.location);
        tokio::select! {
            given_up = file.unlock(OWNER, range) => given_up.asked(asked)?,
            () = signals.any() => {
                let failure = Failure::new(asked(), "the server does not answer");
                let advice = "it is free when the server notices: with NFSv4 in a lease";
                complain(&failure.advice(advice));
                return Ok(Ended::Interrupted);
            }
        }
        ended
    })
}

/// What asks this program to end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).asked(|| "listen to signals".to_owned());
        let interrupt = listen(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: listen(SignalKind::terminate())? })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
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
            let made = store.create(&Caller::Own, place.dir, name, &set, false).await;
            made.asked(asked)?.attr.id
        }
        _ => return Err(Error::NotFound).asked(asked),
    };
    store.open(&Caller::Own, id, access).await.asked(asked)
}

async fn test(file: &dyn OpenFile, lock: Lock, location: &Location) -> Result<Ended> {
    let found = file.test_lock(OWNER, lock).await.asked(|| format!("test a lock of {location}"))?;
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

/// Takes the lock; says whether it did, and was not interrupted.
async fn take(file: &dyn OpenFile, lock: Lock, args: &Args, signals: &mut Signals) -> Result<bool> {
    let asked = || format!("lock {}", args.location);
    let patience = args.wait.map_or(Duration::MAX, Duration::from_secs);
    let taking = timeout(patience, file.lock(OWNER, lock, !args.nonblock));
    let taken = tokio::select! {
        taken = taking => taken.unwrap_or(Err(Error::WouldBlock)),
        () = signals.any() => return Ok(false),
    };
    match taken {
        Err(Error::WouldBlock) => {
            let failure = Failure::new(asked(), "somebody else holds a lock of it");
            Err(failure.advice("`weir lock --test` says which"))
        }
        taken => taken.asked(asked).map(|()| true),
    }
}

/// Runs the command under the lock. If that is lost, the command is told to end.
async fn hold(
    file: &Arc<dyn OpenFile>,
    lock: Lock,
    args: &Args,
    signals: &mut Signals,
) -> Result<Ended> {
    let Some((program, rest)) = args.command.split_first() else { return Ok(Ended::Done) };
    let running = || format!("run {}", program.to_string_lossy());
    let mut child = Command::new(program).args(rest).spawn().asked(running)?;
    let id = rustix::process::Pid::from_child(&child);
    let tell_to_end = || {
        // It may have ended.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    };
    let mut end = tokio::task::spawn_blocking(move || Child::wait(&mut child));
    let loss = lost(file, lock, &args.location);
    tokio::pin!(loss);
    let mut is_lost = false;
    let status = loop {
        tokio::select! {
            status = &mut end => break status,
            // The terminal interrupts both; what the command does about it is its own affair.
            _ = signals.interrupt.recv() => {}
            _ = signals.terminate.recv() => tell_to_end(),
            error = &mut loss, if !is_lost => {
                is_lost = true;
                let asked = format!("keep the lock of {}", args.location);
                let failure = Failure::new(asked, format!("the server has it no more ({error})"));
                complain(&failure.advice("somebody else may have had it; the command is told to end"));
                tell_to_end();
            }
        }
    };
    let status = status.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let status = status.asked(running)?;
    Ok(if is_lost { Ended::Failed } else { ended_as(status) })
}

/// Resolves when the server does not have the lock any more: it took it away when the lease had
/// expired, say, or restarted and did not give it back. To ask for it again is to look: who holds a
/// lock gets it again, and a client whose locks were taken away does not.
async fn lost(file: &Arc<dyn OpenFile>, lock: Lock, location: &Location) -> Error {
    if let Location::Local(_) = location {
        // The kernel takes none away.
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

/// How often the server is asked whether it has the lock.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// As shells have it: a command that a signal ended counts as 128 and its number.
fn ended_as(status: ExitStatus) -> Ended {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ended::With(u8::try_from(code).unwrap_or(1))
}

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
