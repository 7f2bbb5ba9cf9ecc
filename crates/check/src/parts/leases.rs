//! Leases (RFC 8881 sections 8.3 and 8.4): what becomes of the locks of a client that falls silent,
//! and of one that does not.

use crate::locks::{ONE, exclusive};
use crate::{Examiner, Finding, Verdict};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_client::{NfsFs, raw};
use weir_vfs::{Access, Caller, Error, FileSystem, Lock, LockRange};

/// How often a lock of the silent client is asked for.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How long after its lease a silent client's lock is in the way at most, in leases.
const PATIENCE_LEASES: u32 = 3;

impl Examiner<'_> {
    pub(crate) async fn leases(
        &mut self,
        other: &Arc<NfsFs>,
        silent: &Arc<NfsFs>,
    ) -> weir_client::Result<Vec<Finding>> {
        let known = self.make("leased", &[(true, 1000)]).await?;
        let both = Access::READ | Access::WRITE;
        let mut files = Vec::new();
        for nfs in [other, silent] {
            let dir = nfs.lookup(&Caller::Own, nfs.root(), &self.name).await?;
            let id = nfs.lookup(&Caller::Own, dir.id, b"leased").await?.id;
            files.push(crate::Known {
                id,
                file: nfs.open(&Caller::Own, id, both).await?,
                bytes: Vec::new(),
            });
        }
        let [theirs, gone] = &files[..] else { return Err(Error::Io.into()) };
        let lease = raw::fall_silent(silent, true)?;
        let (kept, lost) = (exclusive(0, 100), exclusive(200, 300));
        known.file.lock(ONE, kept, false).await?;
        gone.file.lock(ONE, lost, false).await?;
        let begun = Instant::now();
        let before = raw::stateid(&*gone.file)?;

        let mut findings = Vec::new();
        let mut find = |rule, verdict| findings.push(Finding { rule, verdict });
        let free_after = loop {
            let asked = begun.elapsed();
            match theirs.file.lock(ONE, lost, false).await {
                Ok(()) => break Some(asked),
                Err(Error::WouldBlock) if asked < lease * PATIENCE_LEASES => {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                Err(Error::WouldBlock) => break None,
                Err(error) => return Err(error.into()),
            }
        };
        let waited = |time: Duration| format!("after {time:.0?} of a lease of {lease:.0?}");
        // The answer that granted it may have been under way while the lease ran out.
        let early = |time: Duration| time + ASK_AGAIN * 2 < lease;
        find(
            "a client that was silent for a lease is in nobody's way",
            match free_after {
                Some(time) if early(time) => {
                    Verdict::Fail(format!("its lock went to another {}", waited(time)))
                }
                Some(_) => Verdict::Pass,
                None => Verdict::Fail(format!("its lock holds {}", waited(begun.elapsed()))),
            },
        );
        let verdict = match theirs.file.lock(ONE, kept, false).await {
            Err(Error::WouldBlock) => Verdict::Pass,
            Err(error) => Verdict::Fail(error.to_string()),
            Ok(()) => Verdict::Fail(format!("its lock is gone {}", waited(begun.elapsed()))),
        };
        find("a client that renews its lease keeps its locks", verdict);
        raw::fall_silent(silent, false)?;
        if free_after.is_some() {
            let refused = ["NFS4ERR_EXPIRED", "NFS4ERR_BAD_STATEID", "NFS4ERR_STALE_STATEID"];
            find(
                "a stateid of before the lease ran out is refused",
                gone.under(before, Some(&refused)).await,
            );
            find("a lock that went to another is not given back", again(&gone.file, lost).await);
        }
        for file in [&known.file, &theirs.file, &gone.file] {
            // Some are lost, and closing the file is enough.
            let _ = file.unlock(ONE, LockRange::ALL).await;
        }
        Ok(findings)
    }
}

/// Whether a lock that somebody else has by now is refused to who had it before.
async fn again(file: &Arc<dyn weir_vfs::OpenFile>, lost: Lock) -> Verdict {
    match file.lock(ONE, lost, false).await {
        // The client itself says so when the server has told it that the lock is lost.
        Err(Error::WouldBlock | Error::Io) => Verdict::Pass,
        Err(error) => Verdict::Fail(error.to_string()),
        Ok(()) => Verdict::Fail("two clients have it".into()),
    }
}
