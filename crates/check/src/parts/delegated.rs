//! What clients with a write delegation may do and answer for (RFC 8881 sections 10.4.3 and 18.16, RFC
//! 9754).

use crate::examiner::Examiner;
use crate::raw_open::{
    PAUSE, RawClient, ShareAccess, ShareDeny, TRIES, granted, open_args, refused,
};
use crate::rule::{Rule, rule};
use crate::verdict::{Result, Verdict};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_nfs::v4::attr::{
    CHANGE, OPEN_ARGUMENTS, OpenArguments, SIZE, TIME_DELEG_ACCESS, TIME_DELEG_MODIFY,
    TIME_METADATA, TIME_MODIFY,
};
use weir_nfs::v4::op::open::{Claim, Delegation, Opened, ResultFlags, WhyNone};
use weir_nfs::v4::op::{create_session, lock, setattr, write};
use weir_nfs::v4::types::{
    FileHandle, LockType, NfsTime, SetTime, StableHow, StateId, StateOwner, Status,
};
use weir_nfs::v4::{Attrs, Bitmap, CbOp, Error, Op, OpRes};

pub(crate) const RULES: &[Rule] = &[
    rule!(
        "open_arguments reports what OPEN supports",
        "RFC 9754 3",
        "access to read and write, claims by name and by handle; without the attribute, a note",
        arguments
    ),
    rule!(
        "a client that wants no delegation gets none",
        "RFC 8881 18.16.3",
        "opened five times with WANT_NO_DELEG, then WANT_CANCEL; NONE_EXT gives the reason, NONE \
         is a note",
        not_wanted
    ),
    rule!(
        "OPEN with an undefined want is refused",
        "RFC 8881 18.16.3",
        "a want of 0x0600: INVAL; granted or another error, a note",
        undefined_want
    ),
    rule!(
        "other clients see a delegate's size and change attribute",
        "RFC 8881 10.4.3",
        "CB_GETATTR is answered with another change attribute and 4321 bytes; recalled instead, \
         or without write delegations, a note",
        told
    ),
    rule!(
        "each GETATTR of data that a delegate has changed has a higher change attribute",
        "RFC 8881 10.4.3",
        "the same, GETATTR twice",
        higher
    ),
    rule!(
        "other clients see no change of a file that its delegate has not changed",
        "RFC 8881 10.4.3",
        "CB_GETATTR is answered with the earlier change attribute and size: GETATTR returns them",
        unchanged
    ),
    rule!(
        "a delegation can replace an open",
        "RFC 9754 4",
        "WANT_OPEN_XOR_DELEGATION: either an open's stateid, or NO_OPEN_STATEID, zeros and a \
         delegation; not offered, a note",
        alone
    ),
    rule!(
        "a delegation alone serves READ, WRITE and SETATTR of the size",
        "RFC 9754 4",
        "each under its stateid",
        serves
    ),
    rule!(
        "a delegation alone serves LOCK",
        "RFC 9754 4",
        "a new lock owner's LOCK under its stateid",
        serves_lock
    ),
    rule!(
        "an open that is claimed under a delegation alone outlives it",
        "RFC 9754 4",
        "CLAIM_DELEG_CUR_FH has a stateid; after DELEGRETURN, WRITE under it is granted",
        claimed
    ),
    rule!(
        "nothing is open after the return of a delegation alone",
        "RFC 9754 4",
        "another client may open and deny all access",
        returned
    ),
    rule!(
        "delegated times cannot be read",
        "RFC 9754 5",
        "GETATTR of time_deleg_modify: INVAL; without times, a note",
        not_read
    ),
    rule!(
        "only a delegate can set delegated times",
        "RFC 9754 5",
        "SETATTR of time_deleg_modify without a stateid: BAD_STATEID; without times, a note",
        delegates_alone
    ),
    rule!(
        "a delegate's later time is set, and one before the original is ignored",
        "RFC 9754 5",
        "a file of 1000 s ago: time_deleg_modify of 2000 s ago, then of 500 s ago; without \
         times, a note",
        later
    ),
    rule!(
        "a delegate's time in the future is clipped to the present, or delayed",
        "RFC 9754 5",
        "time_deleg_modify of an hour ahead: at most now, or DELAY; without times, a note",
        future
    ),
    rule!(
        "a delegate's access time does not change time_metadata",
        "RFC 9754 5",
        "time_deleg_access of a second ago, alone; without times, a note",
        access_alone
    ),
    rule!(
        "other clients see a delegate's times",
        "RFC 9754 5",
        "CB_GETATTR asks for both, and GETATTR has the time of change; without times, a note",
        times_told
    ),
];

/// How often a delegation is asked for, and the pause: until then the server has tried the backchannel.
const ASKED: usize = 40;
const ASKED_PAUSE: Duration = Duration::from_millis(250);

const WANTS_WRITE: ShareAccess = ShareAccess::BOTH.union(ShareAccess::WANT_WRITE_DELEG);
const EITHER: ShareAccess = WANTS_WRITE.union(ShareAccess::WANT_OPEN_XOR_DELEGATION);
const TIMES: ShareAccess = WANTS_WRITE.union(ShareAccess::WANT_DELEG_TIMESTAMPS);
/// Numbers of the two in `open_arguments`.
const EITHER_OFFERED: u32 = 21;
const TIMES_OFFERED: u32 = 20;

/// A client with a backchannel, and a write delegation that it holds.
struct Holder {
    client: RawClient,
    file: FileHandle,
    opened: Opened,
    stateid: StateId,
}

impl Holder {
    async fn on(&self, op: Op) -> Result<(Status, Option<OpRes>)> {
        on(&self.client, &self.file, op).await
    }

    async fn give_back(&self) -> Result<Status> {
        Ok(self.on(Op::Delegreturn(self.stateid)).await?.0)
    }

    async fn getattr(&self) -> Result<Attrs> {
        match self.on(Op::Getattr(ATTRIBUTES)).await? {
            (_, Some(OpRes::Getattr(Ok(attrs)))) => Ok(attrs),
            (status, _) => Err(format!("GETATTR: {status:?}").into()),
        }
    }

    async fn set(&self, stateid: StateId, attrs: Attrs) -> Result<Status> {
        let attrs = attrs.into();
        Ok(self.on(Op::Setattr(setattr::Args { stateid, attrs })).await?.0)
    }

    async fn write(&self, stateid: StateId) -> Result<Status> {
        let data = weir_nfs::Data::Bytes("data".into());
        let write = write::Args { stateid, offset: 0, stable: StableHow::FileSync, data };
        Ok(self.on(Op::Write(write)).await?.0)
    }

    /// Another client's GETATTR; `None`: the delegation had to be given back first.
    async fn look(&self, other: &RawClient) -> Result<Option<Attrs>> {
        for _ in 0..TRIES {
            let ops = [Op::Putfh(self.file.clone()), Op::Getattr(ATTRIBUTES)];
            let mut reply = other.session.call(&ops).await?;
            match (reply.status, reply.results.pop()) {
                (Ok(()), Some(OpRes::Getattr(Ok(attrs)))) => return Ok(Some(attrs)),
                (Err(Error::Delay), _) => {}
                (status, _) => return Err(format!("GETATTR: {status:?}").into()),
            }
            let called = self.client.session.callbacks().called();
            if called.iter().any(|op| matches!(op, CbOp::Recall(_))) {
                self.give_back().await?.map_err(|error| format!("DELEGRETURN: {error}"))?;
                return Ok(None);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err("GETATTR: still delayed".into())
    }
}

const ATTRIBUTES: Bitmap = Bitmap::of(&[CHANGE, SIZE, TIME_METADATA, TIME_MODIFY]);

async fn on(client: &RawClient, file: &FileHandle, op: Op) -> Result<(Status, Option<OpRes>)> {
    let mut reply = client.call(&[Op::Putfh(file.clone()), op]).await?;
    Ok((reply.status, reply.results.pop()))
}

fn note<T>(why: &str) -> Result<std::result::Result<T, Verdict>> {
    Ok(Err(Verdict::Note(why.into())))
}

/// What the server says that it supports, if it does.
async fn offered(examiner: &mut Examiner) -> Result<Option<OpenArguments>> {
    let client = examiner.raw().await?;
    let asked = Op::Getattr(Bitmap::of(&[OPEN_ARGUMENTS]));
    match on(client, &client.dir.clone(), asked).await? {
        (_, Some(OpRes::Getattr(Ok(attrs)))) => Ok(attrs.open_arguments),
        (status, _) => Err(format!("GETATTR: {status:?}").into()),
    }
}

async fn offers(examiner: &mut Examiner, want: u32) -> Result<bool> {
    Ok(offered(examiner).await?.is_some_and(|offered| offered.share_access_want.contains(want)))
}

/// Opens a new file until that comes with a write delegation, or the verdict without one.
async fn delegated(
    examiner: &mut Examiner,
    access: ShareAccess,
    age: Option<NfsTime>,
) -> Result<std::result::Result<Holder, Verdict>> {
    if examiner.delegates_nothing {
        return note("the server grants no write delegation");
    }
    let (_, name) = examiner.create("delegate").await?;
    let change = |args: &mut create_session::Args| {
        args.flags |= create_session::Flags::CONN_BACK_CHAN;
    };
    let client = examiner.another_raw(change).await?;
    if let Some(time) = age {
        let open = client.opened("ager", &name, ShareAccess::BOTH).await?;
        let attrs =
            Attrs { time_modify_set: Some(SetTime::ToClientTime(time)), ..Attrs::default() };
        let args = setattr::Args { stateid: open.stateid, attrs: attrs.into() };
        let (set, _) = on(&client, &open.handle, Op::Setattr(args)).await?;
        set.map_err(|error| format!("SETATTR: {error}"))?;
        let closed = client.close(&open.handle, open.stateid).await?;
        closed.map_err(|error| format!("CLOSE: {error}"))?;
    }
    for _ in 0..ASKED {
        let args = open_args("holder", &name, access, ShareDeny::empty());
        let (open, opened) =
            client.send_open(args).await?.map_err(|error| format!("OPEN: {error}"))?;
        if let Delegation::Write(write) | Delegation::WriteAttrs(write) = &opened.delegation {
            let stateid = write.stateid;
            return Ok(Ok(Holder { client, file: open.handle, opened, stateid }));
        }
        let closed = client.close(&open.handle, open.stateid).await?;
        closed.map_err(|error| format!("CLOSE: {error}"))?;
        tokio::time::sleep(ASKED_PAUSE).await;
    }
    client.end().await;
    examiner.delegates_nothing = true;
    note("the server grants no write delegation")
}

/// [`delegated`] in the place of an open.
async fn delegated_alone(examiner: &mut Examiner) -> Result<std::result::Result<Holder, Verdict>> {
    match offers(examiner, EITHER_OFFERED).await? {
        true => delegated(examiner, EITHER, None).await,
        false => note("the server does not offer an open or a delegation"),
    }
}

/// [`delegated`] with times, of a file that was changed so many seconds ago.
async fn delegated_times(
    examiner: &mut Examiner,
    age: i64,
) -> Result<std::result::Result<Holder, Verdict>> {
    if !offers(examiner, TIMES_OFFERED).await? {
        return note("the server does not delegate times");
    }
    let held = delegated(examiner, TIMES, Some(from_now(-age))).await?;
    Ok(held.and_then(|held| match held.opened.delegation {
        Delegation::WriteAttrs(_) => Ok(held),
        _ => Err(Verdict::Fail("the write delegation comes without times".into())),
    }))
}

/// Ends the holder and another client, and gives the verdict.
async fn ended(holder: Holder, other: Option<RawClient>, verdict: Verdict) -> Result<Verdict> {
    // A delegation that was given back before is gone.
    let _ = holder.give_back().await?;
    holder.client.end().await;
    if let Some(other) = other {
        other.end().await;
    }
    Ok(verdict)
}

/// Seconds from now, on this machine.
fn from_now(seconds: i64) -> NfsTime {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    NfsTime { seconds: now + seconds, nseconds: 0 }
}

fn modified(time: NfsTime) -> Attrs {
    Attrs { time_deleg_modify: Some(time), ..Attrs::default() }
}

fn judge(passes: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if passes { Verdict::Pass } else { Verdict::Fail(otherwise()) }
}

async fn arguments(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(match offered(examiner).await? {
        None => Verdict::Note("there is no such attribute".into()),
        Some(offered) => {
            let access = [1, 2, 3].iter().all(|&bit| offered.share_access.contains(bit));
            let claims = [0, 4].iter().all(|&bit| offered.open_claim.contains(bit));
            judge(access && claims, || format!("{offered:?}"))
        }
    })
}

async fn not_wanted(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("unwanted").await?;
    let change = |args: &mut create_session::Args| {
        args.flags |= create_session::Flags::CONN_BACK_CHAN;
    };
    let client = examiner.another_raw(change).await?;
    let mut verdict = Verdict::Pass;
    let cases = [
        (ShareAccess::WANT_NO_DELEG, WhyNone::NotWanted),
        (ShareAccess::WANT_CANCEL, WhyNone::Cancelled),
    ];
    for (want, why) in cases {
        for _ in 0..5 {
            let args = open_args("holder", &name, ShareAccess::READ | want, ShareDeny::empty());
            let (open, opened) =
                client.send_open(args).await?.map_err(|error| format!("OPEN: {error}"))?;
            verdict = verdict.max(match opened.delegation {
                Delegation::NoneExt(told) if told == why => Verdict::Pass,
                Delegation::NoneExt(told) => Verdict::Note(format!("{told:?}, not {why:?}")),
                Delegation::None => Verdict::Note("NONE, not NONE_EXT".into()),
                given => Verdict::Fail(format!("{given:?}")),
            });
            let closed = client.close(&open.handle, open.stateid).await?;
            closed.map_err(|error| format!("CLOSE: {error}"))?;
        }
    }
    client.end().await;
    Ok(verdict)
}

async fn undefined_want(examiner: &mut Examiner) -> Result<Verdict> {
    let (_, name) = examiner.create("undefined").await?;
    let client = examiner.raw().await?;
    let access = ShareAccess::from_bits_retain(0x0601);
    Ok(match client.send_open(open_args("holder", &name, access, ShareDeny::empty())).await? {
        Ok((open, _)) => granted(client.close(&open.handle, open.stateid).await?)
            .max(Verdict::Note("it was granted".into())),
        Err(error) => refused(Err(error), &[Error::Inval]),
    })
}

/// Size that a delegate tells.
const TOLD_SIZE: u64 = 4321;

/// What others see before a file is delegated and what they see then, the delegate answering with `size`
/// if it has changed the file.
async fn looked_at(
    examiner: &mut Examiner,
    size: Option<u64>,
) -> Result<std::result::Result<(Attrs, [Attrs; 2]), Verdict>> {
    let other = examiner.another_raw(|_| {}).await?;
    let holder = match delegated(examiner, WANTS_WRITE, None).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(Err(verdict)),
    };
    let before = holder.getattr().await?;
    let changed = u64::from(size.is_some());
    holder.client.session.callbacks().tell(Some(Attrs {
        change: before.change.map(|change| change + changed),
        size: size.or(before.size),
        ..Attrs::default()
    }));
    let looks = match holder.look(&other).await? {
        Some(first) => holder.look(&other).await?.map(|second| [first, second]),
        None => None,
    };
    ended(holder, Some(other), Verdict::Pass).await?;
    match looks {
        Some(looks) => Ok(Ok((before, looks))),
        None => note("it recalls the delegation"),
    }
}

async fn told(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(match looked_at(examiner, Some(TOLD_SIZE)).await? {
        Ok((before, [first, _])) => {
            judge(first.size == Some(TOLD_SIZE) && first.change > before.change, || {
                format!("{first:?} after {before:?}")
            })
        }
        Err(verdict) => verdict,
    })
}

async fn higher(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(match looked_at(examiner, Some(TOLD_SIZE)).await? {
        Ok((_, [first, second])) => judge(second.change > first.change, || {
            format!("{:?}, then {:?}", first.change, second.change)
        }),
        Err(verdict) => verdict,
    })
}

async fn unchanged(examiner: &mut Examiner) -> Result<Verdict> {
    Ok(match looked_at(examiner, None).await? {
        Ok((before, looks)) => {
            judge(looks.iter().all(|look| *look == before), || format!("{looks:?}, not {before:?}"))
        }
        Err(verdict) => verdict,
    })
}

async fn alone(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_alone(examiner).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    let none = holder.opened.flags.contains(ResultFlags::NO_OPEN_STATEID);
    let zeros = holder.opened.stateid == StateId::ANONYMOUS;
    let verdict = judge(none && zeros, || {
        format!("flags {:?}, stateid {:?}", holder.opened.flags, holder.opened.stateid)
    });
    ended(holder, None, verdict).await
}

async fn serves(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_alone(examiner).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    let wrote = granted(holder.write(holder.stateid).await?);
    let read = granted(holder.client.read(&holder.file, holder.stateid).await?);
    let size = Attrs { size: Some(2), ..Attrs::default() };
    let cut = granted(holder.set(holder.stateid, size).await?);
    ended(holder, None, wrote.max(read).max(cut)).await
}

async fn serves_lock(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_alone(examiner).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    let lock = lock::Args {
        kind: LockType::Write,
        reclaim: false,
        offset: 0,
        length: 10,
        locker: lock::Locker::New(lock::NewLocker {
            open_seqid: 0,
            open_stateid: holder.stateid,
            lock_seqid: 0,
            lock_owner: StateOwner { client_id: 0, owner: "locker".into() },
        }),
    };
    let verdict = granted(holder.on(Op::Lock(lock)).await?.0);
    ended(holder, None, verdict).await
}

async fn claimed(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_alone(examiner).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    let mut args = open_args("holder", b"", ShareAccess::BOTH, ShareDeny::empty());
    args.claim = Claim::DelegCurFh(holder.stateid);
    let (_, Some(OpRes::Open(Ok(opened)))) = holder.on(Op::Open(args)).await? else {
        return ended(holder, None, Verdict::Fail("the claim is refused".into())).await;
    };
    let given_back = granted(holder.give_back().await?);
    let wrote = granted(holder.write(opened.stateid).await?);
    let closed = granted(holder.client.close(&holder.file, opened.stateid).await?);
    ended(holder, None, given_back.max(wrote).max(closed)).await
}

async fn returned(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_alone(examiner).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    let other = examiner.another_raw(|_| {}).await?;
    let given_back = granted(holder.give_back().await?);
    let mut args = open_args("other", b"", ShareAccess::BOTH, ShareDeny::BOTH);
    args.claim = Claim::Fh;
    let opened = match on(&other, &holder.file, Op::Open(args)).await? {
        (_, Some(OpRes::Open(Ok(opened)))) => {
            granted(other.close(&holder.file, opened.stateid).await?)
        }
        (status, _) => granted(status),
    };
    ended(holder, Some(other), given_back.max(opened)).await
}

async fn not_read(examiner: &mut Examiner) -> Result<Verdict> {
    if !offers(examiner, TIMES_OFFERED).await? {
        return Ok(Verdict::Note("the server does not delegate times".into()));
    }
    let client = examiner.raw().await?;
    let asked = Op::Getattr(Bitmap::of(&[TIME_DELEG_MODIFY]));
    Ok(refused(on(client, &client.dir.clone(), asked).await?.0, &[Error::Inval]))
}

async fn delegates_alone(examiner: &mut Examiner) -> Result<Verdict> {
    if !offers(examiner, TIMES_OFFERED).await? {
        return Ok(Verdict::Note("the server does not delegate times".into()));
    }
    let (_, name) = examiner.create("undelegated").await?;
    let client = examiner.raw().await?;
    let open = client.opened("holder", &name, ShareAccess::BOTH).await?;
    let mut verdict = Verdict::Pass;
    for stateid in [StateId::ANONYMOUS, open.stateid] {
        let args = setattr::Args { stateid, attrs: modified(from_now(0)).into() };
        let (status, _) = on(client, &open.handle, Op::Setattr(args)).await?;
        verdict = verdict.max(refused(status, &[Error::BadStateId]));
    }
    Ok(verdict.max(granted(client.close(&open.handle, open.stateid).await?)))
}

async fn later(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_times(examiner, 1000).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    let before = holder.getattr().await?.time_modify;
    let mut verdict = granted(holder.set(holder.stateid, modified(from_now(-2000))).await?);
    let ignored = holder.getattr().await?.time_modify;
    verdict = verdict.max(judge(ignored == before, || format!("{before:?} became {ignored:?}")));
    let time = from_now(-500);
    verdict = verdict.max(granted(holder.set(holder.stateid, modified(time)).await?));
    let set = holder.getattr().await?.time_modify;
    verdict = verdict.max(judge(set == Some(time), || format!("{set:?}, not {time:?}")));
    ended(holder, None, verdict).await
}

async fn future(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_times(examiner, 1000).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    // Sent once: a server that delays it goes on to for an hour.
    let args = setattr::Args { stateid: holder.stateid, attrs: modified(from_now(3600)).into() };
    let ops = [Op::Putfh(holder.file.clone()), Op::Setattr(args)];
    let verdict = match holder.client.session.call(&ops).await?.status {
        Err(Error::Delay) => Verdict::Pass,
        status => {
            let set = holder.getattr().await?.time_modify;
            // Clocks may differ by some minutes.
            let present = set.is_some_and(|set| set < from_now(1800));
            granted(status).max(judge(present, || format!("it is {set:?}")))
        }
    };
    ended(holder, None, verdict).await
}

async fn access_alone(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_times(examiner, 1000).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    let before = holder.getattr().await?.time_metadata;
    let attrs = Attrs { time_deleg_access: Some(from_now(-1)), ..Attrs::default() };
    let set = granted(holder.set(holder.stateid, attrs).await?);
    let after = holder.getattr().await?.time_metadata;
    let same = judge(before == after, || format!("{before:?} became {after:?}"));
    ended(holder, None, set.max(same)).await
}

async fn times_told(examiner: &mut Examiner) -> Result<Verdict> {
    let holder = match delegated_times(examiner, 1000).await? {
        Ok(holder) => holder,
        Err(verdict) => return Ok(verdict),
    };
    let other = examiner.another_raw(|_| {}).await?;
    let before = holder.getattr().await?;
    let time = from_now(-500);
    holder.client.session.callbacks().tell(Some(Attrs {
        change: before.change.map(|change| change + 1),
        size: before.size,
        time_deleg_access: Some(time),
        time_deleg_modify: Some(time),
        ..Attrs::default()
    }));
    holder.client.session.callbacks().called();
    let looked = holder.look(&other).await?;
    let both = Bitmap::of(&[TIME_DELEG_ACCESS, TIME_DELEG_MODIFY]);
    let called = holder.client.session.callbacks().called();
    let asks = called
        .iter()
        .any(|op| matches!(op, CbOp::Getattr(args) if both.difference(args.attrs).is_empty()));
    let verdict = match looked {
        None => Verdict::Note("it recalls the delegation".into()),
        Some(looked) => judge(asks, || "CB_GETATTR does not ask for both".into())
            .max(judge(looked.time_modify == Some(time), || format!("{looked:?}, not {time:?}"))),
    };
    ended(holder, Some(other), verdict).await
}
