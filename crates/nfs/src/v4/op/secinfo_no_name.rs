//! SECINFO_NO_NAME (RFC 8881 section 18.45): security flavors for a file or its parent.

use crate::macros::samples;
use crate::v4::error::Error;
use crate::v4::types::SecInfo;
use weir_xdr::{List, xdr_enum};

xdr_enum! {
    /// Which file.
    pub enum Style {
        /// The current one.
        Current = 0,
        /// The directory that holds it.
        Parent = 1,
    }
}

/// Which file.
pub type Args = Style;

/// The flavors, best first. There is no current file afterwards.
pub type Res = Result<List<SecInfo, { super::secinfo::MAX_FLAVORS }>, Error>;

samples! {
    args: [Style::Parent => "00000001"],
    results: [
        Ok(List(vec![SecInfo::Flavor(1)])) => "00000000 00000001 00000001", variable 4;
        Err(Error::Stale) => "00000046";
    ],
}
