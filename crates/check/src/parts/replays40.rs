//! Retransmitted requests of version 4.0, per owner (RFC 7530 sections 9.1.7 and 9.1.8) and per
//! connection (RFC 7530 section 3.1.1), and requests that only resemble an earlier one.

use crate::examiner::Examiner;
use crate::raw_open::{RawOpen, ShareAccess, ShareDeny, granted, refused};
use crate::raw40::{Owner40, Raw40};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use weir_client::raw::Reply;
use weir_nfs::v4::op::create::Kind;
use weir_nfs::v4::op::{close, create, open, open_confirm, open_downgrade, rename};
use weir_nfs::v4::types::FileHandle;
use weir_nfs::v4::{Attrs, Error, Op, OpRes};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "a retransmitted OPEN returns the first result",
        "RFC 7530 9.1.7",
        "the same owner and seqid: the same stateid; one CLOSE ends it",
        open_again
    ),
    rule!(
        "a retransmitted OPEN that failed fails in the same way",
        "RFC 7530 9.1.7",
        "NOENT, and again NOENT although the file exists by then; the next seqid opens it",
        failed_open_again
    ),
    rule!(
        "a seqid out of order is refused",
        "RFC 7530 9.1.7",
        "OPEN with a seqid one before the last, and two after it: BAD_SEQID",
        misordered
    ),
    rule!(
        "a different operation with the last seqid is not a retransmission",
        "RFC 7530 9.1.7",
        "CLOSE with the OPEN's seqid: BAD_SEQID; the file stays open",
        only_resembles
    ),
    rule!(
        "a retransmitted OPEN_CONFIRM returns the first result",
        "RFC 7530 16.18.5",
        "where the server asks for it; where it does not, OPEN_CONFIRM is refused with BAD_STATEID",
        confirm_again
    ),
    rule!(
        "a retransmitted OPEN_DOWNGRADE returns the first result",
        "RFC 7530 9.1.7",
        "the same seqid: the same stateid",
        downgrade_again
    ),
    rule!(
        "a retransmitted LOCK returns the first result",
        "RFC 7530 9.1.7",
        "of a new lock owner, with the same seqids: the same stateid",
        lock_again
    ),
    rule!(
        "a retransmitted LOCKU returns the first result",
        "RFC 7530 9.1.7",
        "the same seqid: the same stateid",
        unlock_again
    ),
    rule!(
        "a retransmitted CLOSE returns the first result",
        "RFC 7530 9.1.7",
        "the same seqid, the open being gone",
        close_again
    ),
    rule!(
        "CLOSE of a closed file with the next seqid is refused",
        "RFC 7530 16.2.5",
        "BAD_STATEID",
        closed_twice
    ),
    rule!(
        "an error that consumes no seqid leaves it unchanged",
        "RFC 7530 9.1.7",
        "CLOSE of an unknown stateid (BAD_STATEID), then CLOSE of the open with the same seqid",
        not_counted
    ),
    rule!(
        "a retransmitted CREATE is executed once",
        "RFC 7530 3.1.1",
        "CREATE again with the same xid: OK",
        mkdir_again
    ),
    rule!(
        "a retransmitted LINK is executed once",
        "RFC 7530 3.1.1",
        "LINK again with the same xid: OK",
        link_again
    ),
    rule!(
        "a retransmitted RENAME is executed once",
        "RFC 7530 3.1.1",
        "RENAME again with the same xid: OK",
        rename_again
    ),
    rule!(
        "a retransmitted REMOVE is executed once",
        "RFC 7530 3.1.1",
        "REMOVE again with the same xid: OK",
        remove_again
    ),
    rule!(
        "the same request with another xid is executed",
        "RFC 7530 3.1.1",
        "CREATE of the same directory again: EXIST",
        new_transaction
    ),
    rule!(
        "another request with the same xid is executed",
        "RFC 7530 3.1.1",
        "CREATE of another directory: it exists",
        other_arguments
    ),
];

async fn open_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("again").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("opens again");
    confirmed(client, &mut owner, &name).await?;
    let args = client.open_args(&owner, &name, ShareAccess::READ, ShareDeny::empty());
    let first = client.send_open(&args).await?;
    owner.count(&first);
    let first = first.map_err(|error| format!("OPEN: {error}"))?.0;
    let verdict = match client.send_open(&args).await? {
        Ok((again, _)) if again.stateid == first.stateid => Verdict::Pass,
        Ok((again, _)) => Verdict::Fail(format!("{:?} became {:?}", first.stateid, again.stateid)),
        Err(error) => Verdict::Fail(error.to_string()),
    };
    let closed = granted(client.close(&mut owner, &first).await?);
    let read = client.read(&first.handle, first.stateid).await?;
    Ok(verdict.max(closed).max(refused(read, &[Error::BadStateId])))
}

/// Confirms an owner, so that its next OPEN need not be confirmed.
async fn confirmed(client: &Raw40, owner: &mut Owner40, name: &[u8]) -> Result<()> {
    let open = client.opened(owner, name, ShareAccess::READ).await?;
    Ok(client.close(owner, &open).await?.map_err(|error| format!("CLOSE: {error}"))?)
}

async fn failed_open_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, known) = examiner.create("again").await?;
    let name = examiner.new_name("late");
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("opens in vain");
    confirmed(client, &mut owner, &known).await?;
    let args = client.open_args(&owner, &name, ShareAccess::READ, ShareDeny::empty());
    let first = client.send_open(&args).await?;
    owner.count(&first);
    let mut verdict = refused(first.map(drop), &[Error::NoEnt]);
    examiner.create_as(&name).await?;
    let client = examiner.v40().await?;
    verdict = verdict.max(refused(client.send_open(&args).await?.map(drop), &[Error::NoEnt]));
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn misordered(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("misordered").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("out of order");
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    let mut verdict = Verdict::Pass;
    // The last seqid used is `owner.seqid - 1`.
    for seqid in [owner.seqid - 2, owner.seqid + 1] {
        let args = client.open_args(&owner, &name, ShareAccess::READ, ShareDeny::empty());
        let sent = client.send_open(&open::Args { seqid, ..args }).await?;
        verdict = verdict.max(refused(sent.map(drop), &[Error::BadSeqId]));
    }
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn only_resembles(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("resembles").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("resembles");
    confirmed(client, &mut owner, &name).await?;
    let open = client.opened(&mut owner, &name, ShareAccess::READ).await?;
    let args = close::Args { seqid: owner.seqid - 1, open_stateid: open.stateid };
    let status = client.on(&open.handle, Op::Close(args)).await?.status;
    let verdict = refused(status, &[Error::BadSeqId]);
    let read = granted(client.read(&open.handle, open.stateid).await?);
    Ok(verdict.max(read).max(granted(client.close(&mut owner, &open).await?)))
}

async fn confirm_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("confirmed").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("confirms");
    let args = client.open_args(&owner, &name, ShareAccess::READ, ShareDeny::empty());
    let sent = client.send_open(&args).await?;
    owner.count(&sent);
    let (mut open, confirms) = sent.map_err(|error| format!("OPEN: {error}"))?;
    let args = open_confirm::Args { open_stateid: open.stateid, seqid: owner.seqid };
    let first = client.on(&open.handle, Op::OpenConfirm(args)).await?;
    owner.count(&first.status);
    let verdict = if confirms {
        let again = client.on(&open.handle, Op::OpenConfirm(args)).await?;
        if let Some(OpRes::OpenConfirm(Ok(stateid))) = first.results.last() {
            open.stateid = *stateid;
        }
        same(&first, &again)
    } else {
        refused(first.status, &[Error::BadStateId])
    };
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

/// Checks that both replies succeeded with the same results.
fn same(first: &Reply, again: &Reply) -> Verdict {
    match (first.status, again.status) {
        (Ok(()), Ok(())) if first.results == again.results => Verdict::Pass,
        (Ok(()), Ok(())) => {
            Verdict::Fail(format!("{:?} became {:?}", first.results, again.results))
        }
        (Ok(()), Err(error)) => Verdict::Fail(error.to_string()),
        (Err(error), _) => Verdict::Fail(format!("the first request: {error}")),
    }
}

/// Sends the same operation on a file twice.
async fn twice(client: &Raw40, file: &FileHandle, op: Op) -> Result<(Reply, Reply)> {
    let first = client.on(file, op.clone()).await?;
    let again = client.on(file, op).await?;
    Ok((first, again))
}

/// Opens a file for reading and writing, for a confirmed owner.
async fn opened(client: &Raw40, owner: &mut Owner40, name: &[u8]) -> Result<RawOpen> {
    client.opened(owner, name, ShareAccess::BOTH).await
}

async fn downgrade_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("downgraded").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("downgrades");
    client.opened(&mut owner, &name, ShareAccess::READ).await?;
    let mut open = opened(client, &mut owner, &name).await?;
    let args = open_downgrade::Args {
        open_stateid: open.stateid,
        seqid: owner.seqid,
        share_access: ShareAccess::READ,
        share_deny: ShareDeny::empty(),
    };
    let (first, again) = twice(client, &open.handle, Op::OpenDowngrade(args)).await?;
    owner.count(&first.status);
    if let Some(OpRes::OpenDowngrade(Ok(stateid))) = first.results.last() {
        open.stateid = *stateid;
    }
    let verdict = same(&first, &again);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn lock_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("locked").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("locks");
    let open = opened(client, &mut owner, &name).await?;
    let lock = client.lock_args(&owner, &open, &Owner40::new("locks, too"));
    let (first, again) = twice(client, &open.handle, Op::Lock(lock)).await?;
    owner.count(&first.status);
    let verdict = same(&first, &again);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn unlock_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("locked").await?;
    let client = examiner.v40().await?;
    let (mut owner, mut locker) = (Owner40::new("unlocks"), Owner40::new("unlocks, too"));
    let open = opened(client, &mut owner, &name).await?;
    let locked = client.lock(&mut owner, &open, &mut locker).await?;
    let stateid = locked.map_err(|error| format!("LOCK: {error}"))?;
    let unlock = Op::Locku(Raw40::unlock_args(&locker, stateid));
    let (first, again) = twice(client, &open.handle, unlock).await?;
    let verdict = same(&first, &again);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

async fn close_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("closed").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("closes");
    let open = opened(client, &mut owner, &name).await?;
    let args = close::Args { seqid: owner.seqid, open_stateid: open.stateid };
    let (first, again) = twice(client, &open.handle, Op::Close(args)).await?;
    Ok(same(&first, &again))
}

async fn closed_twice(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("closed").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("closes twice");
    let open = opened(client, &mut owner, &name).await?;
    let closed = granted(client.close(&mut owner, &open).await?);
    Ok(closed.max(refused(client.close(&mut owner, &open).await?, &[Error::BadStateId])))
}

async fn not_counted(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("closed").await?;
    let client = examiner.v40().await?;
    let mut owner = Owner40::new("closes the wrong one");
    let open = opened(client, &mut owner, &name).await?;
    let mut unknown = open.clone();
    unknown.stateid.other[11] ^= 0x55;
    let before = owner.seqid;
    let status = client.close(&mut owner, &unknown).await?;
    owner.seqid = before;
    let verdict = refused(status, &[Error::BadStateId, Error::StaleStateId]);
    Ok(verdict.max(granted(client.close(&mut owner, &open).await?)))
}

/// An xid that another call of the connection has only by chance.
fn transaction() -> u32 {
    getrandom::u32().unwrap_or(0x5eed)
}

/// Sends a compound twice with one xid. It must succeed both times with the same results.
async fn retransmitted(client: &Raw40, ops: &[Op]) -> Result<Verdict> {
    let xid = transaction();
    let first = client.connection.call_as(xid, ops).await?;
    let again = client.connection.call_as(xid, ops).await?;
    Ok(same(&first, &again))
}

/// Creates a directory in the directory of the examination.
fn mkdir(client: &Raw40, name: &[u8]) -> [Op; 2] {
    let attrs = Attrs { mode: Some(0o700), ..Attrs::default() };
    let args = create::Args { kind: Kind::Directory, name: name.into(), attrs: attrs.into() };
    [Op::Putfh(client.dir.clone()), Op::Create(args)]
}

async fn mkdir_again(examiner: &mut Examiner) -> Result<Verdict> {
    let name = examiner.new_dir_name("once");
    let client = examiner.v40().await?;
    retransmitted(client, &mkdir(client, &name)).await
}

async fn link_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("linked").await?;
    let to = examiner.new_name("link");
    let client = examiner.v40().await?;
    let ops = [
        Op::Putfh(client.dir.clone()),
        Op::Lookup(name[..].into()),
        Op::Savefh(()),
        Op::Putfh(client.dir.clone()),
        Op::Link(to[..].into()),
    ];
    retransmitted(client, &ops).await
}

async fn rename_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("renamed").await?;
    let to = examiner.new_name("renamed");
    let client = examiner.v40().await?;
    let args = rename::Args { from: name[..].into(), to: to[..].into() };
    let dir = || Op::Putfh(client.dir.clone());
    retransmitted(client, &[dir(), Op::Savefh(()), dir(), Op::Rename(args)]).await
}

async fn remove_again(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("removed").await?;
    let client = examiner.v40().await?;
    let remove = Op::Remove(name[..].into());
    retransmitted(client, &[Op::Putfh(client.dir.clone()), remove]).await
}

async fn new_transaction(examiner: &mut Examiner) -> Result<Verdict> {
    let name = examiner.new_dir_name("once");
    let client = examiner.v40().await?;
    let xid = transaction();
    let ops = mkdir(client, &name);
    let first = granted(client.connection.call_as(xid, &ops).await?.status);
    let second = client.connection.call_as(xid.wrapping_add(1), &ops).await?.status;
    Ok(first.max(refused(second, &[Error::Exist])))
}

async fn other_arguments(examiner: &mut Examiner) -> Result<Verdict> {
    let (one, another) = (examiner.new_dir_name("once"), examiner.new_dir_name("once"));
    let client = examiner.v40().await?;
    let xid = transaction();
    let first = client.connection.call_as(xid, &mkdir(client, &one)).await?.status;
    let second = client.connection.call_as(xid, &mkdir(client, &another)).await?.status;
    let ops = [Op::Putfh(client.dir.clone()), Op::Lookup(another[..].into())];
    let there = client.connection.call(&ops).await?.status;
    Ok(granted(first).max(granted(second)).max(granted(there)))
}
