//! READLINK (RFC 1813 section 3.3.5).

use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, Path, PostOpAttr};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Which link.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The symbolic link.
        pub link: FileHandle,
    }

    /// Where it points.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Link {
        /// Attributes of the link.
        pub attr: PostOpAttr,
        /// Its target.
        pub target: Path,
    }
}

/// The target; a failure carries the link's attributes.
pub type Res = Result<Link, Failure<PostOpAttr>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(&Args { link: handle() }, HANDLE);
    vec![
        result::<Res>(
            &Ok(Link { attr: Some(attr()), target: "../x".into() }),
            &format!("00000000 00000001 {ATTR} 00000004 2e2e2f78"),
            4,
        ),
        result::<Res>(&Err(Failure { status: Error::Inval, rest: None }), "00000016 00000000", 0),
    ]
}
