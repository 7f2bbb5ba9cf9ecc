//! SETATTR (RFC 1813 section 3.3.2).

use crate::v3::error::Failure;
use crate::v3::types::{FileHandle, SetAttr, Time, WccData};
use weir_xdr::xdr_struct;

xdr_struct! {
    /// What to set, and on what condition.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Args {
        /// The file.
        pub object: FileHandle,
        /// What to set.
        pub set: SetAttr,
        /// Only if this is the time of the last change ([`NotSync`](crate::v3::error::Error::NotSync)
        /// otherwise).
        pub guard: Option<Time>,
    }
}

/// The file around the change.
pub type Res = Result<WccData, Failure<WccData>>;

#[cfg(test)]
pub(crate) fn result_samples() -> Vec<(usize, usize)> {
    use super::result;
    use crate::v3::error::Error;
    use crate::v3::types::sample::{HANDLE, SET_ATTR, WCC, handle, set_attr, wcc};
    let guard = Some(Time { seconds: 5, nseconds: 6 });
    weir_xdr::sample::check(
        &Args { object: handle(), set: set_attr(), guard },
        &format!("{HANDLE} {SET_ATTR} 00000001 00000005 00000006"),
    );
    vec![
        result::<Res>(&Ok(wcc()), &format!("00000000 {WCC}"), 0),
        result::<Res>(
            &Err(Failure { status: Error::NotSync, rest: WccData::default() }),
            "00002712 00000000 00000000",
            0,
        ),
    ]
}
