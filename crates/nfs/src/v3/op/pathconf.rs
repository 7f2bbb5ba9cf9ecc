//! PATHCONF (RFC 1813 section 3.3.20).

use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, PostOpAttr};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Which file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub object: FileHandle,
    }

    /// Limits of a file system.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Limits {
        /// Attributes of the file.
        pub attr: PostOpAttr,
        /// Most hard links to a file.
        pub link_max: u32,
        /// Longest name, in bytes.
        pub name_max: u32,
        /// A longer name is rejected, not truncated.
        pub no_trunc: bool,
        /// Only the superuser may change a file's owner.
        pub chown_restricted: bool,
        /// Names that differ only in case are the same.
        pub case_insensitive: bool,
        /// Names keep their case.
        pub case_preserving: bool,
    }
}

/// The limits; a failure carries the file's attributes.
pub type Res = Result<Limits, Failure<PostOpAttr>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(&Args { object: handle() }, HANDLE);
    let limits = Limits {
        attr: Some(attr()),
        link_max: 1000,
        name_max: 255,
        no_trunc: true,
        chown_restricted: true,
        case_insensitive: false,
        case_preserving: true,
    };
    vec![
        result::<Res>(
            &Ok(limits),
            &format!(
                "00000000 00000001 {ATTR} 000003e8 000000ff 00000001 00000001 00000000 00000001"
            ),
            0,
        ),
        result::<Res>(&Err(Failure { status: Error::Stale, rest: None }), "00000046 00000000", 0),
    ]
}
