//! What the client refuses before it sends a request.

use weir_vfs::{Error, Result};

/// Longest name. Some servers cannot read a call with a longer one (Linux over NFSv3).
const MAX_NAME_BYTES: usize = 255;

/// Accepts a single component other than `.` and `..`.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    let bad = name.is_empty() || name == b"." || name == b".." || name.contains(&0);
    match (bad || name.contains(&b'/'), name.len() > MAX_NAME_BYTES) {
        (true, _) => Err(Error::Invalid),
        (false, true) => Err(Error::NameTooLong),
        (false, false) => Ok(()),
    }
}
