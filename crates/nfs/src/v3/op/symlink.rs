//! SYMLINK (RFC 1813 section 3.3.10).

use crate::v3::error::Failure;
use crate::v3::types::{Created, DirOp, Path, SetAttr, WccData};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to make.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The directory and the name in it.
        pub target: DirOp,
        /// Attributes of the new link.
        pub set: SetAttr,
        /// Where it points.
        pub path: Path,
    }
}

/// The new link; a failure carries the directory around it.
pub type Res = Result<Created, Failure<WccData>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{
        DIR_OP, SET_ATTR, WCC, created, created_wire, dir_op, set_attr, wcc,
    };
    weir_xdr::sample::check(
        &Args { target: dir_op(), set: set_attr(), path: "../x".into() },
        &format!("{DIR_OP} {SET_ATTR} 00000004 2e2e2f78"),
    );
    vec![
        result::<Res>(&Ok(created()), &created_wire(), 0),
        result::<Res>(
            &Err(Failure { status: Error::NameTooLong, rest: wcc() }),
            &format!("0000003f {WCC}"),
            0,
        ),
    ]
}
