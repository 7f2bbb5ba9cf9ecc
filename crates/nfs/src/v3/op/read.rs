//! READ (RFC 1813 section 3.3.6).

use crate::Data;
use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, PostOpAttr};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to read.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub file: FileHandle,
        /// Offset of the first byte.
        pub offset: u64,
        /// Most bytes to return.
        pub count: u32,
    }

    /// What was read.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Read {
        /// Attributes of the file.
        pub attr: PostOpAttr,
        /// Bytes read.
        pub count: u32,
        /// The file ended at the last of them.
        pub eof: bool,
        /// The bytes.
        pub data: Data,
    }
}

/// The data; a failure carries the file's attributes.
pub type Res = Result<Read, Failure<PostOpAttr>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(
        &Args { file: handle(), offset: 1 << 32, count: 4096 },
        &format!("{HANDLE} 00000001 00000000 00001000"),
    );
    vec![
        result::<Res>(
            &Ok(Read { attr: Some(attr()), count: 5, eof: true, data: "hello".into() }),
            &format!("00000000 00000001 {ATTR} 00000005 00000001 00000005 68656c6c 6f000000"),
            8,
        ),
        result::<Res>(&Err(Failure { status: Error::Io, rest: None }), "00000005 00000000", 0),
    ]
}
