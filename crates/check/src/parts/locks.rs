//! Byte-range locks (RFC 8881 section 18.10, RFC 7530 section 16.10), with a second client.

use crate::compare::judge;
use crate::examiner::Examiner;
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_client::raw;
use weir_nfs::v4::types::{LockDenied, LockType};
use weir_vfs::{Error, Lock, LockOwner, LockRange, OpenFile, TO_END};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "locks are served",
        "RFC 8881 18.10",
        "one LOCK; NOTSUPP is a note and ends this part",
        are_served
    ),
    rule!(
        "a lock excludes other clients from exactly its range",
        "RFC 8881 18.10.3",
        "another client's locks at both edges, inside, outside",
        excludes
    ),
    rule!(
        "shared locks exclude only exclusive locks",
        "RFC 8881 18.10.3",
        "another client may share the lock, and may not lock exclusively",
        shares
    ),
    rule!(
        "a lock to the end extends past the end of the file",
        "RFC 8881 18.10.3",
        "length of all ones, partly unlocked, tested 1 TiB further on",
        to_the_end
    ),
    rule!(
        "a lock test reports the conflicting lock",
        "RFC 8881 18.11.3",
        "LOCKT's offset, length and type; a lock to the end reported up to 2^63 is a note",
        is_told
    ),
    rule!(
        "a lock is downgraded and upgraded in place",
        "RFC 8881 9.3",
        "downgrade; upgrade while another client shares (refused); upgrade",
        changes
    ),
    rule!(
        "unlocking part of a lock keeps the rest locked",
        "RFC 8881 18.12.3",
        "LOCKU in the middle",
        splits
    ),
    rule!(
        "locks of two owners of one client conflict",
        "RFC 8881 9.1.1",
        "two lock owners of one client",
        owners
    ),
    rule!(
        "CLOSE releases the open file's locks",
        "RFC 8881 18.2.3",
        "free within 20 s of the CLOSE",
        go_with_the_file
    ),
    rule!(
        "READ_PLUS works under another client's lock",
        "RFC 8881 9.1.2",
        "read while another client has it locked; LOCKED (mandatory locks) is a note",
        read_plus_goes_on
    ),
];

pub(crate) const ONE: LockOwner = LockOwner(1);
const TWO: LockOwner = LockOwner(2);
/// The end of the largest file that 63-bit offsets allow.
const LARGEST: Option<u64> = Some(1 << 63);
/// Maximum time until the locks of a closed file are released.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn exclusive(start: u64, end: u64) -> Lock {
    Lock { range: LockRange { start, end }, exclusive: true }
}

fn shared(start: u64, end: u64) -> Lock {
    Lock { range: LockRange { start, end }, exclusive: false }
}

/// A file that both clients have open.
struct Both {
    ours: Arc<dyn OpenFile>,
    theirs: Arc<dyn OpenFile>,
}

impl Examiner {
    /// Creates a file and opens it in both clients.
    async fn both(&mut self) -> Result<Both> {
        let known = self.make("locked", &[(true, 100_000)]).await?;
        let theirs = self.opened_by(&self.theirs, &known.name).await?.file;
        Ok(Both { ours: known.file, theirs })
    }
}

impl Both {
    /// Checks which of the other client's lock requests the server would refuse.
    async fn theirs_are(&self, expected: &[(Lock, bool)]) -> Result<Verdict> {
        for &(lock, refused) in expected {
            let taken = match self.theirs.lock(ONE, lock, false).await {
                Ok(()) => true,
                Err(Error::WouldBlock) => false,
                Err(error) => return Err(error.into()),
            };
            if taken {
                self.theirs.unlock(ONE, lock.range).await?;
            }
            if taken == refused {
                let what = if taken { "granted" } else { "refused" };
                return Ok(Verdict::Fail(format!("{} was {what}", shown(lock))));
            }
        }
        Ok(Verdict::Pass)
    }
}

async fn are_served(examiner: &mut Examiner) -> Result<Verdict> {
    match examiner.both().await?.ours.lock(ONE, exclusive(100, 200), false).await {
        Ok(()) => Ok(Verdict::Pass),
        Err(Error::NotSupported) => Ok(Verdict::Note("the server has none".into())),
        Err(error) => Err(error.into()),
    }
}

async fn excludes(examiner: &mut Examiner) -> Result<Verdict> {
    let both = examiner.both().await?;
    both.ours.lock(ONE, exclusive(100, 200), false).await?;
    let expected = [
        (exclusive(199, 300), true),
        (shared(0, 101), true),
        (shared(150, 151), true),
        (exclusive(200, 300), false),
        (exclusive(0, 100), false),
    ];
    both.theirs_are(&expected).await
}

async fn shares(examiner: &mut Examiner) -> Result<Verdict> {
    let both = examiner.both().await?;
    both.ours.lock(ONE, shared(0, 100), false).await?;
    both.theirs_are(&[(shared(50, 150), false), (exclusive(50, 150), true)]).await
}

async fn to_the_end(examiner: &mut Examiner) -> Result<Verdict> {
    let both = examiner.both().await?;
    both.ours.lock(ONE, exclusive(1000, TO_END), false).await?;
    both.ours.unlock(ONE, LockRange { start: 5000, end: 6000 }).await?;
    let far = 1 << 40;
    let expected = [
        (exclusive(far, far + 1), true),
        (shared(6000, TO_END), true),
        (exclusive(5000, 6000), false),
        (exclusive(0, 1000), false),
    ];
    both.theirs_are(&expected).await
}

async fn is_told(examiner: &mut Examiner) -> Result<Verdict> {
    let both = examiner.both().await?;
    let all = exclusive(0, TO_END);
    let ask = async || raw::test_lock(&*both.theirs, ONE, all).await;
    let mut verdict = Verdict::Pass;
    for lock in [exclusive(10, 20), shared(30, TO_END)] {
        both.ours.lock(ONE, lock, false).await?;
        let told = ask().await?;
        both.ours.unlock(ONE, LockRange::ALL).await?;
        let Some(LockDenied { offset, length, kind, .. }) = told else {
            return Ok(Verdict::Fail(format!("{} is held, none is told", shown(lock))));
        };
        let told = format!("{} is told as {kind:?} at {offset}, length {length}", shown(lock));
        let right = offset == lock.range.start && (kind == LockType::Write) == lock.exclusive;
        match length {
            _ if !right => return Ok(Verdict::Fail(told)),
            length if length == lock.range.wire_length() => {}
            // A server with 63-bit offsets can grant no more than this.
            length if lock.range.end == TO_END && offset.checked_add(length) == LARGEST => {
                verdict = Verdict::Note(told);
            }
            _ => return Ok(Verdict::Fail(told)),
        }
    }
    match ask().await? {
        None => Ok(verdict),
        Some(_) => Ok(Verdict::Fail("a lock is told that was given up".into())),
    }
}

async fn changes(examiner: &mut Examiner) -> Result<Verdict> {
    let both = examiner.both().await?;
    both.ours.lock(ONE, exclusive(0, 100), false).await?;
    both.ours.lock(ONE, shared(0, 100), false).await?;
    let verdict = both.theirs_are(&[(shared(0, 100), false)]).await?;
    if verdict != Verdict::Pass {
        return Ok(verdict);
    }
    both.theirs.lock(ONE, shared(50, 60), false).await?;
    match both.ours.lock(ONE, exclusive(0, 100), false).await {
        Err(Error::WouldBlock) => {}
        Err(error) => return Err(error.into()),
        Ok(()) => {
            let fault = "made exclusive while another client shares it";
            return Ok(Verdict::Fail(fault.into()));
        }
    }
    both.theirs.unlock(ONE, LockRange::ALL).await?;
    both.ours.lock(ONE, exclusive(0, 100), false).await?;
    both.theirs_are(&[(shared(0, 100), true)]).await
}

async fn splits(examiner: &mut Examiner) -> Result<Verdict> {
    let both = examiner.both().await?;
    both.ours.lock(ONE, exclusive(0, 100), false).await?;
    both.ours.unlock(ONE, LockRange { start: 40, end: 60 }).await?;
    let expected = [
        (exclusive(40, 60), false),
        (exclusive(39, 41), true),
        (exclusive(59, 61), true),
        (shared(0, 1), true),
        (shared(99, 100), true),
    ];
    both.theirs_are(&expected).await
}

async fn owners(examiner: &mut Examiner) -> Result<Verdict> {
    let both = examiner.both().await?;
    both.ours.lock(ONE, exclusive(0, 100), false).await?;
    match both.ours.lock(TWO, shared(99, 101), false).await {
        Err(Error::WouldBlock) => Ok(Verdict::Pass),
        Err(error) => Err(error.into()),
        Ok(()) => {
            let fault = "another owner's lock of the same bytes was granted";
            Ok(Verdict::Fail(fault.into()))
        }
    }
}

async fn go_with_the_file(examiner: &mut Examiner) -> Result<Verdict> {
    let known = examiner.make("locked", &[(true, 1000)]).await?;
    let theirs = examiner.opened_by(&examiner.theirs, &known.name).await?.file;
    let both = Both { ours: known.file, theirs };
    let again = examiner.opened_by(&examiner.ours, &known.name).await?.file;
    again.lock(ONE, exclusive(0, TO_END), false).await?;
    drop(again);
    let begun = Instant::now();
    // The client releases the locks in the background.
    loop {
        match both.theirs_are(&[(exclusive(0, 1), false)]).await? {
            Verdict::Fail(_) if begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            verdict => return Ok(verdict),
        }
    }
}

async fn read_plus_goes_on(examiner: &mut Examiner) -> Result<Verdict> {
    let known = examiner.make("locked", &[(true, 100_000)]).await?;
    let theirs = examiner.opened_by(&examiner.theirs, &known.name).await?.file;
    theirs.lock(ONE, exclusive(0, TO_END), false).await?;
    Ok(match known.read_plus(0, 4096).await {
        Ok(reply) => match judge(&reply, &known.bytes, 0, 4096) {
            Ok(_) => Verdict::Pass,
            Err(fault) => Verdict::Fail(fault),
        },
        Err(error) if error.to_string().contains("NFS4ERR_LOCKED") => {
            Verdict::Note("locks are mandatory here".into())
        }
        Err(error) => Verdict::Fail(error.to_string()),
    })
}

fn shown(lock: Lock) -> String {
    let kind = if lock.exclusive { "an exclusive" } else { "a shared" };
    match lock.range {
        LockRange { start, end: TO_END } => format!("{kind} lock from {start} on"),
        LockRange { start, end } => format!("{kind} lock of {start}..{end}"),
    }
}
