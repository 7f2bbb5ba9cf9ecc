//! Drops root's privileges, except those needed to serve files.
//!
//! 1. The server drops them before it starts the first thread, for all threads and for good: it also
//!    removes them from the bounding set, so that no executed program gets them back.
//! 2. It keeps the privileges needed to act as clients' users ([`KEPT`]). A thread that acts as a
//!    user has none of them: with the user id the kernel clears the rights over files
//!    (capabilities(7)).

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};
use tracing::{debug, info, warn};

/// Setting user and group ids, and root's rights over files, for clients' unsquashed root.
const KEPT: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD);

/// Drops unneeded privileges. Logs those that it cannot drop.
pub(super) fn give_up() {
    if let Err(error) = set_no_new_privs(true) {
        debug!("cannot set no_new_privs: {error}");
    }
    let Ok(now) = capabilities(None) else { return };
    if now.permitted.is_empty() {
        return;
    }
    // First, because dropping CAP_SETPCAP removes the right to do this.
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
        Ok(()) if kept == KEPT => info!("dropped all privileges except {kept:?}"),
        Ok(()) => info!("dropped all privileges except {kept:?}, or had none"),
        Err(error) => warn!("cannot drop privileges: {error}"),
    }
}
