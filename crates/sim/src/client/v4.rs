//! Compounds of NFSv4: a session (minor version 0: owners with numbers), opens and locks, and their recovery.

mod minor0;
mod owners;
mod recovery;
mod slot;

use super::delegations::{self, Delegations};
use super::{Answer, Client, Failure, Handle, Outcome, RANGE, Version, Written};
use crate::host;
use crate::oracle::Holder;
use crate::world::LEASE;
use owners::Owners;
pub(super) use owners::is_state_lost;
use parking_lot::Mutex;
use slot::Slot;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::sleep;
use weir_nfs::v4::attr::Attrs;
use weir_nfs::v4::op::sequence::StatusFlags;
use weir_nfs::v4::op::{
    close, commit, create, lock, locku, open, read, read_plus, rename, sequence, setattr, write,
};
use weir_nfs::v4::types::{FileHandle, LockType, SessionId, StableHow, StateId, StateOwner};
use weir_nfs::v4::{CompoundHeader, CompoundResHeader, Detailed, Error, Op, OpRes};
use weir_xdr::{Bytes, Decoder, Opaque};

/// Slots of the session; slot 0 is for all that is done one after the other.
const SLOTS: usize = 7;
/// The slot of the calls that recover state: others may wait in theirs meanwhile. Another one is for delegations.
const RECOVERY: u32 = delegations::SLOT + 1;
/// The server cannot call back.
const PATH_DOWN: StatusFlags = StatusFlags::CB_PATH_DOWN.union(StatusFlags::CB_PATH_DOWN_SESSION);
/// The server has revoked some state.
const REVOKED: StatusFlags = StatusFlags::EXPIRED_ALL_STATE_REVOKED
    .union(StatusFlags::EXPIRED_SOME_STATE_REVOKED)
    .union(StatusFlags::RECALLABLE_STATE_REVOKED);
const COMPOUND: (u32, u32, u32) =
    (weir_nfs::v4::PROGRAM, weir_nfs::v4::VERSION, weir_nfs::v4::PROC_COMPOUND);

/// The state of a client at the server.
pub(super) struct State {
    boot: u32,
    session: Mutex<Session>,
    /// Held while the session is made anew.
    recovering: tokio::sync::Mutex<()>,
    /// Set while opens and the lock are reclaimed.
    reclaiming: AtomicBool,
    /// Of minor version 0; locked while one of them has a request.
    owners: tokio::sync::Mutex<Owners>,
    /// Each locked while it has a call.
    slots: [tokio::sync::Mutex<Slot>; SLOTS],
    opens: Mutex<BTreeMap<Handle, Open>>,
    lock: Mutex<Option<Held>>,
    pub(super) delegations: Delegations,
}

/// An open file.
#[derive(Clone, Copy, PartialEq)]
struct Open {
    stateid: StateId,
    access: open::ShareAccess,
}

#[derive(Default)]
struct Session {
    id: SessionId,
    /// The client ID, in minor version 0.
    client: u64,
    /// The server's run that has given it.
    run: u64,
    /// Until when the lease is good.
    until: Duration,
}

/// A lock, on one range of one file.
#[derive(Clone)]
struct Held {
    file: Handle,
    range: u64,
    stateid: StateId,
    /// The run of the server that has given it.
    run: u64,
    /// The client gives it up: it is not reclaimed, because another client may have it by now.
    releasing: bool,
}

impl State {
    pub(super) fn new(boot: u32) -> Self {
        Self {
            boot,
            session: Mutex::default(),
            recovering: tokio::sync::Mutex::default(),
            reclaiming: AtomicBool::default(),
            owners: tokio::sync::Mutex::default(),
            slots: Default::default(),
            opens: Mutex::default(),
            lock: Mutex::default(),
            delegations: Delegations::default(),
        }
    }

    /// Until when the lease is good for certain.
    pub(super) fn until(&self) -> Duration {
        self.session.lock().until
    }
}

pub(super) fn fh(handle: &Handle) -> FileHandle {
    Opaque(handle.clone().into())
}

fn failure(error: Error) -> Failure {
    match error {
        Error::NoEnt => Failure::NoEnt,
        Error::Exist => Failure::Exist,
        Error::NotEmpty => Failure::NotEmpty,
        Error::Io => Failure::Io,
        Error::NoSpc => Failure::NoSpace,
        Error::Denied => Failure::Denied,
        other => Failure::Other(format!("{other:?}")),
    }
}

fn is_session_lost(error: Error) -> bool {
    matches!(error, Error::BadSession | Error::DeadSession | Error::StaleClientId)
}

/// A compound that ended: its results but SEQUENCE's.
pub(super) struct Done {
    results: Vec<OpRes>,
    pub(super) status: Result<(), Error>,
    /// When it was sent first, and whether another run of the server may have executed it.
    again: bool,
}

impl Done {
    pub(super) fn last<T>(self, take: impl FnOnce(OpRes) -> Option<T>) -> Outcome<T> {
        let result = match self.status {
            Err(error) => Err(failure(error)),
            Ok(()) => self
                .results
                .into_iter()
                .next_back()
                .and_then(take)
                .ok_or_else(|| Failure::Other("a compound ends with another operation".into())),
        };
        Outcome { result, again: self.again }
    }
}

/// The results of a compound, its status, and the server's runs when it was sent first and when it was answered.
fn compound_results(answer: Answer) -> (Vec<OpRes>, Result<(), Error>, (u64, u64)) {
    let mut d = Decoder::new(answer.results);
    let mut results = Vec::new();
    let mut status = Err(Error::BadXdr);
    if let Ok(header) = d.get::<CompoundResHeader>() {
        status = header.status;
        for _ in 0..header.results {
            match OpRes::decode_next(&mut d) {
                Ok(result) => results.push(result),
                Err(_) => status = Err(Error::BadXdr),
            }
        }
    }
    (results, status, answer.runs)
}

impl Client {
    fn minor(&self) -> u32 {
        match self.version {
            Version::V42 => 2,
            Version::V41 => 1,
            _ => 0,
        }
    }

    /// A compound as it is, sent until it is answered. The server's runs when it was sent first and
    /// when it was answered.
    pub(super) async fn compound(
        &self,
        ops: &[Op],
    ) -> (Vec<OpRes>, Result<(), Error>, Duration, (u64, u64)) {
        let answer = self.rpc(COMPOUND, &self.compound_args(ops), None).await;
        let sent = answer.sent;
        let (results, status, runs) = compound_results(answer);
        (results, status, sent, runs)
    }

    /// As [`compound`](Self::compound), with the time when it was sent first. What is numbered may be sent again as
    /// another call, usually with the same arguments: `again`.
    async fn compound40(
        &self,
        ops: &[Op],
        again: Option<&[Op]>,
    ) -> (Vec<OpRes>, Result<(), Error>, Duration, (u64, u64)) {
        let again = again.map(|again| self.compound_args(again));
        let answer = self.rpc(COMPOUND, &self.compound_args(ops), again.as_ref()).await;
        let begun = answer.begun;
        let (results, status, runs) = compound_results(answer);
        (results, status, begun, runs)
    }

    fn compound_args(&self, ops: &[Op]) -> Bytes {
        let header = CompoundHeader {
            tag: "".into(),
            minor_version: self.minor(),
            operations: ops.len() as u32,
        };
        let mut e = weir_xdr::Encoder::new();
        e.put(&header);
        ops.iter().for_each(|op| e.put(op));
        e.finish().to_bytes()
    }

    /// A compound in the session, made again until the server has done it or refused it.
    pub(super) async fn run4(&self, slot: u32, ops: Vec<Op>) -> Done {
        if self.version == Version::V40 {
            return self.run40(&ops).await;
        }
        let mut in_slot = self.v4.slots[slot as usize].lock().await;
        let mut first = None;
        loop {
            let id = self.v4.session.lock().id;
            let sequence = Op::Sequence(sequence::Args {
                session: id,
                sequence_id: in_slot.begin(id),
                slot,
                highest_slot: delegations::TESTS,
                cache_this: true,
            });
            let all: Vec<Op> = std::iter::once(sequence).chain(ops.iter().cloned()).collect();
            let (mut results, status, sent, runs) = self.compound(&all).await;
            let first = *first.get_or_insert(runs.0);
            let again = first != runs.1;
            if let Some(OpRes::Sequence(Ok(sequenced))) = results.first()
                && sequenced.status_flags.intersects(PATH_DOWN)
            {
                self.bind_backchannel(id).await;
            }
            // Before the lease counts as renewed: it does not renew what is revoked.
            if let Some(OpRes::Sequence(Ok(sequenced))) = results.first()
                && sequenced.status_flags.intersects(REVOKED)
                && slot != delegations::TESTS
            {
                self.world.event(&format!("client {}: {:?}", self.number, sequenced.status_flags));
                Box::pin(self.forget_revoked_delegations()).await;
            }
            match status {
                Err(error) if is_session_lost(error) => {
                    self.recover(id).await;
                    continue;
                }
                Err(Error::Delay) if results.len() <= 1 => {
                    // The call before it, of which this is a repetition, still runs.
                    in_slot.take_back();
                    sleep(Duration::from_millis(300)).await;
                    continue;
                }
                Err(Error::Delay | Error::Grace) => {
                    sleep(Duration::from_millis(300)).await;
                    continue;
                }
                Err(error)
                    if results.len() <= 1
                        && matches!(results.first(), Some(r) if r.status().is_err()) =>
                {
                    self.world.violation(format!("SEQUENCE fails: {error:?}"));
                }
                _ => {}
            }
            if !results.is_empty() {
                results.remove(0);
                let until = sent + LEASE;
                self.v4.session.lock().until = until;
                self.renewed(until);
            }
            return Done { results, status, again };
        }
    }

    pub(super) async fn mount4(&self) -> Handle {
        match self.version {
            Version::V40 => self.recover40(0).await,
            _ => self.recover(SessionId::default()).await,
        }
        let done = self.run4(0, vec![Op::Putrootfh(()), Op::Getfh(())]).await;
        match done.last(handle_of).result {
            Ok(root) => root,
            Err(error) => self.world.violation(format!("there is no root: {error:?}")),
        }
    }

    fn open_op(&self, access: open::ShareAccess, how: open::How, claim: open::Claim) -> Op {
        let is_new = !matches!(claim, open::Claim::Previous(_));
        let want = match self.world.below(4) {
            _ if self.version == Version::V40 => open::ShareAccess::empty(),
            0 => open::ShareAccess::WANT_NO_DELEG,
            1 => open::ShareAccess::empty(),
            _ => open::ShareAccess::WANT_ANY_DELEG,
        };
        Op::Open(open::Args {
            seqid: 0,
            share_access: if is_new { access | want } else { access },
            share_deny: open::ShareDeny::empty(),
            owner: StateOwner { client_id: 0, owner: "process".into() },
            how,
            claim,
        })
    }

    pub(super) async fn lookup4(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        let name = Opaque(name.as_bytes().to_vec().into());
        let ops = vec![Op::Putfh(fh(dir)), Op::Lookup(name), Op::Getfh(())];
        self.run4(0, ops).await.last(handle_of)
    }

    pub(super) async fn create4(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        let attrs = Attrs { mode: Some(0o644), ..Attrs::default() };
        let how = open::How::Create(open::CreateHow::Guarded(attrs.into()));
        let claim = open::Claim::Null(Opaque(name.as_bytes().to_vec().into()));
        let ops = vec![
            Op::Putfh(fh(dir)),
            self.open_op(open::ShareAccess::BOTH, how, claim),
            Op::Getfh(()),
        ];
        let done = self.run4(0, ops).await;
        let opened = match done.results.get(1) {
            Some(OpRes::Open(Ok(opened))) => Some(opened.clone()),
            _ => None,
        };
        let outcome = done.last(handle_of);
        if let (Some(opened), Ok(file)) = (opened, &outcome.result) {
            let stateid = self.confirm40(file, &opened).await;
            let open = Open { stateid, access: open::ShareAccess::BOTH };
            self.v4.opens.lock().insert(file.clone(), open);
            self.delegated(file, &opened.delegation);
        }
        outcome
    }

    /// Closes a file if it is open.
    pub(crate) async fn close(&self, file: &Handle) {
        self.return_delegation(file).await;
        let Some(open) = self.v4.opens.lock().remove(file) else { return };
        let open_stateid = open.stateid;
        let close = Op::Close(close::Args { seqid: 0, open_stateid });
        let done = self.run4(0, vec![Op::Putfh(fh(file)), close]).await;
        match done.status {
            Ok(()) => {}
            Err(error) if is_state_lost(error) => {}
            // A disk that fails may have lost what was written.
            Err(Error::Io | Error::NoSpc) if self.world.disk.failures() != (false, false) => {}
            // Another run has lost the file, or its removal was executed.
            Err(Error::Stale) if done.again => {}
            Err(error) => self.world.violation(format!("CLOSE fails: {error:?}")),
        }
    }

    pub(super) async fn mkdir4(&self, dir: &Handle, name: &str) -> Outcome<Handle> {
        let attrs = Attrs { mode: Some(0o755), ..Attrs::default() };
        let name = Opaque(name.as_bytes().to_vec().into());
        let make = create::Args { kind: create::Kind::Directory, name, attrs: attrs.into() };
        let ops = vec![Op::Putfh(fh(dir)), Op::Create(make), Op::Getfh(())];
        self.run4(0, ops).await.last(handle_of)
    }

    pub(super) async fn remove4(&self, dir: &Handle, name: &str) -> Outcome<()> {
        let name = Opaque(name.as_bytes().to_vec().into());
        self.run4(0, vec![Op::Putfh(fh(dir)), Op::Remove(name)]).await.last(|_| Some(()))
    }

    pub(super) async fn rename4(&self, dir: &Handle, from: &str, to: &str) -> Outcome<()> {
        let name = |name: &str| Opaque(name.as_bytes().to_vec().into());
        let moves = rename::Args { from: name(from), to: name(to) };
        let dir = Op::Putfh(fh(dir));
        let ops = vec![dir.clone(), Op::Savefh(()), dir, Op::Rename(moves)];
        self.run4(0, ops).await.last(|_| Some(()))
    }

    /// The stateid of a file's open, which is opened if it is not, or not for this access.
    async fn opened(&self, file: &Handle, access: open::ShareAccess) -> Outcome<StateId> {
        let known = self.v4.opens.lock().get(file).copied();
        if let Some(open) = known.filter(|open| open.access.contains(access)) {
            return Outcome { result: Ok(open.stateid), again: false };
        }
        let outcome = match self.version {
            Version::V40 => self.open40(file, access).await,
            _ => {
                let op = self.open_op(access, open::How::NoCreate, open::Claim::Fh);
                let ops = vec![Op::Putfh(fh(file)), op];
                self.run4(0, ops).await.last(|result| match result {
                    OpRes::Open(Ok(opened)) => Some(opened),
                    _ => None,
                })
            }
        };
        if let Ok(opened) = &outcome.result {
            let access = known.map_or(access, |open| open.access | access);
            self.v4.opens.lock().insert(file.clone(), Open { stateid: opened.stateid, access });
            self.delegated(file, &opened.delegation);
        }
        outcome.map(|opened| opened.stateid)
    }

    /// An operation under a file's open, which is opened anew if the server has dropped it.
    async fn under_open(
        &self,
        slot: u32,
        (file, access): (&Handle, open::ShareAccess),
        op: impl Fn(StateId) -> Op,
    ) -> Done {
        let mut again = false;
        loop {
            let opened = self.opened(file, access).await;
            let stateid = match opened.result {
                Ok(stateid) => stateid,
                Err(Failure::Io) => {
                    return Done { results: Vec::new(), status: Err(Error::Io), again };
                }
                Err(error) => {
                    self.world.violation(format!("a file cannot be opened: {error:?}"));
                }
            };
            let mut done = self.run4(slot, vec![Op::Putfh(fh(file)), op(stateid)]).await;
            again |= done.again;
            match done.status {
                Err(error) if is_state_lost(error) => {
                    let mut opens = self.v4.opens.lock();
                    if opens.get(file).is_some_and(|open| open.stateid == stateid) {
                        opens.remove(file);
                        drop(opens);
                        self.forget_delegation(file);
                    }
                }
                _ => {
                    done.again = again;
                    return done;
                }
            }
        }
    }

    pub(super) async fn write4(
        &self,
        slot: u32,
        file: &Handle,
        offset: u64,
        data: Vec<u8>,
        stable: bool,
    ) -> Outcome<Written> {
        let (len, data) = (data.len() as u32, Bytes::from(data));
        let stable = if stable { StableHow::FileSync } else { StableHow::Unstable };
        let op =
            |stateid| Op::Write(write::Args { stateid, offset, stable, data: data.clone().into() });
        self.under_open(slot, (file, open::ShareAccess::BOTH), op).await.last(|result| match result
        {
            OpRes::Write(Ok(written)) if written.count == len => Some(Written {
                durable: written.committed == StableHow::FileSync,
                verifier: written.verifier,
            }),
            _ => None,
        })
    }

    pub(super) async fn commit4(&self, file: &Handle, offset: u64, count: u32) -> Outcome<[u8; 8]> {
        let commit = Op::Commit(commit::Args { offset, count });
        let done = self.run4(0, vec![Op::Putfh(fh(file)), commit]).await;
        done.last(|result| match result {
            OpRes::Commit(Ok(verifier)) => Some(verifier),
            _ => None,
        })
    }

    pub(super) async fn read4(&self, file: &Handle, offset: u64, count: u32) -> Outcome<Vec<u8>> {
        let mut bytes: Vec<u8> = Vec::new();
        loop {
            let (offset, count) = (offset + bytes.len() as u64, count - bytes.len() as u32);
            let done = self.under_open(0, (file, open::ShareAccess::READ), |stateid| {
                let args = read::Args { stateid, offset, count };
                if self.version == Version::V42 { Op::ReadPlus(args) } else { Op::Read(args) }
            });
            let outcome = done.await.last(|result| match result {
                OpRes::Read(Ok(read)) => Some((read.data.to_bytes().to_vec(), read.eof)),
                OpRes::ReadPlus(Ok(read)) => Some((flat(&read, count), read.eof)),
                _ => None,
            });
            match outcome.result {
                Ok((read, eof)) => {
                    let done = eof || read.is_empty() || read.len() == count as usize;
                    bytes.extend(read);
                    if done {
                        return Outcome { result: Ok(bytes), again: outcome.again };
                    }
                }
                Err(error) => return Outcome { result: Err(error), again: outcome.again },
            }
        }
    }

    pub(super) async fn truncate4(&self, file: &Handle, size: u64) -> Outcome<()> {
        let op = |stateid| {
            let attrs = Attrs { size: Some(size), ..Attrs::default() };
            Op::Setattr(setattr::Args { stateid, attrs: attrs.into() })
        };
        self.under_open(0, (file, open::ShareAccess::BOTH), op).await.last(|_| Some(()))
    }

    fn lock_op(&self, open_stateid: StateId, range: u64, reclaim: bool) -> Op {
        let lock_owner = StateOwner { client_id: 0, owner: "thread".into() };
        let new = lock::NewLocker { open_seqid: 0, open_stateid, lock_seqid: 0, lock_owner };
        Op::Lock(lock::Args {
            kind: LockType::Write,
            reclaim,
            offset: range * RANGE,
            length: RANGE,
            locker: lock::Locker::New(new),
        })
    }

    /// Whether the client holds a lock.
    pub(super) fn holds_lock4(&self) -> bool {
        self.v4.lock.lock().is_some()
    }

    /// Takes a lock on a range of a file, if no other client has it.
    pub(super) async fn take_lock4(&self, file: &Handle, range: u64) -> Outcome<()> {
        let done = self.under_open(0, (file, open::ShareAccess::BOTH), |open| {
            self.lock_op(open, range, false)
        });
        let done = done.await;
        let denied = matches!(done.results.last(), Some(OpRes::Lock(Err(Detailed::Detail(_)))));
        let outcome = done.last(|result| match result {
            OpRes::Lock(Ok(stateid)) => Some(stateid),
            _ => None,
        });
        if denied {
            return Outcome { result: Err(Failure::Denied), again: outcome.again };
        }
        if let Ok(stateid) = outcome.result {
            let run = self.v4.session.lock().run;
            let held = Held { file: file.clone(), range, stateid, run, releasing: false };
            *self.v4.lock.lock() = Some(held);
            let holder = Holder { client: self.number, until: self.v4.session.lock().until };
            let got = self.world.locks.lock().got(range, holder, host::now());
            if let Err(why) = got {
                self.world.violation(why);
            }
        }
        outcome.map(drop)
    }

    /// The lease is good until then. During a reclaim, that is not true of what is not reclaimed yet.
    fn renewed(&self, until: Duration) {
        if !self.v4.reclaiming.load(Relaxed) {
            self.world.renewed(self.number, until);
        }
    }

    /// Gives the lock up.
    pub(super) async fn give_lock_up4(&self) -> Outcome<()> {
        let (mut again, mut until) = (false, Duration::ZERO);
        loop {
            if let Some(held) = &mut *self.v4.lock.lock() {
                held.releasing = true;
            }
            let Some(held) = self.v4.lock.lock().clone() else {
                return Outcome { result: Err(Failure::LockLost), again };
            };
            // What the server does with it is not known until the reply: others may get it meanwhile.
            let given_up = self.world.locks.lock().given_up(held.range, self.number);
            until = given_up.map_or(until, |holder| holder.until);
            let unlock = locku::Args {
                kind: LockType::Write,
                seqid: 0,
                lock_stateid: held.stateid,
                offset: held.range * RANGE,
                length: RANGE,
            };
            let done = self.run4(0, vec![Op::Putfh(fh(&held.file)), Op::Locku(unlock)]).await;
            again |= done.again || held.run != self.v4.session.lock().run;
            let Err(error) = done.status else {
                *self.v4.lock.lock() = None;
                return Outcome { result: Ok(()), again };
            };
            // Reclaimed meanwhile, under another stateid.
            let is_other = |now: &Held| now.stateid != held.stateid;
            if self.v4.lock.lock().as_ref().is_some_and(is_other) {
                continue;
            }
            if host::now() < until && !again && is_state_lost(error) {
                self.world
                    .violation(format!("a lock is lost within its lease: {error:?} to LOCKU"));
            }
            self.lost(&format!("{error:?} to LOCKU"), false);
            return Outcome { result: Err(Failure::LockLost), again };
        }
    }
}

fn handle_of(result: OpRes) -> Option<Handle> {
    match result {
        OpRes::Getfh(Ok(handle)) => Some(handle.0.to_vec()),
        _ => None,
    }
}

/// The bytes of a reply to READ_PLUS, at most `count`.
fn flat(read: &read_plus::ReadPlus, count: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for segment in read.segments.0.iter() {
        match segment {
            read_plus::Segment::Data(data) => bytes.extend_from_slice(&data.data.to_bytes()),
            read_plus::Segment::Hole(hole) => {
                let room = (count as usize).saturating_sub(bytes.len()) as u64;
                bytes.resize(bytes.len() + hole.length.min(room) as usize, 0);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
