//! The limit on open files (RLIMIT_NOFILE): connections, files and directories that stay open take a descriptor
//! each, and shells allow 1,024 by default.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// The limit is raised until this is dropped: other programs are started with the limit that this one got.
pub(crate) struct Raised {
    before: Rlimit,
}

/// Raises the limit as far as this user may.
pub(crate) fn raise() -> Raised {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!("cannot raise the limit of {:?} descriptors: {error}", before.current);
    }
    Raised { before }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // It was allowed before.
        let _ = setrlimit(Resource::Nofile, self.before);
    }
}
