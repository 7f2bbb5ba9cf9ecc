//! Root's privileges, given up but for those that serving files takes.
//!
//! 1. They are given up before the first thread is started, for all threads, and for good: out of
//!    the bounding set as well, and no program that is executed gets any back.
//! 2. What is kept is what acting as the users that clients are takes ([`KEPT`]). A thread that
//!    does act as one has none of it then: the kernel takes the rights over files away with the
//!    user (capabilities(7)).

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use tracing::{debug, info, warn};

/// Taking on users and groups; and what root may do to files, which is what a client that is root
/// is let do where it is not squashed.
const KEPT: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD);

/// Gives up what is not needed. What cannot be given up is said, and kept.
pub(super) fn give_up() {
    if let Err(error) = set_no_new_privs(true) {
        debug!("programs that are executed may gain privileges: {error}");
    }
    let Ok(now) = capabilities(None) else { return };
    if now.permitted.is_empty() {
        return;
    }
    // Before the right to do so is gone itself.
    for unneeded in (CapabilitySet::all() - KEPT).iter() {
        if capability_is_in_bounding_set(unneeded).unwrap_or(false)
            && let Err(error) = remove_capability_from_bounding_set(unneeded)
        {
            debug!("{unneeded:?} stays in the bounding set: {error}");
        }
    }
    let kept = now.permitted & KEPT;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    match set_capabilities(None, sets) {
        Ok(()) if kept == KEPT => info!("privileges but for {kept:?} are given up"),
        Ok(()) => info!("privileges but for {kept:?} are given up, or were not there"),
        Err(error) => warn!("cannot give up privileges: {error}"),
    }
}
