//! LOOKUP (RFC 1813 section 3.3.3).

use crate::v3::error::Failure;
use crate::v3::types::{DirOp, FileHandle, PostOpAttr};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Where to look.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The directory and the name in it.
        pub what: DirOp,
    }

    /// What was found.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Found {
        /// Its handle.
        pub object: FileHandle,
        /// Its attributes.
        pub attr: PostOpAttr,
        /// Attributes of the directory.
        pub dir: PostOpAttr,
    }
}

/// The file; a failure carries the directory's attributes.
pub type Res = Result<Found, Failure<PostOpAttr>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, DIR_OP, HANDLE, attr, dir_op, handle};
    weir_xdr::sample::check(&Args { what: dir_op() }, DIR_OP);
    let found = Found { object: handle(), attr: Some(attr()), dir: None };
    vec![
        result::<Res>(&Ok(found), &format!("00000000 {HANDLE} 00000001 {ATTR} 00000000"), 0),
        result::<Res>(
            &Err(Failure { status: Error::NoEnt, rest: Some(attr()) }),
            &format!("00000002 00000001 {ATTR}"),
            0,
        ),
    ]
}
