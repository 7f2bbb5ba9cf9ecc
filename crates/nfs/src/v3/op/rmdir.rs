//! RMDIR (RFC 1813 section 3.3.13).

use crate::v3::error::Failure;
use crate::v3::types::{DirOp, WccData};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to remove.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The directory and the name in it.
        pub target: DirOp,
    }
}

/// The directory that held it, around the change.
pub type Res = Result<WccData, Failure<WccData>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{DIR_OP, WCC, dir_op, wcc};
    weir_xdr::sample::check(&Args { target: dir_op() }, DIR_OP);
    vec![
        result::<Res>(&Ok(wcc()), &format!("00000000 {WCC}"), 0),
        result::<Res>(
            &Err(Failure { status: Error::NotEmpty, rest: wcc() }),
            &format!("00000042 {WCC}"),
            0,
        ),
    ]
}
