//! MKNOD (RFC 1813 section 3.3.11).

use crate::v3::error::Failure;
use crate::v3::types::{Created, Device, DirOp, FileType, SetAttr, WccData};
use weir_xdr::{xdr_struct, xdr_union};

xdr_union! {
    /// What to make, by type (`mknoddata3`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum What {
        /// A regular file: not valid for this procedure.
        Reg = FileType::Reg,
        /// A directory: not with this procedure.
        Dir = FileType::Dir,
        /// A block device.
        Blk(DeviceData) = FileType::Blk,
        /// A character device.
        Chr(DeviceData) = FileType::Chr,
        /// A symbolic link: not valid for this procedure.
        Lnk = FileType::Lnk,
        /// A socket.
        Sock(SetAttr) = FileType::Sock,
        /// A named pipe.
        Fifo(SetAttr) = FileType::Fifo,
    }
}

xdr_struct! {
    /// A device to make (`devicedata3`).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DeviceData {
        /// Its attributes.
        pub set: SetAttr,
        /// Its numbers.
        pub device: Device,
    }

    /// What to make, and where.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The directory and the name in it.
        pub target: DirOp,
        /// What.
        pub what: What,
    }
}

/// The new file; a failure carries the directory around it.
pub type Res = Result<Created, Failure<WccData>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{
        DIR_OP, SET_ATTR, WCC, created, created_wire, dir_op, set_attr, wcc,
    };
    let data = || DeviceData { set: set_attr(), device: Device { major: 1, minor: 3 } };
    for (what, wire) in [
        (What::Reg, "00000001".into()),
        (What::Dir, "00000002".into()),
        (What::Blk(data()), format!("00000003 {SET_ATTR} 00000001 00000003")),
        (What::Chr(data()), format!("00000004 {SET_ATTR} 00000001 00000003")),
        (What::Lnk, "00000005".into()),
        (What::Sock(set_attr()), format!("00000006 {SET_ATTR}")),
        (What::Fifo(set_attr()), format!("00000007 {SET_ATTR}")),
    ] {
        weir_xdr::sample::check(&Args { target: dir_op(), what }, &format!("{DIR_OP} {wire}"));
    }
    vec![
        result::<Res>(&Ok(created()), &created_wire(), 0),
        result::<Res>(
            &Err(Failure { status: Error::BadType, rest: wcc() }),
            &format!("00002717 {WCC}"),
            0,
        ),
    ]
}
