//! Operations that many compounds contain, and how their results are extracted.

use crate::protocol::Handle;
use crate::v4::attr::WANTED;
use weir_nfs::v4::{Bitmap, Op};

pub(in crate::v4) fn putfh(handle: &Handle) -> Op {
    Op::Putfh(weir_xdr::Opaque(handle.0.clone()))
}

/// The expected arm of an operation's result; evaluates to its content.
macro_rules! take {
    ($v4:expr, $results:expr, $variant:ident) => {
        $results
            .into_iter()
            .find_map(|result| match result {
                OpRes::$variant(Ok(value)) => Some(value),
                _ => None,
            })
            .ok_or_else(|| $v4.unexpected(stringify!($variant)))
    };
}
pub(in crate::v4) use take;

pub(in crate::v4) fn lookup(name: &[u8]) -> Op {
    Op::Lookup(name.into())
}

pub(in crate::v4) fn getattr(request: Bitmap) -> Op {
    Op::Getattr(request)
}

/// `ops`, and the operations that identify the file at their end.
pub(in crate::v4) fn node_ops(mut ops: Vec<Op>) -> Vec<Op> {
    ops.push(Op::Getfh(()));
    ops.push(getattr(WANTED));
    ops
}
