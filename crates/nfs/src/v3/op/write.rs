//! WRITE (RFC 1813 section 3.3.7).

use crate::Data;
use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, Verifier, WccData};
use weir_xdr::{xdr_enum, xdr_struct};

xdr_enum! {
    /// How durable written data is.
    pub enum Stability {
        /// Not until COMMIT.
        Unstable = 0,
        /// The data is.
        DataSync = 1,
        /// The data and the file's attributes are.
        FileSync = 2,
    }
}

xdr_struct! {
    /// What to write.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub file: FileHandle,
        /// Offset of the first byte.
        pub offset: u64,
        /// Bytes to write.
        pub count: u32,
        /// Durability required before the reply.
        pub stable: Stability,
        /// The bytes.
        pub data: Data,
    }

    /// What was written.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Written {
        /// The file around the change.
        pub file: WccData,
        /// Bytes written.
        pub count: u32,
        /// Durability provided: at least the requested one.
        pub committed: Stability,
        /// If it differs from an earlier reply's, uncommitted data may be lost.
        pub verifier: Verifier,
    }
}

/// The result; a failure carries the file's attributes around the call.
pub type Res = Result<Written, Failure<WccData>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{HANDLE, WCC, handle, wcc};
    weir_xdr::sample::check(
        &Args {
            file: handle(),
            offset: 3,
            count: 5,
            stable: Stability::DataSync,
            data: "hello".into(),
        },
        &format!("{HANDLE} 00000000 00000003 00000005 00000001 00000005 68656c6c 6f000000"),
    );
    let written =
        Written { file: wcc(), count: 5, committed: Stability::FileSync, verifier: *b"verifier" };
    vec![
        result::<Res>(
            &Ok(written),
            &format!("00000000 {WCC} 00000005 00000002 76657269 66696572"),
            0,
        ),
        result::<Res>(
            &Err(Failure { status: Error::NoSpc, rest: wcc() }),
            &format!("0000001c {WCC}"),
            0,
        ),
    ]
}
