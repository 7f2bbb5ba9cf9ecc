//! Delegations that the client does not return when they are recalled (RFC 8881 sections 10.4.5 and
//! 8.2.4).

use crate::examiner::{Examiner, Revocation};
use crate::raw_open::{RawClient, RawOpen, ShareAccess, ShareDeny, granted, open_args, refused};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use std::time::{Duration, Instant};
use weir_nfs::v4::op::create_session;
use weir_nfs::v4::op::open::Delegation;
use weir_nfs::v4::op::sequence::StatusFlags;
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Error, Op, OpRes};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "a delegation that is not returned blocks no other client",
        "RFC 8881 10.4.5",
        "recalled and not returned, its holder renewing its lease: another client may write \
         within three leases; if the server delegates nothing, a note",
        granted_in_the_end
    ),
    rule!(
        "SEQUENCE reports a revoked delegation",
        "RFC 8881 18.46.3",
        "RECALLABLE_STATE_REVOKED",
        told
    ),
    rule!(
        "the stateid of a revoked delegation is refused as revoked",
        "RFC 8881 8.2.4",
        "READ: DELEG_REVOKED",
        stateid
    ),
    rule!("TEST_STATEID reports a revoked delegation", "RFC 8881 18.48.3", "DELEG_REVOKED", tested),
    rule!(
        "FREE_STATEID ends a revoked delegation",
        "RFC 8881 18.38.3",
        "then SEQUENCE no longer reports it, and READ under it fails with BAD_STATEID",
        freed
    ),
];

/// How often, and how long apart, the check asks for a delegation. In this time the server tests
/// the backchannel.
const ASKED: usize = 40;
/// Interval at which the other client's OPEN is repeated and the holder's lease renewed.
const PAUSE: Duration = Duration::from_millis(250);
/// Maximum time for which the delegation may block the other client.
const PATIENCE_LEASES: u32 = 3;

async fn granted_in_the_end(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(revocation(examiner).await?.granted)
}

async fn told(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(revocation(examiner).await?.told)
}

async fn stateid(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(revocation(examiner).await?.refused)
}

async fn tested(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(revocation(examiner).await?.tested)
}

async fn freed(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(revocation(examiner).await?.freed)
}

/// Runs the test that the rules of this part judge. It runs once, because it takes a lease.
async fn revocation(examiner: &mut Examiner) -> Result<Revocation> {
    if let Some(known) = &examiner.revocation {
        return Ok(known.clone());
    }
    let (_, name) = examiner.create("delegated").await?;
    let holder =
        examiner.another_raw(|args| args.flags |= create_session::Flags::CONN_BACK_CHAN).await?;
    let writer = examiner.another_raw(|_| {}).await?;
    let lease = weir_client::raw::fall_silent(&examiner.ours, false)?;
    let found = match delegated(&holder, &name).await? {
        Some((open, stateid)) => revoked(&holder, &writer, &name, &open, stateid, lease).await?,
        None => all(&Verdict::Note("the server delegates nothing".into())),
    };
    holder.end().await;
    writer.end().await;
    examiner.revocation = Some(found.clone());
    Ok(found)
}

fn all(verdict: &Verdict) -> Revocation {
    let v = || verdict.clone();
    Revocation { granted: v(), told: v(), refused: v(), tested: v(), freed: v() }
}

/// Opens a file for reading until the server grants a delegation.
async fn delegated(holder: &RawClient, name: &[u8]) -> Result<Option<(RawOpen, StateId)>> {
    let access = ShareAccess::READ | ShareAccess::WANT_READ_DELEG;
    for _ in 0..ASKED {
        let args = open_args("holder", name, access, ShareDeny::empty());
        let (open, opened) =
            holder.send_open(args).await?.map_err(|error| format!("OPEN: {error}"))?;
        if let Delegation::Read(delegation) = opened.delegation {
            return Ok(Some((open, delegation.stateid)));
        }
        holder
            .close(&open.handle, open.stateid)
            .await?
            .map_err(|error| format!("CLOSE: {error}"))?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(None)
}

async fn revoked(
    holder: &RawClient,
    writer: &RawClient,
    name: &[u8],
    open: &RawOpen,
    delegation: StateId,
    lease: Duration,
) -> Result<Revocation> {
    let begun = Instant::now();
    let access = ShareAccess::WRITE | ShareAccess::WANT_NO_DELEG;
    let ops = || {
        let args = open_args("writer", name, access, ShareDeny::empty());
        [Op::Putfh(writer.dir.clone()), Op::Open(args), Op::Getfh(())]
    };
    loop {
        let reply = writer.session.call(&ops()).await?;
        match reply.status {
            Ok(()) => break,
            Err(Error::Delay) if begun.elapsed() < lease * PATIENCE_LEASES => {}
            Err(Error::Delay) => {
                let why = format!("it is in the way after {:.0?}", begun.elapsed());
                return Ok(all(&Verdict::Fail(why)));
            }
            Err(error) => return Err(format!("OPEN: {error}").into()),
        }
        holder.call(&[]).await?;
        tokio::time::sleep(PAUSE).await;
    }
    let told = match flags(holder).await?.contains(StatusFlags::RECALLABLE_STATE_REVOKED) {
        true => Verdict::Pass,
        false => Verdict::Fail("it does not".into()),
    };
    let read = holder.read(&open.handle, delegation).await?;
    let tested = match holder.call(&[Op::TestStateid(vec![delegation].into())]).await?.results.pop()
    {
        Some(OpRes::TestStateid(Ok(statuses))) => match statuses.first() {
            Some(status) => refused(*status, &[Error::DelegRevoked]),
            None => Verdict::Fail("it tells of no stateid".into()),
        },
        other => Verdict::Fail(format!("{other:?}")),
    };
    let mut freed = granted(holder.call(&[Op::FreeStateid(delegation)]).await?.status);
    if flags(holder).await?.contains(StatusFlags::RECALLABLE_STATE_REVOKED) {
        freed = freed.max(Verdict::Fail("SEQUENCE tells of it".into()));
    }
    let gone = holder.read(&open.handle, delegation).await?;
    Ok(Revocation {
        granted: Verdict::Pass,
        told,
        refused: refused(read, &[Error::DelegRevoked]),
        tested,
        freed: freed.max(refused(gone, &[Error::BadStateId])),
    })
}

/// The status flags of SEQUENCE.
async fn flags(client: &RawClient) -> Result<StatusFlags> {
    let reply = client.session.compound(|_| {}, &[]).await?;
    match reply.results.first() {
        Some(OpRes::Sequence(Ok(sequenced))) => Ok(sequenced.status_flags),
        _ => Err(format!("SEQUENCE: {:?}", reply.status).into()),
    }
}
