//! LINK (RFC 1813 section 3.3.15).

use crate::v3::error::Failure;
use crate::v3::types::{DirOp, FileHandle, PostOpAttr, WccData};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to link, and where.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub file: FileHandle,
        /// The directory and the new name in it.
        pub link: DirOp,
    }

    /// The file, and the directory around the change.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Linked {
        /// Attributes of the file.
        pub file: PostOpAttr,
        /// The directory of the new name.
        pub dir: WccData,
    }
}

/// The file, and the directory around the change.
pub type Res = Result<Linked, Failure<Linked>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, DIR_OP, HANDLE, WCC, attr, dir_op, handle, wcc};
    weir_xdr::sample::check(
        &Args { file: handle(), link: dir_op() },
        &format!("{HANDLE} {DIR_OP}"),
    );
    let linked = || Linked { file: Some(attr()), dir: wcc() };
    vec![
        result::<Res>(&Ok(linked()), &format!("00000000 00000001 {ATTR} {WCC}"), 0),
        result::<Res>(
            &Err(Failure { status: Error::MLink, rest: linked() }),
            &format!("0000001f 00000001 {ATTR} {WCC}"),
            0,
        ),
    ]
}
