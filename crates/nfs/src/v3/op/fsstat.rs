//! FSSTAT (RFC 1813 section 3.3.18).

use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, PostOpAttr};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Which file system.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// A file in it.
        pub root: FileHandle,
    }

    /// Space and file counts.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Space {
        /// Attributes of the file.
        pub attr: PostOpAttr,
        /// Bytes in all.
        pub total_bytes: u64,
        /// Bytes free.
        pub free_bytes: u64,
        /// Bytes free to the caller.
        pub available_bytes: u64,
        /// Files in all.
        pub total_files: u64,
        /// Files that can still be made.
        pub free_files: u64,
        /// Files that the caller can still make.
        pub available_files: u64,
        /// How long these counts will probably stay the same, in seconds.
        pub invariant_seconds: u32,
    }
}

/// The counts; a failure carries the file's attributes.
pub type Res = Result<Space, Failure<PostOpAttr>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(&Args { root: handle() }, HANDLE);
    let space = Space {
        attr: Some(attr()),
        total_bytes: 1,
        free_bytes: 2,
        available_bytes: 3,
        total_files: 4,
        free_files: 5,
        available_files: 6,
        invariant_seconds: 7,
    };
    vec![
        result::<Res>(
            &Ok(space),
            &format!(
                "00000000 00000001 {ATTR} 00000000 00000001 00000000 00000002 00000000 00000003
                 00000000 00000004 00000000 00000005 00000000 00000006 00000007"
            ),
            0,
        ),
        result::<Res>(&Err(Failure { status: Error::Stale, rest: None }), "00000046 00000000", 0),
    ]
}
