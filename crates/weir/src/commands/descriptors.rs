//! The limit on open files (RLIMIT_NOFILE): connections, files and directories that stay open take a descriptor
//! each, and shells allow 1,024 by default.

use super::soft_limit::{self, Raised};
use rustix::process::Resource;

/// Raises the limit as far as this user may.
pub(crate) fn raise() -> Raised {
    soft_limit::raise(Resource::Nofile)
}
