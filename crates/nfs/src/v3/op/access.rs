//! ACCESS (RFC 1813 section 3.3.4).

use crate::macros::wire_flags;
use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, PostOpAttr};
use weir_xdr::xdr_struct;

wire_flags! {
    /// Rights to a file or directory.
    pub struct Rights {
        /// Read data, or names.
        const READ = 0x01;
        /// Look up a name in a directory.
        const LOOKUP = 0x02;
        /// Change existing data, or names.
        const MODIFY = 0x04;
        /// Add data, or names.
        const EXTEND = 0x08;
        /// Remove a name from a directory.
        const DELETE = 0x10;
        /// Run a file.
        const EXECUTE = 0x20;
    }
}

xdr_struct! {
    /// Which rights to look at.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub object: FileHandle,
        /// The rights in question.
        pub rights: Rights,
    }

    /// What the caller may do.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Granted {
        /// Attributes of the file.
        pub attr: PostOpAttr,
        /// Those of the rights that the caller has.
        pub rights: Rights,
    }
}

/// The rights; a failure carries the file's attributes.
pub type Res = Result<Granted, Failure<PostOpAttr>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(
        &Args { object: handle(), rights: Rights::all() },
        &format!("{HANDLE} 0000003f"),
    );
    vec![
        result::<Res>(
            &Ok(Granted { attr: Some(attr()), rights: Rights::READ | Rights::EXECUTE }),
            &format!("00000000 00000001 {ATTR} 00000021"),
            0,
        ),
        result::<Res>(&Err(Failure { status: Error::Stale, rest: None }), "00000046 00000000", 0),
    ]
}
