//! Stateids (RFC 8881 section 8.2): special, invalid and old ones.

use crate::examiner::{Examiner, Known};
use crate::raw_open::{RawOpen, ShareAccess, granted, refused};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_nfs::v4::Error;
use weir_nfs::v4::types::StateId;
use weir_vfs::{Access, Caller, FileSystem};

pub(crate) const RULES: &[Rule] = &[
    rule!("an open's own stateid is accepted", "RFC 8881 8.2.4", "READ_PLUS under it", own),
    rule!(
        "the anonymous stateid (all zeros) is accepted",
        "RFC 8881 8.2.3",
        "READ_PLUS under it",
        anonymous
    ),
    rule!(
        "an unknown stateid is refused",
        "RFC 8881 8.2.4",
        "random bytes: BAD_STATEID or STALE_STATEID",
        invented
    ),
    rule!("the stateid of another file is refused", "RFC 8881 8.2.4", "BAD_STATEID", of_another),
    rule!(
        "a stateid with a future sequence number is refused",
        "RFC 8881 8.2.4",
        "a sequence number 7 ahead: BAD_STATEID",
        ahead
    ),
    rule!(
        "the READ bypass stateid (all ones) is accepted",
        "RFC 8881 8.2.3",
        "READ_PLUS under it",
        bypass
    ),
    rule!(
        "the current stateid is refused if none is set",
        "RFC 8881 8.2.3",
        "a compound without OPEN: BAD_STATEID",
        current
    ),
    rule!("the invalid stateid is refused", "RFC 8881 8.2.3", "BAD_STATEID", invalid),
    rule!(
        "a stateid from before an upgrade is refused as old",
        "RFC 8881 8.2.2",
        "opened to read, then to write: OLD_STATEID",
        before_an_upgrade
    ),
    rule!(
        "the stateid of a closed file is refused",
        "RFC 8881 8.2.4",
        "BAD_STATEID",
        of_a_closed_file
    ),
    rule!(
        "READ refuses a stateid from before an upgrade",
        "RFC 8881 8.2.2",
        "opened to read, then to write by the same owner: OLD_STATEID",
        old_in_read
    ),
    rule!(
        "OPEN_DOWNGRADE refuses a stateid from before an upgrade",
        "RFC 8881 8.2.2",
        "the same: OLD_STATEID, and the open keeps its access",
        old_in_downgrade
    ),
    rule!(
        "CLOSE refuses a stateid from before an upgrade",
        "RFC 8881 8.2.2",
        "the same: OLD_STATEID, and the file stays open",
        old_in_close
    ),
    rule!(
        "a stateid with sequence number 0 stands for the newest",
        "RFC 8881 8.2.2",
        "READ and CLOSE after the same upgrade",
        newest
    ),
];

const BAD: &[&str] = &["NFS4ERR_BAD_STATEID"];
/// An invalid stateid may look like one of an earlier run of the server.
const BAD_OR_STALE: &[&str] = &["NFS4ERR_BAD_STATEID", "NFS4ERR_STALE_STATEID"];

/// An open file.
async fn opened(examiner: &mut Examiner) -> Result<Known> {
    examiner.make("stateids", &[(true, 10_000)]).await
}

async fn own(examiner: &mut Examiner) -> Result<Verdict> {
    let known = opened(examiner).await?;
    Ok(known.read_under(known.stateid()?, None).await)
}

async fn anonymous(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(opened(examiner).await?.read_under(StateId::ANONYMOUS, None).await)
}

async fn invented(examiner: &mut Examiner) -> Result<Verdict> {
    let known = opened(examiner).await?;
    let mut stateid = known.stateid()?;
    stateid.other[..8].copy_from_slice(&getrandom::u64().unwrap_or(1).to_be_bytes());
    Ok(known.read_under(stateid, Some(BAD_OR_STALE)).await)
}

async fn of_another(examiner: &mut Examiner) -> Result<Verdict> {
    let (known, other) = (opened(examiner).await?, opened(examiner).await?);
    Ok(known.read_under(other.stateid()?, Some(BAD)).await)
}

async fn ahead(examiner: &mut Examiner) -> Result<Verdict> {
    let known = opened(examiner).await?;
    let own = known.stateid()?;
    let ahead = StateId { seqid: own.seqid.wrapping_add(7), ..own };
    Ok(known.read_under(ahead, Some(BAD)).await)
}

async fn bypass(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(opened(examiner).await?.read_under(StateId::READ_BYPASS, None).await)
}

async fn current(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(opened(examiner).await?.read_under(StateId::CURRENT, Some(BAD)).await)
}

async fn invalid(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(opened(examiner).await?.read_under(StateId::INVALID, Some(BAD)).await)
}

async fn before_an_upgrade(examiner: &mut Examiner) -> Result<Verdict> {
    let (id, name) = examiner.create("upgraded").await?;
    let file = examiner.ours.open(&Caller::Own, id, Access::READ).await?;
    let reads = Known { name, file, bytes: Vec::new() };
    let before = reads.stateid()?;
    let _writes = examiner.ours.open(&Caller::Own, id, Access::WRITE).await?;
    let after = reads.stateid()?;
    Ok(match after.other == before.other && after.seqid == before.seqid + 1 {
        true => reads.read_under(before, Some(&["NFS4ERR_OLD_STATEID"])).await,
        false => Verdict::Fail(format!("{before:?} became {after:?} by an upgrade")),
    })
}

async fn of_a_closed_file(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("closed").await?;
    let raw = examiner.raw().await?;
    let open = raw.opened("owner", &name, ShareAccess::READ).await?;
    let closed = raw.close(&open.handle, open.stateid).await?;
    if closed.is_err() {
        return Ok(granted(closed));
    }
    Ok(refused(raw.read(&open.handle, open.stateid).await?, &[Error::BadStateId]))
}

/// An open after an upgrade from reading to reading and writing, and its stateid from before.
async fn upgraded(examiner: &mut Examiner) -> Result<(RawOpen, StateId)> {
    let (_, name) = examiner.create("upgraded").await?;
    let raw = examiner.raw().await?;
    let before = raw.opened("owner", &name, ShareAccess::READ).await?.stateid;
    let after = raw.opened("owner", &name, ShareAccess::WRITE).await?;
    match after.stateid.other == before.other && after.stateid.seqid == before.seqid + 1 {
        true => Ok((after, before)),
        false => Err(format!("{before:?} became {:?} by an upgrade", after.stateid).into()),
    }
}

async fn old_in_read(examiner: &mut Examiner) -> Result<Verdict> {
    let (open, before) = upgraded(examiner).await?;
    let raw = examiner.raw().await?;
    let verdict = refused(raw.read(&open.handle, before).await?, &[Error::OldStateId]);
    Ok(verdict.max(granted(raw.close(&open.handle, open.stateid).await?)))
}

async fn old_in_downgrade(examiner: &mut Examiner) -> Result<Verdict> {
    let (open, before) = upgraded(examiner).await?;
    let raw = examiner.raw().await?;
    let verdict = refused(raw.downgrade(&open.handle, before).await?, &[Error::OldStateId]);
    Ok(verdict.max(granted(raw.close(&open.handle, open.stateid).await?)))
}

async fn old_in_close(examiner: &mut Examiner) -> Result<Verdict> {
    let (open, before) = upgraded(examiner).await?;
    let raw = examiner.raw().await?;
    let verdict = refused(raw.close(&open.handle, before).await?, &[Error::OldStateId]);
    Ok(verdict.max(granted(raw.close(&open.handle, open.stateid).await?)))
}

async fn newest(examiner: &mut Examiner) -> Result<Verdict> {
    let (open, _) = upgraded(examiner).await?;
    let raw = examiner.raw().await?;
    let newest = StateId { seqid: 0, ..open.stateid };
    let read = granted(raw.read(&open.handle, newest).await?);
    Ok(read.max(granted(raw.close(&open.handle, newest).await?)))
}
