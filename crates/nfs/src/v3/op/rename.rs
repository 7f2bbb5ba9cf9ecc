//! RENAME (RFC 1813 section 3.3.14).

use crate::v3::error::Failure;
use crate::v3::types::{DirOp, WccData};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to rename, and to what.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The old directory and name.
        pub from: DirOp,
        /// The new directory and name.
        pub to: DirOp,
    }

    /// The directories around the change.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Dirs {
        /// The old one.
        pub from: WccData,
        /// The new one.
        pub to: WccData,
    }
}

/// The directories around the change.
pub type Res = Result<Dirs, Failure<Dirs>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{DIR_OP, WCC, dir_op, wcc};
    weir_xdr::sample::check(&Args { from: dir_op(), to: dir_op() }, &format!("{DIR_OP} {DIR_OP}"));
    let dirs = || Dirs { from: wcc(), to: WccData::default() };
    vec![
        result::<Res>(&Ok(dirs()), &format!("00000000 {WCC} 00000000 00000000"), 0),
        result::<Res>(
            &Err(Failure { status: Error::XDev, rest: dirs() }),
            &format!("00000012 {WCC} 00000000 00000000"),
            0,
        ),
    ]
}
