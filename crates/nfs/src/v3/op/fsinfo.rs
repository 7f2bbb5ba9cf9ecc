//! FSINFO (RFC 1813 section 3.3.19).

use crate::macros::wire_flags;
use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, PostOpAttr, Time};
use weir_xdr::xdr_struct;

wire_flags! {
    /// What a file system can do.
    pub struct Properties {
        /// Hard links.
        const LINK = 0x01;
        /// Symbolic links.
        const SYMLINK = 0x02;
        /// PATHCONF is the same for every file.
        const HOMOGENEOUS = 0x08;
        /// SETATTR can set times.
        const CAN_SET_TIME = 0x10;
    }
}

xdr_struct! {
    /// Which file system.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// A file in it.
        pub root: FileHandle,
    }

    /// Sizes and abilities of the server; sizes in bytes.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Info {
        /// Attributes of the file.
        pub attr: PostOpAttr,
        /// Largest READ.
        pub read_max: u32,
        /// Best size of a READ.
        pub read_preferred: u32,
        /// Preferred multiple of the size of a READ.
        pub read_multiple: u32,
        /// Largest WRITE.
        pub write_max: u32,
        /// Best size of a WRITE.
        pub write_preferred: u32,
        /// Preferred multiple of the size of a WRITE.
        pub write_multiple: u32,
        /// Best size of a READDIR.
        pub readdir_preferred: u32,
        /// Largest file.
        pub max_file_size: u64,
        /// How exact times are.
        pub time_delta: Time,
        /// What the file system can do.
        pub properties: Properties,
    }
}

/// Sizes and abilities; a failure carries the file's attributes.
pub type Res = Result<Info, Failure<PostOpAttr>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{ATTR, HANDLE, attr, handle};
    weir_xdr::sample::check(&Args { root: handle() }, HANDLE);
    let info = Info {
        attr: Some(attr()),
        read_max: 1,
        read_preferred: 2,
        read_multiple: 3,
        write_max: 4,
        write_preferred: 5,
        write_multiple: 6,
        readdir_preferred: 7,
        max_file_size: 8,
        time_delta: Time { seconds: 0, nseconds: 1 },
        properties: Properties::all(),
    };
    vec![
        result::<Res>(
            &Ok(info),
            &format!(
                "00000000 00000001 {ATTR} 00000001 00000002 00000003 00000004 00000005 00000006
                 00000007 00000000 00000008 00000000 00000001 0000001b"
            ),
            0,
        ),
        result::<Res>(
            &Err(Failure { status: Error::BadHandle, rest: None }),
            "00002711 00000000",
            0,
        ),
    ]
}
