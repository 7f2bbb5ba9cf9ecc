//! COMMIT (RFC 1813 section 3.3.21).

use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, Verifier, WccData};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to make durable.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub file: FileHandle,
        /// Offset of the first byte.
        pub offset: u64,
        /// Bytes; 0: to the end.
        pub count: u32,
    }

    /// It is durable.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Committed {
        /// The file around the call.
        pub file: WccData,
        /// If it differs from WRITE's, the data must be written again.
        pub verifier: Verifier,
    }
}

/// The verifier; a failure carries the file around the call.
pub type Res = Result<Committed, Failure<WccData>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{HANDLE, WCC, handle, wcc};
    weir_xdr::sample::check(
        &Args { file: handle(), offset: 0, count: 9 },
        &format!("{HANDLE} 00000000 00000000 00000009"),
    );
    vec![
        result::<Res>(
            &Ok(Committed { file: wcc(), verifier: *b"verifier" }),
            &format!("00000000 {WCC} 76657269 66696572"),
            0,
        ),
        result::<Res>(
            &Err(Failure { status: Error::Io, rest: wcc() }),
            &format!("00000005 {WCC}"),
            0,
        ),
    ]
}
