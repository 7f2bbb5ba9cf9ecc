//! A limit of this process that is raised for a while (getrlimit(2)).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// The limit is raised until this is dropped: other programs are started with the limit that this one got.
pub(crate) struct Raised {
    resource: Resource,
    before: Rlimit,
}

/// Raises a limit as far as this user may.
pub(crate) fn raise(resource: Resource) -> Raised {
    let before = getrlimit(resource);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    if let Err(error) = setrlimit(resource, raised) {
        warn!("cannot raise the limit of {:?} ({resource:?}): {error}", before.current);
    }
    Raised { resource, before }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // It was allowed before.
        let _ = setrlimit(self.resource, self.before);
    }
}
