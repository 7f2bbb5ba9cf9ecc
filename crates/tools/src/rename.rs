//! A rename within a store, as by mv(1).
//!
//! 1. A rename of a file to another of its own names does nothing (RFC 8881 section 18.26.3): the old name is
//!    removed instead.
//! 2. Two names of one directory may be one that the store takes for both (it folds case, say): that is not
//!    removed.

use crate::copy::fold;
use crate::listing::Listing;
use crate::mounts::Place;
use weir_vfs::{Caller, Error, FileKind, RenameFlags, Result};

/// Renames the file at `from` to the name at `to`, which is in the same store.
///
/// # Errors
/// Those of the store; [`Error::Busy`] for its root.
pub async fn rename(from: &Place, to: &Place, flags: RenameFlags) -> Result<()> {
    let (Some(old), Some(new)) = (&from.name, &to.name) else { return Err(Error::Busy) };
    let (old, new) = (from.dir.entry(old), to.dir.entry(new));
    if flags == RenameFlags::Replace && is_one_file(from, to) && are_two_entries(from, to).await? {
        return from.fs.unlink(&Caller::Own, old).await;
    }
    from.fs.rename(&Caller::Own, old, new, flags).await
}

/// Whether both places are names of one file.
fn is_one_file(from: &Place, to: &Place) -> bool {
    let (Some(attr), Some(there)) = (&from.attr, &to.attr) else { return false };
    attr.id == there.id && attr.kind != FileKind::Directory && attr.nlink > 1
}

/// Whether both places are entries, rather than one that the store takes for both.
async fn are_two_entries(a: &Place, b: &Place) -> Result<bool> {
    let (Some(first), Some(second)) = (&a.name, &b.name) else { return Ok(false) };
    if a.dir != b.dir || !may_be_one(first, second) {
        return Ok(true);
    }
    let mut sought = vec![first, second];
    let mut listing = Listing::of_names(&a.fs, a.dir);
    while let Some(entries) = listing.next().await? {
        sought.retain(|name| !entries.iter().any(|entry| entry.name == **name));
        if sought.is_empty() {
            return Ok(first != second);
        }
    }
    Ok(false)
}

/// Whether a file system may take two names in one directory for one.
pub fn may_be_one(a: &[u8], b: &[u8]) -> bool {
    fold(a) == fold(b)
}
