//! MKDIR (RFC 1813 section 3.3.9).

use crate::v3::error::Failure;
use crate::v3::types::{Created, DirOp, SetAttr, WccData};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to make.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The directory and the name in it.
        pub target: DirOp,
        /// Attributes of the new directory.
        pub set: SetAttr,
    }
}

/// The new directory; a failure carries the one it was to be in.
pub type Res = Result<Created, Failure<WccData>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{
        DIR_OP, SET_ATTR, WCC, created, created_wire, dir_op, set_attr, wcc,
    };
    weir_xdr::sample::check(
        &Args { target: dir_op(), set: set_attr() },
        &format!("{DIR_OP} {SET_ATTR}"),
    );
    vec![
        result::<Res>(&Ok(created()), &created_wire(), 0),
        result::<Res>(
            &Err(Failure { status: Error::RoFs, rest: wcc() }),
            &format!("0000001e {WCC}"),
            0,
        ),
    ]
}
