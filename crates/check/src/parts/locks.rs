//! Byte-range locks (RFC 8881 section 18.10, RFC 7530 section 16.10), with a second client.

use crate::{Examiner, Finding, Verdict, judge};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_client::{NfsFs, raw};
use weir_nfs::v4::types::{LockDenied, LockType};
use weir_vfs::{Access, Caller, Error, FileSystem, Lock, LockOwner, LockRange, OpenFile, TO_END};

pub(crate) const ONE: LockOwner = LockOwner(1);
const TWO: LockOwner = LockOwner(2);
/// The end of a file as large as offsets of 63 bits allow.
const LARGEST: Option<u64> = Some(1 << 63);
/// How long the locks of a file that was closed may take to go.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn exclusive(start: u64, end: u64) -> Lock {
    Lock { range: LockRange { start, end }, exclusive: true }
}

fn shared(start: u64, end: u64) -> Lock {
    Lock { range: LockRange { start, end }, exclusive: false }
}

/// A file, open to both clients.
struct Both {
    ours: Arc<dyn OpenFile>,
    theirs: Arc<dyn OpenFile>,
}

impl Examiner<'_> {
    pub(crate) async fn locks(&mut self, other: &Arc<NfsFs>) -> weir_client::Result<Vec<Finding>> {
        let known = self.make("locked", &[(true, 100_000)]).await?;
        let found = other.lookup(&Caller::Own, other.root(), &self.name).await?;
        let id = other.lookup(&Caller::Own, found.id, b"locked").await?.id;
        let theirs = other.open(&Caller::Own, id, Access::READ | Access::WRITE).await?;
        let both = Both { ours: Arc::clone(&known.file), theirs };
        let mut findings = Vec::new();
        let mut find = |rule, verdict| findings.push(Finding { rule, verdict });
        match both.excludes().await {
            Err(Error::NotSupported) => {
                find("locks are served", Verdict::Note("the server has none".into()));
                return Ok(findings);
            }
            verdict => {
                let rule = "a lock keeps others out of its bytes, and of no others";
                find(rule, both.over(verdict).await?);
            }
        }
        let rule = "shared locks are shared, and keep writers out";
        find(rule, both.over(both.shares().await).await?);
        let rule = "a lock to the end reaches past the end of the file";
        find(rule, both.over(both.to_the_end().await).await?);
        let rule = "whoever tests is told which lock is in the way";
        find(rule, both.over(both.is_told().await).await?);
        let rule = "a lock is made shared, and exclusive again, in its place";
        find(rule, both.over(both.changes().await).await?);
        let rule = "what is given up of a lock is free, the rest is held";
        find(rule, both.over(both.splits().await).await?);
        let rule = "two owners of one client keep each other out";
        find(rule, both.over(both.owners().await).await?);
        let again = self.nfs.open(&Caller::Own, known.id, Access::READ | Access::WRITE).await?;
        find("locks go with the open file", both.over(both.goes_with(again).await).await?);
        both.theirs.lock(ONE, exclusive(0, TO_END), false).await?;
        let read = known.ask(0, 4096).await;
        both.theirs.unlock(ONE, LockRange::ALL).await?;
        let verdict = match read {
            Ok(reply) => match judge(&reply, &known.bytes, 0, 4096) {
                Ok(_) => Verdict::Pass,
                Err(fault) => Verdict::Fail(fault),
            },
            Err(error) if error.to_string().contains("NFS4ERR_LOCKED") => {
                Verdict::Note("locks are mandatory here".into())
            }
            Err(error) => Verdict::Fail(error.to_string()),
        };
        find("READ_PLUS goes on under somebody else's lock", verdict);
        Ok(findings)
    }
}

impl Both {
    /// Whether the other client's locks would be refused as they should.
    async fn theirs_are(&self, expected: &[(Lock, bool)]) -> Result<Verdict, Error> {
        for &(lock, refused) in expected {
            let taken = match self.theirs.lock(ONE, lock, false).await {
                Ok(()) => true,
                Err(Error::WouldBlock) => false,
                Err(error) => return Err(error),
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

    /// The verdict, once nothing is locked any more, whatever became of it.
    async fn over(&self, verdict: Result<Verdict, Error>) -> Result<Verdict, Error> {
        for file in [&self.ours, &self.theirs] {
            for owner in [ONE, TWO] {
                file.unlock(owner, LockRange::ALL).await?;
            }
        }
        Ok(verdict.unwrap_or_else(|error| Verdict::Fail(error.to_string())))
    }

    async fn excludes(&self) -> Result<Verdict, Error> {
        self.ours.lock(ONE, exclusive(100, 200), false).await?;
        let expected = [
            (exclusive(199, 300), true),
            (shared(0, 101), true),
            (shared(150, 151), true),
            (exclusive(200, 300), false),
            (exclusive(0, 100), false),
        ];
        self.theirs_are(&expected).await
    }

    async fn shares(&self) -> Result<Verdict, Error> {
        self.ours.lock(ONE, shared(0, 100), false).await?;
        self.theirs_are(&[(shared(50, 150), false), (exclusive(50, 150), true)]).await
    }

    async fn to_the_end(&self) -> Result<Verdict, Error> {
        self.ours.lock(ONE, exclusive(1000, TO_END), false).await?;
        self.ours.unlock(ONE, LockRange { start: 5000, end: 6000 }).await?;
        let far = 1 << 40;
        let expected = [
            (exclusive(far, far + 1), true),
            (shared(6000, TO_END), true),
            (exclusive(5000, 6000), false),
            (exclusive(0, 1000), false),
        ];
        self.theirs_are(&expected).await
    }

    async fn is_told(&self) -> Result<Verdict, Error> {
        let all = exclusive(0, TO_END);
        let ask = async || raw::test_lock(&*self.theirs, ONE, all).await.map_err(Error::from);
        let mut verdict = Verdict::Pass;
        for lock in [exclusive(10, 20), shared(30, TO_END)] {
            self.ours.lock(ONE, lock, false).await?;
            let told = ask().await?;
            self.ours.unlock(ONE, LockRange::ALL).await?;
            let Some(LockDenied { offset, length, kind, .. }) = told else {
                return Ok(Verdict::Fail(format!("{} is held, none is told", shown(lock))));
            };
            let told = format!("{} is told as {kind:?} at {offset}, length {length}", shown(lock));
            let right = offset == lock.range.start && (kind == LockType::Write) == lock.exclusive;
            match length {
                _ if !right => return Ok(Verdict::Fail(told)),
                length if length == lock.range.wire_length() => {}
                // To the largest offset that the server has is all that it could grant.
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

    async fn changes(&self) -> Result<Verdict, Error> {
        self.ours.lock(ONE, exclusive(0, 100), false).await?;
        self.ours.lock(ONE, shared(0, 100), false).await?;
        let verdict = self.theirs_are(&[(shared(0, 100), false)]).await?;
        if verdict != Verdict::Pass {
            return Ok(verdict);
        }
        self.theirs.lock(ONE, shared(50, 60), false).await?;
        match self.ours.lock(ONE, exclusive(0, 100), false).await {
            Err(Error::WouldBlock) => {}
            Err(error) => return Err(error),
            Ok(()) => {
                let fault = "made exclusive while another client shares it";
                return Ok(Verdict::Fail(fault.into()));
            }
        }
        self.theirs.unlock(ONE, LockRange::ALL).await?;
        self.ours.lock(ONE, exclusive(0, 100), false).await?;
        self.theirs_are(&[(shared(0, 100), true)]).await
    }

    async fn splits(&self) -> Result<Verdict, Error> {
        self.ours.lock(ONE, exclusive(0, 100), false).await?;
        self.ours.unlock(ONE, LockRange { start: 40, end: 60 }).await?;
        let expected = [
            (exclusive(40, 60), false),
            (exclusive(39, 41), true),
            (exclusive(59, 61), true),
            (shared(0, 1), true),
            (shared(99, 100), true),
        ];
        self.theirs_are(&expected).await
    }

    async fn owners(&self) -> Result<Verdict, Error> {
        self.ours.lock(ONE, exclusive(0, 100), false).await?;
        match self.ours.lock(TWO, shared(99, 101), false).await {
            Err(Error::WouldBlock) => Ok(Verdict::Pass),
            Err(error) => Err(error),
            Ok(()) => {
                let fault = "another owner's lock of the same bytes was granted";
                Ok(Verdict::Fail(fault.into()))
            }
        }
    }

    async fn goes_with(&self, again: Arc<dyn OpenFile>) -> Result<Verdict, Error> {
        again.lock(ONE, exclusive(0, TO_END), false).await?;
        drop(again);
        let begun = Instant::now();
        // Given up in the background.
        loop {
            match self.theirs_are(&[(exclusive(0, 1), false)]).await? {
                Verdict::Fail(_) if begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                verdict => return Ok(verdict),
            }
        }
    }
}

fn shown(lock: Lock) -> String {
    let kind = if lock.exclusive { "an exclusive" } else { "a shared" };
    match lock.range {
        LockRange { start, end: TO_END } => format!("{kind} lock from {start} on"),
        LockRange { start, end } => format!("{kind} lock of {start}..{end}"),
    }
}
