//! What a change of a file's data takes from the file: set-user-ID and set-group-ID, unless the
//! superuser makes it.
//!
//! The kernel sees to that where a process writes for itself. Here the cache writes later, for
//! everybody; without this, whoever may write to a program that runs as its owner would be its owner.

use weir_pagecache::CachedFs;
use weir_vfs::{Attr, Caller, Result, SetAttr};

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// Takes away what `caller`'s change of the file's data takes away.
///
/// # Errors
/// Those of the store.
pub(crate) async fn shed(fs: &CachedFs, caller: &Caller, attr: &Attr) -> Result<()> {
    let shed = privileges(attr.mode);
    if shed == 0 || !matches!(caller, Caller::As(cred) if cred.uid != 0) {
        return Ok(());
    }
    let set = SetAttr { mode: Some(attr.mode & !shed), ..SetAttr::default() };
    fs.setattr(&Caller::Own, attr.id, &set).await?;
    Ok(())
}

/// The bits of a mode that whoever executes the file gains by. Set-group-ID without execution by
/// the group is no such (it once asked for mandatory locks).
fn privileges(mode: u32) -> u32 {
    let group = if mode & GROUP_EXECUTE != 0 { mode & SET_GID } else { 0 };
    mode & SET_UID | group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_group_id_counts_where_the_group_executes() {
        assert_eq!(privileges(0o6755), 0o6000);
        assert_eq!(privileges(0o6745), 0o4000);
        assert_eq!(privileges(0o2755), 0o2000);
        assert_eq!(privileges(0o1777), 0);
    }
}
