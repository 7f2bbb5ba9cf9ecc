//! GETATTR (RFC 1813 section 3.3.1).

use crate::v3::error::Failure;
use crate::v3::types::{Attr, FileHandle};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// Which file.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub object: FileHandle,
    }
}

/// Its attributes.
pub type Res = Result<Attr, Failure<()>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(&Args { object: handle() }, HANDLE);
    vec![
        result::<Res>(&Ok(attr()), &format!("00000000 {ATTR}"), 0),
        result::<Res>(&Err(Failure { status: Error::Stale, rest: () }), "00000046", 0),
    ]
}
