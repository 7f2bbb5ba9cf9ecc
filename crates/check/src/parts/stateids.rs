//! Stateids that are no good (RFC 8881 section 8.2.4), tried with READ_PLUS.

use crate::{Examiner, Finding, Known, Verdict};
use std::time::Duration;
use weir_client::raw;
use weir_nfs::v4::types::StateId;
use weir_vfs::{Access, Caller, FileSystem};

/// How long the CLOSE of a file may take, which is sent in the background.
const CLOSING: Duration = Duration::from_secs(1);

impl Examiner<'_> {
    pub(crate) async fn stateids(&mut self) -> weir_client::Result<Vec<Finding>> {
        let known = self.make("stateids", &[(true, 10_000)]).await?;
        let other = self.make("stateids of another", &[(true, 10)]).await?;
        let mut findings = Vec::new();
        let mut find = |rule, verdict| findings.push(Finding { rule, verdict });
        let own = raw::stateid(&*known.file)?;
        let random = getrandom::u64().unwrap_or(1).to_be_bytes();
        let mut invented = own;
        invented.other[..8].copy_from_slice(&random);
        let bad = &["NFS4ERR_BAD_STATEID"][..];
        // It may look like one of an earlier run of the server.
        let bad_or_stale = &["NFS4ERR_BAD_STATEID", "NFS4ERR_STALE_STATEID"][..];
        find("an open's own stateid is taken", known.under(own, None).await);
        find("no state at all (all zeros) is taken", known.under(StateId::ANONYMOUS, None).await);
        find(
            "a stateid that nobody was given is refused",
            known.under(invented, Some(bad_or_stale)).await,
        );
        let verdict = known.under(raw::stateid(&*other.file)?, Some(bad)).await;
        find("the stateid of another file is refused", verdict);
        let ahead = StateId { seqid: own.seqid.wrapping_add(7), ..own };
        find("a stateid from the future is refused", known.under(ahead, Some(bad)).await);
        let bypass = known.under(StateId::READ_BYPASS, None).await;
        find("the stateid that goes past locks (all ones) is taken", bypass);
        let current = known.under(StateId::CURRENT, Some(bad)).await;
        find("the current stateid is refused where there is none", current);
        find("the invalid stateid is refused", known.under(StateId::INVALID, Some(bad)).await);
        // A file that is open to read, and then to write as well, has a newer one.
        let id = self.create("upgraded").await?;
        let reads = self.nfs.open(&Caller::Own, id, Access::READ).await?;
        let reads = Known { id, file: reads, bytes: Vec::new() };
        let before = raw::stateid(&*reads.file)?;
        let writes = self.nfs.open(&Caller::Own, id, Access::WRITE).await?;
        let after = raw::stateid(&*reads.file)?;
        let verdict = match after.other == before.other && after.seqid == before.seqid + 1 {
            true => reads.under(before, Some(&["NFS4ERR_OLD_STATEID"])).await,
            false => Verdict::Fail(format!("{before:?} became {after:?} by an upgrade")),
        };
        find("a stateid from before an upgrade is refused as old", verdict);
        drop((reads, writes));
        tokio::time::sleep(CLOSING).await;
        find("the stateid of a closed file is refused", known.under(after, Some(bad)).await);
        Ok(findings)
    }
}

impl Known {
    /// Reads under a stateid, which is taken, or refused in one of the ways that are expected.
    pub(crate) async fn under(&self, stateid: StateId, refused: Option<&[&str]>) -> Verdict {
        match (raw::read_under(&*self.file, stateid).await, refused) {
            (Ok(()), None) => Verdict::Pass,
            (Ok(()), Some(_)) => Verdict::Fail("it was taken".into()),
            (Err(error), Some(expected)) => {
                let text = error.to_string();
                match expected.iter().any(|status| text.contains(status)) {
                    true => Verdict::Pass,
                    false => Verdict::Note(format!("{text}, not {}", expected[0])),
                }
            }
            (Err(error), None) => Verdict::Fail(error.to_string()),
        }
    }
}
