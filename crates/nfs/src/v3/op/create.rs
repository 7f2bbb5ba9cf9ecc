//! CREATE (RFC 1813 section 3.3.8).

use crate::v3::error::Failure;
use crate::v3::types::{Created, DirOp, SetAttr, Verifier, WccData};
use weir_xdr::{xdr_struct, xdr_union};

xdr_union! {
    /// How to treat an existing name (`createhow3`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum How {
        /// Use the file, and set the attributes.
        Unchecked(SetAttr) = 0,
        /// Fail.
        Guarded(SetAttr) = 1,
        /// Fail, unless a call with this verifier created it.
        Exclusive(Verifier) = 2,
    }
}

xdr_struct! {
    /// What to make.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The directory and the name in it.
        pub target: DirOp,
        /// How.
        pub how: How,
    }
}

/// The file; a failure carries the directory around it.
pub type Res = Result<Created, Failure<WccData>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{
        DIR_OP, SET_ATTR, WCC, created, created_wire, dir_op, set_attr, wcc,
    };
    for (how, wire) in [
        (How::Unchecked(set_attr()), format!("00000000 {SET_ATTR}")),
        (How::Guarded(set_attr()), format!("00000001 {SET_ATTR}")),
        (How::Exclusive(*b"verifier"), "00000002 76657269 66696572".into()),
    ] {
        weir_xdr::sample::check(&Args { target: dir_op(), how }, &format!("{DIR_OP} {wire}"));
    }
    vec![
        result::<Res>(&Ok(created()), &created_wire(), 0),
        result::<Res>(
            &Err(Failure { status: Error::Exist, rest: wcc() }),
            &format!("00000011 {WCC}"),
            0,
        ),
    ]
}
