//! The rest of a compound that a server delayed (DELAY) half-way.
//!
//! 1. Executed operations are not repeated: a CREATE whose GETATTR was delayed would find its own
//!    file in the way. The rest continues from the current filehandle of the operations before it.
//! 2. A compound that has had no lasting effect yet is resent as a whole.

use crate::v4::session::answer::Answer;
use weir_nfs::v4::op::open::Claim;
use weir_nfs::v4::types::StateId;
use weir_nfs::v4::{Op, OpRes};
use weir_xdr::Opaque;

/// The outcome of a compound's earlier attempts.
#[derive(Default)]
pub(in crate::v4) struct Before {
    results: Vec<OpRes>,
    /// Results of the last attempt that only restore the position for the rest.
    way: usize,
    /// The server may have executed it.
    pub(in crate::v4) resent: bool,
}

impl Before {
    /// Takes the results of `ops` before the delayed operation; returns the operations to send
    /// next, unless they are the same.
    pub(in crate::v4) fn take(&mut self, ops: &[Op], answer: Answer) -> Option<Vec<Op>> {
        let done = answer.results.len().checked_sub(1)?;
        if done <= self.way || done >= ops.len() {
            return None;
        }
        let counts =
            |(op, result): (&Op, &OpRes)| !op.code().is_idempotent() && result.status().is_ok();
        if !ops.iter().zip(&answer.results[..done]).skip(self.way).any(counts) {
            return None;
        }
        let (mut rest, way) = rest(&ops[..done], &answer.results[..done]);
        let stateid = opened(&answer.results[..done]);
        rest.extend(ops[done..].iter().map(|op| with_stateid(op.clone(), stateid)));
        self.results.extend(answer.results.into_iter().take(done).skip(self.way));
        self.way = way;
        Some(rest)
    }

    /// The answer to the whole compound; `last` answers the rest.
    pub(in crate::v4) fn join(self, mut last: Answer) -> Answer {
        last.resent |= self.resent;
        if !self.results.is_empty() {
            let rest = last.results.into_iter().skip(self.way);
            last.results = self.results.into_iter().chain(rest).collect();
        }
        last
    }
}

/// Operations that restore the position at the end of `done`, and their number.
fn rest(done: &[Op], results: &[OpRes]) -> (Vec<Op>, usize) {
    let (mut way, mut saved): (Vec<Op>, Option<Vec<Op>>) = (Vec::new(), None);
    for (op, result) in done.iter().zip(results) {
        match (op, result) {
            (Op::Putfh(_) | Op::Putrootfh(()), _) => way = vec![op.clone()],
            (Op::Lookup(_) | Op::Lookupp(()), _) => way.push(op.clone()),
            (Op::Create(args), _) => way.push(Op::Lookup(args.name.clone())),
            (Op::Open(args), _) => {
                if let Claim::Null(name) = &args.claim {
                    way.push(Op::Lookup(name.clone()));
                }
            }
            (_, OpRes::Getfh(Ok(handle))) => way = vec![Op::Putfh(Opaque(handle.0.clone()))],
            (Op::Savefh(()), _) => saved = Some(way.clone()),
            (Op::Restorefh(()), _) => way = saved.clone().unwrap_or_default(),
            _ => {}
        }
    }
    let mut all = Vec::new();
    if let Some(saved) = saved {
        all.extend(saved);
        all.push(Op::Savefh(()));
    }
    all.extend(way);
    let count = all.len();
    (all, count)
}

/// The stateid of an OPEN among the results; it is not the current one in another compound.
fn opened(results: &[OpRes]) -> Option<StateId> {
    results.iter().find_map(|result| match result {
        OpRes::Open(Ok(opened)) => Some(opened.stateid),
        _ => None,
    })
}

fn with_stateid(op: Op, stateid: Option<StateId>) -> Op {
    let Some(stateid) = stateid else { return op };
    let named = |old: StateId| if old == StateId::CURRENT { stateid } else { old };
    match op {
        Op::Close(mut args) => {
            args.open_stateid = named(args.open_stateid);
            Op::Close(args)
        }
        Op::Write(mut args) => {
            args.stateid = named(args.stateid);
            Op::Write(args)
        }
        Op::Setattr(mut args) => {
            args.stateid = named(args.stateid);
            Op::Setattr(args)
        }
        op => op,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_nfs::v4::op::create::{self, Kind};
    use weir_nfs::v4::types::ChangeInfo;
    use weir_nfs::v4::{Bitmap, Error as Nfs4Error};

    fn putfh(handle: &'static [u8]) -> Op {
        Op::Putfh(Opaque(weir_xdr::Bytes::from_static(handle)))
    }

    fn delayed(mut results: Vec<OpRes>, last: OpRes) -> Answer {
        results.push(last);
        Answer { status: Err(Nfs4Error::Delay), results, read: None, resent: false }
    }

    #[test]
    fn only_the_rest_of_a_delayed_compound_is_sent_again() {
        let args = create::Args {
            kind: Kind::Directory,
            name: b"new".as_slice().into(),
            attrs: weir_nfs::v4::Attrs::default().into(),
        };
        let getattr = Op::Getattr(Bitmap::of(&[1]));
        let ops = [putfh(b"dir"), Op::Create(args), Op::Getfh(()), getattr.clone()];
        let change = ChangeInfo { atomic: true, before: 1, after: 2 };
        let made = || OpRes::Create(Ok(create::Created { change, set: Bitmap::of(&[]) }));

        // The CREATE itself was delayed: nothing was executed.
        let mut before = Before::default();
        let none = delayed(vec![OpRes::Putfh(Ok(()))], OpRes::Create(Err(Nfs4Error::Delay)));
        assert!(before.take(&ops, none).is_none());

        // GETFH was: the new file is found by its name.
        let results = vec![OpRes::Putfh(Ok(())), made()];
        let rest = before.take(&ops, delayed(results, OpRes::Getfh(Err(Nfs4Error::Delay))));
        let find = Op::Lookup(b"new".as_slice().into());
        let want = vec![putfh(b"dir"), find, Op::Getfh(()), getattr.clone()];
        assert_eq!(rest.as_deref(), Some(&want[..]));

        // Now GETATTR is delayed: everything with an effect is done, and the rest is the same.
        let handle = || OpRes::Getfh(Ok(Opaque(weir_xdr::Bytes::from_static(b"file"))));
        let results = vec![OpRes::Putfh(Ok(())), OpRes::Lookup(Ok(())), handle()];
        let put_off = delayed(results, OpRes::Getattr(Err(Nfs4Error::Delay)));
        assert!(before.take(&want, put_off).is_none());

        let results = vec![
            OpRes::Putfh(Ok(())),
            OpRes::Lookup(Ok(())),
            handle(),
            OpRes::Getattr(Ok(Default::default())),
        ];
        let last = Answer { status: Ok(()), results, read: None, resent: false };
        let all = before.join(last);
        assert!(matches!(
            &all.results[..],
            [OpRes::Putfh(_), OpRes::Create(_), OpRes::Getfh(_), OpRes::Getattr(_)]
        ));
    }
}
