//! Requests that clients send again after a restart of the server
//! ([`retry_journal`](crate::storage::retry_journal)).
//!
//! A compound of minor version 0 is executed again, without the changes of names that an earlier run
//! made. So is a compound in a session of an earlier run, if that run made one of its changes and the
//! rest depends on no state. Any other compound in such a session fails with
//! [`Error::BadSession`]: the client creates a session and sends the request in it.
//!
//! A client may look at a file in the same compound before it removes it: LOOKUP, VERIFY, REMOVE.
//! When the name is gone, these succeed again because they did so before the change.

use crate::handle::Node;
use crate::state::SessionId;
use crate::storage::retry_journal::{Begun, ChangeKey, MadeBefore, NameChange, RequestKey};
use crate::v4::compound::MAX_OPERATIONS;
use crate::v4::context::{Context, Target};
use weir_nfs::v4::op::sequence::{Args, Sequenced, StatusFlags};
use weir_nfs::v4::{Error, Op, OpCode, OpRes, types};
use weir_xdr::Decoder;

/// The key of a request in a session.
fn in_session(session: SessionId, slot: u32, sequence: u32, digest: u64) -> RequestKey {
    let numbers = [slot, sequence].map(u32::to_be_bytes);
    RequestKey::of(&[b"slot", &session.0, numbers.as_flattened(), &digest.to_be_bytes()])
}

/// Whether the result of an operation may have to be [corrected](correct).
pub(super) fn may_depend_on_an_earlier_run(cx: &Context, op: &Op) -> bool {
    match op {
        Op::Sequence(_) => true,
        Op::Lookup(_) | Op::Verify(_) | Op::Nverify(_) => cx.resumed.is_some(),
        _ => false,
    }
}

/// Corrects the result of an operation that failed because an earlier run executed the compound.
/// `rest` holds the operations after it.
pub(super) fn correct(cx: &mut Context, op: &Op, result: OpRes, rest: &Decoder) -> OpRes {
    match (op, result) {
        (Op::Sequence(args), OpRes::Sequence(Err(Error::BadSession))) => {
            OpRes::Sequence(resume(cx, args, rest).ok_or(Error::BadSession))
        }
        (Op::Lookup(name), OpRes::Lookup(Err(Error::NoEnt))) => {
            let removed = made_later(cx, rest, |op, made| match op {
                Op::Remove(removed) if removed == *name => made.file,
                _ => None,
            });
            if let Some(file) = removed {
                cx.set_current(file);
            }
            OpRes::Lookup(removed.map(|_| ()).ok_or(Error::NoEnt))
        }
        (Op::Verify(_), OpRes::Verify(Err(_))) if changed_later(cx, rest) => OpRes::Verify(Ok(())),
        (Op::Nverify(_), OpRes::Nverify(Err(_))) if changed_later(cx, rest) => {
            OpRes::Nverify(Ok(()))
        }
        (_, result) => result,
    }
}

/// Whether an earlier run made a change after this operation in the same compound, so that this
/// operation succeeded.
fn changed_later(cx: &Context, rest: &Decoder) -> bool {
    made_later(cx, rest, |_, _| Some(())).is_some()
}

/// Searches the changes that an earlier run made after this operation in the same compound.
fn made_later<T>(
    cx: &Context,
    rest: &Decoder,
    found: impl Fn(Op, MadeBefore) -> Option<T>,
) -> Option<T> {
    let request = cx.resumed.filter(|_| !cx.services.retries.is_empty())?;
    let operations = u32::try_from(cx.operations).unwrap_or(u32::MAX).min(MAX_OPERATIONS);
    let mut rest = rest.clone();
    for position in cx.position + 1..operations {
        let op = Op::decode_next(&mut rest).ok()?;
        let made = cx.services.retries.made_before(request.at(position));
        if let Some(found) = made.and_then(|made| found(op, made)) {
            return Some(found);
        }
    }
    None
}

/// The result of a SEQUENCE in an unknown session, if an earlier run made a change of the compound.
/// `rest` holds the operations after SEQUENCE.
fn resume(cx: &mut Context, args: &Args, rest: &Decoder) -> Option<Sequenced> {
    let request = in_session(SessionId(args.session), args.slot, args.sequence_id, cx.digest);
    let operations = u32::try_from(cx.operations).ok().filter(|&n| n <= MAX_OPERATIONS)?;
    let retries = &cx.services.retries;
    let made_before = |position| retries.made_before(request.at(position)).is_some();
    if retries.is_empty() || !(1..operations).any(made_before) {
        return None;
    }
    let mut rest = rest.clone();
    if !(1..operations)
        .all(|_| Op::decode_next(&mut rest).is_ok_and(|op| needs_no_state(op.code())))
    {
        return None;
    }
    cx.resumed = Some(request);
    Some(Sequenced {
        session: args.session,
        sequence_id: args.sequence_id,
        slot: args.slot,
        highest_slot: args.highest_slot,
        target_highest_slot: args.highest_slot,
        status_flags: StatusFlags::empty(),
    })
}

/// Whether an operation needs neither a session nor a stateid.
fn needs_no_state(code: OpCode) -> bool {
    matches!(
        code,
        OpCode::Access
            | OpCode::Create
            | OpCode::Getattr
            | OpCode::Getfh
            | OpCode::Link
            | OpCode::Lookup
            | OpCode::Nverify
            | OpCode::Putfh
            | OpCode::Putrootfh
            | OpCode::Remove
            | OpCode::Rename
            | OpCode::Restorefh
            | OpCode::Savefh
            | OpCode::Verify
    )
}

impl Context {
    /// The key of the operation being executed.
    fn change_key(&self) -> Option<ChangeKey> {
        let request = match (self.resumed, self.session) {
            (Some(request), _) => request,
            (None, Some(session)) => {
                in_session(session.id, session.slot, session.sequence, self.digest)
            }
            (None, None) => return None,
        };
        Some(request.at(self.position))
    }

    /// The change of names that this operation is, if an earlier run made it.
    pub(crate) fn made_before(&self) -> Option<MadeBefore> {
        self.services.retries.made_before(self.change_key()?)
    }

    /// Records the change of names that this operation is about to make in the export of `target`.
    pub(crate) async fn begin_change(
        &self,
        target: &Target<'_>,
        change: NameChange<'_>,
    ) -> Begun<'_> {
        let resumed = self.minor > 0 && self.resumed.is_some();
        match self.change_key() {
            Some(key) => self.services.retries.begin(key, target.fs(), change, resumed).await,
            None => Begun::NONE,
        }
    }

    /// The result for a directory that an earlier run changed. Also has the change made durable.
    pub(crate) async fn changed_before(&self, dir: Node) -> Result<types::ChangeInfo, Error> {
        let change = self.target(dir)?.attr().await?.change;
        self.changed(&[dir]);
        Ok(types::ChangeInfo { atomic: false, before: change, after: change })
    }
}
