//! What the client refuses: names, before it sends them, and in listings.

use weir_vfs::{Error, Result};

/// Longest name. Some servers cannot read a call with a longer one (Linux over NFSv3).
const MAX_NAME_BYTES: usize = 255;

/// Accepts a single component other than `.` and `..`.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    match (is_component(name), name.len() > MAX_NAME_BYTES) {
        (false, _) => Err(Error::Invalid),
        (true, true) => Err(Error::NameTooLong),
        (true, false) => Ok(()),
    }
}

/// Whether a name is a single component other than `.` and `..`: any other leads elsewhere, once it is part of a
/// path.
pub(super) fn is_component(name: &[u8]) -> bool {
    let is_other = name.is_empty() || name == b"." || name == b"..";
    !is_other && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
