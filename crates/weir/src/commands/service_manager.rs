//! What the service manager is told (sd_notify(3)).

use sd_notify::NotifyState;
use tracing::debug;

/// Notifies systemd, if it started this process.
pub(super) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        debug!("cannot notify systemd: {error}");
    }
}
